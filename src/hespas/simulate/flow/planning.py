"""Planning: by which algorithm a collective runs in a group, and in which stages.

The algorithm is the one that the user or the network specifies, or the fastest on an idle network.
A link with measurements of collectives is priced by these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.collectives.patterns import Along, Form, Pattern, shift
from hespas.collectives.schedule import HIERARCHICAL, phases
from hespas.errors import AlgorithmError, ConfigError, SimulationError
from hespas.hardware.interconnect import Dimension, Interconnect, Shape
from hespas.hardware.links import Link
from hespas.program.collectives import CollectiveKind
from hespas.simulate import options
from hespas.simulate.astra.plan import parse_implementation
from hespas.simulate.flow import nccl
from hespas.simulate.flow.algorithms import (
    AROUND,
    Pricer,
    Step,
    algorithms_for,
    collective_of,
    kinds_of,
    steps_of,
)
from hespas.simulate.flow.groups import GroupLayout
from hespas.simulate.flow.measured import bus_factor, measured
from hespas.simulate.flow.transfers import rate_units

MESSAGE = Pattern(Form.PATH)
_BY_KERNEL = {"all_reduce_one_shot": "all_reduce", "all_reduce_two_shot": "all_reduce"}
"""What a compiler's own kernels do."""
_KERNELS_OF_OTHERS = (
    "all-reduces by the compiler's own kernels take what such kernels of vLLM, SGLang and "
    "TensorRT-LLM were measured to take, and a launch"
)
_BY_NCCL = (
    "collectives across nodes take what NCCL 2.27 estimates for them (src/graph/tuning.cc), at the "
    "measured bandwidth in nodes and that of ports between them; their part in nodes takes no "
    "bandwidth from other transfers there"
)
_CONTENTION = (
    "contention: computation beside NCCL's collectives has the multiprocessors that their channels "
    "leave (24 channels in a node, 16 of NVLS, 2 for each port); what arithmetic takes longer "
    "counts as exposed communication"
)
EVERY_AXIS = Pattern(Form.NEIGHBOURS, line=Along.EVERY_AXIS)
_ALGORITHMS = (*options.ALGORITHMS, *options.NETWORK_WIDE)
_PRICE_PS_PER_S = 1e12
_MOST_PAIRS = 1_100_000
"""More messages at a time are not even considered where something else is possible."""


@frozen
class SpecifiedAlgorithm:
    """An algorithm by name. ``is_flat`` means all members at once, whatever the dimensions.

    ``window`` limits to how many others a direct algorithm sends at once.
    """

    algorithm: str
    window: int | None = None
    is_flat: bool = False


def specified_algorithms(
    interconnect: Interconnect, choice: str
) -> dict[str, tuple[SpecifiedAlgorithm, ...]]:
    """Return, by kind of collective, what to use along each dimension.

    Kinds that aren't in it run by the fastest algorithm.
    """
    name = options.parse_choice(choice)
    if name == options.AUTO:
        return {}
    if name == options.SPECIFIED:
        return {
            kind: tuple([_specified(name, interconnect.name) for name in names])
            for kind, names in interconnect.algorithms.items()
        }
    one = SpecifiedAlgorithm(algorithm=name, is_flat=name in options.ALGORITHMS)
    return dict.fromkeys(kinds_of(name), (one,))


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


@frozen
class Stage:
    """``count`` times: ``delay_ps`` without using links, then ``work_ps`` at ``rate``.

    ``rate`` is that of a message of the pattern on an idle network; None stands for no messages.
    """

    count: int
    delay_ps: int
    work_ps: int
    rate: int
    pattern: Pattern | None


@frozen
class Plan:
    """The stages of a collective or a message, one after the other.

    ``taken`` is the share of a device's multiprocessors that it takes while it runs. ``notes`` say
    what is approximated.
    """

    algorithm: str
    stages: tuple[Stage, ...]
    taken: float = 0.0
    waits_for_receiver: bool = False
    notes: tuple[str, ...] = ()

    @property
    def total_ps(self) -> int:
        """The time on an idle network."""
        return sum(stage.count * (stage.delay_ps + stage.work_ps) for stage in self.stages)

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The patterns of its messages, each once."""
        patterns = [stage.pattern for stage in self.stages if stage.pattern is not None]
        return tuple(dict.fromkeys(patterns))


def _fastest(plans: Iterable[Plan]) -> Plan:
    return min(plans, key=lambda plan: plan.total_ps)


class Planner:
    """Plans on one network, each made once.

    ``algorithm`` is for all collectives that it can run: a name, ``auto`` for the fastest on an
    idle network, or ``specified`` for what the network specifies, and the fastest elsewhere.
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
        """Return the plan of a collective of a kind, or of a message (``send_recv``).

        A message goes from the first member of a pair to the second. Raises `SimulationError` for a
        collective that no algorithm can run.
        """
        key = (group.number, kind, size_bytes)
        if key not in self._plans:
            plan = self._plans[key] = self._new_plan(group, kind, size_bytes)
            self.used.setdefault(_BY_KERNEL.get(kind, kind), set()).add(plan.algorithm)
            self.notes |= dict.fromkeys(plan.notes)
            if plan.taken:
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
                return self._by(specified, group, kind, size_bytes)
            return self._fastest_of_all(group, kind, size_bytes)
        except (SimulationError, AlgorithmError) as error:
            first = int(group.members[0])
            location = f"{kind} among the {group.size} devices with device {first}"
            raise SimulationError(
                error.marked_message, location=location, hint=error.marked_hint
            ) from error

    def _by_kernel(self, group: GroupLayout, kind: str, size_bytes: int) -> Plan:
        """Return the compiler's plan, or the library's if the link has none.

        An algorithm that is chosen for all collectives goes before.
        """
        base, lines = _BY_KERNEL[kind], list(group.lines)
        if base not in self._specified and len(lines) == 1:
            # Kernels are there for the measured sizes of groups alone.
            link = self.dimensions[lines[0]].measured
            is_there = link is not None and group.size in link.collectives.get(kind, {})
            plan = self._measured(group, lines[0], kind, size_bytes) if is_there else None
            if plan is not None:
                return replace(plan, notes=(*plan.notes, _KERNELS_OF_OTHERS))
        return self._new_plan(group, base, size_bytes)

    def _message(self, group: GroupLayout, size_bytes: int) -> Plan:
        pricer = self._pricer
        waits = pricer.waits_for_receiver(group, MESSAGE, size_bytes)
        if len(group.lines) == 1:
            (line,) = group.lines
            plan = self._measured(group, line, "send_recv", size_bytes)
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

    def _by(
        self,
        specified: tuple[SpecifiedAlgorithm, ...],
        group: GroupLayout,
        kind: str,
        size_bytes: int,
    ) -> Plan:
        lines = list(group.lines)
        first = specified[0]
        is_along_lines = (
            len(lines) > 1 and collective_of(kind) in HIERARCHICAL and not first.is_flat
        )
        if first.algorithm in options.ON_AXES:
            if group.axes and kind in kinds_of(first.algorithm):
                return self._on_axes(group, kind, size_bytes, first.algorithm)
            return self._fastest_of_all(group, kind, size_bytes)
        if first.algorithm == options.HIERARCHICAL:
            if is_along_lines:
                return self._hierarchical(group, kind, size_bytes, None)
            return self._fastest_of_all(group, kind, size_bytes)
        if is_along_lines:
            return self._hierarchical(group, kind, size_bytes, specified)
        one = specified[min(lines[0], len(specified) - 1)] if lines else first
        if one.algorithm == "in-switch" and not self._is_possible(group, None, "in-switch"):
            message = f"there is no switch that reduces between the {group.size} devices"
            raise SimulationError(message, hint="set reduces_in_switch, or use auto")
        return self._flat(group, None, kind, size_bytes, one)

    def _fastest_of_all(self, group: GroupLayout, kind: str, size_bytes: int) -> Plan:
        plans = list(self._candidates(group, kind, size_bytes))
        if not plans:
            message = f"no algorithm runs {kind} among these {group.size} devices"
            raise SimulationError(message)
        return _fastest(plans)

    def _candidates(self, group: GroupLayout, kind: str, size_bytes: int) -> Iterator[Plan]:
        lines = list(group.lines)
        plan = self._measured(group, lines[0], kind, size_bytes) if len(lines) == 1 else None
        if plan is not None:
            yield plan
            return
        if nccl.runs(group, self.dimensions, kind):
            yield self._across_nodes(group, kind, size_bytes)
            return
        if len(lines) > 1 and collective_of(kind) in HIERARCHICAL:
            yield self._hierarchical(group, kind, size_bytes, None)
            if any(self.dimensions[line].measured for line in lines):
                return
        yield from self._by_each_algorithm(group, None, kind, size_bytes)

    def _by_each_algorithm(
        self, group: GroupLayout, line: int | None, kind: str, size_bytes: int
    ) -> Iterator[Plan]:
        for algorithm in algorithms_for(kind, group.members_along(line)):
            if self._is_possible(group, line, algorithm):
                one = SpecifiedAlgorithm(algorithm=algorithm)
                yield self._flat(group, line, kind, size_bytes, one)

    def _is_possible(self, group: GroupLayout, line: int | None, algorithm: str) -> bool:
        own = list(group.lines) if line is None else [line]
        match algorithm:
            case "in-switch":
                return len(own) == 1 and _reduces_in_switch(self.dimensions[own[0]])
            case "bidirectional-ring":
                if not self.dimensions:
                    return True
                # Neighbours on both sides have links of their own.
                along = own or range(len(self.dimensions))
                return any(self.dimensions[one].shape is Shape.RING for one in along)
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
        specified: tuple[SpecifiedAlgorithm, ...] | None,
    ) -> Plan:
        sizes = {line: group.members_along(line) for line in group.lines}
        parts: list[Plan] = []
        for line, collective, phase_bytes in phases(collective_of(kind), sizes, size_bytes):
            if specified is None:
                parts.append(self._along(group, line, collective.text, phase_bytes))
                continue
            one = specified[min(line, len(specified) - 1)]
            parts.append(self._flat(group, line, collective.text, phase_bytes, one))
        return _joined(options.HIERARCHICAL, parts)

    def _along(self, group: GroupLayout, line: int, kind: str, size_bytes: int) -> Plan:
        """Return the plan along one dimension: as measured, or by the fastest algorithm."""
        plan = self._measured(group, line, kind, size_bytes)
        return plan or _fastest(self._by_each_algorithm(group, line, kind, size_bytes))

    def _on_axes(self, group: GroupLayout, kind: str, size_bytes: int, algorithm: str) -> Plan:
        """Run rings on a torus' axes, the fastest algorithm on other dimensions."""
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
                one = SpecifiedAlgorithm(algorithm=AROUND)
                parts.append(self._flat(group, Along.LOOP, phase, phase_bytes, one))
        if len(parts) == 1:
            return replace(parts[0], algorithm=algorithm)
        return _joined(algorithm, parts)

    def _multi_axis(self, group: GroupLayout, collective: CollectiveKind, size_bytes: int) -> Plan:
        """Divide the data among axes; each part begins with another axis.

        A phase lasts as long as that of the slowest part. Source: the strategies that libtpu
        writes beside its all-reduces (``UniDirectionNDRingStrategy``, ``StrategyND``).
        """
        axes = list(group.axes)
        share_bytes = -(-size_bytes // len(axes))
        one = SpecifiedAlgorithm(algorithm=AROUND)
        of_parts = [
            phases(
                collective,
                {axis: group.members_along(axis) for axis in axes[at:] + axes[:at]},
                share_bytes,
            )
            for at in range(len(axes))
        ]
        stages: list[Stage] = []
        for at_once in zip(*of_parts, strict=True):
            plans = [
                self._flat(group, axis, phase.text, phase_bytes, one)
                for axis, phase, phase_bytes in at_once
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
        one: SpecifiedAlgorithm,
    ) -> Plan:
        steps = steps_of(
            kind,
            one.algorithm,
            members=group.members_along(line),
            size_bytes=size_bytes,
            window=one.window or None,
            pipeline_bytes=self._pipeline_bytes(group, line),
        )
        stages = [self._stage(group, line, step) for step in steps]
        endpoint_ps = self._pricer.endpoint_ps
        if endpoint_ps:
            stages.insert(0, Stage(count=1, delay_ps=endpoint_ps, work_ps=0, rate=1, pattern=None))
        return Plan(algorithm=one.algorithm, stages=tuple(stages))

    def _stage(self, group: GroupLayout, line: int | Along | None, step: Step) -> Stage:
        pattern = replace(step.pattern, line=line)
        pricer = self._pricer
        price = pricer.message(group, pattern, step.size_bytes, hops=step.hops)
        each_ps = pricer.endpoint_ps + step.messages * pricer.step_overhead_ps(group, pattern)
        return Stage(
            count=step.count,
            delay_ps=price.delay_ps + step.hops * each_ps + pricer.reduce_ps(step.reduced_bytes),
            work_ps=price.work_ps,
            rate=price.rate,
            pattern=pattern,
        )

    def _across_nodes(self, group: GroupLayout, kind: str, size_bytes: int) -> Plan:
        """Return what NCCL takes across nodes, by the candidate that is fastest."""
        buffer_bytes = size_bytes * group.size if kind == "all_gather" else size_bytes
        hop_s, _ = self._pricer.hop(group, nccl.RAILS)
        nodes = self._nodes(group, kind, hop_s)
        plans = [
            self._by_nccl(group, candidate, nodes)
            for candidate in nccl.candidates(kind, nodes, buffer_bytes)
        ]
        return replace(_fastest(plans), notes=(_BY_NCCL,))

    def _nodes(self, group: GroupLayout, kind: str, hop_s: float) -> nccl.Nodes:
        """Return a group's nodes, with measured rates of ring and switch."""
        count = group.members_along(Along.RAILS)
        members = group.size // count
        nodes = nccl.Nodes(count=count, members=members, hop_us=hop_s * 1e6)
        kinds = dict.fromkeys((kind, "all_gather", "reduce_scatter", "all_reduce"))
        bandwidths = [self._bus_bytes_per_s(group, one) for one in kinds if one != "all_reduce"]
        reduces = self._bus_bytes_per_s(group, "all_reduce")
        ring = next(filter(None, [*bandwidths, reduces]), None)
        if members == 1 or ring is None:
            return nodes
        switch = None
        if reduces is not None and reduces > nccl.SWITCH_GAIN * ring:
            switch = reduces / bus_factor("all_reduce", members)
        return replace(nodes, ring_bytes_per_s=ring, switch_bytes_per_s=switch)

    def _bus_bytes_per_s(self, group: GroupLayout, kind: str) -> float | None:
        """Return a large collective's measured bus bandwidth in a node, if any."""
        if 0 not in group.lines:
            return None
        members, large_bytes = group.members_along(0), nccl.LARGE_BYTES
        own_bytes = large_bytes // members if kind == "all_gather" else large_bytes
        plan = self._measured(group, 0, kind, own_bytes)
        if plan is None:
            return None
        (stage,) = plan.stages
        return large_bytes * bus_factor(kind, members) / (stage.work_ps / _PRICE_PS_PER_S)

    def _by_nccl(self, group: GroupLayout, candidate: nccl.Candidate, nodes: nccl.Nodes) -> Plan:
        _, bytes_per_s = self._pricer.hop(group, candidate.pattern)
        transfer_s = max(
            candidate.message_bytes / (bytes_per_s * candidate.share), candidate.in_node_s
        )
        rate = rate_units(bytes_per_s / 1e9)
        if transfer_s > 0:
            rate = max(1, min(rate, rate_units(candidate.message_bytes / transfer_s / 1e9)))
        stage = Stage(
            count=1,
            delay_ps=round(candidate.latency_us * 1e-6 * _PRICE_PS_PER_S),
            work_ps=round(transfer_s * _PRICE_PS_PER_S),
            rate=rate,
            pattern=candidate.pattern,
        )
        taken = _taken(self.dimensions[0].measured, nccl.channels_across(candidate, nodes))
        return Plan(algorithm=candidate.name, stages=(stage,), taken=taken)

    def _pipeline_bytes(self, group: GroupLayout, line: int | Along | None) -> int | None:
        lines = (line,) if isinstance(line, int) else group.lines
        pieces = [self.dimensions[one].parameters.pipeline_bytes for one in lines]
        sizes = [piece for piece in pieces if piece is not None]
        return min(sizes) if sizes and len(sizes) == len(pieces) else None

    def _measured(self, group: GroupLayout, line: int, kind: str, size_bytes: int) -> Plan | None:
        """Return the measured plan of a collective; None outside the link's tables."""
        link = self.dimensions[line].measured
        if link is None:
            return None
        collective = measured(link, kind, group.members_along(line), size_bytes)
        if collective is None:
            return None
        pattern = MESSAGE
        if kind != "send_recv":
            pattern = replace(shift(1), line=None if len(group.lines) == 1 else line)
        dimension, others = self.dimensions[line], group.members_along(line) - 1
        crossed, least_s = pattern, 0.0
        if dimension.shape is Shape.FULLY_CONNECTED:
            # Measurements are of nodes whose switches give all links of a device to any other.
            least_s = collective.moved_bytes / (dimension.bandwidth_bytes_per_s * others)
            crossed = pattern if pattern is MESSAGE else replace(pattern, last=others)
        slowdown = self._pricer.slowdown(group, crossed)
        own_s = max(collective.transfer_s, least_s)
        transfer_s = own_s * slowdown
        rate = self._pricer.message(group, pattern, 1).rate
        if collective.transfer_s > 0:
            own_rate = collective.moved_bytes / transfer_s / 1e9
            rate = max(1, min(rate, rate_units(own_rate)))
        stage = Stage(
            count=1,
            delay_ps=round(collective.latency_s * _PRICE_PS_PER_S),
            work_ps=round(transfer_s * _PRICE_PS_PER_S),
            rate=rate,
            pattern=pattern,
        )
        notes = list(collective.notes)
        if slowdown != 1.0:
            notes.append("where links differ, measured collectives take as much longer as a ring")
        if own_s > collective.transfer_s:
            notes.append(
                "collectives of fewer devices than are connected in pairs take the links between "
                "them alone"
            )
        taken = 0.0
        if kind in nccl.KINDS or kind == "all_to_all":
            taken = _taken(link, nccl.channels_in_node(collective.name))
        return Plan(algorithm=collective.name, stages=(stage,), taken=taken, notes=tuple(notes))


def _joined(algorithm: str, parts: Sequence[Plan]) -> Plan:
    return Plan(
        algorithm=f"{algorithm} ({', '.join(part.algorithm for part in parts)})",
        stages=tuple([stage for part in parts for stage in part.stages]),
        taken=max(part.taken for part in parts),
        notes=tuple([note for part in parts for note in part.notes]),
    )


def _taken(link: Link | None, channels: int) -> float:
    """Return the share of a GPU's multiprocessors that channels take."""
    return 0.0 if link is None or not link.multiprocessors else channels / link.multiprocessors


def _reduces_in_switch(dimension: Dimension) -> bool:
    has_switch = dimension.shape in (Shape.SWITCH, Shape.FAT_TREE)
    return has_switch and dimension.parameters.reduces_in_switch
