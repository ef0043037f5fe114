"""What would change a step: the step priced again with one cause of its time changed.

In goes a `hespas.prediction.result.Prediction` with the options that it was made with; out come
rows: what was changed, how long the step then takes, and what part of it that gains. Nothing is
said that was not recomputed.

* `changes`: rates of the device, launches, links, imperfections.
* `attention`: attention that is not fused, and what it would take as one kernel.
* `kernels`: kernels against what their bytes take at the peak bandwidth.
* `pricing`: the regions of a prediction by another estimator; `rows`: the tasks that they make.
"""
