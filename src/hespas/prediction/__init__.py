"""The composition of all stages into a prediction.

In come `hespas.prediction.options.PredictOptions`; out comes a
`hespas.prediction.result.Prediction`, or of a model in stages with programs of their own a
`hespas.prediction.answer.PipelinePrediction`. The command line, the Python API, ``validate`` and
``calibrate`` call the functions of these modules, so that the same options give the same prediction
from each of them.

* `composition`: the stages, whole (`predict`) or one by one: `prepare` does what predictions of
  one program on one system share, `price` and `finish` the rest, so that several methods, devices
  or network models reuse a divided program; `predict_folded` simulates a few rounds of each loop.
* `workload`: what runs, and what a step takes in. `loading`: from that to its program: exported,
  compiled, fused, or as it is. `checks`: what is refused, before anything that takes time.
* `staged`: pipelines of several programs: `cutting` says what the programs are and refuses what
  doesn't fit, `passes` what a pass takes and what stages send to each other.
* `machines`: the device, the system, the network's model, the method, and where results are kept.
"""
