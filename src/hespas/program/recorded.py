"""A recorded step of PyTorch: one rank's launches and memory.

`hespas.sources` writes it on a machine with torch; `hespas.frontend` reads it and needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from hespas.program.kernels import Extent

RECORDED_FORMAT = "hespas recorded step 1"
_HEAD_BYTES = 80
"""The bytes at the start of a file that identify a recorded step."""

Scalar = bool | int | float | str | None


class RecordedTensor(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A view of a storage; ``offset`` and ``strides`` count elements.

    ``storage`` is an index into `RecordedStep.storages`. ``dtype`` is torch's name without the
    module, as in ``bfloat16``. A DTensor is recorded as its local tensor.
    """

    storage: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    offset: int = 0


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation: its purpose, lifetime and stream.

    ``allocated`` and ``freed`` are positions in `RecordedStep.calls`: the storage exists from just
    before the first call to just before the second. ``allocated`` is None for a storage from before
    the step, ``freed`` for one that outlives it. A resized storage is recorded as several, one
    after the other.
    ``role`` is its use: ``parameter``, ``gathered_parameter`` (whole, for a while),
    ``gradient``, ``optimizer_state``, ``buffer``, ``input`` (allocated before the step),
    ``activation`` (allocated in the forward pass, freed in the backward pass) or ``temporary``.
    ``name`` is the parameter or buffer, ``scope`` the module that was running.
    """

    size_bytes: int
    stream: int = 0
    allocated: int | None = None
    freed: int | None = None
    role: str = ""
    name: str = ""
    scope: str = ""


class _Placed(msgspec.Struct, frozen=True, kw_only=True):
    """The stream, module, phase and line of a call.

    ``scope`` is the path of names, as in ``layers.3.attention.wq``. ``phase`` is ``forward``,
    ``recompute``, ``backward`` or ``optimizer``, empty outside of them.
    """

    stream: int = 0
    scope: str = ""
    phase: str = ""
    place: str = ""


class Operation(_Placed, frozen=True, kw_only=True, tag="operation"):
    """A torch operation that launches kernels.

    ``name`` is as in ``aten::mm.default``; ``arguments`` are the non-tensor arguments, by their
    names in the operation's schema. An output that shares the storage of an input is written in
    place.
    """

    name: str
    inputs: tuple[RecordedTensor, ...]
    outputs: tuple[RecordedTensor, ...]
    arguments: Mapping[str, Scalar | tuple[Scalar, ...]] = {}


class KernelCall(_Placed, frozen=True, kw_only=True, tag="kernel"):
    """A launch of a Triton kernel.

    ``grids`` has each configuration's blocks. ``reads`` and ``writes`` follow the kernel's own
    marks; an updated tensor is in both.
    ``attended`` is the share of all pairs of tokens that a block mask of FlexAttention leaves to
    compute; null without one, or where it is not known. ``integers`` has the value of each
    parameter in the PTX that is an integer, null for others; it is empty where none is recorded.
    """

    kernel: str
    reads: tuple[RecordedTensor, ...]
    writes: tuple[RecordedTensor, ...]
    grids: tuple[Extent, ...]
    attended: float | None = None
    integers: tuple[int | None, ...] = ()


class CollectiveCall(_Placed, frozen=True, kw_only=True, tag="collective"):
    """A collective of the recorded rank.

    It runs on its group's own stream. ``kind`` is ``all_gather``, ``reduce_scatter``,
    ``all_reduce``, ``all_to_all``, ``broadcast``, ``reduce``, ``gather``, ``scatter``, ``send``,
    ``receive`` or ``barrier``. ``ranks`` are the group's; for ``send`` and ``receive``, this rank
    and its peer, both members of ``group``. Events order its stream with others. ``reduction`` is
    ``sum``, ``avg``, ``max``, ... if it reduces and the function is known. ``splits`` are the
    elements of the first dimension for each rank, if an all-to-all states them.
    """

    kind: str
    ranks: tuple[int, ...]
    inputs: tuple[RecordedTensor, ...]
    outputs: tuple[RecordedTensor, ...]
    reduction: str = ""
    splits: tuple[int, ...] = ()
    group: tuple[int, ...] = ()


class RecordEvent(msgspec.Struct, frozen=True, kw_only=True, tag="record_event"):
    """Record an event after the stream's earlier work."""

    stream: int
    event: int


class WaitEvent(msgspec.Struct, frozen=True, kw_only=True, tag="wait_event"):
    """Block the stream until an event of a collective or another stream."""

    stream: int
    event: int


class HostWait(msgspec.Struct, frozen=True, kw_only=True, tag="host_wait"):
    """Block the host on an event or a stream; on all streams if both are None.

    ``reason`` is the call that blocks.
    """

    stream: int | None = None
    event: int | None = None
    reason: str = ""
    place: str = ""


Call = Operation | KernelCall | CollectiveCall | RecordEvent | WaitEvent | HostWait


class KernelConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration of a Triton kernel."""

    ptx: str
    threads: int
    shared_memory_bytes: int = 0


class RecordedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A Triton kernel; torch keeps its fastest configuration."""

    name: str
    configurations: tuple[KernelConfiguration, ...]


SCHEDULES: Mapping[str, str] = {
    "ScheduleGPipe": "gpipe",
    "Schedule1F1B": "1f1b",
    "ScheduleInterleaved1F1B": "interleaved:{chunks}",
    "ScheduleLoopedBFS": "looped breadth-first:{chunks}",
    "ScheduleInterleavedZeroBubble": "interleaved zero-bubble:{chunks}",
    "ScheduleZBVZeroBubble": "zero-bubble V",
    "ScheduleDualPipeV": "DualPipeV",
}
"""The schedules that are recorded, torch's classes, with their names in reports."""


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """How a recorded rank's stages are a part of a pipeline.

    ``ranks`` run its stages, in order; each has ``chunks`` of the model. ``schedule`` is torch's
    class. The recorded rank has up to ``in_flight`` chunks of micro-batches between their forward
    and backward passes.
    """

    ranks: tuple[int, ...]
    schedule: str
    micro_batches: int
    chunks: int
    in_flight: int


class RecordedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one rank.

    ``name`` is the workload's. ``target`` is the architecture of the kernels (``sm_90a``). ``mesh``
    has the axes of the device mesh with their sizes, major first; it is empty without a mesh.
    ``tokens`` counts the tokens of a step over all ranks, None if the script doesn't say.
    ``is_compiled`` marks a step with compiled parts; operations outside them are launched one by
    one; ``uncompiled`` has functions that ``torch.compile`` left as written, with their places.
    ``host_updates`` are the elements of parameters that optimisers hold on the host.
    ``versions`` and ``settings`` decide the kernels: the versions of torch, triton and others,
    and torch's ``matmul_allow_tf32``, ``cudnn_allow_tf32`` and ``expandable_segments``.
    ``stages`` are the steps of the other ranks of a ``pipeline``.
    """

    format: str = RECORDED_FORMAT
    name: str
    target: str
    world_size: int
    rank: int = 0
    mesh: tuple[tuple[str, int], ...] = ()
    calls: tuple[Call, ...]
    storages: tuple[Storage, ...]
    kernels: tuple[RecordedKernel, ...] = ()
    versions: Mapping[str, str] = {}
    settings: Mapping[str, Scalar] = {}
    is_compiled: bool = False
    uncompiled: tuple[str, ...] = ()
    host_updates: int = 0
    tokens: int | None = None
    notes: tuple[str, ...] = ()
    pipeline: Pipeline | None = None
    stages: tuple[RecordedStep, ...] = ()


def encode_recorded(step: RecordedStep) -> bytes:
    """Return the step as JSON."""
    return msgspec.json.encode(step)


def is_recorded(content: bytes) -> bool:
    """Return whether a file's content is a recorded step.

    >>> is_recorded(encode_recorded(RecordedStep(
    ...     name="step", target="sm_90a", world_size=1, calls=(), storages=())))
    True
    """
    return content[:_HEAD_BYTES].lstrip().startswith(b'{"format":"' + RECORDED_FORMAT.encode())


def is_recorded_file(path: Path) -> bool:
    """Return whether a path is a recorded step's file."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return is_recorded(file.read(_HEAD_BYTES))


def decode_recorded(content: bytes) -> RecordedStep:
    """Return the step that `encode_recorded` wrote.

    Raises `msgspec.DecodeError` for anything else.
    """
    return msgspec.json.decode(content, type=RecordedStep)
