"""New prices of a step with one cause changed.

In goes a `hespas.prediction.result.Prediction` with the options that it was made with; out come
rows: what was changed, how long the step then takes, and what part of it that gains. Nothing is
said that was not recomputed.

* `changes`: rates of the device, launches, links, imperfections, and regions priced again.
* `attention`: attention that is not fused, and kernels against the time of their bytes.
"""
