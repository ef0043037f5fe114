"""The structs of a step's figures, and their JSON Schema."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from hespas.program.program import Fidelity

SCHEMA_VERSION = 3
"""Counts up when a key changes its meaning or goes; keys that are added leave it as it is."""
IDLE, SLOWED = "idle", "slower computation"
"""The kind of the row of time in which nothing is under way."""
NO_NAME_ROW = "(no name)"
"""The row of what has no name in the program."""
Seconds: TypeAlias = Annotated[float, Meta(ge=0)]


def _of(description: str) -> Meta:
    return Meta(description=description)


Known: TypeAlias = float | None
"""A figure; null where it is not known."""
Count: TypeAlias = float | int
"""A whole number is written as one; branches with weights make others."""


class OpRow(msgspec.Struct, frozen=True, kw_only=True):
    """All executions of one kind of operation, on one device."""

    count: Annotated[Count, _of("how often it runs, every round of a loop counted")]
    time_s: Annotated[Seconds, _of("all of them together")]
    flops: float
    bytes: Annotated[float, _of("what they read from and write to device memory")]


class BoundShares(msgspec.Struct, frozen=True, kw_only=True):
    """What the step's time goes to: shares that add to 1.

    ``straggler`` is below 0 where devices are faster than specified.
    """

    compute: Annotated[float, _of("arithmetic")]
    memory: Annotated[float, _of("traffic to and from device memory and caches")]
    launch: Annotated[float, _of("launches of kernels, and waiting for them")]
    exposed_communication: Annotated[float, _of("communication that nothing hides, and idle time")]
    stage_wait: Annotated[float, _of("waiting for other stages of a pipeline")]
    straggler: Annotated[float, _of("slow and late devices, and jitter")]
    exposed_host_transfer: Annotated[float, _of("moves to and from the host that nothing hides")]
    other: Annotated[float, _of("what the method does not divide")]


class EnergyParts(msgspec.Struct, frozen=True, kw_only=True):
    """A step's energy, of a device and its share of machines.

    The parts that are null are in no sum: nothing is known of them.
    """

    compute_j: Annotated[float, _of("matrix products, and multiprocessors at work")]
    memory_j: Annotated[float, _of("bytes moved to and from device memory")]
    idle_j: Annotated[float, _of("what the board draws all the while")]
    node_j: Annotated[Known, _of("the machine around: processors, network cards, fans, supplies")]
    network_j: Annotated[Known, _of("switches between machines")]
    facility_j: Annotated[float, _of("cooling and the like, by the PUE that is given")]
    device_w: Annotated[float, _of("mean power of the board over the step")]
    node_w: Annotated[Known, _of("mean power of a machine with all its devices")]
    node_devices: Annotated[int | None, _of("of a machine, as those whose power was published")]
    clock: Annotated[float, _of("of the device, as a part of its boost clock, while it computes")]
    power_limit_w: float


class PhaseRow(msgspec.Struct, frozen=True, kw_only=True):
    """The computation of one phase of a training step."""

    phase: Annotated[str, _of("forward, recomputation, backward, optimiser, other, (no name)")]
    time_s: Seconds
    share: Annotated[float, _of("of the computation, 0 to 1")]
    flops: float
    bytes: float
    exposed_s: Annotated[Seconds, _of("communication that no computation hides")]


class LayerRow(msgspec.Struct, frozen=True, kw_only=True):
    """The computation under one module path. Rows add up to the computation."""

    path: Annotated[str, _of("modules as in layers/attention, or an operation outside of all")]
    depth: Annotated[int, _of("how many names the path has")]
    time_s: Seconds
    share: Annotated[float, _of("of the computation, 0 to 1")]
    flops: float
    bytes: float
    exposed_s: Annotated[Seconds, _of("communication that no computation hides")]
    phases: Annotated[dict[str, float], _of("its seconds by phase")]


class KindRow(msgspec.Struct, frozen=True, kw_only=True):
    """The computation in kernels of one kind. Rows add up to the computation."""

    kind: Annotated[str, _of("what the kernel does: matrix product, reduction fusion, copy, ...")]
    count: Annotated[Count, _of("how often it runs, every round of a loop counted")]
    time_s: Annotated[Seconds, _of("all of them together, launches included")]
    share: Annotated[float, _of("of the computation, 0 to 1")]
    flops: float
    bytes: float


class CommunicationRow(msgspec.Struct, frozen=True, kw_only=True):
    """All communication of one kind and groups, on the slowest device."""

    kind: str
    axis: Annotated[str, _of("the axis of the mesh, or how its groups are formed")]
    dimension: Annotated[str, _of("the dimensions of the network that it uses")]
    devices: Annotated[int, _of("in a group")]
    count: int
    bytes: Annotated[float, _of("what one device puts in, all of them together")]
    bytes_per_s: Annotated[Known, _of("as nccl-tests count it, while the device does not wait")]
    limit_bytes_per_s: Annotated[Known, _of("the most that links of the group's devices allow")]
    time_s: Annotated[Seconds, _of("from start to end, all of them together")]
    waiting_s: Annotated[Seconds | None, _of("of it, waiting for other devices with nothing sent")]
    hidden_s: Annotated[Seconds, _of("behind computation, or other communication that is charged")]
    exposed_s: Annotated[Seconds, _of("without computation, charged to one row; rows add up")]
    waits: Annotated[str | None, _of("what waits longest for it")]


class ExplainRow(msgspec.Struct, frozen=True, kw_only=True):
    """The step, priced again with one cause of its time changed."""

    change: str
    step_time_s: Seconds
    gain: Annotated[float, _of("by what share the step is shorter")]


class KernelTimeRow(msgspec.Struct, frozen=True, kw_only=True):
    """Equal kernels of one kind and module: the same work and time.

    Rows add up to the computation; those beyond the longest are in one row, ``others``.
    """

    name: Annotated[str, _of("the first of them, as the program calls it")]
    kind: Annotated[str, _of("as in kinds")]
    path: Annotated[str, _of("the modules that it belongs to, all of them")]
    count: Annotated[Count, _of("how often they run, every round of a loop counted")]
    time_s: Annotated[Seconds, _of("all of them together, launches included")]
    flops: Annotated[float, _of("all of them together")]
    bytes: Annotated[float, _of("what they read from and write to device memory")]
    limit: Annotated[
        Literal["compute", "memory", "launch", "other"],
        _of("what decides most of the time; other is what the method does not divide"),
    ]


class MemoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Device memory in use from a time on."""

    time_s: Seconds
    bytes: int


class HeldRow(msgspec.Struct, frozen=True, kw_only=True):
    """A buffer that is held when most memory is in use."""

    bytes: int
    type: Annotated[str, _of("element type and shape")]
    role: Annotated[str, _of("argument, output or temporary")]
    place: Annotated[str, _of("what makes it, in the program")]


class HolderRow(msgspec.Struct, frozen=True, kw_only=True):
    """What holds device memory when most is live, of a recorded program."""

    role: Annotated[str, _of("parameter, gradient, optimizer_state, activation, temporary..")]
    path: Annotated[str, _of("the module, numbers of layers left out; empty outside of all")]
    count: int
    bytes: int


class MemoryDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A step's memory; peak = arguments + outputs - aliases + temporaries."""

    argument_bytes: int
    output_bytes: int
    alias_bytes: Annotated[int, _of("outputs that are written over arguments")]
    temporary_bytes: int
    peak_place: Annotated[str, _of("the operation at which the peak is reached")]
    points: Annotated[list[MemoryPoint], _of("in order of time; empty for an unscheduled program")]
    held: Annotated[list[HeldRow], _of("the largest buffers at the peak")]


class TimelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """A slice of the slowest device's timeline; short ones are joined."""

    track: Annotated[str, _of("phases, compute, a stream of communication, waiting")]
    name: str
    start_s: Seconds
    end_s: Seconds


class Peaks(msgspec.Struct, frozen=True, kw_only=True):
    """The peak rates of the device, as its vendor states them."""

    flops_per_s: Annotated[dict[str, float], _of("of the element types of the step's products")]
    bytes_per_s: Annotated[float, _of("of device memory")]


class VariationReport(msgspec.Struct, frozen=True, kw_only=True):
    """A step on unequal devices; the answer's is on equal ones."""

    source: Annotated[str, _of("where the variation was measured")]
    draws: Annotated[int, _of("clusters that were drawn")]
    equal_step_s: Annotated[Seconds, _of("the step of equal devices")]
    expected_step_s: Annotated[Seconds, _of("the mean over clusters")]
    p5_s: Seconds
    p50_s: Seconds
    p95_s: Seconds
    waiting_s: Annotated[Seconds, _of("of the expected step, for slower devices")]
    waiting_by_axis_s: Annotated[dict[str, float], _of("the same, by the axis that waits")]
    jitter_s: Annotated[Seconds, _of("of the same, by jitter of kernels and collectives")]
    without_slowest_s: Annotated[Seconds, _of("expected without the slowest 1 % of devices")]
    tokens_per_s: Annotated[Known, _of("on all devices, in the expected step")]


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """A figure over many seeds."""

    p5: float
    p50: float
    p95: float
    mean: float


class PlayedReport(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of ``days`` days, played through with ``seeds`` seeds."""

    days: float
    seeds: int
    goodput: Annotated[Quantiles, _of("training that can be loaded at the end")]
    shares: Annotated[dict[str, float], _of("means of what the time goes to, by category")]
    interruptions: Annotated[Quantiles, _of("of a run, planned ones included")]
    causes: Annotated[dict[str, float], _of("mean number of interruptions, by cause")]
    unequal_share: Annotated[Known, _of("of nodes' failures, by the nodes that fail most")]
    tokens_per_day: Annotated[Quantiles | None, _of("null where tokens are not known")]
    energy_j: Annotated[Quantiles | None, _of("of all devices; null where not known")]
    usd: Annotated[Known, _of("what the run costs, spares included")]
    best_interval_s: Annotated[Seconds, _of("training between checkpoints that loses least")]
    best_spare_nodes: Annotated[int | None, _of("with which a node, spares included, trains most")]
    best_spare_goodput: Annotated[Known, _of("with these spares")]


class GoodputReport(msgspec.Struct, frozen=True, kw_only=True):
    """What of a long run's time is progress: shares that add to 1."""

    productive: Annotated[float, _of("training that is kept: the goodput")]
    saving: Annotated[float, _of("training waits while checkpoints are saved")]
    lost: Annotated[float, _of("training that a failure threw away")]
    starting: Annotated[float, _of("from a failure until the program runs again")]
    loading: Annotated[float, _of("checkpoints are loaded")]
    waiting: Annotated[float, _of("all spares are out")]
    failure_interval_s: Annotated[Seconds, _of("between failures of all devices")]
    checkpoint_interval_s: Annotated[Seconds, _of("training between checkpoints")]
    checkpoint_bytes: Annotated[int, _of("what a step hands to the next, each once")]
    checkpoint_s: Annotated[Seconds, _of("to save one, or to load it")]
    tokens_per_day: Annotated[Known, _of("null where tokens are not known")]
    steps_per_day: float
    days: Annotated[Known, _of("until --train-tokens are seen")]
    usd: Annotated[Known, _of("what these days cost")]
    assumptions: Annotated[list[str], _of("taken for granted of the long run")]
    played: Annotated[PlayedReport | None, _of("null unless --run-days asks for it")] = None


About: TypeAlias = Literal["time", "memory", "overlap"]


class AssumptionGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Assumptions that differ only in what they are about."""

    text: str
    count: Annotated[int, _of("how many are alike")]
    share: Annotated[Known, _of("of the computation, 0 to 1; null for those about everything")]
    examples: Annotated[list[str], _of("what the first of them are about")]
    step_share: Annotated[Known, _of("of the step, what they decide, 0 to 1")] = None
    about: Annotated[list[About], _of("time, whether the step fits, what of it is hidden")] = []


class StageRow(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a pipeline: a step's times, and a device's memory."""

    stage: int
    devices: Annotated[str, _of("as in devices 0-63")]
    layers: int
    parts: Annotated[list[str], _of("what each of its chunks holds, in order")]
    forward_s: Annotated[Seconds, _of("of one micro-batch through all its chunks")]
    backward_s: Annotated[Seconds, _of("the same, gradients of weights included")]
    compute_s: Annotated[Seconds, _of("all passes and the optimiser's step")]
    exposed_communication_s: Annotated[Seconds, _of("inside of passes and of the optimiser's step")]
    exposed_host_transfer_s: Annotated[Seconds, _of("passes wait for moves to and from the host")]
    launch_wait_s: Annotated[Seconds, _of("passes wait until the host launches kernels")]
    waiting_s: Annotated[Seconds, _of("for weights and other stages, before its last pass ends")]
    sums_s: Annotated[Seconds, _of("for sums of gradients, its own and those of other stages")]
    end_s: Annotated[Seconds, _of("waiting for the last stage to end")]
    in_flight: Annotated[int, _of("most chunks of micro-batches between forward and backward pass")]
    peak_memory_bytes: int
    weight_bytes: int
    gradient_bytes: int
    state_bytes: Annotated[int, _of("of the optimiser")]
    kept_bytes: Annotated[int, _of("of micro-batches in flight")]
    working_bytes: Annotated[int, _of("what a pass needs beside")]
    host_memory_bytes: Annotated[int, _of("of micro-batches in flight, in the host's")]
    fits: Annotated[bool | None, _of("null where a device's memory is not known")]


class PipelineReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a pipeline's step is divided into stages, and their use."""

    schedule: str
    micro_batches: int
    micro_batch: Annotated[
        int | None, _of("sequences of one, of a data-parallel part; null where not known")
    ]
    chunks: Annotated[int, _of("of a stage")]
    bubble: Annotated[float, _of("share of the time to the last pass without a pass")]
    ideal_bubble: Annotated[Known, _of("in closed form, for equal stages and free messages")]
    message_s: Annotated[Seconds, _of("from a stage to the next one")]
    hidden: Annotated[list[str], _of("communication that is hidden where it can be")]
    stages: list[StageRow]


class SchedulerLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The memory limit of XLA's scheduler, where a program on GPUs exceeds it."""

    limit_bytes: Annotated[int, _of("of temporaries, with the factor")]
    needed_bytes: Annotated[int, _of("of temporaries, with work beside collectives")]
    factor: Annotated[int, _of("xla_gpu_memory_limit_slop_factor, in per cent")]
    full_factor: Annotated[int | None, _of("the one that fills the device; null where none helps")]
    is_given_up: Annotated[bool, _of("collectives run alone; false: scheduled with full_factor")]


class ExpectedError(msgspec.Struct, frozen=True, kw_only=True):
    """How far off predictions of the most similar published steps were.

    Figures are null where none is published.
    """

    text: str
    steps: Annotated[int, _of("published ones")] = 0
    mean_absolute: Annotated[Known, _of("mean of the sizes of errors, as shares")] = None
    median: Annotated[Known, _of("median of errors, below 0 where predictions are short")] = None
    least: Annotated[Known, _of("the lowest error, below 0 where the prediction is short")] = None
    most: Annotated[Known, _of("the highest error")] = None
    modelled: Annotated[Known, _of("what modelled kernels are off compiled ones, mean")] = None
    likely_from_s: Annotated[
        Known, _of("of ten steps that are to predictions as published ones, one is shorter")
    ] = None
    likely_to_s: Annotated[Known, _of("one of ten is longer")] = None


class PublishedErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Median sizes of errors, as shares, of predictions of an engine's published points."""

    points: int
    tpot: float
    output_tokens_per_s: float
    ttft: float
    parts: Annotated[tuple[str, ...], _of("the devices that the points are of")]


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a program on a system; null is unknown.

    FLOPs, energy, memory and rows are those of one device.
    """

    schema_version: int
    program: Annotated[str, _of("the file, or the name of the model")]
    node: Annotated[str, _of("the device")]
    system: Annotated[str | None, _of("null where none is needed or given")]
    method: Annotated[str, _of("how computation is priced")]
    fidelity: Annotated[
        Fidelity, _of("what is priced: compiled, fused, library, exported or recorded kernels")
    ]
    devices: int
    step_time_s: Annotated[
        Seconds,
        _of(
            "until the slowest device ends: compute_s + exposed_communication_s + stage_wait_s + "
            "exposed_host_transfer_s + launch_wait_s + straggler_s"
        ),
    ]
    compute_s: Annotated[Seconds, _of("computation on a device as specified")]
    communication_s: Annotated[Seconds, _of("any communication is under way on the slowest device")]
    exposed_communication_s: Annotated[float, _of("of it, while that device does not compute")]
    host_transfer_s: Annotated[Seconds, _of("data moves between that device and its host")]
    exposed_host_transfer_s: Annotated[Seconds, _of("of it, neither computing nor communicating")]
    straggler_s: Annotated[float, _of("how much slow and late devices and jitter add to the step")]
    bound: BoundShares
    tokens_per_s: Annotated[Known, _of("null where tokens are not known")]
    tokens_per_s_per_device: float | None
    samples_per_s: Annotated[Known, _of("sequences, images: null where they are not known")]
    samples: Annotated[str, _of("what samples are: sequences, images")]
    mfu: Annotated[Known, _of("model_flops / (step_time_s x devices x peak_flops_per_s)")]
    hardware_utilisation: Annotated[Known, _of("flops / (step_time_s x peak_flops_per_s)")]
    flops: float
    flops_utilisation: Annotated[Known, _of("flops / (compute_s x peak_flops_per_s)")]
    memory_traffic_bytes: float
    memory_utilisation: Annotated[Known, _of("memory_traffic_bytes / compute_s / peak_bytes_per_s")]
    energy_j: Annotated[Known, _of("of the parts in energy, else of the board while it computes")]
    energy: Annotated[EnergyParts | None, _of("null where the clock is not that of a power limit")]
    peak_memory_bytes: int
    memory_capacity_bytes: Annotated[int | None, _of("null where it is not known")]
    host_memory_bytes: Annotated[int, _of("what a step needs of the host's memory, for one device")]
    host_transfer_bytes: Annotated[int, _of("what one device moves to its host and from it")]
    per_op: Annotated[dict[str, OpRow], _of("by kind of operation")]
    kinds: list[KindRow]
    phases: list[PhaseRow]
    layers: list[LayerRow]
    communication: list[CommunicationRow]
    explain: list[ExplainRow]
    assumptions: Annotated[list[str], _of("alike ones joined, that which decides most first")]
    assumption_groups: list[AssumptionGroup]
    warnings: list[str]
    options: Annotated[dict[str, Any], _of("by name, those that differ from their defaults")]
    versions: Annotated[dict[str, str], _of("of hespas and of packages that compiled the program")]
    kernels: list[KernelTimeRow] = []
    memory: MemoryDetails | None = None
    timeline: list[TimelineRow] = []
    variation: Annotated[VariationReport | None, _of("null unless --variation asks for it")] = None
    goodput: Annotated[GoodputReport | None, _of("null unless --goodput asks for it")] = None
    peaks: Annotated[Peaks | None, _of("null where the device's figures are not known")] = None
    pipeline: Annotated[PipelineReport | None, _of("null for a step of one program")] = None
    model_flops: Annotated[Known, _of("what the model needs of a step, on all devices")] = None
    peak_type: Annotated[str | None, _of("the type of most of the FLOPs that are executed")] = None
    peak_flops_per_s: Annotated[Known, _of("the device's peak rate of that type")] = None
    peak_bytes_per_s: Annotated[Known, _of("of the device's memory")] = None
    scheduler: Annotated[SchedulerLimit | None, _of("null where the limit is not exceeded")] = None
    live_memory_bytes: Annotated[
        int | None, _of("of peak_memory_bytes, where an allocator reserves more; else null")
    ] = None
    launch_wait_s: Annotated[float, _of("nothing runs until the host launches it")] = 0.0
    stage_wait_s: Annotated[
        Seconds, _of("a stage of a pipeline waits for others, and computes nothing")
    ] = 0.0
    holders: Annotated[list[HolderRow], _of("of live_memory_bytes, the largest first")] = []
    expected_error: Annotated[ExpectedError | None, _of("of step_time_s")] = None


def run_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of ``hespas run --json``.

    >>> run_schema()["title"], "step_time_s" in run_schema()["required"]
    ('hespas run', True)
    """
    (described,), definitions = msgspec.json.schema_components(
        [RunReport], ref_template="#/$defs/{name}"
    )
    del described
    report = definitions.pop("RunReport")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **report,
        "title": "hespas run",
        "$defs": definitions,
    }
