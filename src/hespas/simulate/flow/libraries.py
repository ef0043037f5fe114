"""Plan collectives as GPU libraries run them: as measured, and as NCCL runs them across nodes."""

from __future__ import annotations

from dataclasses import replace

from hespas.base.units import PS_PER_S
from hespas.collectives.patterns import Along, Form, Pattern, shift
from hespas.hardware.interconnect import Shape
from hespas.hardware.links import Link
from hespas.simulate.flow import nccl
from hespas.simulate.flow.algorithms import Pricer
from hespas.simulate.flow.groups import GroupLayout
from hespas.simulate.flow.measured import bus_factor, measured
from hespas.simulate.flow.plans import Plan, Stage, fastest
from hespas.simulate.flow.transfers import rate_units

MESSAGE = Pattern(Form.PATH)
_BY_NCCL = (
    "collectives across nodes take what NCCL 2.27 estimates for them (src/graph/tuning.cc), at the "
    "measured bandwidth in nodes and that of ports between them; their part in nodes takes no "
    "bandwidth from other transfers there"
)


def planned_across_nodes(pricer: Pricer, group: GroupLayout, kind: str, size_bytes: int) -> Plan:
    """Return the fastest of NCCL's candidates across nodes."""
    buffer_bytes = size_bytes * group.size if kind == "all_gather" else size_bytes
    hop_s, _ = pricer.hop(group, nccl.RAILS)
    nodes = _nodes(pricer, group, kind, hop_s)
    plans = [
        _by_nccl(pricer, group, candidate, nodes)
        for candidate in nccl.candidates(kind, nodes, buffer_bytes)
    ]
    return replace(fastest(plans), notes=(_BY_NCCL,))


def _nodes(pricer: Pricer, group: GroupLayout, kind: str, hop_s: float) -> nccl.Nodes:
    """Return a group's nodes with their measured rates."""
    count = group.members_along(Along.RAILS)
    members = group.size // count
    nodes = nccl.Nodes(count=count, members=members, hop_us=hop_s * 1e6)
    kinds = [item for item in (kind, "all_gather", "reduce_scatter") if item != "all_reduce"]
    bandwidths = [_bus_bytes_per_s(pricer, group, item) for item in kinds]
    all_reduce = _bus_bytes_per_s(pricer, group, "all_reduce")
    ring = next(filter(None, [*bandwidths, all_reduce]), None)
    if members == 1 or ring is None:
        return nodes
    switch = None
    if all_reduce is not None and all_reduce > nccl.SWITCH_GAIN * ring:
        switch = all_reduce / bus_factor("all_reduce", members)
    return replace(nodes, ring_bytes_per_s=ring, switch_bytes_per_s=switch)


def _bus_bytes_per_s(pricer: Pricer, group: GroupLayout, kind: str) -> float | None:
    """Return a large collective's measured bus bandwidth in a node."""
    if 0 not in group.lines:
        return None
    members, large_bytes = group.members_along(0), nccl.LARGE_BYTES
    own_bytes = large_bytes // members if kind == "all_gather" else large_bytes
    plan = planned_as_measured(pricer, group, 0, kind, own_bytes)
    if plan is None:
        return None
    (stage,) = plan.stages
    return large_bytes * bus_factor(kind, members) / (stage.work_ps / PS_PER_S)


def _by_nccl(
    pricer: Pricer, group: GroupLayout, candidate: nccl.Candidate, nodes: nccl.Nodes
) -> Plan:
    _, bytes_per_s = pricer.hop(group, candidate.pattern)
    transfer_s = max(candidate.message_bytes / (bytes_per_s * candidate.share), candidate.in_node_s)
    rate = rate_units(bytes_per_s / 1e9)
    if transfer_s > 0:
        rate = max(1, min(rate, rate_units(candidate.message_bytes / transfer_s / 1e9)))
    stage = Stage(
        count=1,
        delay_ps=round(candidate.latency_us * 1e-6 * PS_PER_S),
        work_ps=round(transfer_s * PS_PER_S),
        rate=rate,
        pattern=candidate.pattern,
    )
    channels = nccl.channels_across(candidate, nodes)
    share = _multiprocessor_share(pricer.interconnect.dimensions[0].measured, channels)
    return Plan(algorithm=candidate.name, stages=(stage,), multiprocessor_share=share)


def planned_as_measured(
    pricer: Pricer, group: GroupLayout, line: int, kind: str, size_bytes: int
) -> Plan | None:
    """Return the measured plan of a collective, if any."""
    link = pricer.interconnect.dimensions[line].measured
    if link is None:
        return None
    collective = measured(link, kind, group.members_along(line), size_bytes)
    if collective is None:
        return None
    pattern = MESSAGE
    if kind != "send_recv":
        pattern = replace(shift(1), line=None if len(group.lines) == 1 else line)
    dimension, peers = pricer.interconnect.dimensions[line], group.members_along(line) - 1
    crossed, least_s = pattern, 0.0
    if dimension.shape is Shape.FULLY_CONNECTED:
        # Measurements are of nodes whose switches give all links of a device to any other.
        least_s = collective.moved_bytes / (dimension.bandwidth_bytes_per_s * peers)
        crossed = pattern if pattern is MESSAGE else replace(pattern, last=peers)
    slowdown = pricer.slowdown(group, crossed)
    own_s = max(collective.transfer_s, least_s)
    transfer_s = own_s * slowdown
    rate = pricer.message(group, pattern, 1).rate
    if collective.transfer_s > 0:
        own_rate = collective.moved_bytes / transfer_s / 1e9
        rate = max(1, min(rate, rate_units(own_rate)))
    stage = Stage(
        count=1,
        delay_ps=round(collective.latency_s * PS_PER_S),
        work_ps=round(transfer_s * PS_PER_S),
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
    share = 0.0
    if kind in nccl.KINDS or kind == "all_to_all":
        share = _multiprocessor_share(link, nccl.channels_in_node(collective.name))
    return Plan(
        algorithm=collective.name,
        stages=(stage,),
        multiprocessor_share=share,
        notes=tuple(notes),
    )


def _multiprocessor_share(link: Link | None, channels: int) -> float:
    """Return the share of a GPU's multiprocessors that channels occupy."""
    return 0.0 if link is None or not link.multiprocessors else channels / link.multiprocessors
