"""Stand-ins for SST and htsim, which read what the real ones read and fail where those fail.

They play messages on one switch: a message takes its bytes at the rate of a link and the latency of
two, and those that a rank sends, or receives, come one after the other. What the real programs were
seen to do (SST 16 with its elements, uet-htsim 40ccb05; November 2026) they do too:

* SST: ``FINI`` doesn't wait for the computation before it, ``BARRIER`` does. A link carries one
  buffer in a round trip. Delays of registration and matching are to be 0. SENDs of a rank follow
  each other.
* htsim: a barrier that nothing waits for aborts it, and so does a size of 2 GiB. Without a topology
  there are three tiers of some sizes, with 1 us a link; ``-nodes`` beside a matrix is refused. It
  stops at ``-end``, 1 ms where it isn't given. Times have six digits, with an exponent from 1 s on.
  4086 of a packet's 4150 bytes are data, and a flow ends with its acknowledgement.
"""

from __future__ import annotations

import sys
from pathlib import Path

_SST = r"""
import collections, re, struct, sys
text = open(sys.argv[-1]).read()
compile(text, sys.argv[-1], "exec")
for line in ("job.os.ctrl.regRegionBaseDelay_ns = 0", "job.os.ctrl.matchDelay_ns = 0"):
    assert line in text, line
def figure(name, unit):
    number, thousand = re.search(name + f' = "([0-9.e]+)(k?){unit}"', text).groups()
    return float(number) * (1000 if thousand else 1)
latency = figure("topology.link_latency", "ns") * 1e-9
buffers = [figure(one + "put_buf_size", "B") for one in (
    "router.in", "router.out", "interface.in", "interface.out")]
rate = figure("router.link_bw", "B/s")
assert rate == figure("interface.link_bw", "B/s") == figure("router.xbar_bw", "B/s")
if latency:
    rate = min(rate, min(buffers) / (2 * latency))
ranks = int(re.search(r"EmberMPIJob\(0, (\d+)\)", text)[1])
assert int(re.search(r"topology.num_ports = (\d+)", text)[1]) >= ranks
prefix = re.search(r"traceprefix=(\S+?)\"", text)[1]
INIT, FINI, SEND, IRECV, BARRIER, WAIT = 1, 2, 4, 17, 64, 128
ARGUMENTS = {
    INIT: "<", FINI: "<", SEND: "<QIIiiI", IRECV: "<QIIiiIQ", BARRIER: "<I", WAIT: "<QQ"}
def records(rank):
    data, at = open(f"{prefix}.{rank}", "rb").read(), 0
    while at < len(data):
        kind, start = struct.unpack_from("<Id", data, at); at += 12
        given = struct.unpack_from(ARGUMENTS[kind], data, at)
        at += struct.calcsize(ARGUMENTS[kind])
        end, result = struct.unpack_from("<di", data, at); at += 12
        assert end >= start and result == 0
        yield kind, start, given, end
    assert at == len(data)
traces = [list(records(rank)) for rank in range(ranks)]
assert all(one[0][0] == INIT and one[-1][0] == FINI for one in traces)
now = [0.0] * ranks; at = [0] * ranks; done = [0.0] * ranks; heard = [0.0] * ranks
arrived = collections.defaultdict(collections.deque)
requests = [dict() for _ in range(ranks)]
while any(at[r] < len(traces[r]) for r in range(ranks)):
    moved = False
    if all(at[r] < len(traces[r]) and traces[r][at[r]][0] == BARRIER for r in range(ranks)):
        for r in range(ranks):
            now[r] += max(0.0, traces[r][at[r]][1] - done[r])
            done[r] = traces[r][at[r]][3]; at[r] += 1
        now = [max(now)] * ranks; moved = True
    # The one that is behind goes on by one record, so that messages arrive in the order of times.
    for r in sorted(range(ranks), key=lambda r: now[r]):
        if at[r] == len(traces[r]):
            continue
        kind, start, given, end = traces[r][at[r]]
        if kind == BARRIER:
            assert given == (0,)
            continue
        if kind == WAIT:
            source, tag = requests[r][given[0]]
            if not arrived[source, r, tag]:
                continue
        if kind != FINI:
            now[r] += max(0.0, start - done[r])
        if kind == IRECV:
            assert given[1] > 0
            requests[r][given[6]] = (given[3], given[4])
        if kind == SEND:
            assert given[1] > 0
            now[r] += given[1] / rate
            heard[given[3]] = max(heard[given[3]] + given[1] / rate, now[r] + 2 * latency)
            arrived[r, given[3], given[4]].append(heard[given[3]])
        if kind == WAIT:
            now[r] = max(now[r], arrived[source, r, tag].popleft())
        done[r] = end
        at[r] += 1; moved = True
        break
    assert moved, "deadlock"
time_s = max(now)
if not time_s:
    print("Simulation is complete, simulated time: 0 ps")
elif time_s < 1:
    print(f"Simulation is complete, simulated time: {time_s * 1e3:.6g} ms")
else:
    print(f"Simulation is complete, simulated time: {time_s:.6g} s")
"""

_HTSIM = r"""
import collections, os, re, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
lines = open(flags["-tm"]).read().splitlines()
nodes = int(re.fullmatch(r"Nodes (\d+)", lines[0])[1])
if "-nodes" in flags:
    sys.exit("-nodes conflicts with the matrix's Nodes")
speed = float(flags["-linkspeed"]) * 1e6 / 8
hop = 1e-6
if "-topo" in flags:
    text = open(flags["-topo"]).read()
    tiers = re.split(r"^Tier [01]$", text, flags=re.M)
    head, leaf, spine = [
        {words[0]: int(words[1]) for line in part.splitlines() if (words := line.split())}
        for part in tiers]
    assert head == {"Nodes": nodes, "Tiers": 2, "Podsize": nodes}, head
    assert leaf["Radix_Down"] == leaf["Oversubscribed"] * leaf["Radix_Up"]
    assert spine["Radix_Down"] * leaf["Radix_Down"] == nodes
    assert leaf["Downlink_speed_Gbps"] * 1e9 / 8 == speed
    hop = leaf["Downlink_Latency_ns"] * 1e-9 + leaf["Switch_Latency_ns"] * 1e-9 / 2
elif nodes not in (16, 128, 1024):
    sys.exit(f"can't have a 3-Tier FatTree with {nodes} nodes")
rate = speed * 4086 / 4150
end_s = float(flags.get("-end", 1000)) * 1e-6
assert int(flags.get("-end", 1000)) < 2**31
count = int(re.fullmatch(r"Connections (\d+)", lines[1])[1])
rest, triggers = lines[2:], 0
if rest and rest[0].startswith("Triggers"):
    triggers = int(re.fullmatch(r"Triggers (\d+)", rest.pop(0))[1])
flow = re.compile(
    r"(\d+)->(\d+) id (\d+) (?:start 0|trigger (\d+)) size (\d+)(?: send_done_trigger (\d+))?")
flows = [flow.fullmatch(line).groups() for line in rest[:count]]
if any(int(one[4]) >= 2**31 for one in flows):
    print("terminate called after throwing an instance of 'std::out_of_range': stoi", flush=True)
    os.abort()
assert all(int(one[4]) > 0 for one in flows)
barrier = re.compile(r"trigger id (\d+) barrier count (\d+)")
left = {int(n): int(c) for n, c in (barrier.fullmatch(line).groups() for line in rest[count:])}
assert len(left) == triggers
pending = [tuple(None if x is None else int(x) for x in one) for one in flows]
targets = {one[3] for one in pending}
fired = {None: 0.0}
ends = {n: 0.0 for n in left}
while pending:
    ready = [one for one in pending if one[3] in fired]
    assert ready, "nothing can start"
    pending = [one for one in pending if one[3] not in fired]
    # Those that go at once share their ends' links, by packets.
    links = collections.Counter()
    for source, target, number, waits, size, fires in ready:
        links["out", source] += size
        links["in", target] += size
    for source, target, number, waits, size, fires in ready:
        busiest = max(links["out", source], links["in", target])
        end = fired[waits] + busiest / rate + 4 * hop
        if end <= end_s:
            print(f"Flow Uec_{source}_{target} finished at {end * 1e6:.6g} total bytes {size}")
        if fires is not None:
            ends[fires] = max(ends[fires], end)
            left[fires] -= 1
    for number, missing in left.items():
        assert missing >= 0
        if missing == 0 and number not in fired:
            fired[number] = ends[number]
            if fired[number] <= end_s and number not in targets:
                print("trigger.cpp:60: BarrierTrigger::activate(): Assertion "
                      "`_targets.size() > 0' failed.", flush=True)
                os.abort()
    if min((fired[one[3]] for one in pending if one[3] in fired), default=end_s + 1) > end_s:
        break
"""


def _program(path: Path, text: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return path


def stand_in_sst(directory: Path) -> Path:
    """Return a program that reads a network file and traces as SST does."""
    return _program(directory / "sst", _SST)


def stand_in_htsim(directory: Path) -> Path:
    """Return a program that reads a connection matrix as htsim does."""
    return _program(directory / "htsim_uec", _HTSIM)
