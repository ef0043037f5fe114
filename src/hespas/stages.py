"""The stages of a prediction as functions.

They are load, optimise, split, estimate, trace and simulate. They take and return plain values, so
that each stage can be run alone, inspected and replaced. Each imports its stage when it is called:
``import hespas`` stays light.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hespas.compile.options import CompileOptions
    from hespas.hardware.cluster import Cluster
    from hespas.hardware.device import Device
    from hespas.hardware.system import System
    from hespas.prediction.options import EstimateOptions
    from hespas.price.cache import Store
    from hespas.price.graph import GraphEstimate
    from hespas.price.methods import RooflineOptions
    from hespas.program.program import Program
    from hespas.program.work import CustomCallCost
    from hespas.simulate.timeline import Timeline
    from hespas.split.regions import RegionGraph
    from hespas.tasks.graph import Job, TaskGraph


def load(
    path: str | Path,
    *,
    devices: int | None = None,
    trip_counts: Mapping[str, int] | None = None,
    branch_weights: Mapping[str, tuple[float, ...]] | None = None,
) -> Program:
    """Read StableHLO text, MLIR bytecode or a portable artifact.

    ``devices`` is for a program that doesn't say on how many it runs. ``trip_counts`` and
    ``branch_weights`` map a line of the file, or ``""`` for all, to what the program leaves
    open. A sharded program is partitioned first, and its assumptions say so. Raises
    `hespas.errors.ProgramError` for a file that is no program, `UnsupportedError` for what has
    no model, `DeviceCountError` where ``devices`` disagrees with it.

    >>> program = load("examples/attention_block.mlir")
    >>> len(program.main.body.operations)
    8
    """
    from hespas.prediction.composition import load_alone
    from hespas.prediction.options import AS_GIVEN, PredictOptions, ProgramOptions

    options = ProgramOptions(
        file=Path(path),
        devices=devices,
        trip_counts=trip_counts or {},
        branch_weights=branch_weights or {},
    )
    return load_alone(PredictOptions(program=options, compile=AS_GIVEN))


def optimise(
    workload: str | Path,
    node: str,
    system: System | str | None = None,
    *,
    devices: int | None = None,
    options: CompileOptions | None = None,
) -> Program:
    """Compile a StableHLO program by XLA for an absent node.

    ``node`` is a preset's name. ``devices``, or else the ``system``, says how many there are, where
    the program doesn't. The result is cached in the user's cache directory;
    `predict` takes it in a program's place, and knows its kernels. Raises
    `hespas.errors.ExtraMissingError` without the compiler (``hespas[gpu]``, ``hespas[tpu]``), and
    what `hespas.compile.compiler.compile_program` raises.
    """
    from hespas.compile.options import DEFAULT_OPTIONS
    from hespas.prediction.loading import load as load_program
    from hespas.prediction.options import (
        CompileChoice,
        EstimateOptions,
        Fidelity,
        NetworkOptions,
        PredictOptions,
        ProgramOptions,
    )

    chosen = PredictOptions(
        program=ProgramOptions(file=Path(workload), devices=devices),
        compile=CompileChoice(fidelity=Fidelity.COMPILED, options=options or DEFAULT_OPTIONS),
        estimate=EstimateOptions(node=node),
        network=NetworkOptions(system=system),
    )
    return load_program(chosen)


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

    check_kind(program, Program, "a program", "load it first: hespas.stages.load(path)")
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
    """Price every compute region of a graph.

    ``device`` is a description, a preset's name or a path.
    ``method`` names the estimator (`hespas.price.methods.METHODS`); by default it is that of
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
    from hespas.hardware.device import Device
    from hespas.prediction.composition import Prepared, price
    from hespas.prediction.options import PredictOptions
    from hespas.price.cache import MemoryStore
    from hespas.split.modules import region_modules
    from hespas.split.regions import RegionGraph

    check_kind(
        graph, RegionGraph, "a region graph", "split a program: hespas.stages.split(program)"
    )
    check_kind(device, (Device, str, Path), "a device or its name", "name a preset or a path")
    check_kind(method, (str, type(None)), *METHOD)
    priced = estimate_options(
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

    `hespas.tasks.chakra.writer.write_traces` writes it to files. A program that moves data
    between devices and their hosts needs the bandwidth of the link, in each direction.

    >>> graph = split(load("examples/attention_block.mlir"))
    >>> [task.name for task in trace(graph, estimate(graph, "A100_SXM_40GB")).tasks]
    ['region_0', 'all_reduce_1']
    """
    from hespas.price.graph import GraphEstimate
    from hespas.split.regions import RegionGraph
    from hespas.tasks.build import estimated_tasks

    check_kind(
        graph, RegionGraph, "a region graph", "split a program: hespas.stages.split(program)"
    )
    check_kind(
        estimates,
        GraphEstimate,
        "an estimate",
        "give what hespas.stages.estimate(graph, node) gives",
    )
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
    """Run a job on a system.

    ``system`` is a description, a preset's name or a directory.

    ``model`` is ``astra-sim``, the default for traces, or ``hespas``, our own, the default for what
    `trace` gives on a system whose network is described for it. ``network``,
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
    from hespas.base.fields import changed
    from hespas.base.suggest import choice
    from hespas.hardware.sized import find_system
    from hespas.hardware.system import System
    from hespas.simulate.models import ModelChoice, default_model, simulate_job
    from hespas.simulate.options import AstraSettings, ContentionModel, Model
    from hespas.tasks.graph import Job, TaskGraph

    check_kind(job, (Job, TaskGraph), "a task graph or job", "give what hespas.trace gives")
    check_kind(system, (System, str, Path), "a system or its name", "name a preset or a directory")
    described = system if isinstance(system, System) else find_system(system)
    astra = AstraSettings(
        num_queues_per_dim=queues_per_dimension,
        rendezvous_protocol=rendezvous,
        injection_scale=injection_scale,
    )
    settings = {
        "network": network,
        **dict.fromkeys(changed(astra), True),
        "algorithm": algorithm,
        "links": None if cluster is None else cluster.links or None,
    }
    default = Model.ASTRA_SIM if isinstance(job, Job) else default_model(described, settings)
    model_choice = ModelChoice(
        model=default if model is None else choice(model, Model, subject="the model"),
        network=None if network is None else choice(network, ContentionModel, subject="network"),
        astra=astra,
        algorithm=algorithm,
        cluster=cluster,
    )
    return simulate_job(job, described, model_choice)


def estimate_options(
    node: Device | str | Path | None,
    *,
    method: str | None,
    roofline: RooflineOptions | None = None,
    custom_calls: Mapping[str, CustomCallCost] | None = None,
    threads: int = 1,
) -> EstimateOptions:
    """Return the options for a device or configuration."""
    from hespas.hardware.device import NodeHardware, RooflineHardware
    from hespas.prediction.configuration import read_configuration
    from hespas.prediction.options import EstimateOptions

    configured: Mapping[str, object] = {}
    if isinstance(node, str | Path) and str(node).endswith(".json"):
        configured = read_configuration(node).values
    hardware, configured_method = configured.get("hardware"), configured.get("method")
    if isinstance(hardware, NodeHardware):
        node = hardware.node
    describes_no_device = hardware is not None and not isinstance(
        hardware, NodeHardware | RooflineHardware
    )
    return EstimateOptions(
        node=None if describes_no_device else node,
        method=str(configured_method)
        if method is None and configured_method is not None
        else method,
        hardware=hardware,
        roofline=roofline,
        custom_calls=custom_calls or {},
        threads=threads,
    )


METHOD = ("a method's name", "name one of hespas.price.methods.METHODS")


def check_kind(value: object, kinds: type | tuple[type, ...], description: str, hint: str) -> None:
    """Raise `ConfigError` for an argument of another kind."""
    from hespas.errors import ConfigError

    if not isinstance(value, kinds):
        name = type(value).__name__
        article = "an" if name[0] in "aeiouAEIOU" else "a"
        raise ConfigError(f"{article} {name} is given in place of {description}", hint=hint)
