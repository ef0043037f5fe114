"""Predictions as pages: one HTML file that opens in any browser and asks for nothing else.

`document` is the page itself with its tables and charts, `specs` what charts share; `step` is the
page of one prediction, with `icicle` and `kernels`, `comparison` that of several, `study`
that of a study, with `candidates` and `scaling`. `stages` are those of a pipeline, `images` draws
charts as pictures.
"""
