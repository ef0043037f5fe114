"""What the forward pass of a program holds for the backward pass.

Compilers mix the two: a part of the weights that the backward pass reads is cut out, and a stack of
zeros that it adds to is made, while the forward pass still runs. So there is no moment between the
passes, and buffers are told apart by the pass that writes them and the pass that reads them last.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from hespas.memory.buffers import Buffer
from hespas.memory.liveness import peak_of
from hespas.memory.usage import settled
from hespas.program.program import Op, Program, Value, values_read
from hespas.program.scopes import Phase
from hespas.program.types import tensors

_LATER = frozenset({Phase.BACKWARD, Phase.RECOMPUTATION})


def held_between(
    program: Program, phase_of: Callable[[Op], Phase | None], *, space: int
) -> tuple[int, int]:
    """Return what the forward pass holds for the backward one, and all temporaries at most.

    Both are bytes in a memory space: the device's, or the host's. The first is the most that
    buffers take which the forward pass writes and the backward pass reads last, at any moment.
    Operations of no phase belong to the pass that they serve.
    """
    state = settled(program, space=space)
    owned = list(state.liveness.temporaries())
    operations = state.main.body.operations
    later = _later(operations, phase_of)
    serving = _serving(operations, later)
    ends = [at for at, op in enumerate(operations[:-1]) if op not in later | serving]
    end = max(ends, default=0)

    def is_read_later(buffer: Buffer) -> bool:
        op = operations[buffer.read_at]
        return op in later or (op in serving and buffer.read_at > end and not _moves(op, space))

    written: dict[Buffer, int] = {}
    for buffer in state.liveness.written:
        if operations[buffer.written_at] not in later:
            written.setdefault(buffer.actual, buffer.written_at)
    change = [0] * (len(operations) + 1)
    for buffer in owned:
        if buffer in written and is_read_later(buffer):
            change[written[buffer]] += buffer.size_bytes
            change[buffer.held_until] -= buffer.size_bytes
    return max(accumulate(change)), peak_of(state.liveness, owned).size_bytes


def _moves(op: Op, space: int) -> bool:
    """Return whether what an operation makes lies elsewhere."""
    made = [tensor for value in op.results for tensor in tensors(value.type)]
    return any(tensor.memory_space != space for tensor in made)


def _later(operations: tuple[Op, ...], phase_of: Callable[[Op], Phase | None]) -> set[Op]:
    """Return the operations of the backward pass."""
    later: set[Op] = set()
    made: set[Value] = set()
    forward = {op for op in operations if phase_of(op) is Phase.FORWARD}
    for op in operations[:-1]:
        needs_later = op not in forward and not made.isdisjoint(values_read(op))
        if needs_later or phase_of(op) in _LATER:
            later.add(op)
            made.update(op.results)
    return later | (_serving(operations, later) - forward)


def _serving(operations: tuple[Op, ...], later: set[Op]) -> set[Op]:
    """Return the other operations whose results nothing but the backward pass needs."""
    serving: set[Op] = set()
    elsewhere: set[Value] = set()
    for op in reversed(operations):
        if op in later:
            continue
        if op.results and elsewhere.isdisjoint(op.results):
            serving.add(op)
        else:
            elsewhere.update(values_read(op))
    return serving
