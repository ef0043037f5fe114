"""Results as text, JSON, pages and timelines.

Figures come from `hespas.prediction.figures` and from results of single stages; here they are
rendered. `run` is the text of a step, `answers` a prediction in Python and what charts of it are
drawn from, `compare` two results. `hardware`, `regions` and `stages` show single stages and
presets. `text` is what texts share, `page` HTML, and `timeline` files for Perfetto and Chrome.
"""
