"""Run the packet simulator uet-htsim: ``--backend htsim``.

It checks how links are shared. Its input is a connection matrix with a flow for each message of a
job, and triggers that start flows when others end. Formats as in commit 40ccb05.

A flow waits for at most one trigger, and fires at most one when it has been sent. A rank's next
action waits for its exchange, so the flows of all ranks that exchange with each other fire one
barrier, for which the next actions of all these ranks wait: rounds of a group start together. htsim
aborts if a fired trigger has no waiting flow, so none such is written. A trigger fires without
delay, so no flow can wait for computation. If all ranks compute equally long between their
messages, all flows would start equally later: that time is added to the matrix's result.

The topology's file describes a fat tree of two tiers, with one leaf switch for a single switch, or
leaves and spines whose links are as wide as those of devices: htsim's own trees exist for few
numbers of hosts, and their links have a latency of 1 us. htsim chooses the spine of each packet.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from hespas.backends.network_program import (
    LinkRate,
    ProgramOptions,
    check_answer,
    dimensions_text,
    find_program,
    least_of_ranks_ps,
    messages_of,
    run_on_files,
)
from hespas.backends.rank_programs import Action, Exchange, Place, Wait, matched
from hespas.backends.result import ExternalResult
from hespas.base.frozen import frozen
from hespas.base.units import PS_PER_NS, PS_PER_S, format_time
from hespas.errors import SimulationError, ToolError
from hespas.hardware.interconnect import Dimension, Shape
from hespas.hardware.system import System, interconnect_of
from hespas.tasks.graph import Job

PROGRAM, VARIABLE = "htsim_uec", "HTSIM_BINARY"
_MATRIX, _TOPOLOGY = "connections.cm", "one_switch.topo"
_FINISHED = re.compile(r"finished at ([0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)")
_PS_PER_US = 1_000_000
_LAST_US = 2**31 - 1
"""The end of htsim's clock: the number after ``-end`` has 31 bits."""
_SLOWER, _MORE_US = 100, 10**6
"""The most time of flows: this multiple of their bound, plus this many us."""


def run_htsim(job: Job, system: System, directory: Path, options: ProgramOptions) -> ExternalResult:
    """Return htsim's result for a job's messages through one switch.

    The computation between messages is added. Raises the errors of
    `hespas.backends.network_program.Backend`, and `SimulationError` for a system that is not one
    switch, for messages that don't match, for devices that compute at different times, for a job
    that is longer than htsim's clock, and if flows never ended.
    """
    programs = messages_of(job, system, options)
    program = find_program(PROGRAM, VARIABLE, options.program, source="uet-htsim")
    switch = switch_of(system)
    matrix = connection_matrix(programs.ranks)
    if not matrix.flows:
        raise SimulationError("the job sends no message", hint="htsim plays messages alone")
    least_ps = _least_ps(programs.ranks, switch)
    end_us = min(_LAST_US, round(_SLOWER * least_ps / _PS_PER_US) + _MORE_US)
    log = run_on_files(
        [
            *(str(program), "-tm", _MATRIX, "-topo", _TOPOLOGY),
            *("-linkspeed", str(1000 * switch.gigabits_per_s), "-end", str(end_us)),
            *options.arguments,
        ],
        {_MATRIX: matrix_text(matrix).encode(), _TOPOLOGY: topology_text(switch).encode()},
        name="htsim",
        directory=directory,
        time_limit_s=options.time_limit_s,
    )
    ends = _FINISHED.findall(log.read_text(errors="replace"))
    if len(ends) < len(matrix.flows):
        raise ToolError(
            f"{len(matrix.flows) - len(ends)} of {len(matrix.flows)} flows never ended",
            location=str(log),
            hint="give htsim more time: --backend-argument=-end --backend-argument=MICROSECONDS",
        )
    result = ExternalResult(
        engine="htsim",
        devices={},
        step_ns=round(1e3 * max(map(float, ends)) + matrix.computation_ps / PS_PER_NS),
        notes=(*programs.notes, *_notes(matrix, switch)),
        log=log,
    )
    return check_answer(result, least_ps + matrix.computation_ps)


def _least_ps(ranks: Sequence[Sequence[Action]], switch: Switch) -> float:
    """Return a lower bound of the messages' time.

    A message passes at least two links. Raises `SimulationError` if the bound exceeds the clock.
    """
    messages = [[action for action in actions if isinstance(action, Exchange)] for actions in ranks]
    rate = LinkRate(bytes_per_s=switch.bytes_per_s, latency_s=2e-9 * switch.latency_ns)
    least_ps = least_of_ranks_ps(messages, rate)
    if least_ps / _PS_PER_US >= _LAST_US:
        raise SimulationError(
            f"the messages take {format_time(least_ps / PS_PER_S)} at least, and htsim's clock "
            f"ends after {_LAST_US // 10**6} s",
            hint="give it fewer steps or less data",
        )
    return least_ps


def _notes(matrix: Matrix, switch: Switch) -> Iterator[str]:
    yield "rounds of a group start together"
    yield "flows end at their senders"
    yield from switch.notes
    if matrix.computation_ps:
        computation = format_time(matrix.computation_ps / PS_PER_S)
        yield f"computation of {computation}, alike on all devices, is added to the messages"


@frozen
class Flow:
    """A message with the triggers it waits for and fires."""

    source: int
    target: int
    size_bytes: int
    waits_for: int | None
    fires: int | None


@frozen
class Matrix:
    """The flows of a job and its triggers' counts.

    Trigger n, from 1, fires when ``counts[n - 1]`` flows have ended. ``computation_ps`` is every
    rank's computation between its messages.
    """

    nodes: int
    flows: tuple[Flow, ...]
    counts: tuple[int, ...]
    computation_ps: int


def connection_matrix(ranks: Sequence[Sequence[Action]]) -> Matrix:
    """Return the connection matrix of the ranks' actions."""
    sent = list(matched(ranks))
    barrier_of = _barriers(sent)

    def before(place: Place) -> Place | None:
        rank, number = place
        return barrier_of[rank, number - 1] if number else None

    awaited = dict.fromkeys([before(source) for source, _, _ in sent])
    order = {barrier: n for n, barrier in enumerate([b for b in awaited if b is not None], 1)}
    flows = tuple([
        Flow(
            source=source[0],
            target=target[0],
            size_bytes=size_bytes,
            waits_for=order[barrier] if (barrier := before(source)) is not None else None,
            fires=order.get(barrier_of[source]),
        )
        for source, target, size_bytes in sent
    ])  # fmt: skip
    fired = Counter(flow.fires for flow in flows)
    return Matrix(
        nodes=len(ranks),
        flows=flows,
        counts=tuple([fired[number] for number in order.values()]),
        computation_ps=_computation_ps(ranks),
    )


def _computation_ps(ranks: Sequence[Sequence[Action]]) -> int:
    """Return every rank's computation; `SimulationError` if they differ."""
    runs = [_computation_runs_ps(actions) for actions in ranks]
    different = next((rank for rank, own in enumerate(runs) if own != runs[0]), None)
    if different is not None:
        raise SimulationError(
            f"device {different} computes at other times than device 0, and htsim's triggers wait "
            "for messages alone",
            hint="use a back end that plays computation: --backend sst, or hespas",
        )
    return sum(runs[0]) if runs else 0


def _computation_runs_ps(actions: Sequence[Action]) -> list[int]:
    """Return a rank's computation before, between and after its messages."""
    runs = [0]
    for before, action in pairwise([None, *actions]):
        if isinstance(action, Wait):
            if isinstance(before, Exchange):
                runs.append(0)
            runs[-1] += action.duration_ps
    return runs


def _barriers(sent: Sequence[tuple[Place, Place, int]]) -> dict[Place, Place]:
    """Return the first of each set of directly or indirectly connected exchanges."""
    parent: dict[Place, Place] = {}

    def first(place: Place) -> Place:
        parent.setdefault(place, place)
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    for source, target, _ in sent:
        low, high = sorted((first(source), first(target)))
        parent[high] = low
    return {place: first(place) for place in parent}


def matrix_text(matrix: Matrix) -> str:
    """Return the connection matrix as htsim's file."""
    lines = [f"Nodes {matrix.nodes}", f"Connections {len(matrix.flows)}"]
    if matrix.counts:
        lines.append(f"Triggers {len(matrix.counts)}")
    for number, flow in enumerate(matrix.flows, start=1):
        start = "start 0" if flow.waits_for is None else f"trigger {flow.waits_for}"
        fires = "" if flow.fires is None else f" send_done_trigger {flow.fires}"
        message = f"{flow.source}->{flow.target} id {number}"
        lines.append(f"{message} {start} size {flow.size_bytes}{fires}")
    for number, count in enumerate(matrix.counts, start=1):
        lines.append(f"trigger id {number} barrier count {count}")
    return "\n".join(lines) + "\n"


_ROUGH = 0.01
"""The largest relative difference of a rate from whole Gb/s."""
_EXACT = 1e-3


@frozen
class Switch:
    """A switch, or leaves of ``leaf_size`` hosts under ``spines``.

    Rates and latencies are whole numbers, as in htsim's files; ``notes`` list roundings.
    """

    hosts: int
    gigabits_per_s: int
    latency_ns: int
    leaf_size: int
    spines: int = 1
    notes: tuple[str, ...] = ()

    @property
    def bytes_per_s(self) -> float:
        """The rate of a link."""
        return self.gigabits_per_s * 1e9 / 8


def switch_of(system: System) -> Switch:
    """Return the switch, or leaves and spines, of a system.

    Raises `SimulationError` for a system that is not one such dimension, for uplinks that are not
    as wide as the links of devices, and for a rate that is not near whole Gb/s.
    """
    dimensions = system.dimensions or interconnect_of(system).dimensions
    used = [dimension for dimension in dimensions if dimension.size > 1]
    if len(used) != 1 or used[0].shape not in {Shape.SWITCH, Shape.FAT_TREE}:
        raise SimulationError(
            "htsim's file is written for one switch, or for one dimension of leaves and spines, "
            f"and the system is {dimensions_text(system)}",
            location=system.name,
            hint="simulate it by hespas: --backend hespas",
        )
    leaf_size, spines = _leaves(used[0], system.name)
    rate, latency_ns = used[0].bandwidth_bytes_per_s * 8e-9, used[0].latency_s * 1e9
    error = abs(round(rate) - rate) / rate
    if error > _ROUGH:
        raise SimulationError(
            f"links have {rate:.6g} Gb/s, and htsim's files have whole Gb/s",
            location=system.name,
            hint=f"give the dimension a bandwidth of {max(1, round(rate)) / 8:g} GB/s",
        )
    notes: list[str] = []
    if error > _EXACT:
        notes.append(f"links have {round(rate)} Gb/s for {rate:.6g}: htsim's files have whole Gb/s")
    if abs(round(latency_ns) - latency_ns) > _EXACT * latency_ns:
        notes.append(
            f"links have a latency of {round(latency_ns)} ns for {latency_ns:.6g}: htsim's files "
            "have whole ns"
        )
    return Switch(
        hosts=used[0].size,
        gigabits_per_s=round(rate),
        latency_ns=round(latency_ns),
        leaf_size=leaf_size,
        spines=spines,
        notes=tuple(notes),
    )


def _leaves(dimension: Dimension, location: str) -> tuple[int, int]:
    """Return the hosts per leaf, and the spines; a switch is one leaf."""
    if dimension.leaf_size is None:
        return dimension.size, 1
    uplinks = dimension.leaf_size / dimension.oversubscription
    spines = dimension.spines or round(uplinks)
    if spines != uplinks or dimension.leaf_size % spines:
        raise SimulationError(
            f"a leaf of {dimension.leaf_size} devices has {spines} uplinks, together as wide as "
            f"{uplinks:g} of its devices: htsim's file is written for uplinks of the same width",
            location=location,
            hint=f"give a divisor of {dimension.leaf_size} spines, and an oversubscription that "
            "is leaf_size / spines",
        )
    return dimension.leaf_size, spines


def topology_text(switch: Switch) -> str:
    """Return the topology file.

    No message uses the one uplink of a single switch.

    >>> switch = Switch(hosts=8, gigabits_per_s=400, latency_ns=500, leaf_size=8)
    >>> print(topology_text(switch).splitlines()[1])
    Tiers 2
    """
    links = f"Downlink_speed_Gbps {switch.gigabits_per_s}"
    latencies = ["Switch_Latency_ns 0", f"Downlink_Latency_ns {switch.latency_ns}"]
    leaves = switch.hosts // switch.leaf_size
    lines = [
        *(f"Nodes {switch.hosts}", "Tiers 2", f"Podsize {switch.hosts}"),
        *("Tier 0", links, f"Radix_Up {switch.spines}", f"Radix_Down {switch.leaf_size}"),
        *(f"Oversubscribed {switch.leaf_size // switch.spines}", *latencies),
        *("Tier 1", links, f"Radix_Down {leaves}", *latencies),
    ]
    return "\n".join(lines) + "\n"
