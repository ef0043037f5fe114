"""Notice when the order of events at one instant matters, and the closed formulas don't tell it.

On a device that stands for others, two events of one instant may come in another order than on
those; and a collective's last message comes in an order among other events that only its
course tells. That changes nothing unless another task then gets a slot, which is found out here
by going through both orders.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hespas.schedule.tasks import CollectiveTask
from hespas.simulate.machine import Machine, Slot
from hespas.simulate.needs_engine import NeedsEngineError


@dataclass(slots=True)
class _Ended:
    """A task that ended at this instant, and by slot, what it released and let start.

    ``set_ps`` is when its end was settled.
    """

    event: object
    index: int
    is_collective: bool
    set_ps: int
    released: dict[Slot, set[int]]
    started: dict[Slot, int] = field(default_factory=dict[Slot, int])


class Ties:
    """What has ended on each machine at the current instant, and in which event."""

    def __init__(self) -> None:
        self._ended: dict[int, tuple[int, list[_Ended]]] = {}

    def end(self, machine: Machine, index: int, event: object, now_ps: int, set_ps: int) -> None:
        """Note that a task is about to end, which was settled at ``set_ps``.

        Raises `NeedsEngineError` if another task would get a slot, had it ended before what
        ended at this instant in another event; or if so much ends at once that this isn't clear.
        """
        then_ps, ended = self._ended.get(machine.number, (now_ps, []))
        if then_ps != now_ps:
            ended = []
        is_collective = isinstance(machine.tasks[index], CollectiveTask)
        new = _Ended(event, index, is_collective, set_ps, machine.released_by(index))
        has_other = any(_is_order_open(machine, old, new, now_ps) for old in ended)
        if has_other and (len(ended) > 1 or _order_matters(machine, ended[0], new)):
            raise NeedsEngineError
        self._ended[machine.number] = (now_ps, [*ended, new])

    def start(self, machine: Machine, taken: Iterable[tuple[int, int]]) -> None:
        """Note what starts after the task that ended last."""
        _, ended = self._ended.get(machine.number, (0, []))
        if not ended:
            return  # the start of the step: nothing has ended yet
        for task_id, index in taken:
            slot = machine.slot_of(index)
            if slot is not None:
                ended[-1].started[slot] = task_id


def _is_order_open(machine: Machine, old: _Ended, new: _Ended, now_ps: int) -> bool:
    """Return whether ``old`` may have ended after ``new``."""
    if not (old.is_collective or new.is_collective):
        return old.event != new.event
    if new.index in machine.children[old.index]:
        return False
    is_set_now = any(one.is_collective and one.set_ps == now_ps for one in (old, new))
    return is_set_now or old.set_ps == new.set_ps or old.event != new.event


def _order_matters(machine: Machine, old: _Ended, new: _Ended) -> bool:
    return any(_other_task_starts(slot, machine, old, new) for slot in Slot)


def _other_task_starts(slot: Slot, machine: Machine, old: _Ended, new: _Ended) -> bool:
    """Compare who gets a slot: as it happens, and had ``new`` ended first.

    ``new`` is about to end; ``old`` has, and what then got the slot has started.
    """
    old_frees, new_frees = (machine.slot_of(ended.index) is slot for ended in (old, new))
    started = old.started.get(slot)
    waiting = machine.waiting(slot)
    by_old, by_new = old.released.get(slot, set[int]()), new.released.get(slot, set[int]())
    by_both = by_new & machine.children_of(old.index)
    was_free = not old_frees and (started is not None or machine.is_free(slot))
    before = waiting - by_old
    if started is not None and started not in by_old:
        before.add(started)

    first = started
    if first is None and (new_frees or machine.is_free(slot)):
        first = min(waiting | by_new, default=None)
    other = None
    if was_free or new_frees:
        other = min(before | (by_new - by_both), default=None)
    if other is None:
        other = min(before | by_new | by_old, default=None)
    return first != other and (was_free or old_frees or new_frees)
