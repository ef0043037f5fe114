"""Stand-ins for SST and htsim, which read what the real ones read and refuse what is not so.

They play messages on one switch: a message takes its bytes at the rate of a link, and those that a
rank sends, or receives, one after the other.
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
rate = float(re.search(r'router.link_bw = "(.+)B/s"', text)[1])
ranks = int(re.search(r"EmberMPIJob\(0, (\d+)\)", text)[1])
prefix = re.search(r"traceprefix=(\S+?)\"", text)[1]
ARGUMENTS = {1: "<", 2: "<", 4: "<QIIiiI", 17: "<QIIiiIQ", 128: "<QQ"}
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
assert all(one[0][0] == 1 and one[-1][0] == 2 for one in traces)
now = [0.0] * ranks; at = [0] * ranks; done = [0.0] * ranks
arrived = collections.defaultdict(collections.deque)
requests = [dict() for _ in range(ranks)]
while any(at[r] < len(traces[r]) for r in range(ranks)):
    moved = False
    for r in range(ranks):
        while at[r] < len(traces[r]):
            kind, start, given, end = traces[r][at[r]]
            if kind == 128:
                source, tag = requests[r][given[0]]
                if not arrived[source, r, tag]:
                    break
            now[r] += max(0.0, start - done[r])
            if kind == 17:
                requests[r][given[6]] = (given[3], given[4])
            if kind == 4:
                now[r] += given[1] / rate
                arrived[r, given[3], given[4]].append(now[r])
            if kind == 128:
                now[r] = max(now[r], arrived[source, r, tag].popleft())
            done[r] = end
            at[r] += 1; moved = True
    assert moved, "deadlock"
print(f"Simulation is complete, simulated time: {max(now) * 1e3:.6g} ms")
"""

_HTSIM = r"""
import re, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
rate = float(flags["-linkspeed"]) * 1e6 / 8
lines = open(flags["-tm"]).read().splitlines()
assert lines[0] == f"Nodes {flags['-nodes']}"
count = int(re.fullmatch(r"Connections (\d+)", lines[1])[1])
triggers = int(re.fullmatch(r"Triggers (\d+)", lines[2])[1])
flow = re.compile(
    r"(\d+)->(\d+) id (\d+) (?:start 0|trigger (\d+)) size (\d+) send_done_trigger (\d+)")
flows = [flow.fullmatch(line).groups() for line in lines[3:3 + count]]
barrier = re.compile(r"trigger id (\d+) barrier count (\d+)")
left = {int(n): int(c) for n, c in (barrier.fullmatch(line).groups() for line in lines[3 + count:])}
assert len(left) == triggers
fired, pending = {None: 0.0}, [tuple(None if x is None else int(x) for x in one) for one in flows]
ends = {n: 0.0 for n in left}
while pending:
    ready = [one for one in pending if one[3] in fired]
    assert ready, "nothing can start"
    pending = [one for one in pending if one[3] not in fired]
    busy = {}
    for source, target, number, waits, size, fires in ready:
        end = max(busy.get(source, 0.0), fired[waits]) + size / rate
        busy[source] = end
        print(f"Flow Uec_{source}_{target} finished at {end * 1e6:.6f} total bytes {size}")
        ends[fires] = max(ends[fires], end)
        left[fires] -= 1
    for number, missing in left.items():
        assert missing >= 0
        if missing == 0 and number not in fired:
            fired[number] = ends[number]
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
