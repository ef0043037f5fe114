"""Choose each collective's algorithm, and the stages it runs in.

The user or the network specifies the algorithm; otherwise it is the fastest on an idle network.
Where a link has measurements of collectives, they give the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.collectives.patterns import Along, Form, Pattern
from hespas.collectives.schedule import HIERARCHICAL, phases
from hespas.errors import AlgorithmError, ConfigError, SimulationError
from hespas.hardware.interconnect import Dimension, Interconnect, Shape
from hespas.program.collectives import CollectiveKind
from hespas.simulate import options
from hespas.simulate.astra.plan import parse_implementation
from hespas.simulate.flow import nccl
from hespas.simulate.flow.algorithms import (
    ON_AXES,
    Pricer,
    Step,
    algorithms_for,
    collective_of,
    kinds_of,
    steps_of,
)
from hespas.simulate.flow.groups import GroupLayout
from hespas.simulate.flow.libraries import MESSAGE, planned_across_nodes, planned_as_measured
from hespas.simulate.flow.plans import Plan, Stage, fastest, joined

_BY_KERNEL = {"all_reduce_one_shot": "all_reduce", "all_reduce_two_shot": "all_reduce"}
"""The collective that each kind of a compiler's own kernels runs."""
_KERNELS_OF_OTHERS = (
    "all-reduces by the compiler's own kernels take what such kernels of vLLM, SGLang and "
    "TensorRT-LLM were measured to take, and a launch"
)
_CONTENTION = (
    "contention: computation beside NCCL's collectives has the multiprocessors that their channels "
    "leave (24 channels in a node, 16 of NVLS, 2 for each port); what arithmetic takes longer "
    "counts as exposed communication"
)
EVERY_AXIS = Pattern(Form.NEIGHBOURS, line=Along.EVERY_AXIS)
_ALGORITHMS = (*options.ALGORITHMS, *options.NETWORK_WIDE)
_MOST_PAIRS = 1_100_000
"""Direct algorithms with more messages at a time are not candidates."""


@frozen
class SpecifiedAlgorithm:
    """A named algorithm and how it runs.

    ``is_flat`` means among all members at once, whatever the dimensions. ``window`` limits to how
    many others a direct algorithm sends at once.
    """

    algorithm: str
    window: int | None = None
    is_flat: bool = False


def specified_algorithms(
    interconnect: Interconnect, choice: str
) -> dict[str, tuple[SpecifiedAlgorithm, ...]]:
    """Return each kind's specified algorithms, one per dimension; none means the fastest."""
    name = options.parse_choice(choice)
    if name == options.AUTO:
        return {}
    if name == options.SPECIFIED:
        return {
            kind: tuple([_specified(name, interconnect.name) for name in names])
            for kind, names in interconnect.algorithms.items()
        }
    specified = SpecifiedAlgorithm(algorithm=name, is_flat=name in options.ALGORITHMS)
    return dict.fromkeys(kinds_of(name), (specified,))


def _specified(text: str, location: str) -> SpecifiedAlgorithm:
    name = options.choice_named(text)
    if name in _ALGORITHMS:
        return SpecifiedAlgorithm(algorithm=name)
    try:
        implementation = parse_implementation(text)
    except SimulationError as error:
        hint = suggestion(text, _ALGORITHMS)
        raise ConfigError(f"the algorithm is {text!r}", location=location, hint=hint) from error
    return SpecifiedAlgorithm(
        algorithm=implementation.algorithm,
        window=implementation.window,
        is_flat=implementation.is_one_ring,
    )


class Planner:
    """Plans collectives and messages on one network, each once.

    ``algorithm`` is for all collectives that it can run: a name, ``auto`` for the fastest on an
    idle network, or ``specified`` for what the network specifies, and the fastest elsewhere.
    ``used`` has the algorithms by kind, ``notes`` (an ordered set) what the plans approximate.
    """

    def __init__(self, pricer: Pricer, algorithm: str) -> None:
        self._pricer = pricer
        self._specified = specified_algorithms(pricer.interconnect, algorithm)
        self._plans: dict[tuple[int, str, int], Plan] = {}
        self.used: dict[str, set[str]] = {}
        self.notes: dict[str, None] = {}

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The dimensions that devices are numbered along."""
        return self._pricer.interconnect.dimensions

    def plan(self, group: GroupLayout, kind: str, size_bytes: int) -> Plan:
        """Return the plan of a collective or a message.

        The kind of a message is ``send_recv``; it goes from the first member of a pair to the
        second. Raises `SimulationError` for a collective that no algorithm can run.
        """
        key = (group.number, kind, size_bytes)
        if key not in self._plans:
            plan = self._plans[key] = self._new_plan(group, kind, size_bytes)
            self.used.setdefault(_BY_KERNEL.get(kind, kind), set()).add(plan.algorithm)
            self.notes |= dict.fromkeys(plan.notes)
            if plan.multiprocessor_share:
                self.notes[_CONTENTION] = None
        return self._plans[key]

    def _new_plan(self, group: GroupLayout, kind: str, size_bytes: int) -> Plan:
        if kind == "send_recv":
            return self._message(group, size_bytes)
        if kind in _BY_KERNEL:
            return self._by_kernel(group, kind, size_bytes)
        try:
            specified = self._specified.get(kind)
            if specified is not None:
                return self._as_specified(specified, group, kind, size_bytes)
            return self._fastest_of_all(group, kind, size_bytes)
        except (SimulationError, AlgorithmError) as error:
            first = int(group.members[0])
            location = f"{kind} among the {group.size} devices with device {first}"
            raise SimulationError(
                error.marked_message, location=location, hint=error.marked_hint
            ) from error

    def _by_kernel(self, group: GroupLayout, kind: str, size_bytes: int) -> Plan:
        """Return the plan of the compiler's kernel, else the library's.

        A specified algorithm goes before. Kernels exist only for the measured sizes of groups.
        """
        base, lines = _BY_KERNEL[kind], list(group.lines)
        if base not in self._specified and len(lines) == 1:
            link = self.dimensions[lines[0]].measured
            if link is not None and group.size in link.collectives.get(kind, {}):
                plan = planned_as_measured(self._pricer, group, lines[0], kind, size_bytes)
                if plan is not None:
                    return replace(plan, notes=(*plan.notes, _KERNELS_OF_OTHERS))
        return self._new_plan(group, base, size_bytes)

    def _message(self, group: GroupLayout, size_bytes: int) -> Plan:
        pricer = self._pricer
        waits = pricer.waits_for_receiver(group, MESSAGE, size_bytes)
        plan = self._measured(group, "send_recv", size_bytes)
        if plan is not None:
            return replace(plan, waits_for_receiver=waits)
        price = pricer.message(group, MESSAGE, size_bytes)
        stage = Stage(
            count=1,
            delay_ps=price.delay_ps + pricer.step_overhead_ps(group, MESSAGE),
            work_ps=price.work_ps,
            rate=price.rate,
            pattern=MESSAGE,
        )
        return Plan(algorithm="message", stages=(stage,), waits_for_receiver=waits)

    def _as_specified(
        self,
        specified: tuple[SpecifiedAlgorithm, ...],
        group: GroupLayout,
        kind: str,
        size_bytes: int,
    ) -> Plan:
        lines, first = list(group.lines), specified[0]
        is_divided = len(lines) > 1 and collective_of(kind) in HIERARCHICAL
        if first.algorithm in options.ON_AXES:
            if group.axes and kind in kinds_of(first.algorithm):
                return self._on_axes(group, kind, size_bytes, first.algorithm)
            return self._fastest_of_all(group, kind, size_bytes)
        if first.algorithm == options.HIERARCHICAL:
            if is_divided:
                return self._hierarchical(group, kind, size_bytes, ())
            return self._fastest_of_all(group, kind, size_bytes)
        if is_divided and not first.is_flat:
            return self._hierarchical(group, kind, size_bytes, specified)
        own = specified[min(lines[0], len(specified) - 1)] if lines else first
        if own.algorithm == "in-switch" and not self._is_possible(group, None, "in-switch"):
            message = f"there is no switch that reduces between the {group.size} devices"
            raise SimulationError(message, hint="set reduces_in_switch, or use auto")
        return self._flat(group, None, kind, size_bytes, own.algorithm, window=own.window)

    def _fastest_of_all(self, group: GroupLayout, kind: str, size_bytes: int) -> Plan:
        plans = list(self._candidates(group, kind, size_bytes))
        if not plans:
            message = f"no algorithm runs {kind} among these {group.size} devices"
            raise SimulationError(message)
        return fastest(plans)

    def _candidates(self, group: GroupLayout, kind: str, size_bytes: int) -> Iterator[Plan]:
        plan = self._measured(group, kind, size_bytes)
        if plan is not None:
            yield plan
            return
        if nccl.runs(group, self.dimensions, kind):
            yield planned_across_nodes(self._pricer, group, kind, size_bytes)
            return
        if len(group.lines) > 1 and collective_of(kind) in HIERARCHICAL:
            yield self._hierarchical(group, kind, size_bytes, ())
            if any(self.dimensions[line].measured for line in group.lines):
                return
        yield from self._by_each_algorithm(group, None, kind, size_bytes)

    def _measured(self, group: GroupLayout, kind: str, size_bytes: int) -> Plan | None:
        """Return the measured plan of a group along one dimension, if any."""
        lines = list(group.lines)
        if len(lines) != 1:
            return None
        return planned_as_measured(self._pricer, group, lines[0], kind, size_bytes)

    def _by_each_algorithm(
        self, group: GroupLayout, line: int | None, kind: str, size_bytes: int
    ) -> Iterator[Plan]:
        for algorithm in algorithms_for(kind, group.members_along(line)):
            if self._is_possible(group, line, algorithm):
                yield self._flat(group, line, kind, size_bytes, algorithm)

    def _is_possible(self, group: GroupLayout, line: int | None, algorithm: str) -> bool:
        lines = group.lines if line is None else (line,)
        own = [self.dimensions[index] for index in lines]
        match algorithm:
            case "in-switch":
                return (
                    len(own) == 1
                    and own[0].shape in (Shape.SWITCH, Shape.FAT_TREE)
                    and own[0].parameters.reduces_in_switch
                )
            case "bidirectional-ring":
                # Neighbours on both sides have links of their own.
                crossed = own or self.dimensions
                return not crossed or any(item.shape is Shape.RING for item in crossed)
            case "direct":
                pattern = Pattern(Form.SHIFT, 1, group.members_along(line) - 1, line)
                return group.message_count(pattern) <= _MOST_PAIRS
            case _:
                return True

    def _hierarchical(
        self,
        group: GroupLayout,
        kind: str,
        size_bytes: int,
        specified: tuple[SpecifiedAlgorithm, ...],
    ) -> Plan:
        """Return the plan along each dimension in turn.

        Without ``specified`` algorithms, each runs as measured or by its fastest algorithm.
        """
        sizes = {line: group.members_along(line) for line in group.lines}
        parts: list[Plan] = []
        for line, collective, phase_bytes in phases(collective_of(kind), sizes, size_bytes):
            kind = collective.text
            if specified:
                own = specified[min(line, len(specified) - 1)]
                part = self._flat(group, line, kind, phase_bytes, own.algorithm, window=own.window)
            else:
                part = self._along(group, line, kind, phase_bytes)
            parts.append(part)
        return joined(options.HIERARCHICAL, parts)

    def _along(self, group: GroupLayout, line: int, kind: str, size_bytes: int) -> Plan:
        """Return the measured plan along a dimension, else the fastest."""
        plan = planned_as_measured(self._pricer, group, line, kind, size_bytes)
        return plan or fastest(self._by_each_algorithm(group, line, kind, size_bytes))

    def _on_axes(self, group: GroupLayout, kind: str, size_bytes: int, algorithm: str) -> Plan:
        """Return rings on a torus' axes, the fastest algorithm elsewhere."""
        first, *_ = group.axes
        sizes = {
            line: group.members_along(Along.LOOP if line == first else line)
            for line in group.lines
            if line == first or line not in group.axes
        }
        parts: list[Plan] = []
        for line, collective, phase_bytes in phases(collective_of(kind), sizes, size_bytes):
            phase = collective.text
            if line != first:
                parts.append(self._along(group, line, phase, phase_bytes))
            elif algorithm == options.MULTI_AXIS and len(group.axes) > 1:
                parts.append(self._multi_axis(group, collective, phase_bytes))
            else:
                parts.append(self._flat(group, Along.LOOP, phase, phase_bytes, ON_AXES))
        if len(parts) == 1:
            return replace(parts[0], algorithm=algorithm)
        return joined(algorithm, parts)

    def _multi_axis(self, group: GroupLayout, collective: CollectiveKind, size_bytes: int) -> Plan:
        """Return rings of data parts, each beginning with another axis.

        A phase lasts as long as that of the slowest part. Source: the strategies that libtpu
        writes beside its all-reduces (``UniDirectionNDRingStrategy``, ``StrategyND``).
        """
        axes = list(group.axes)
        share_bytes = -(-size_bytes // len(axes))
        orders = [axes[first:] + axes[:first] for first in range(len(axes))]
        phases_of_parts = [
            phases(collective, {axis: group.members_along(axis) for axis in order}, share_bytes)
            for order in orders
        ]
        stages: list[Stage] = []
        for concurrent_phases in zip(*phases_of_parts, strict=True):
            plans = [
                self._flat(group, axis, phase.text, phase_bytes, ON_AXES)
                for axis, phase, phase_bytes in concurrent_phases
            ]
            slowest = max(plans, key=lambda plan: plan.total_ps)
            stages += [
                stage if stage.pattern is None else replace(stage, pattern=EVERY_AXIS)
                for stage in slowest.stages
            ]
        return Plan(algorithm=options.MULTI_AXIS, stages=tuple(stages))

    def _flat(
        self,
        group: GroupLayout,
        line: int | Along | None,
        kind: str,
        size_bytes: int,
        algorithm: str,
        *,
        window: int | None = None,
    ) -> Plan:
        """Return the plan of one algorithm along a line."""
        steps = steps_of(
            kind,
            algorithm,
            members=group.members_along(line),
            size_bytes=size_bytes,
            window=window or None,
            pipeline_bytes=self._pipeline_bytes(group, line),
        )
        stages = [self._stage(group, line, step) for step in steps]
        endpoint_ps = self._pricer.endpoint_ps
        if endpoint_ps:
            stages.insert(0, Stage(count=1, delay_ps=endpoint_ps, work_ps=0, rate=1, pattern=None))
        return Plan(algorithm=algorithm, stages=tuple(stages))

    def _stage(self, group: GroupLayout, line: int | Along | None, step: Step) -> Stage:
        pattern = replace(step.pattern, line=line)
        pricer = self._pricer
        price = pricer.message(group, pattern, step.size_bytes, hops=step.hops)
        hop_ps = pricer.endpoint_ps + step.messages * pricer.step_overhead_ps(group, pattern)
        return Stage(
            count=step.count,
            delay_ps=price.delay_ps + step.hops * hop_ps + pricer.reduce_ps(step.reduced_bytes),
            work_ps=price.work_ps,
            rate=price.rate,
            pattern=pattern,
        )

    def _pipeline_bytes(self, group: GroupLayout, line: int | Along | None) -> int | None:
        """Return the smallest pipeline piece, if all dimensions have one."""
        lines = (line,) if isinstance(line, int) else group.lines
        pieces = [self.dimensions[index].parameters.pipeline_bytes for index in lines]
        sizes = [piece for piece in pieces if piece is not None]
        return min(sizes) if sizes and len(sizes) == len(pieces) else None
