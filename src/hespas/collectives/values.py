"""What chunks hold while an algorithm runs, and what they must hold at its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, assert_never

from hespas.collectives.algorithm import Algorithm, Buffer, Collective, Place


class Value(NamedTuple):
    """The sum over some ranks of one chunk of their inputs.

    ``chunk`` is its place in the input, ``ranks`` a bit for each rank. ``fault`` says what is
    wrong with it, and at which step that came about.
    """

    chunk: int
    ranks: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Required:
    """What a chunk of a rank's output must hold."""

    rank: int
    place: Place
    value: Value


def initial_values(algorithm: Algorithm) -> Iterator[tuple[int, Place, Value]]:
    """Yield what is there at the start: every rank's input."""
    for rank in range(len(algorithm.ranks)):
        for chunk in range(algorithm.input_chunks):
            yield rank, Place(Buffer.INPUT, chunk), Value(chunk, 1 << rank)


def added(one: Value, other: Value, where: str) -> Value:
    """Return the sum of two values, with the fault of adding the same or unlike things.

    >>> added(Value(0, 0b01), Value(0, 0b10), "here")
    Value(chunk=0, ranks=3, fault='')
    >>> added(Value(0, 0b11), Value(0, 0b10), "here").fault
    'here: adds the contribution of rank 1 a second time'
    """
    if one.fault or other.fault:
        return one if one.fault else other
    if one.chunk != other.chunk:
        return Value(0, 0, f"{where}: adds chunk {other.chunk} to chunk {one.chunk}")
    twice = one.ranks & other.ranks
    if twice:
        ranks = ranks_text(twice)
        return Value(0, 0, f"{where}: adds the contribution of {ranks} a second time")
    return Value(one.chunk, one.ranks | other.ranks)


def required_values(algorithm: Algorithm) -> Iterator[Required]:
    """Yield what the collective must leave; nothing for a custom one, which is not known."""
    for rank in range(len(algorithm.ranks)):
        for chunk in range(algorithm.output_chunks):
            value = _required(algorithm, rank, chunk)
            if value is not None:
                yield Required(rank, Place(Buffer.OUTPUT, chunk), value)


def _required(algorithm: Algorithm, rank: int, chunk: int) -> Value | None:
    count = len(algorithm.ranks)
    everyone = (1 << count) - 1
    result: Value | None = None
    collective = algorithm.collective
    match collective:
        case Collective.ALL_REDUCE:
            result = Value(chunk, everyone)
        case Collective.REDUCE_SCATTER:
            result = Value(rank * algorithm.output_chunks + chunk, everyone)
        case Collective.ALL_GATHER | Collective.GATHER:
            if collective is Collective.GATHER and rank != algorithm.root:
                return None
            owner, part = divmod(chunk, algorithm.input_chunks)
            result = Value(part, 1 << owner)
        case Collective.ALL_TO_ALL:
            each = algorithm.input_chunks // count
            owner, part = divmod(chunk, each)
            result = Value(rank * each + part, 1 << owner)
        case Collective.BROADCAST:
            result = Value(chunk, 1 << algorithm.root)
        case Collective.REDUCE:
            result = Value(chunk, everyone) if rank == algorithm.root else None
        case Collective.SCATTER:
            result = Value(rank * algorithm.output_chunks + chunk, 1 << algorithm.root)
        case Collective.CUSTOM | Collective.BARRIER:
            pass
        case _:
            assert_never(collective)
    return result


def ranks_text(ranks: int) -> str:
    """Return how errors name a set of ranks.

    >>> ranks_text(0b1011)
    'ranks 0, 1, 3'
    """
    numbers = [str(rank) for rank in range(ranks.bit_length()) if ranks >> rank & 1]
    shown = ", ".join(numbers[:8]) + (", ..." if len(numbers) > 8 else "")
    return f"rank{'s' if len(numbers) > 1 else ''} {shown}"
