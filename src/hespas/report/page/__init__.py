"""Results as pages: one HTML file that opens in any browser and asks for nothing else.

`document` is the page itself with its tables, what charts share, and charts as pictures. `step` is
the page of one prediction, with `kernels`; `comparison` that of several; `study` that of a study,
with `scaling`.
"""
