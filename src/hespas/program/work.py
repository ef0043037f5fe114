"""Work of an operation: FLOPs, transcendental functions and bytes."""

from __future__ import annotations

from collections.abc import Iterable

from hespas.base.fields import parse_pairs
from hespas.base.figures import amount
from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.errors import ConfigError, option
from hespas.program.types import ELEMENT_TYPES

FlopCounts = tuple[tuple[str, int], ...]


@frozen
class Work:
    """Arithmetic and memory traffic; works add, with `ZERO` for nothing.

    ``flops`` holds (type, count) pairs sorted by type, each count above zero. The type is the
    element type that the hardware multiplies or adds, as MLIR spells it, or ``tf32``.
    ``transcendentals`` counts results of exp, tanh, sqrt and similar functions, which are not in
    ``flops``. ``bytes_read`` and ``bytes_written`` cross the memory bus.

    >>> matmul = Work(flops=flop_counts("bf16", 2 * 8 * 8 * 8), bytes_read=256, bytes_written=128)
    >>> bias = Work(flops=flop_counts("f32", 64), bytes_read=288, bytes_written=256)
    >>> (matmul + bias).flops
    (('bf16', 1024), ('f32', 64))
    >>> (matmul * 3).total_flops, (matmul * 3).bytes_moved
    (3072, 1152)
    """

    flops: FlopCounts = ()
    transcendentals: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def total_flops(self) -> int:
        """FLOPs of all types."""
        return sum(count for _, count in self.flops)

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def arithmetic(self) -> Work:
        """The work without memory traffic."""
        return Work(flops=self.flops, transcendentals=self.transcendentals)

    def __add__(self, other: Work) -> Work:
        return summed((self, other))

    def __mul__(self, times: float) -> Work:
        """Return the work of ``times`` repetitions, rounded to whole counts.

        Raises `ValueError` for a negative number.
        """
        if times < 0:
            raise ValueError(f"work cannot be done {times} times")
        scaled = ((name, round(count * times)) for name, count in self.flops)
        return Work(
            flops=tuple([(name, count) for name, count in scaled if count]),
            transcendentals=round(self.transcendentals * times),
            bytes_read=round(self.bytes_read * times),
            bytes_written=round(self.bytes_written * times),
        )


ZERO = Work()


def flop_counts(type_name: str, count: int) -> FlopCounts:
    """Return FLOPs of one type as `Work.flops`.

    >>> flop_counts("f32", 3), flop_counts("f32", 0)
    ((('f32', 3),), ())
    """
    return ((type_name, count),) if count else ()


def summed(works: Iterable[Work]) -> Work:
    """Add many works at once.

    >>> summed([Work(bytes_read=1), Work(bytes_read=2)]).bytes_read
    3
    """
    flops: dict[str, int] = {}
    transcendentals = bytes_read = bytes_written = 0
    for work in works:
        for name, count in work.flops:
            flops[name] = flops.get(name, 0) + count
        transcendentals += work.transcendentals
        bytes_read += work.bytes_read
        bytes_written += work.bytes_written
    return Work(
        flops=tuple(sorted(flops.items())),
        transcendentals=transcendentals,
        bytes_read=bytes_read,
        bytes_written=bytes_written,
    )


@frozen
class OperandTraffic:
    """A custom call stated to read operands, write results and compute nothing."""


@frozen
class StatedWork:
    """A custom call whose work the user states."""

    work: Work


CustomCallCost = OperandTraffic | StatedWork
_FORM = "TARGET=traffic, or TARGET=flops:N,type:T,bytes:N"


def parse_custom_calls(texts: Iterable[str]) -> dict[str, CustomCallCost]:
    """Read ``TARGET=traffic`` or ``TARGET=flops:N,type:T,bytes:N``.

    >>> parse_custom_calls(["mine=traffic"])
    {'mine': OperandTraffic()}
    """
    return {
        target: OperandTraffic() if cost == "traffic" else _stated_work(f"{target}={cost}", cost)
        for target, cost in parse_pairs(texts, name="custom_call", form=_FORM).items()
    }


def _stated_work(text: str, cost: str) -> StatedWork:
    parts = [part.partition(":") for part in cost.split(",")]
    fields = {name.strip(): value.strip() for name, _, value in parts}
    flops, bytes_moved = amount(fields.get("flops", "0")), amount(fields.get("bytes", "0"))
    allowed = {"flops", "bytes"} | ({"type"} if "flops" in fields else set[str]())
    is_stated = fields.keys() & {"flops", "bytes"} and len(fields) == len(parts)
    if flops is None or bytes_moved is None or not is_stated or set(fields) - allowed:
        raise ConfigError(f"{option('custom_call')} is {text!r}", hint=f"write {_FORM}")
    kind = fields.get("type", "f32")
    if kind not in ELEMENT_TYPES:
        raise ConfigError(
            f"{option('custom_call')} {text!r}: unknown element type {kind!r}",
            hint=suggestion(kind, ELEMENT_TYPES),
        )
    return StatedWork(
        work=Work(flops=flop_counts(kind, round(flops)), bytes_read=round(bytes_moved))
    )
