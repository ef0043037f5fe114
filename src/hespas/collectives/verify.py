"""Whether an algorithm computes its collective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hespas.collectives.algorithm import Algorithm, Collective, step_text
from hespas.collectives.execution import Block, Execution, Transfer, place_text
from hespas.collectives.structure import check_structure
from hespas.collectives.values import Required, Value, ranks_text, required_values
from hespas.errors import AlgorithmError

_LONGEST_CHAIN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """An algorithm that was found right, with its messages in an order in which they can be sent.

    ``is_result_known`` is False for a custom collective, of which only the run was checked.
    """

    algorithm: Algorithm
    transfers: tuple[Transfer, ...]
    is_result_known: bool

    def chunks_by_link(self) -> Mapping[tuple[int, int], int]:
        """Return how many chunks go from one rank to another, by (source, target)."""
        found: dict[tuple[int, int], int] = {}
        for one in self.transfers:
            link = (one.source, one.target)
            found[link] = found.get(link, 0) + one.count
        return dict(sorted(found.items()))


def verify(algorithm: Algorithm) -> Verified:
    """Return the algorithm's messages, if it computes its collective.

    It is run on symbols: at the end every rank holds every chunk that it must, with each rank's
    contribution in it exactly once. Raises `AlgorithmError`, naming rank, threadblock, step and
    chunk, for a chunk that is wrong, a contribution that is missing or there twice, two steps
    that access a chunk in no order (one of them writing), messages that nobody receives, and
    steps that wait for ever.

    >>> from hespas.collectives.generate_ring import ring_all_reduce
    >>> len(verify(ring_all_reduce(4)).transfers)
    24
    """
    check_structure(algorithm)
    execution = Execution(algorithm)
    _check_ended(execution)
    _check_results(execution)
    return Verified(
        algorithm=algorithm,
        transfers=tuple(execution.transfers),
        is_result_known=algorithm.collective is not Collective.CUSTOM,
    )


def _check_ended(execution: Execution) -> None:
    name = execution.algorithm.name
    stuck = next((block for block in execution.blocks if not block.is_done), None)
    if stuck is not None:
        raise AlgorithmError(_waits(execution, stuck), location=f"{name}: {stuck.text()}")
    for (source, target, _), messages in execution.messages.items():
        if messages:
            where = step_text(source, messages[0].sender)
            raise AlgorithmError(
                f"sends a message that rank {target} never receives", location=f"{name}: {where}"
            )


def _waits(execution: Execution, block: Block) -> str:
    """Return what a step waits for, what that waits for, and so on until it is clear why."""
    reasons: list[str] = []
    seen: list[Block] = []
    while block not in seen and len(reasons) < _LONGEST_CHAIN:
        seen.append(block)
        reason, other = _why(execution, block)
        reasons.append(reason)
        if other is None or other.is_done:
            return "; ".join(reasons)
        block = other
    return f"{'; '.join(reasons)}; so nothing goes on"


def _why(execution: Execution, block: Block) -> tuple[str, Block | None]:
    after = execution.waits_for_step(block)
    who = block.text()
    if after is not None:
        other = execution.block_of[block.rank, after.threadblock]
        return f"{who} waits for threadblock {after.threadblock}, step {after.step}", other
    source = block.threadblock.receive_peer
    channel = block.threadblock.channel
    reason = f"{who} waits for a message of rank {source} on channel {channel}"
    senders = [
        other
        for other in execution.blocks
        if other.rank == source
        and other.threadblock.send_peer == block.rank
        and other.threadblock.channel == channel
    ]
    if not senders:
        return f"{reason}, where nothing is sent", None
    if senders[0].is_done:
        sends = sum(step.kind.sends for step in senders[0].threadblock.steps)
        return f"{reason}, where only {sends} are sent", senders[0]
    return reason, senders[0]


def _check_results(execution: Execution) -> None:
    """Raise for the first wrong chunk, of which one whose fault has a known step says more."""
    wrong: Required | None = None
    for required in required_values(execution.algorithm):
        found = execution.values.get(execution.slot(required.rank, required.place))
        if not _problem(found, required.value):
            continue
        wrong = wrong or required
        if found is not None and found.fault:
            wrong = required
            break
    if wrong is not None:
        raise _wrong_result(execution, wrong)


def _wrong_result(execution: Execution, required: Required) -> AlgorithmError:
    slot = execution.slot(required.rank, required.place)
    problem = _problem(execution.values.get(slot), required.value)
    chunk = place_text(required.place)
    writer = execution.last_writer(slot)
    written = f" (written last by {writer})" if writer else " (never written)"
    return AlgorithmError(
        f"rank {required.rank}'s {chunk} {problem}{written}", location=execution.algorithm.name
    )


def _problem(found: Value | None, required: Value) -> str:
    if found is None:
        return "holds nothing"
    if found.fault:
        return f"is wrong: {found.fault}"
    if found.chunk != required.chunk:
        return f"holds input chunk {found.chunk} instead of {required.chunk}"
    lacking, surplus = required.ranks & ~found.ranks, found.ranks & ~required.ranks
    if lacking:
        return f"lacks the contribution of {ranks_text(lacking)}"
    if surplus:
        return f"has a contribution of {ranks_text(surplus)} too many"
    return ""
