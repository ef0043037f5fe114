"""The pipeline as functions: its stages one by one, and all of it at once.

They are a thin face of `hespas.pipeline`, `hespas.measure` and `hespas.study`. Each imports what it
needs when it is called: ``import hespas`` stays light.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hespas.steps import (
    METHOD,
    check_kind,
    estimate,
    estimate_options,
    load,
    optimise,
    optimize,
    simulate,
    split,
    trace,
)

if TYPE_CHECKING:
    from hespas.compile.options import CompileOptions
    from hespas.cost.custom_call import CustomCallCost
    from hespas.goodput.options import GoodputOptions
    from hespas.hardware.cluster import Cluster
    from hespas.hardware.device import Device
    from hespas.hardware.system import System
    from hespas.measure.measured import Measurement
    from hespas.pipeline import PipelinePrediction
    from hespas.prediction import Prediction
    from hespas.program.program import Program
    from hespas.study.studied import Studied
    from hespas.study.study import Study

__all__ = [
    "estimate",
    "load",
    "measure",
    "optimise",
    "optimize",
    "predict",
    "predict_pipeline",
    "simulate",
    "split",
    "study",
    "trace",
]


def predict(
    workload: Program | str | Path,
    node: Device | str | Path | None = None,
    system: System | str | Path | None = None,
    *,
    cluster: System | str | None = None,
    fidelity: str = "auto",
    devices: int | None = None,
    trip_counts: Mapping[str, int] | None = None,
    branch_weights: Mapping[str, tuple[float, ...]] | None = None,
    kernels: str | Path | None = None,
    mesh: str | None = None,
    batch: int | None = None,
    global_batch: int | None = None,
    micro_batch: int | None = None,
    micro_batches: int | None = None,
    sequence: int | None = None,
    attention: str | None = None,
    remat: str | None = None,
    scan: bool | None = None,
    dtype: str | None = None,
    settings: Mapping[str, str] | None = None,
    place: str | None = None,
    overlap: Mapping[str, bool] | None = None,
    tokens: int | None = None,
    samples: int | None = None,
    model_flops: float | None = None,
    parameters: float | None = None,
    expert_load: str | Path | None = None,
    compiler: CompileOptions | None = None,
    method: str | None = None,
    peak_flops: float | None = None,
    memory_bandwidth: float | None = None,
    host_bandwidth: float | None = None,
    per_datatype_flops: Mapping[str, float] | None = None,
    launch_overhead_s: float | None = None,
    power_limit_w: float | None = None,
    clocks: str = "sustained",
    pue: float = 1.0,
    custom_calls: Mapping[str, CustomCallCost] | None = None,
    threads: int = 1,
    cache_dir: str | Path | None = None,
    disable_cache: bool = False,
    in_memory_only_cache: bool = False,
    strategy: str = "linear_split",
    merge: bool = False,
    block_limit: int | None = None,
    separator: str = "is_communication_op",
    separator_policy: str = "isolated",
    model: str | None = None,
    network: str | None = None,
    algorithm: str | None = None,
    link_bandwidth: Sequence[str] = (),
    imperfect: Cluster | str | Path | None = None,
    long_run: GoodputOptions | None = None,
) -> Prediction:
    """Predict how long one step of a program takes, on devices of one type.

    The arguments are those of ``hespas run``. ``workload`` is a program, its file, a model of the
    zoo or ``package.module:function``; ``mesh``, the batches, ``sequence``, ``attention``,
    ``remat``, ``scan``, ``dtype`` and ``settings`` (``--set``) are for models, and ``place`` says
    where the axes of their mesh lie; one that is divided into stages is for `predict_pipeline`.
    ``overlap`` may have ``{"experts": True}``: all-to-alls of routed experts run beside shared
    ones. ``tokens`` and ``samples`` are what a step takes in, ``model_flops`` what the model needs
    for it, or ``parameters`` those that a token meets. ``expert_load`` is how many tokens
    each expert gets: ``uniform``, or a file. ``cluster`` is ``COUNTxPART``, ``system`` a
    description, a preset's name or a directory; a program that communicates needs one of them.
    ``node`` is a description, a preset's name or a path, also that of a configuration (``.json``)
    of another method than the roofline; by default it is the cluster's part.
    ``fidelity`` is what is priced: ``compiled``, ``fused``, ``library``, ``exported``, or by
    default (``auto``) the first of them that can be had, but for ``library``; ``compiler`` has the
    options of a compilation. The strategy and what follows it are those of `split`, ``model`` and
    what follows it those of `simulate`; ``link_bandwidth`` holds texts, as in ``["1=x0.5"]``;
    ``imperfect`` is what is not perfect, or its file. ``long_run``, an option group of its own, has
    the answer say what a long run reaches on devices that fail. Raises
    `hespas.errors.HespasError`, as the other functions do.

    >>> prediction = predict("examples/attention_block.mlir", "A100_SXM_40GB",
    ...                      "A100_SXM_40GB_4GPU", fidelity="exported", model="astra-sim")
    >>> prediction.devices, round(prediction.step_time_s * 1e6, 1)
    (4, 27.6)
    """
    from hespas import pipeline
    from hespas.compile.options import DEFAULT_OPTIONS
    from hespas.config.expert_load import ExpertOptions, parse_expert_load
    from hespas.config.fields import changed
    from hespas.config.suggest import choice
    from hespas.errors import ConfigError, option
    from hespas.estimate.clocks import Clocks, PowerOptions
    from hespas.export.options import ModelOptions
    from hespas.goodput.options import GoodputOptions
    from hespas.hardware.cluster import read_cluster
    from hespas.hardware.device import Device
    from hespas.hardware.system import System
    from hespas.models.model import parse_mesh
    from hespas.models.placement import parse_place
    from hespas.option_texts import parse_link_bandwidths
    from hespas.options import (
        CompileChoice,
        EnergyOptions,
        EstimateOptions,
        Fidelity,
        NetworkOptions,
        PredictOptions,
        ProgramOptions,
        StepOptions,
    )
    from hespas.pipelining.options import PipelineOptions
    from hespas.program.program import Program
    from hespas.simulate.astra.messages import contention_model_named
    from hespas.simulate.models import model_named
    from hespas.split.strategies import split_options

    check_kind(workload, (Program, str, Path), "a program or its file", "give one of these")
    check_kind(
        node, (Device, str, Path, type(None)), "a device or its name", "name a preset or a path"
    )
    check_kind(system, (System, str, Path, type(None)), "a system or its name", "name a preset")
    check_kind(cluster, (System, str, type(None)), "a cluster", "write it as in 32xH100_80GB")
    check_kind(method, (str, type(None)), *METHOD)
    if system is not None and cluster is not None:
        raise ConfigError("both a cluster and a system are given", hint="drop one")
    program = workload if isinstance(workload, Program) else None
    of_model = ModelOptions(
        mesh=None if mesh is None else parse_mesh(mesh),
        batch=batch,
        global_batch=global_batch,
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        sequence=sequence,
        attention=attention,
        remat=remat,
        scan=scan,
        dtype=dtype,
        more=settings or {},
    )
    if program is not None and of_model != ModelOptions():
        raise ConfigError(
            f"{option(changed(of_model)[0])} has no effect on a program", hint="drop it"
        )
    described = EstimateOptions() if node is None else estimate_options(node, method=method)
    options = PredictOptions(
        program=ProgramOptions(
            file=None if isinstance(workload, Program) else Path(workload),
            devices=devices,
            trip_counts=trip_counts or {},
            branch_weights=branch_weights or {},
            kernels=None if kernels is None else Path(kernels),
            model=of_model,
        ),
        step=StepOptions(
            tokens=tokens, samples=samples, model_flops=model_flops, parameters=parameters
        ),
        experts=ExpertOptions(
            expert_load=None if expert_load is None else parse_expert_load(str(expert_load))
        ),
        energy=EnergyOptions(pue=pue),
        compile=CompileChoice(
            fidelity=choice(fidelity, Fidelity, what="the fidelity"),
            options=compiler or DEFAULT_OPTIONS,
        ),
        pipeline=PipelineOptions(overlap=overlap or {}),
        split=split_options(
            strategy=strategy,
            merge=merge,
            block_limit=block_limit,
            separator=separator,
            separator_policy=separator_policy,
        ),
        estimate=replace(
            described,
            method=method or described.method,
            peak_flops=peak_flops,
            memory_bandwidth=memory_bandwidth,
            host_bandwidth=host_bandwidth,
            per_datatype_flops=per_datatype_flops,
            launch_overhead_s=launch_overhead_s,
            power=PowerOptions(
                power_limit_w=described.power.power_limit_w
                if power_limit_w is None
                else power_limit_w,
                clocks=choice(clocks, Clocks, what="the clock"),
            ),
            custom_calls=custom_calls or {},
            threads=threads,
            cache_dir=None if cache_dir is None else Path(cache_dir),
            disable_cache=disable_cache,
            in_memory_only_cache=in_memory_only_cache,
        ),
        network=NetworkOptions(
            cluster=cluster,
            system=system,
            model=None if model is None else model_named(model),
            network=None if network is None else contention_model_named(network),
            algorithm=algorithm,
            place=None if place is None else parse_place(place),
            link_bandwidth=parse_link_bandwidths(link_bandwidth),
            imperfect=(
                read_cluster(Path(imperfect)) if isinstance(imperfect, str | Path) else imperfect
            ),
        ),
        long_run=GoodputOptions() if long_run is None else long_run,
    )
    if pipeline.is_pipeline(options):
        raise ConfigError(
            f"the mesh {mesh} divides the model into stages", hint="call hespas.predict_pipeline"
        )
    return pipeline.predict(options, program=program)


def predict_pipeline(
    model: str,
    cluster: System | str,
    *,
    mesh: str,
    node: Device | str | Path | None = None,
    schedule: str | None = None,
    stage_layers: tuple[int, ...] | None = None,
    overlap: Mapping[str, bool] | None = None,
    ignore_memory: bool = False,
    place: str | None = None,
    memory_bandwidth: float | None = None,
    link_bandwidth: Sequence[str] = (),
    batch: int | None = None,
    global_batch: int | None = None,
    micro_batch: int | None = None,
    micro_batches: int | None = None,
    sequence: int | None = None,
    attention: str | None = None,
    remat: str | None = None,
    dtype: str | None = None,
    settings: Mapping[str, str] | None = None,
    fidelity: str = "auto",
    method: str | None = None,
    network_model: str | None = None,
    pue: float = 1.0,
    long_run: GoodputOptions | None = None,
) -> PipelinePrediction:
    """Predict a step of a model of the zoo that is divided into stages with programs of their own.

    It is ``hespas run`` with an axis ``pipe`` in the ``mesh``. ``schedule`` is a name, as ``1f1b``
    and ``interleaved:4``, or a file; ``stage_layers`` are the layers of each part, and ``overlap``
    says what is hidden, as in ``{"tp": False}``. A stage that cannot fit into memory is refused
    unless ``ignore_memory`` is set. ``network_model`` is ``model`` of `simulate`; all
    else is as in `predict`. Raises what `hespas.pipeline.predict_pipeline` raises.

    >>> found = predict_pipeline("llama3-100m", "2xH100_80GB", mesh="pipe=2", global_batch=8,
    ...                          sequence=256, fidelity="fused", settings={"layers": "2"})
    >>> found.devices, found.cut.schedule.name, len(found.stages)
    (2, '1f1b', 2)
    """
    from hespas import pipeline
    from hespas.config.suggest import choice
    from hespas.errors import ConfigError
    from hespas.export.options import ModelOptions
    from hespas.goodput.options import GoodputOptions
    from hespas.hardware.device import Device
    from hespas.hardware.system import System
    from hespas.models.model import parse_mesh
    from hespas.models.placement import parse_place
    from hespas.option_texts import parse_link_bandwidths
    from hespas.options import (
        CompileChoice,
        EnergyOptions,
        EstimateOptions,
        Fidelity,
        NetworkOptions,
        PredictOptions,
        ProgramOptions,
    )
    from hespas.pipelining.options import PipelineOptions, parse_schedule
    from hespas.simulate.models import model_named

    check_kind(model, str, "a model's name", "hespas export --list has them")
    check_kind(cluster, (System, str), "a cluster", "write it as in 32xH100_80GB")
    check_kind(
        node, (Device, str, Path, type(None)), "a device or its name", "name a preset or a path"
    )
    described = EstimateOptions() if node is None else estimate_options(node, method=method)
    options = PredictOptions(
        program=ProgramOptions(
            file=Path(model),
            model=ModelOptions(
                mesh=parse_mesh(mesh),
                batch=batch,
                global_batch=global_batch,
                micro_batch=micro_batch,
                micro_batches=micro_batches,
                sequence=sequence,
                attention=attention,
                remat=remat,
                dtype=dtype,
                more=settings or {},
            ),
        ),
        pipeline=PipelineOptions(
            schedule=None if schedule is None else parse_schedule(schedule),
            stage_layers=stage_layers,
            overlap=overlap or {},
            ignore_memory=ignore_memory,
        ),
        energy=EnergyOptions(pue=pue),
        compile=CompileChoice(fidelity=choice(fidelity, Fidelity, what="the fidelity")),
        estimate=replace(
            described, method=method or described.method, memory_bandwidth=memory_bandwidth
        ),
        network=NetworkOptions(
            cluster=cluster,
            model=None if network_model is None else model_named(network_model),
            place=None if place is None else parse_place(place),
            link_bandwidth=parse_link_bandwidths(link_bandwidth),
        ),
        long_run=GoodputOptions() if long_run is None else long_run,
    )
    if not pipeline.is_pipeline(options):
        raise ConfigError(
            f"the mesh {mesh} has no axis pipe of several stages", hint="call hespas.predict"
        )
    return pipeline.predict_pipeline(options)


def measure(
    workload: str | Path,
    *,
    platform: str = "auto",
    devices: int | None = None,
    steps: int = 10,
    warm_up: int = 3,
    mesh: str | None = None,
    batch: int | None = None,
    global_batch: int | None = None,
    micro_batch: int | None = None,
    micro_batches: int | None = None,
    sequence: int | None = None,
    attention: str | None = None,
    remat: str | None = None,
    scan: bool | None = None,
    dtype: str | None = None,
    settings: Mapping[str, str] | None = None,
    xla_flags: Mapping[str, str] | None = None,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    time_limit_s: float = 1800.0,
) -> Measurement:
    """Run a step on the devices that are there, and time it, as ``hespas measure`` does.

    ``workload`` is a program's file, a model of the zoo, which ``mesh`` and what follows it to
    ``settings`` are for, or ``package.module:function``. ``platform`` is ``cpu`` (virtual devices),
    ``gpu``, ``tpu``, or the best there is (``auto``). ``coordinator``, ``num_processes`` and
    ``process_id`` are those of ``jax.distributed``, on several hosts. JAX is started in a process
    of its own. What it returns holds all durations; its ``error_of(prediction)`` is how far off a
    prediction of `predict` is. Raises what `hespas.measure.measured.measure_step` raises.

    >>> measured = measure("gemm", platform="cpu", steps=3, settings={"m": "8", "n": "8", "k": "8"})
    >>> measured.devices, measured.platform, len(measured.durations_s)
    (1, 'cpu', 3)
    """
    from hespas.compile.options import CompileOptions
    from hespas.config.suggest import choice
    from hespas.export.options import ModelOptions
    from hespas.measure.measured import measure_step
    from hespas.measure.options import MeasureOptions, Platform
    from hespas.models.model import parse_mesh
    from hespas.options import CompileChoice, PredictOptions, ProgramOptions

    check_kind(workload, (str, Path), "a program's file or a model", "give one of these")
    of_model = ModelOptions(
        mesh=None if mesh is None else parse_mesh(mesh),
        batch=batch,
        global_batch=global_batch,
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        sequence=sequence,
        attention=attention,
        remat=remat,
        scan=scan,
        dtype=dtype,
        more=settings or {},
    )
    how = MeasureOptions(
        platform=choice(platform, Platform, what="the platform"),
        steps=steps,
        warm_up=warm_up,
        coordinator=coordinator,
        num_processes=num_processes,
        process_id=process_id,
        time_limit_s=time_limit_s,
    )
    options = PredictOptions(
        program=ProgramOptions(file=Path(workload), devices=devices, model=of_model),
        compile=CompileChoice(options=CompileOptions(flags=xla_flags or {})),
    )
    return measure_step(options, how)


def study(
    what: Study | Mapping[str, object] | str | Path,
    directory: str | Path,
    *,
    executor: str = "local",
    scheduler: str | None = None,
    workers: int | None = None,
    time_limit_s: float = 1800.0,
) -> Studied:
    """Compare many configurations, as ``hespas study run`` does, or go on with a study.

    ``what`` is a study, the keys of one, or its YAML file; its results live in ``directory``.
    ``executor`` is ``local``, ``workers`` processes of this machine at a time, or ``dask``, on the
    cluster of ``scheduler``. ``time_limit_s`` is how long one prediction may take. What it returns
    has the rows in the order of the goal, and ``table()`` for pandas and polars. Raises what
    `hespas.study.studied.studied` raises.

    >>> import tempfile
    >>> found = study({"model": "gemm", "node": ["A100_SXM_40GB", "H100_80GB"],
    ...                "fidelity": "exported"}, tempfile.mkdtemp(), workers=1)
    >>> [row["candidate.node"] for row in found.table()]
    ['H100_80GB', 'A100_SXM_40GB']
    """
    from hespas.config.suggest import choice
    from hespas.study.executor import ExecutorOptions, Place
    from hespas.study.studied import studied
    from hespas.study.study import Study, read_study, study_of

    check_kind(what, (Study, Mapping, str, Path), "a study", "give its keys or its file")
    match what:
        case Study():
            chosen = what
        case str() | Path():
            chosen = read_study(Path(what))
        case _:
            chosen = study_of(what)
    options = ExecutorOptions(
        executor=choice(executor, Place, what="the executor"),
        scheduler=scheduler,
        workers=workers,
        time_limit_s=time_limit_s,
    )
    return studied(chosen, Path(directory), executor=options)
