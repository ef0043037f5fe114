"""Pair a rank's messages where all ranks send alike, as around a ring.

One rank is recorded and stands for all. Where it sends to the rank that is some places after it in
its group, each other rank does so too, and it receives from the rank that is as many places before
it. Messages of pipeline stages don't have that pattern: their ranks run other programs, and are
recorded too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod

from msgspec.structs import replace

from hespas.base.frozen import frozen
from hespas.errors import UnsupportedError
from hespas.program.groups import groups_of_all
from hespas.program.recorded import (
    Call,
    CollectiveCall,
    Pipeline,
    RecordedStep,
    RecordedTensor,
    RecordEvent,
    WaitEvent,
)
from hespas.program.types import HOST_MEMORY, ElementType, TensorType, element_type

_ELEMENTS = {
    "bool": "i1",
    "uint8": "ui8",
    "uint16": "ui16",
    "uint32": "ui32",
    "uint64": "ui64",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "complex<f32>",
    "complex128": "complex<f64>",
    "float8_e4m3fn": "f8E4M3FN",
    "float8_e4m3fnuz": "f8E4M3FNUZ",
    "float8_e5m2": "f8E5M2",
    "float8_e5m2fnuz": "f8E5M2FNUZ",
    "float8_e8m0fnu": "f8E8M0FNU",
    "float4_e2m1fn_x2": "ui8",
}
"""MLIR's names of torch's types; two 4-bit numbers are one byte."""


@lru_cache(maxsize=64)
def element_of(dtype: str) -> ElementType:
    """Return a torch dtype's element type; `UnsupportedError` for one without a model."""
    if dtype not in _ELEMENTS:
        raise UnsupportedError(f"tensors of torch.{dtype} have no model")
    return element_type(_ELEMENTS[dtype])


@lru_cache(maxsize=65536)
def _type(shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> TensorType:
    order = sorted(range(len(shape)), key=lambda axis: (strides[axis], -axis))
    layout = tuple(order)
    is_default = layout == tuple(reversed(range(len(shape)))) or 0 in strides
    return TensorType(element=element_of(dtype), shape=shape, layout=None if is_default else layout)


def type_of(tensor: RecordedTensor) -> TensorType:
    """Return a tensor's type, dimensions ordered by stride; one object for equal ones."""
    return _type(tensor.shape, tensor.strides, tensor.dtype)


def type_on_host(tensor: RecordedTensor) -> TensorType:
    """Return the type of a copy in the host's memory."""
    return replace(type_of(tensor), memory_space=HOST_MEMORY)


def size_of(tensor: RecordedTensor) -> int:
    """Return a tensor's bytes; repeated elements count once.

    >>> size_of(RecordedTensor(storage=0, shape=(4, 8), strides=(0, 1), dtype="bfloat16"))
    16
    """
    sizes = zip(tensor.shape, tensor.strides, strict=True)
    elements = prod(size for size, stride in sizes if stride or size == 0)
    return elements * element_of(tensor.dtype).bits // 8


def sizes_of(tensors: Iterable[RecordedTensor]) -> int:
    """Return the bytes of tensors, each tensor counted once."""
    return sum(map(size_of, dict.fromkeys(tensors)))


MESSAGES = ("send", "receive")
_Key = tuple[tuple[int, ...], int, int]


@frozen
class Exchange:
    """A send, and the receive of what another rank sends in the same moment."""

    send: CollectiveCall
    receive: CollectiveCall

    def pairs(self, world_size: int) -> tuple[tuple[int, int], ...]:
        """Return the source and the target of each rank's message."""
        distance = _distance(self.send)
        return tuple(
            (source, members[(place + distance) % len(members)])
            for members in groups_of_all(self.send.group, world_size=world_size).listed()
            for place, source in enumerate(members)
        )


def pairs_of_stages(call: CollectiveCall, world_size: int) -> tuple[tuple[int, int], ...]:
    """Return the source and the target of each message from one stage to another."""
    own, peer = map(call.group.index, call.ranks)
    source, target = (own, peer) if call.kind == "send" else (peer, own)
    groups = groups_of_all(call.group, world_size=world_size).listed()
    return tuple((members[source], members[target]) for members in groups)


def is_of_stages(call: Call, pipeline: Pipeline | None) -> bool:
    """Return whether a call is a message between stages of a pipeline."""
    return (
        pipeline is not None
        and isinstance(call, CollectiveCall)
        and call.kind in MESSAGES
        and call.group == pipeline.ranks
    )


def check_matching(stages: Sequence[RecordedStep]) -> None:
    """Raise `UnsupportedError`, with its place, for a stage's message without its other end."""
    ends: dict[tuple[str, tuple[int, int]], list[CollectiveCall]] = {}
    for stage in stages:
        for call in stage.calls:
            if isinstance(call, CollectiveCall) and is_of_stages(call, stage.pipeline):
                own, peer = call.ranks
                pair = (own, peer) if call.kind == "send" else (peer, own)
                ends.setdefault((call.kind, pair), []).append(call)
    for (kind, pair), calls in ends.items():
        other = "receive" if kind == "send" else "send"
        others = iter(ends.get((other, pair), []))
        for call in calls:
            partner = next(others, None)
            if partner is None or _size(partner) != _size(call):
                source, target = pair
                lacks = "there is none" if partner is None else "it has another size"
                raise UnsupportedError(
                    f"a {kind} of a message from rank {source} to rank {target} needs a {other}, "
                    f"and {lacks}",
                    location=call.place,
                    hint="let each stage receive what another one sends to it",
                )


def _size(call: CollectiveCall) -> int:
    return sizes_of((*call.inputs, *call.outputs))


def exchanges(calls: Iterable[Call]) -> Mapping[int, Exchange | None]:
    """Return the exchange of each paired message, by the call's ``id``.

    Of its two messages the later one has it, the other None. Pairs stand together: with a kernel or
    a collective between them, a message has no partner, and is not in the result.
    """
    exchange_of: dict[int, Exchange | None] = {}
    for messages in _runs(calls):
        waiting: dict[_Key, deque[CollectiveCall]] = {}
        for call in messages:
            unpaired = waiting.setdefault(_key(call), deque())
            if not unpaired or unpaired[0].kind == call.kind:
                unpaired.append(call)
                continue
            partner = unpaired.popleft()
            send, receive = (call, partner) if call.kind == "send" else (partner, call)
            exchange_of[id(partner)] = None
            exchange_of[id(call)] = Exchange(send=send, receive=receive)
    return exchange_of


def _runs(calls: Iterable[Call]) -> Iterator[list[CollectiveCall]]:
    """Yield messages with nothing but events between them."""
    messages: list[CollectiveCall] = []
    for call in calls:
        if isinstance(call, CollectiveCall) and call.kind in MESSAGES:
            if call.group:
                messages.append(call)
        elif messages and not isinstance(call, RecordEvent | WaitEvent):
            yield messages
            messages = []
    yield messages


def _key(call: CollectiveCall) -> _Key:
    return call.group, _distance(call), _size(call)


def _distance(call: CollectiveCall) -> int:
    """Return how many places after its source a message's target is in the group."""
    own, peer = map(call.group.index, call.ranks)
    return (peer - own if call.kind == "send" else own - peer) % len(call.group)
