"""The pipeline as functions: load, split, estimate, trace, simulate, and all of it at once.

They are a thin face of `hespas.pipeline`.

The functions take and give plain values, so that each stage can be run alone, looked at and
replaced. Each imports its stage when it is called: ``import hespas`` stays light.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hespas.compile.options import CompileOptions
    from hespas.cost.rules.custom_call import CustomCallCost
    from hespas.estimate.cache import Store
    from hespas.estimate.graph import GraphEstimate
    from hespas.estimate.roofline import RooflineOptions
    from hespas.goodput.options import GoodputOptions
    from hespas.hardware.cluster import Cluster
    from hespas.hardware.device import Device
    from hespas.hardware.system import System
    from hespas.measure.measured import Measurement
    from hespas.options import EstimateOptions
    from hespas.pipeline import PipelinePrediction
    from hespas.prediction import Prediction
    from hespas.program.program import Program
    from hespas.schedule.tasks import Job, TaskGraph
    from hespas.simulate.timeline import Timeline
    from hespas.split.regions import RegionGraph
    from hespas.study.studied import Studied
    from hespas.study.study import Study


def load(
    path: str | Path,
    *,
    devices: int | None = None,
    trip_counts: Mapping[str, int] | None = None,
    branch_weights: Mapping[str, tuple[float, ...]] | None = None,
) -> Program:
    """Read a program: StableHLO text, MLIR bytecode or a portable artifact.

    ``devices`` is for a program that doesn't say on how many it runs. ``trip_counts`` and
    ``branch_weights`` map a line of the file, or ``""`` for all, to what the program leaves
    open. A sharded program is partitioned first, and its assumptions say so. Raises
    `hespas.errors.ProgramError` for a file that is no program, `UnsupportedError` for what has
    no model, `DeviceCountError` where ``devices`` disagrees with it.

    >>> program = load("examples/attention_block.mlir")
    >>> len(program.main.body.operations)
    8
    """
    from hespas.options import AS_GIVEN, PredictOptions, ProgramOptions
    from hespas.pipeline import load_alone

    given = ProgramOptions(
        file=Path(path),
        devices=devices,
        trip_counts=trip_counts or {},
        branch_weights=branch_weights or {},
    )
    return load_alone(PredictOptions(program=given, compile=AS_GIVEN))


def optimise(
    workload: str | Path,
    node: str,
    system: System | str | None = None,
    *,
    devices: int | None = None,
    options: CompileOptions | None = None,
) -> Program:
    """Return a StableHLO program as XLA optimises and schedules it for a node that isn't there.

    ``node`` is a preset's name. ``devices``, or else the ``system``, says how many there are, where
    the program doesn't. The result is cached in the user's cache directory;
    `predict` takes it in a program's place, and knows its kernels. Raises
    `hespas.errors.ExtraMissingError` without the compiler (``hespas[gpu]``, ``hespas[tpu]``), and
    what `hespas.compile.compiler.compile_program` raises.
    """
    from hespas.compile.options import DEFAULT_OPTIONS
    from hespas.hardware.sized import find_system
    from hespas.options import (
        CompileChoice,
        EstimateOptions,
        Fidelity,
        PredictOptions,
        ProgramOptions,
    )
    from hespas.pipeline import load as load_program

    chosen = PredictOptions(
        program=ProgramOptions(file=Path(workload), devices=devices),
        compile=CompileChoice(fidelity=Fidelity.COMPILED, options=options or DEFAULT_OPTIONS),
        estimate=EstimateOptions(node=node),
    )
    return load_program(chosen, system=find_system(system) if isinstance(system, str) else system)


optimize = optimise
"""The same, as JAX and XLA spell it."""


def split(
    program: Program,
    *,
    strategy: str = "linear_split",
    merge: bool = False,
    block_limit: int | None = None,
    separator: str = "is_communication_op",
    separator_policy: str = "isolated",
) -> RegionGraph:
    """Cut a program into regions of computation and communication.

    The keywords are the documented ones of configuration files. Raises
    `hespas.errors.ConfigError` for values that are unknown or have no effect together.

    >>> graph = split(load("examples/attention_block.mlir"), strategy="individual_split")
    >>> len(graph.compute_regions), len(graph.collective_regions)
    (6, 1)
    """
    from hespas.program.program import Program
    from hespas.split.strategies import split_options, split_program

    _check(program, Program, "a program", "load it first: hespas.load(path)")
    options = split_options(
        strategy=strategy,
        merge=merge,
        block_limit=block_limit,
        separator=separator,
        separator_policy=separator_policy,
    )
    return split_program(program, options)


def estimate(
    graph: RegionGraph,
    device: Device | str | Path,
    *,
    method: str | None = None,
    options: RooflineOptions | None = None,
    custom_calls: Mapping[str, CustomCallCost] | None = None,
    store: Store | None = None,
    threads: int = 1,
) -> GraphEstimate:
    """Price every compute region on a device, preset or configuration, given by name or path.

    ``method`` names the estimator (`hespas.estimate.methods.METHODS`); by default it is that of
    the configuration, or else measured tables for a compiled program on a device that has some,
    and the roofline for all others. A method that uses no such device, as ``xla`` or ``systolic``,
    takes the path of a configuration of its own (``.json``) in its place. ``options`` are the
    roofline's. Equal regions are priced once. ``store`` keeps answers between calls; by default
    they last as long as the call. Raises `hespas.errors.CostError` for work that is not known,
    `ConfigError` for a device that the method doesn't use.

    >>> graph = split(load("examples/attention_block.mlir"))
    >>> round(estimate(graph, "A100_SXM_40GB").total.time_s * 1e6, 1)
    14.8
    """
    from hespas.estimate.cache import MemoryStore
    from hespas.hardware.device import Device
    from hespas.options import PredictOptions
    from hespas.pipeline import Prepared, price
    from hespas.split.modules import region_modules
    from hespas.split.regions import RegionGraph

    _check(graph, RegionGraph, "a region graph", "split a program: hespas.split(program)")
    _check(device, (Device, str, Path), "a device or its name", "name a preset or a path")
    _check(method, (str, type(None)), *_METHOD)
    priced = _estimate_options(
        device, method=method, roofline=options, custom_calls=custom_calls or {}, threads=threads
    )
    return price(
        Prepared(graph=graph, modules=region_modules(graph)),
        PredictOptions(estimate=priced),
        store=MemoryStore() if store is None else store,
    )


def trace(
    graph: RegionGraph,
    estimates: GraphEstimate,
    *,
    host_bandwidth_bytes_per_s: float | None = None,
) -> TaskGraph:
    """Make the task graph of all devices.

    `hespas.schedule.chakra.writer.write_traces` writes it to files. A program that moves data
    between devices and their hosts needs the bandwidth of the link, in each direction.

    >>> graph = split(load("examples/attention_block.mlir"))
    >>> [task.name for task in trace(graph, estimate(graph, "A100_SXM_40GB")).tasks]
    ['region_0', 'all_reduce_1']
    """
    from hespas.estimate.graph import GraphEstimate
    from hespas.schedule.build import estimated_tasks
    from hespas.split.regions import RegionGraph

    _check(graph, RegionGraph, "a region graph", "split a program: hespas.split(program)")
    _check(estimates, GraphEstimate, "an estimate", "give what hespas.estimate(graph, node) gives")
    return estimated_tasks(graph, estimates, host_bandwidth_bytes_per_s=host_bandwidth_bytes_per_s)


def simulate(
    job: Job | TaskGraph,
    system: System | str | Path,
    *,
    model: str | None = None,
    network: str | None = None,
    queues_per_dimension: int | None = None,
    rendezvous: bool = False,
    injection_scale: float | None = None,
    algorithm: str | None = None,
    cluster: Cluster | None = None,
) -> Timeline:
    """Run a job on a system (a `System`, a preset's name or a directory).

    ``model`` is ``astra-sim``, the default for traces, or ``hespas``, our own, the default for what
    `trace` gives on a system with measured links. ``network``,
    ``queues_per_dimension``, ``rendezvous`` and ``injection_scale`` are ASTRA-sim's
    ``--network-backend``, ``--num-queues-per-dim``, ``--rendezvous-protocol`` and
    ``--injection-scale``; ``algorithm``
    is the algorithm of collectives in our own model. ``cluster`` is what is not perfect.

    Raises `hespas.errors.SimulationError` for what the model does not cover, and
    `hespas.errors.ConfigError` for what has no effect on it.

    >>> graph = split(load("examples/attention_block.mlir"))
    >>> tasks = trace(graph, estimate(graph, "A100_SXM_40GB"))
    >>> round(simulate(tasks, "A100_SXM_40GB_4GPU", model="astra-sim").step_time_s * 1e6, 1)
    27.6
    """
    from hespas.hardware.sized import find_system
    from hespas.hardware.system import System
    from hespas.schedule.tasks import Job, TaskGraph
    from hespas.simulate.astra.messages import contention_model_named
    from hespas.simulate.models import (
        Model,
        ModelChoice,
        default_model,
        model_named,
        simulate_job,
    )

    _check(job, (Job, TaskGraph), "a task graph or job", "give what hespas.trace gives")
    _check(system, (System, str, Path), "a system or its name", "name a preset or a directory")
    described = system if isinstance(system, System) else find_system(system)
    settings = {
        "network": network,
        "num_queues_per_dim": queues_per_dimension,
        "rendezvous_protocol": rendezvous or None,
        "injection_scale": injection_scale,
        "algorithm": algorithm,
        "links": None if cluster is None else cluster.links or None,
    }
    default = Model.ASTRA_SIM if isinstance(job, Job) else default_model(described, settings)
    choice = ModelChoice(
        model=default if model is None else model_named(model),
        network=None if network is None else contention_model_named(network),
        queues_per_dimension=queues_per_dimension,
        rendezvous=rendezvous,
        injection_scale=injection_scale,
        algorithm=algorithm,
        cluster=cluster,
    )
    return simulate_job(job, described, choice)


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
    imperfect: Cluster | str | Path | None = None,
    long_run: GoodputOptions | None = None,
) -> Prediction:
    """Predict how long one step of a program takes, on devices of one type.

    The arguments are those of ``hespas run``. ``workload`` is a program, its file, a model of the
    zoo or ``package.module:function``; ``mesh``, the batches, ``sequence``, ``attention``,
    ``remat``, ``scan``, ``dtype`` and ``settings`` (``--set``) are for models, and ``place`` says
    where the axes of their mesh lie; one that is divided into stages is for `predict_pipeline`.
    ``overlap`` may have ``{"experts": True}``: all-to-alls of routed experts run beside shared
    ones. ``tokens`` and ``samples`` are what a step takes in. ``expert_load`` is how many tokens
    each expert gets: ``uniform``, or a file. ``cluster`` is ``COUNTxPART``, ``system`` a
    description, a preset's name or a directory; a program that communicates needs one of them.
    ``node`` is a description, a preset's name or a path, also that of a configuration (``.json``)
    of another method than the roofline; by default it is the cluster's part.
    ``fidelity`` is what is priced: ``compiled``, ``fused``, ``library``, ``exported``, or by
    default (``auto``) the first of them that can be had, but for ``library``; ``compiler`` has the
    options of a compilation. The strategy and what follows it are those of `split`, ``model`` and
    what follows it those of `simulate`;
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

    _check(workload, (Program, str, Path), "a program or its file", "give one of these")
    _check(node, (Device, str, Path, type(None)), "a device or its name", "name a preset or a path")
    _check(system, (System, str, Path, type(None)), "a system or its name", "name a preset")
    _check(cluster, (System, str, type(None)), "a cluster", "write it as in 32xH100_80GB")
    _check(method, (str, type(None)), *_METHOD)
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
    described = EstimateOptions() if node is None else _estimate_options(node, method=method)
    options = PredictOptions(
        program=ProgramOptions(
            file=None if isinstance(workload, Program) else Path(workload),
            devices=devices,
            trip_counts=trip_counts or {},
            branch_weights=branch_weights or {},
            kernels=None if kernels is None else Path(kernels),
            model=of_model,
        ),
        step=StepOptions(tokens=tokens, samples=samples),
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

    _check(model, str, "a model's name", "hespas export --list has them")
    _check(cluster, (System, str), "a cluster", "write it as in 32xH100_80GB")
    _check(node, (Device, str, Path, type(None)), "a device or its name", "name a preset or a path")
    described = EstimateOptions() if node is None else _estimate_options(node, method=method)
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
        estimate=replace(described, method=method or described.method),
        network=NetworkOptions(
            cluster=cluster,
            model=None if network_model is None else model_named(network_model),
            place=None if place is None else parse_place(place),
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

    _check(workload, (str, Path), "a program's file or a model", "give one of these")
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

    _check(what, (Study, Mapping, str, Path), "a study", "give its keys or its file")
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


def _estimate_options(
    node: Device | str | Path | None,
    *,
    method: str | None,
    roofline: RooflineOptions | None = None,
    custom_calls: Mapping[str, CustomCallCost] | None = None,
    threads: int = 1,
) -> EstimateOptions:
    """Return the options for a device, or for a configuration (``.json``) in a device's place."""
    from hespas.config.estimators import NodeHardware, RooflineHardware
    from hespas.options import EstimateOptions, read_configuration

    configured: Mapping[str, object] = {}
    if isinstance(node, str | Path) and str(node).endswith(".json"):
        configured = read_configuration(node).values
    hardware, named = configured.get("hardware"), configured.get("method")
    if isinstance(hardware, NodeHardware):
        node = hardware.node
    describes_no_device = hardware is not None and not isinstance(
        hardware, NodeHardware | RooflineHardware
    )
    return EstimateOptions(
        node=None if describes_no_device else node,
        method=str(named) if method is None and named is not None else method,
        hardware=hardware,
        roofline=roofline,
        custom_calls=custom_calls or {},
        threads=threads,
    )


_METHOD = ("a method's name", "name one of hespas.estimate.methods.METHODS")


def _check(value: object, kinds: type | tuple[type, ...], what: str, hint: str) -> None:
    """Raise `ConfigError` for an argument of another kind: a likely mistake in a notebook."""
    from hespas.errors import ConfigError

    if not isinstance(value, kinds):
        raise ConfigError(f"a {type(value).__name__} is given in place of {what}", hint=hint)
