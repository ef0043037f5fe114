"""One simulation by SimGrid: links and transfers in, finish times out. Runs without hespas.

Reads from standard input, one a line:

    link NAME BYTES_PER_S
    transfer BYTES LATENCY_S DEPENDENCIES.. / LINKS..

and writes a finish time in seconds for each transfer. A transfer first waits its latency, as a
computation on a host of its own: SimGrid shares links in inverse proportion to the latency of
routes, and evenly only where they have none.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

_OPTIONS = (
    "network/model:raw",
    "contexts/factory:thread",
    "precision/timing:1e-15",
    "precision/work-amount:1e-12",
)


def simgrid() -> Any:
    """Return the module, whose library must be there before it."""
    library = importlib.util.find_spec("simgrid")
    if library is None or library.origin is None:
        raise SystemExit("SimGrid is not installed here: make simgrid")
    ctypes.CDLL(str(Path(library.origin).parent / "libsimgrid.so"), mode=ctypes.RTLD_GLOBAL)
    return importlib.import_module("simgrid")


def finish_times(lines: list[str]) -> list[float]:
    """Return when each transfer ends."""
    library = simgrid()
    arguments = ["worker", *[f"--cfg={option}" for option in _OPTIONS], "--log=root.thres:critical"]
    engine = library.Engine(arguments)
    zone = engine.netzone_root.add_netzone_full("zone")
    rows = [line.split() for line in lines]
    links = {row[1]: zone.add_link(row[1], float(row[2])) for row in rows if row[0] == "link"}
    transfers = [row[1:] for row in rows if row[0] == "transfer"]
    ends = [0.0] * len(transfers)
    kept: list[Any] = []  # a task that Python forgets is gone
    waits: list[Any] = []
    for number, (size, latency, *rest) in enumerate(transfers):
        cut = rest.index("/")
        source, target = (zone.add_host(f"{end}{number}", 1.0) for end in ("from", "to"))
        path = [library.LinkInRoute(links[name]) for name in rest[cut + 1 :]]
        zone.add_route(source, target, path, False)
        wait = library.ExecTask.init(f"wait{number}", float(latency), source)
        send = library.CommTask.init(f"send{number}", float(size), source, target)
        send.on_this_completion_cb(lambda _, number=number: ends.__setitem__(number, engine.clock))
        wait.add_successor(send)
        for other in map(int, rest[:cut]):
            kept[2 * other + 1].add_successor(wait)
        if not cut:
            waits.append(wait)
        kept += [wait, send]
    zone.seal()
    for wait in waits:
        wait.enqueue_firings(1)
    engine.run()
    return ends


def main() -> None:
    """Read, simulate, write."""
    for end in finish_times(sys.stdin.read().splitlines()):
        print(repr(end))


if __name__ == "__main__":
    main()
