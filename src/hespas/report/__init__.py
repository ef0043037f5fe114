"""Render results as text, JSON, pages and timelines.

Figures come from `hespas.prediction.figures` and from results of single stages. `run` is the text
of a step, `answers` a prediction in Python with the data of its charts, `compare` two results.
`hardware`, `regions` and `stages` show single stages and presets. `text` holds pieces that texts
share, `page` is HTML, and `timeline` files for Perfetto and Chrome.
"""
