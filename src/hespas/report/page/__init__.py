"""Results as HTML pages that need no network.

`document` is the page itself with its tables, the pieces that charts share, and charts as pictures.
`step` is the page of one prediction, with `kernels`; `comparison` that of several; `study` that of
a study, with `scaling`.
"""
