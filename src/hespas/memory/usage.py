"""What a program holds in the memory of one device."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """Why a buffer is there.

    Arguments and outputs are there all the time: the caller owns them. A temporary lives from
    the operation that makes it to the last one that reads it.
    """

    ARGUMENT = "argument"
    OUTPUT = "output"
    TEMPORARY = "temporary"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBuffer:
    """A buffer that is there at the peak: its size, its type, and the operation that made it."""

    size_bytes: int
    type: str
    role: Role
    location: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """The device memory of one step, in bytes.

    ``alias_bytes`` of the outputs are written over arguments. ``temporary_bytes`` is what
    temporaries take, ``gap_bytes`` of it between them, where none fits. ``peak_place`` is the
    operation at work when there are most, empty where there is no temporary. ``held`` is what is
    there at that moment, the largest first.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temporary_bytes: int
    gap_bytes: int
    peak_place: str
    held: tuple[HeldBuffer, ...]

    @property
    def peak_bytes(self) -> int:
        """All memory that the step needs: XLA's arguments + outputs - aliases + temporaries."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temporary_bytes
