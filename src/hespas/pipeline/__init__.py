"""The pipeline: the one composition of all stages, from what is to run to a prediction.

In come `hespas.options.PredictOptions`; out comes a `hespas.prediction.Prediction`. The command
line, the Python API, ``validate`` and ``calibrate`` call the functions named here and no others, so
that the same options give the same prediction from each of them.

* `composition`: the stages, whole (`predict`) or one by one: `prepare` does what predictions of
  one program on one system share, `price` and `finish` the rest, so that several methods, devices
  or network models reuse a divided program.
* `folded`: predictions with a few rounds of each loop, where all are alike.
* `loading`: from what the workload is to its program: exported, compiled, fused, or as it is.
* `checks`: what is refused, before anything that takes time wherever that is possible.
* `estimators`: the method that prices regions. `workload`: what runs, and what a step takes in.
* `staged`: pipelines of several programs (`predict_pipeline`): `cutting` says what the programs
  are and refuses what doesn't fit, `fitting` whether memory holds the stages, `passes` what a pass
  takes, `exchange` what stages send to each other; `answer` is what comes out.
* `caches`: where what was made is kept. `machines`: the device, the system, the network's model.
"""

from __future__ import annotations

from hespas.pipeline.answer import PartCost, PipelinePrediction
from hespas.pipeline.caches import compiled_directory, prices_of, store_of
from hespas.pipeline.checks import check_priced, checked
from hespas.pipeline.composition import (
    Prepared,
    divide,
    finish,
    load_alone,
    predict,
    prepare,
    prepare_alone,
    price,
    settle,
    simulate,
)
from hespas.pipeline.cutting import Cut, cut_of, is_pipeline
from hespas.pipeline.estimators import estimator_of
from hespas.pipeline.fitting import least_memory
from hespas.pipeline.folded import predict_folded
from hespas.pipeline.loading import load, read_kernels
from hespas.pipeline.machines import (
    device_name,
    device_of,
    host_bandwidth,
    model_of,
    system_of,
)
from hespas.pipeline.staged import predict_pipeline
from hespas.pipeline.workload import mesh_of, source_of, work_of, workload_digest

__all__ = [
    "Cut",
    "PartCost",
    "PipelinePrediction",
    "Prepared",
    "check_priced",
    "checked",
    "compiled_directory",
    "cut_of",
    "device_name",
    "device_of",
    "divide",
    "estimator_of",
    "finish",
    "host_bandwidth",
    "is_pipeline",
    "least_memory",
    "load",
    "load_alone",
    "mesh_of",
    "model_of",
    "predict",
    "predict_folded",
    "predict_pipeline",
    "prepare",
    "prepare_alone",
    "price",
    "prices_of",
    "read_kernels",
    "settle",
    "simulate",
    "source_of",
    "store_of",
    "system_of",
    "work_of",
    "workload_digest",
]
