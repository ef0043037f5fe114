"""The pipeline as functions: load, split, estimate, trace, simulate, and all of it at once.

The functions take and give plain values, so that each stage can be run alone, looked at and
replaced. `predict` is what ``hespas run`` calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from hespas.cost.rules.custom_call import CustomCallCost
from hespas.errors import ConfigError
from hespas.estimate.graph import GraphEstimate, estimate_graph
from hespas.estimate.roofline import Roofline, RooflineOptions
from hespas.estimate.store import MemoryStore, Store
from hespas.frontend.load import load_program
from hespas.frontend.stablehlo import LoadOptions
from hespas.hardware.device import Device
from hespas.hardware.presets import load_device, load_system, presets_that_fit
from hespas.hardware.system import System
from hespas.prediction import Prediction
from hespas.program.devices import communication_ops, with_device_count
from hespas.program.program import Program
from hespas.simulate.network import Network
from hespas.simulate.simulate import simulate as run_simulation
from hespas.simulate.timeline import Timeline
from hespas.split.modules import region_modules
from hespas.split.regions import RegionGraph
from hespas.split.strategies import SeparatorPolicy, SplitOptions, SplitStrategy, split_program
from hespas.trace.build import RegionTime, build_task_graph
from hespas.trace.tasks import Job, TaskGraph

E = TypeVar("E", SplitStrategy, SeparatorPolicy)


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
    open. Raises `hespas.errors.ProgramError` for a file that is no program,
    `UnsupportedError` for what has no model, `UnpartitionedError` for a sharded program
    without its per-device form, `DeviceCountError` where ``devices`` disagrees with it.

    >>> program = load("examples/attention_block.mlir")
    >>> len(program.main.body.operations)
    7
    """
    options = LoadOptions(trip_counts=trip_counts or {}, branch_weights=branch_weights or {})
    program = load_program(Path(path), options=options)
    return with_device_count(program, requested=devices, system=None)


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
    (4, 1)
    """
    options = split_options(
        strategy=strategy,
        merge=merge,
        block_limit=block_limit,
        separator=separator,
        separator_policy=separator_policy,
    )
    return split_program(program, options)


def split_options(
    *,
    strategy: str = "linear_split",
    merge: bool = False,
    block_limit: int | None = None,
    separator: str = "is_communication_op",
    separator_policy: str = "isolated",
) -> SplitOptions:
    """Check the documented names of how to split; `hespas.errors.ConfigError` for others."""
    return SplitOptions(
        strategy=_choice(SplitStrategy, strategy, "split_strategy"),
        merge=merge,
        block_limit=block_limit,
        separator=separator,
        separator_policy=_choice(SeparatorPolicy, separator_policy, "separator_policy"),
    )


def _choice(kind: type[E], value: str, key: str) -> E:
    try:
        return kind(value)
    except ValueError as error:
        known = ", ".join(member.value for member in kind)
        raise ConfigError(f"{key} is {value!r}", mend=f"use one of {known}") from error


def estimate(
    graph: RegionGraph,
    device: Device | str,
    *,
    options: RooflineOptions | None = None,
    custom_calls: Mapping[str, CustomCallCost] | None = None,
    store: Store | None = None,
    threads: int = 1,
) -> GraphEstimate:
    """Price every compute region on a device (a `Device`, a preset's name or a path).

    Equal regions are priced once. ``store`` keeps answers between calls; by default they last
    as long as the call. Raises `hespas.errors.CostError` for work that is not known.

    >>> graph = split(load("examples/attention_block.mlir"))
    >>> round(estimate(graph, "A100_SXM_40GB").total.time_s * 1e6, 1)
    18.9
    """
    estimator = Roofline(
        device=device if isinstance(device, Device) else load_device(device),
        options=options or RooflineOptions(),
        custom_calls=custom_calls or {},
    )
    kept = MemoryStore() if store is None else store
    return estimate_graph(graph, region_modules(graph), estimator, store=kept, threads=threads)


def trace(graph: RegionGraph, estimates: GraphEstimate) -> TaskGraph:
    """Make the task graph of all devices: write it with `hespas.trace.chakra.write_traces`."""
    times = [
        None
        if estimate is None
        else RegionTime(duration_s=estimate.time_s, label=estimate.dearest_kind)
        for estimate in estimates.estimate_of_region
    ]
    return build_task_graph(graph, times, name=graph.program.source)


def simulate(
    job: Job | TaskGraph, system: System | str, *, network: str = "congestion-unaware"
) -> Timeline:
    """Run a job on a system (a `System`, a preset's name or a directory).

    Raises `hespas.errors.SimulationError` for what the model does not cover.
    """
    known = {member.value: member for member in Network}
    if network not in known:
        raise ConfigError(f"network is {network!r}", mend=f"use one of {', '.join(known)}")
    described = system if isinstance(system, System) else load_system(system)
    return run_simulation(job, described, network=known[network])


def predict(
    workload: Program | str | Path,
    node: Device | str,
    system: System | str | None = None,
    *,
    devices: int | None = None,
    strategy: str = "linear_split",
    merge: bool = False,
) -> Prediction:
    """Predict how long one step of a program takes, on devices of one type.

    ``node`` and ``system`` are descriptions, presets' names or paths; a program that
    communicates needs a system. The other functions here give access to every stage and
    option. Raises `hespas.errors.HespasError`, as they do.

    >>> prediction = predict("examples/attention_block.mlir", "A100_SXM_40GB",
    ...                      "A100_SXM_40GB_4GPU")
    >>> prediction.devices, round(prediction.step_time_s * 1e6, 1)
    (4, 24.5)
    """
    cluster = load_system(system) if isinstance(system, str) else system
    program = workload if isinstance(workload, Program) else load_program(Path(workload))
    graph = split(settled(program, devices=devices, system=cluster), strategy=strategy, merge=merge)
    estimates = estimate(graph, node)
    return finish(graph, estimates, cluster)


def settled(program: Program, *, devices: int | None, system: System | None) -> Program:
    """Return the program for the devices it runs on; `DeviceCountError` where counts disagree.

    Raises `hespas.errors.ConfigError` for a program that communicates where no system is
    given, naming the presets that fit.
    """
    count = None if system is None else system.device_count
    known = with_device_count(program, requested=devices, system=count)
    needed = known.declared_devices or 1
    if system is not None or needed == 1 or not any(True for _ in communication_ops(known)):
        return known
    fitting = presets_that_fit(needed)
    raise ConfigError(
        f"the program communicates among {needed} devices, but no system is given",
        place=program.source,
        mend=f"give --system ({', '.join(fitting) or f'no preset has {needed} devices'}), "
        "or price its computation alone with hespas estimate",
    )


def finish(
    graph: RegionGraph,
    estimates: GraphEstimate,
    system: System | None,
    *,
    network: str = "congestion-unaware",
) -> Prediction:
    """Simulate what was estimated."""
    tasks = trace(graph, estimates)
    timeline = None if system is None else simulate(tasks, system, network=network)
    return Prediction(
        graph=graph, estimates=estimates, tasks=tasks, system=system, timeline=timeline
    )
