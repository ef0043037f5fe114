"""How a collective runs in one group: which algorithm, in which stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hespas.errors import SimulationError
from hespas.hardware.interconnect import Dimension, Dimensions, Fabric, Shape
from hespas.simulate.flow.algorithms import (
    HIERARCHICAL,
    algorithms_for,
    steps_of,
)
from hespas.simulate.flow.arrangement import Group, message_count
from hespas.simulate.flow.measured import measured
from hespas.simulate.flow.patterns import Form, Pattern, shift
from hespas.simulate.flow.pricing import Pricer
from hespas.simulate.flow.rates import rate_units
from hespas.simulate.flow.steps import Step, Task
from hespas.simulate.flow.told import Told, told_algorithms

MESSAGE = Pattern(Form.PATH)
_PS_PER_S = 1e12
_MOST_PAIRS = 1_100_000
"""More messages at a time are not even considered where something else is possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """``count`` times: ``lead_ps`` without using links, then ``work_ps`` at ``rate``.

    ``rate`` is that of a message of the pattern on an idle network; None stands for no messages.
    """

    count: int
    lead_ps: int
    work_ps: int
    rate: int
    pattern: Pattern | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The stages of a collective or a message, one after the other.

    ``algorithm`` names how it runs, ``notes`` what is approximated.
    """

    algorithm: str
    stages: tuple[Stage, ...]
    waits_for_receiver: bool = False
    notes: tuple[str, ...] = ()

    @property
    def total_ps(self) -> int:
        """The time on an idle network."""
        return sum(one.count * (one.lead_ps + one.work_ps) for one in self.stages)

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The patterns of its messages, each once."""
        found = [stage.pattern for stage in self.stages if stage.pattern is not None]
        return tuple(dict.fromkeys(found))


class Planner:
    """Plans on one network, each made once.

    ``algorithm`` is for all collectives: a name, ``auto`` for the cheapest on an idle network, or
    ``told`` for what the network tells, and the cheapest where it tells nothing.
    """

    def __init__(self, pricer: Pricer, algorithm: str) -> None:
        self._pricer = pricer
        self._told = told_algorithms(pricer.interconnect, algorithm)
        self._plans: dict[tuple[int, str, int], Plan] = {}
        self.used: dict[str, set[str]] = {}
        self.notes: dict[str, None] = {}

    @property
    def fabric(self) -> Fabric:
        """What connects the devices."""
        return self._pricer.interconnect.fabric

    def collective(self, group: Group, kind: str, size_bytes: int) -> Plan:
        """Return the plan of a collective. Raises `SimulationError` where there is none."""
        return self._kept(group, kind, size_bytes)

    def message(self, group: Group, size_bytes: int) -> Plan:
        """Return the plan of a message from the first member of a pair to the second."""
        return self._kept(group, "send_recv", size_bytes)

    def _kept(self, group: Group, kind: str, size_bytes: int) -> Plan:
        key = (group.number, kind, size_bytes)
        if key not in self._plans:
            plan = self._plans[key] = self._plan(kind, size_bytes, group)
            self.used.setdefault(kind, set()).add(plan.algorithm)
            self.notes |= dict.fromkeys(plan.notes)
        return self._plans[key]

    def _plan(self, kind: str, size_bytes: int, group: Group) -> Plan:
        if kind == "send_recv":
            return self._message(group, size_bytes)
        try:
            return self._best(kind, size_bytes, group)
        except SimulationError as error:
            first = int(group.members[0])
            place = f"{kind} among the {group.size} devices with device {first}"
            raise SimulationError(error.message, location=place, hint=error.hint) from error

    def _message(self, group: Group, size_bytes: int) -> Plan:
        waits = self._pricer.waits_for_receiver(group, MESSAGE, size_bytes)
        if len(group.lines) == 1:
            (line,) = group.lines
            known = self._measured(group, line, "send_recv", size_bytes)
            if known is not None:
                return replace(known, waits_for_receiver=waits)
        price = self._pricer.message(group, MESSAGE, size_bytes)
        stage = Stage(
            count=1,
            lead_ps=price.lead_ps + self._pricer.step_overhead_ps(group, MESSAGE),
            work_ps=price.work_ps,
            rate=price.rate,
            pattern=MESSAGE,
        )
        return Plan(algorithm="message", stages=(stage,), waits_for_receiver=waits)

    def _best(self, kind: str, size_bytes: int, group: Group) -> Plan:
        told = self._told.get(kind)
        if told is not None:
            return self._as_told(group, kind, size_bytes, told)
        plans = list(self._candidates(group, kind, size_bytes))
        if not plans:
            message = f"no algorithm runs {kind} among these {group.size} devices"
            raise SimulationError(message)
        return min(plans, key=lambda plan: plan.total_ps)

    def _candidates(self, group: Group, kind: str, size_bytes: int) -> Iterator[Plan]:
        lines = list(group.lines)
        if len(lines) == 1:
            known = self._measured(group, lines[0], kind, size_bytes)
            if known is not None:
                yield known
                return
        if len(lines) > 1 and kind in HIERARCHICAL:
            yield self._hierarchical(group, kind, size_bytes, None)
            if any(self._dimension(line).measured for line in lines):
                return
        for algorithm in algorithms_for(kind, group.size):
            if self._is_possible(group, None, algorithm):
                yield self._flat(group, kind, size_bytes, Told(algorithm=algorithm))

    def _is_possible(self, group: Group, line: int | None, algorithm: str) -> bool:
        if algorithm == "inSwitch":
            own = list(group.lines) if line is None else [line]
            return len(own) == 1 and self._reduces_in_switch(own[0])
        if algorithm == "bidirectionalRing":
            return self._has_two_ways(list(group.lines) if line is None else [line])
        members = group.size if line is None else group.lines[line].shape[1]
        pattern = Pattern(Form.SHIFT, 1, members - 1, line)
        return algorithm != "direct" or message_count(pattern, group) <= _MOST_PAIRS

    def _has_two_ways(self, lines: list[int]) -> bool:
        """Tell whether neighbours on both sides have wires of their own."""
        fabric = self.fabric
        if not isinstance(fabric, Dimensions):
            return True
        along = [fabric.dimensions[line] for line in lines] or list(fabric.dimensions)
        return any(dimension.shape is Shape.RING for dimension in along)

    def _reduces_in_switch(self, line: int) -> bool:
        dimension = self._dimension(line)
        has_switch = dimension.shape in (Shape.SWITCH, Shape.FAT_TREE)
        return has_switch and dimension.parameters.reduces_in_switch

    def _dimension(self, line: int) -> Dimension:
        fabric = self._pricer.interconnect.fabric
        if not isinstance(fabric, Dimensions):
            raise TypeError
        return fabric.dimensions[line]

    def _as_told(self, group: Group, kind: str, size_bytes: int, told: tuple[Told, ...]) -> Plan:
        lines = list(group.lines)
        first = told[0]
        is_along_lines = len(lines) > 1 and kind in HIERARCHICAL and not first.is_flat
        if first.algorithm == "hierarchical" and not is_along_lines:
            return self._best_of_known(group, kind, size_bytes)
        if is_along_lines:
            chosen = None if first.algorithm == "hierarchical" else told
            return self._hierarchical(group, kind, size_bytes, chosen)
        one = told[min(lines[0], len(told) - 1)] if lines else first
        if one.algorithm == "inSwitch" and not self._is_possible(group, None, "inSwitch"):
            message = f"there is no switch that reduces between the {group.size} devices"
            raise SimulationError(message, hint="set reduces_in_switch, or use auto")
        return self._flat(group, kind, size_bytes, one)

    def _best_of_known(self, group: Group, kind: str, size_bytes: int) -> Plan:
        return min(self._candidates(group, kind, size_bytes), key=lambda plan: plan.total_ps)

    def _flat(self, group: Group, kind: str, size_bytes: int, told: Told) -> Plan:
        stages = self._stages(group, None, kind, size_bytes, told)
        return Plan(algorithm=told.algorithm, stages=tuple(stages))

    def _hierarchical(
        self, group: Group, kind: str, size_bytes: int, told: tuple[Told, ...] | None
    ) -> Plan:
        """Run along one dimension after the other, each as told or the cheapest way."""
        parts: list[Plan] = []
        for line, phase, phase_bytes in _phases(group, kind, size_bytes):
            if told is not None:
                one = told[min(line, len(told) - 1)]
                stages = self._stages(group, line, phase, phase_bytes, one)
                parts.append(Plan(algorithm=one.algorithm, stages=tuple(stages)))
            else:
                plans = self._along(group, line, phase, phase_bytes)
                parts.append(min(plans, key=lambda plan: plan.total_ps))
        return Plan(
            algorithm=f"hierarchical ({', '.join(part.algorithm for part in parts)})",
            stages=tuple([stage for part in parts for stage in part.stages]),
            notes=tuple([note for part in parts for note in part.notes]),
        )

    def _along(self, group: Group, line: int, kind: str, size_bytes: int) -> Iterator[Plan]:
        known = self._measured(group, line, kind, size_bytes)
        if known is not None:
            yield known
            return
        members = group.lines[line].shape[1]
        for algorithm in algorithms_for(kind, members):
            if self._is_possible(group, line, algorithm):
                stages = self._stages(group, line, kind, size_bytes, Told(algorithm=algorithm))
                yield Plan(algorithm=algorithm, stages=tuple(stages))

    def _stages(
        self, group: Group, line: int | None, kind: str, size_bytes: int, told: Told
    ) -> Iterable[Stage]:
        members = group.size if line is None else group.lines[line].shape[1]
        task = Task(
            members=members,
            size_bytes=size_bytes,
            window=told.window,
            pipeline_bytes=self._pipeline_bytes(group, line),
        )
        endpoint_ps = self._pricer.endpoint_ps
        if endpoint_ps:
            yield Stage(count=1, lead_ps=endpoint_ps, work_ps=0, rate=1, pattern=None)
        for step in steps_of(kind, told.algorithm, task):
            yield self._stage(group, line, step)

    def _stage(self, group: Group, line: int | None, step: Step) -> Stage:
        pattern = replace(step.pattern, line=line)
        pricer = self._pricer
        price = pricer.message(group, pattern, step.size_bytes, hops=step.hops)
        each_ps = pricer.endpoint_ps + step.messages * pricer.step_overhead_ps(group, pattern)
        lead_ps = price.lead_ps + step.hops * each_ps + pricer.reduce_ps(step.reduced_bytes)
        return Stage(
            count=step.count,
            lead_ps=lead_ps,
            work_ps=price.work_ps,
            rate=price.rate,
            pattern=pattern,
        )

    def _pipeline_bytes(self, group: Group, line: int | None) -> int | None:
        lines = group.lines if line is None else (line,)
        pieces = [self._dimension(one).parameters.pipeline_bytes for one in lines]
        known = [piece for piece in pieces if piece is not None]
        return min(known) if known and len(known) == len(pieces) else None

    def _measured(self, group: Group, line: int, kind: str, size_bytes: int) -> Plan | None:
        link = self._dimension(line).measured
        members = group.lines[line].shape[1]
        found = None if link is None else measured(link, kind, members, size_bytes)
        if found is None:
            return None
        is_alone = len(group.lines) == 1
        pattern = MESSAGE if kind == "send_recv" else replace(
            shift(1), line=None if is_alone else line
        )  # fmt: skip
        slowdown = self._pricer.slowdown(group, pattern)
        work_ps = round(found.transfer_s * slowdown * _PS_PER_S)
        rate = self._pricer.message(group, pattern, 1).rate
        if found.transfer_s > 0:
            own_rate = found.moved_bytes / (found.transfer_s * slowdown) / 1e9
            rate = max(1, min(rate, rate_units(own_rate)))
        stage = Stage(
            count=1,
            lead_ps=round(found.latency_s * _PS_PER_S),
            work_ps=work_ps,
            rate=rate,
            pattern=pattern,
        )
        notes = list(found.notes)
        if slowdown != 1.0:
            notes.append("where links differ, measured collectives take as much longer as a ring")
        return Plan(algorithm=found.name, stages=(stage,), notes=tuple(notes))


def _phases(group: Group, kind: str, size_bytes: int) -> Iterator[tuple[int, str, int]]:
    """Yield (dimension, collective, bytes of one member's input) along the dimensions.

    An all-reduce scatters along all but the last, reduces along that, and gathers back.
    """
    sizes = {line: positions.shape[1] for line, positions in group.lines.items()}
    if kind == "all_reduce":
        *inner, last = sizes
        for line in inner:
            yield line, "reduce_scatter", size_bytes
            size_bytes //= sizes[line]
        yield last, "all_reduce", size_bytes
        for line in reversed(inner):
            yield line, "all_gather", size_bytes
            size_bytes *= sizes[line]
        return
    order = reversed(sizes) if kind == "all_gather" else iter(sizes)
    for line in order:
        yield line, kind, size_bytes
        if kind == "all_gather":
            size_bytes *= sizes[line]
        elif kind == "reduce_scatter":
            size_bytes //= sizes[line]
