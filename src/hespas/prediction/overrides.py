"""Keyword arguments of the Python API for a prediction's options.

Each key is the name of a field of `hespas.prediction.options.PredictOptions`, or of a part of it,
which says what it does. Texts are read as on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from hespas.hardware.cluster import Cluster
    from hespas.hardware.jobs import Placement
    from hespas.hardware.system import System
    from hespas.hardware.variation import Variation
    from hespas.program.work import CustomCallCost


class _AnyModel(TypedDict, total=False):
    batch: int | None
    global_batch: int | None
    micro_batch: int | None
    micro_batches: int | None
    sequence: int | None
    attention: str | None
    remat: str | None
    scan: bool | None
    dtype: str | None
    settings: Mapping[str, str | int | float] | None
    prefill: bool
    decode: bool
    software: str | None


class ModelOverrides(_AnyModel, total=False):
    """How a model of the zoo is run (`hespas.sources.options.ModelOptions`)."""

    mesh: str | None


class _AnyPrediction(TypedDict, total=False):
    fidelity: str | None
    method: str | None
    overlap: Mapping[str, bool] | None
    place: str | None
    variation: Variation | str | Path
    pue: float | None


class PipelinedOverrides(_AnyModel, _AnyPrediction, total=False):
    """The options of a pipeline's prediction."""

    memory_bandwidth: float | str | None
    link_bandwidth: Sequence[str] | None
    schedule: str | None
    stage_layers: tuple[int, ...] | None
    ignore_memory: bool | None


class Overrides(ModelOverrides, _AnyPrediction, total=False):
    """The options of a prediction.

    The workload, the node and the system are arguments of their own.
    """

    devices: int | None
    eager: bool
    torch_version: str | None
    trip_counts: Mapping[str, int] | None
    branch_weights: Mapping[str, tuple[float, ...]] | None
    kernels: str | Path | None
    tokens: int | None
    samples: int | None
    model_flops: float | str | None
    parameters: float | str | None
    expert_load: str | Path | None
    strategy: str | None
    merge: bool | None
    block_limit: int | None
    separator: str | None
    separator_policy: str | None
    peak_flops: float | str | None
    memory_bandwidth: float | str | None
    host_bandwidth: float | str | None
    per_datatype_flops: Mapping[str, float] | str | None
    launch_overhead_s: float | str | None
    host_launch_s: float | str | None
    cuda_graphs: bool
    power_limit_w: float | str | None
    clocks: str | None
    custom_calls: Mapping[str, CustomCallCost] | None
    threads: int | None
    cache_dir: str | Path | None
    disable_cache: bool | None
    in_memory_only_cache: bool | None
    cluster: System | str | None
    model: str | None
    network: str | None
    algorithm: str | None
    link_bandwidth: Sequence[str] | None
    imperfect: Cluster | str | Path | None
    jobs: int
    placement: Placement | str
