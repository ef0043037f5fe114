"""A step of a PyTorch program as it was recorded: what one rank launches, in order, and its memory.

`hespas.sources` writes it where torch is; `hespas.frontend` reads it and needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from hespas.program.kernels import Extent

RECORDED_FORMAT = "hespas recorded step 1"
_HEAD_BYTES = 80
"""What tells a recorded step from other files stands in its first bytes."""

Scalar = bool | int | float | str | None


class RecordedTensor(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A view of a storage: ``storage`` is its number, ``offset`` and ``strides`` count elements.

    ``dtype`` is torch's name without the module, as in ``bfloat16``. A tensor of a DTensor is its
    local one.
    """

    storage: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    offset: int = 0


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that the allocator gave: what for, when, and on which stream.

    ``allocated`` and ``freed`` are positions in `RecordedStep.calls`: it is there before the call
    of the first and gone before the call of the second; None for what was there before the step,
    and for what is left after it. Storages that are resized are several, one after the other.
    ``role`` says what holds it: ``parameter``, ``gathered_parameter`` (whole, for a while),
    ``gradient``, ``optimizer_state``, ``buffer``, ``input`` (there before the step),
    ``activation`` (made forward, freed backward) or ``temporary``. ``name`` says which parameter or
    buffer, ``scope`` the module that was running.
    """

    size_bytes: int
    stream: int = 0
    allocated: int | None = None
    freed: int | None = None
    role: str = ""
    name: str = ""
    scope: str = ""


class _Placed(msgspec.Struct, frozen=True, kw_only=True):
    """What all calls have: a stream, the module that ran, and the user's file and line.

    ``scope`` is the path of names, as in ``layers.3.attention.wq``. ``phase`` is ``forward``,
    ``recompute``, ``backward`` or ``optimizer``, empty outside of them.
    """

    stream: int = 0
    scope: str = ""
    phase: str = ""
    place: str = ""


class Operation(_Placed, frozen=True, kw_only=True, tag="operation"):
    """A call of an operation of torch that launches kernels of libraries or of torch itself.

    ``name`` is as in ``aten::mm.default``; ``arguments`` are those that are no tensors, by their
    names in the operation's schema. An output that shares the storage of an input is written in
    place.
    """

    name: str
    inputs: tuple[RecordedTensor, ...]
    outputs: tuple[RecordedTensor, ...]
    arguments: Mapping[str, Scalar | tuple[Scalar, ...]] = {}


class KernelCall(_Placed, frozen=True, kw_only=True, tag="kernel"):
    """A launch of a Triton kernel; ``grids`` has the blocks of each of its configurations.

    ``reads`` and ``writes`` are by the kernel's own marks; what it updates stands in both.
    """

    kernel: str
    reads: tuple[RecordedTensor, ...]
    writes: tuple[RecordedTensor, ...]
    grids: tuple[Extent, ...]


class CollectiveCall(_Placed, frozen=True, kw_only=True, tag="collective"):
    """A collective of the recorded rank's group; the stream is the group's own.

    ``kind`` is ``all_gather``, ``reduce_scatter``, ``all_reduce``, ``all_to_all``, ``broadcast``,
    ``reduce``, ``gather``, ``scatter``, ``send``, ``receive`` or ``barrier``. ``ranks`` are those
    of the group; of ``send`` and ``receive`` this rank and its peer. What its stream waits for, and
    what waits for it, are events like all others. ``reduction`` is ``sum``, ``avg``, ``max``..
    where it reduces and that is known. ``splits`` are elements of the first dimension by rank, of
    an all-to-all that states them.
    """

    kind: str
    ranks: tuple[int, ...]
    inputs: tuple[RecordedTensor, ...]
    outputs: tuple[RecordedTensor, ...]
    reduction: str = ""
    splits: tuple[int, ...] = ()


class RecordEvent(msgspec.Struct, frozen=True, kw_only=True, tag="record_event"):
    """The event happens when the stream has done what stands before."""

    stream: int
    event: int


class WaitEvent(msgspec.Struct, frozen=True, kw_only=True, tag="wait_event"):
    """The stream goes on when the event has happened, as after a collective or a stream."""

    stream: int
    event: int


class HostWait(msgspec.Struct, frozen=True, kw_only=True, tag="host_wait"):
    """The host waits for a stream, all streams where it is None; ``reason`` is what made it."""

    stream: int | None = None
    reason: str = ""
    place: str = ""


Call = Operation | KernelCall | CollectiveCall | RecordEvent | WaitEvent | HostWait


class KernelConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """One of the ways in which a Triton kernel may be compiled: its PTX, threads and memory."""

    ptx: str
    threads: int
    shared_memory_bytes: int = 0


class RecordedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A Triton kernel for the part: torch times its configurations and keeps the fastest."""

    name: str
    configurations: tuple[KernelConfiguration, ...]


class RecordedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one rank.

    ``name`` is the workload's. ``target`` is what kernels were compiled for (``sm_90a``).
    ``mesh`` has the axes of the device mesh with their sizes, major first, empty without one.
    ``tokens`` are those of a step over all ranks, None where the script doesn't say.
    ``is_compiled`` marks a step of which parts are compiled: others are launched one by one.
    ``versions`` are those of torch, triton and others that decide kernels, ``settings`` are those
    of torch that do: ``matmul_allow_tf32``, ``cudnn_allow_tf32``, ``expandable_segments``.
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
    tokens: int | None = None
    notes: tuple[str, ...] = ()


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
    """Return whether a path is a file that holds a recorded step."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return is_recorded(file.read(_HEAD_BYTES))


def decode_recorded(content: bytes) -> RecordedStep:
    """Return the step that `encode_recorded` wrote; `msgspec.DecodeError` for anything else."""
    return msgspec.json.decode(content, type=RecordedStep)
