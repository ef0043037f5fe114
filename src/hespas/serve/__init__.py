"""Serving: latencies and rates, from an engine's step times and a load.

`surface` predicts the time of an engine's iteration; `engine` says how engines fill iterations;
`load` makes requests; `simulation` runs them; `answer` gathers the figures.
"""
