"""The pipeline: the one composition of all stages, from what is to run to a prediction.

In come `hespas.prediction.options.PredictOptions`; out comes a
`hespas.prediction.result.Prediction`. The command line, the Python API, ``validate`` and
``calibrate`` call the functions of these modules, so that the same options give the same prediction
from each of them.

* `composition`: the stages, whole (`predict`) or one by one: `prepare` does what predictions of
  one program on one system share, `price` and `finish` the rest, so that several methods, devices
  or network models reuse a divided program.
* `folded`: predictions with a few rounds of each loop, where all are alike.
* `loading`: from what the workload is to its program: exported, compiled, fused, or as it is.
* `checks`: what is refused, before anything that takes time wherever that is possible.
* `estimators`: the method that prices regions. `workload`: what runs, and what a step takes in.
* `staged`: pipelines of several programs (`predict_pipeline`): `cutting` says what the programs
  are, refuses what doesn't fit and says whether memory holds the stages, `passes` what a pass
  takes, `exchange` what stages send to each other; `answer` is what comes out.
* `caches`: where what was made is kept. `machines`: the device, the system, the network's model.
"""
