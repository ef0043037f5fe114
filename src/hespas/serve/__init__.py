"""Serving: step times of an engine, a load of requests, and what latencies and rates follow.

`surface` predicts the time of an engine's iteration; `engine` says how engines fill iterations;
`load` makes requests; `simulation` runs them; `answer` gathers the figures.
"""
