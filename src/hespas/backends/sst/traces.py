"""SIRIUS traces, as ember's motif ``SIRIUSTrace`` reads them: one binary file for each rank.

A record is little-endian: ``uint32`` kind, ``double`` start in seconds, the call's arguments,
``double`` end, ``int32`` result. Computation is the time from the end of a record to the start of
the next. Each exchange is IRECV for all that comes, SEND for all that goes, WAIT for the former.
FINI does not wait for the computation before it. Where a rank computes last, all have a BARRIER,
which does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from struct import Struct

from hespas.backends.rank_programs import Action, Exchange, Wait
from hespas.base.files import write_file
from hespas.base.units import PS_PER_S
from hespas.errors import SimulationError

_INIT, _FINI, _SEND, _IRECV, _BARRIER, _WAIT = 1, 2, 4, 17, 64, 128
_CHAR, _WORLD, _NO_BUFFER = 4, 0, 0
_HEAD, _TAIL = Struct("<Id"), Struct("<di")
_ARGUMENTS = {
    _INIT: Struct("<"),
    _FINI: Struct("<"),
    # Buffer, count, datatype, the other rank, tag, communicator.
    _SEND: Struct("<QIIiiI"),
    # The same, and the request that WAIT names.
    _IRECV: Struct("<QIIiiIQ"),
    # Communicator.
    _BARRIER: Struct("<I"),
    # Request, status.
    _WAIT: Struct("<QQ"),
}
_MOST_BYTES = 2**32 - 1


def write_traces(ranks: Sequence[Sequence[Action]], prefix: Path) -> None:
    """Write ``PREFIX.RANK`` for every rank; `SimulationError` for a message of 4 GiB or more."""
    computes_last = any(isinstance(action, Wait) for actions in ranks for action in actions[-1:])
    for rank, actions in enumerate(ranks):
        trace = trace_bytes(actions, ends_with_barrier=computes_last)
        write_file(prefix.with_name(f"{prefix.name}.{rank}"), trace)


def trace_bytes(actions: Sequence[Action], *, ends_with_barrier: bool = False) -> bytes:
    """Return the trace of a rank.

    >>> len(trace_bytes(())) == 2 * (4 + 8 + 8 + 4)
    True
    """
    return b"".join(_records(actions, ends_with_barrier=ends_with_barrier))


def _records(actions: Sequence[Action], *, ends_with_barrier: bool) -> Iterator[bytes]:
    now_ps = 0
    requests = count(1)
    yield _record(_INIT, now_ps)
    for action in actions:
        match action:
            case Wait(duration_ps=duration_ps):
                now_ps += duration_ps
            case Exchange(sends=sends, receives=receives):
                pending: list[int] = []
                for each in receives:
                    pending.append(next(requests))
                    size = _checked(each.size_bytes)
                    given = (_NO_BUFFER, size, _CHAR, each.peer, each.tag, _WORLD, pending[-1])
                    yield _record(_IRECV, now_ps, *given)
                for each in sends:
                    size = _checked(each.size_bytes)
                    given = (_NO_BUFFER, size, _CHAR, each.peer, each.tag, _WORLD)
                    yield _record(_SEND, now_ps, *given)
                for request in pending:
                    yield _record(_WAIT, now_ps, request, 0)
    if ends_with_barrier:
        yield _record(_BARRIER, now_ps, _WORLD)
    yield _record(_FINI, now_ps)


def _record(kind: int, now_ps: int, *arguments: int) -> bytes:
    now_s = now_ps / PS_PER_S
    return _HEAD.pack(kind, now_s) + _ARGUMENTS[kind].pack(*arguments) + _TAIL.pack(now_s, 0)


def _checked(size_bytes: int) -> int:
    if size_bytes > _MOST_BYTES:
        raise SimulationError(
            f"a message has {size_bytes} bytes, and SST's traces count to {_MOST_BYTES}",
            hint="simulate it by hespas: --backend hespas",
        )
    return size_bytes
