"""How much there is at a time, from how long each buffer is needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hespas.memory.buffers import Buffer
from hespas.memory.usage import HeldBuffer, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The most that temporaries take at a time, the operation then at work, and all of them."""

    size_bytes: int
    location: str
    held: tuple[HeldBuffer, ...]


NOTHING = Peak(size_bytes=0, location="", held=())


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLife:
    """What a block makes and returns, and what the blocks inside of it need.

    A moment is the position of an operation, the return being the last. ``places`` names the
    operation of each; ``inner`` gives the peak of what an operation holds, by its moment.
    ``renewed`` pairs what a loop carries in with what takes its place, made after it is read last.
    """

    results: tuple[Buffer, ...]
    made: tuple[Buffer, ...]
    inner: dict[int, Peak]
    places: tuple[str, ...]
    renewed: tuple[tuple[Buffer, Buffer], ...] = ()

    def temporaries(self) -> Iterator[Buffer]:
        """Yield the temporaries that have memory of their own."""
        return (
            buffer
            for buffer in self.made
            if buffer.merged_into is None and buffer.role is Role.TEMPORARY
        )


def peak_of(life: BlockLife, temporaries: Iterable[Buffer]) -> Peak:
    """Return the first moment at which the temporaries told, and inner blocks, take most."""
    owned = list(temporaries)
    change = [0] * (len(life.places) + 1)
    for buffer in owned:
        change[buffer.made_at] += buffer.size_bytes
        change[buffer.held_until + 1] -= buffer.size_bytes
    for old, new in life.renewed:
        change[old.read_at + 1] -= old.size_bytes
        change[new.made_at] += old.size_bytes
    most = at = live = 0
    for moment, step in enumerate(change[:-1]):
        live += step
        needed = live + life.inner.get(moment, NOTHING).size_bytes
        if needed > most:
            most, at = needed, moment
    if not most:
        return NOTHING
    inner = life.inner.get(at, NOTHING)
    held = [held_buffer(each) for each in owned if each.made_at <= at <= each.held_until]
    return Peak(
        size_bytes=most, location=inner.location or life.places[at], held=(*held, *inner.held)
    )


def held_buffer(buffer: Buffer) -> HeldBuffer:
    """Return what is told of a buffer."""
    return HeldBuffer(
        size_bytes=buffer.size_bytes,
        type=str(buffer.type),
        role=buffer.role,
        location=buffer.location,
    )
