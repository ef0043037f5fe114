"""One simulation by SimGrid: links and transfers in, finish times out. Runs without hespas.

Reads from standard input, one a line:

    link NAME BYTES_PER_S
    transfer BYTES LATENCY_S DEPENDENCIES.. / LINKS..

and writes a finish time in seconds for each transfer. Each transfer is an actor, which waits for
those that it depends on, then for its latency: SimGrid shares links in inverse proportion to the
latency of routes, and evenly only where they have none. Runs with 3.32 (Debian 12); the methods of
4.1 (PyPI) that differ are named here, but this form has not been run with it.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

_OPTIONS = {
    3: (
        *("network/model:CM02", "network/bandwidth-factor:1", "network/latency-factor:1"),
        *("network/weight-S:0", "network/TCP-gamma:0", "network/crosstraffic:0"),
        *("surf/precision:1e-15", "maxmin/precision:1e-12"),
    ),
    4: ("network/model:raw", "precision/timing:1e-15", "precision/work-amount:1e-12"),
}
"""By major version: bytes at the rate of links, shared evenly, and nothing else."""

_RENAMED = {
    "create_full_zone": "add_netzone_full",
    "create_link": "add_link",
    "create_host": "add_host",
}
"""Methods of a zone: how version 4 calls those of version 3."""


def simgrid() -> Any:
    """Return the module; PyPI's needs its library loaded before it."""
    module = importlib.util.find_spec("simgrid")
    if module is None or module.origin is None:
        raise SystemExit("SimGrid is not installed here: make simgrid")
    library = Path(module.origin).parent / "libsimgrid.so"
    if library.exists():
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    return importlib.import_module("simgrid")


def _major(library: Any) -> int:
    return int(re.findall(r"\d+", str(library.simgrid_version))[0])


def _call(zone: Any, name: str, *arguments: Any) -> Any:
    method = getattr(zone, name, None) or getattr(zone, _RENAMED[name])
    return method(*arguments)


def finish_times(lines: list[str]) -> list[float]:
    """Return when each transfer ends."""
    library = simgrid()
    options = (*_OPTIONS[_major(library)], "contexts/factory:thread")
    arguments = ["worker", *[f"--cfg={option}" for option in options], "--log=root.thres:critical"]
    engine = library.Engine(arguments)
    root = engine.netzone_root or library.NetZone
    zone = _call(root, "create_full_zone", "zone")
    rows = [line.split() for line in lines]
    links = {
        row[1]: _seal(_call(zone, "create_link", row[1], float(row[2])))
        for row in rows
        if row[0] == "link"
    }
    transfers = [row[1:] for row in rows if row[0] == "transfer"]
    ends = [0.0] * len(transfers)
    ready = [library.Semaphore(0) for _ in transfers]
    children: defaultdict[int, list[int]] = defaultdict(list)

    def carry(number: int, size: int, wait_s: float, hosts: tuple[Any, Any], before: int) -> None:
        for _ in range(before):
            ready[number].acquire()
        library.this_actor.sleep_for(wait_s)
        library.Comm.sendto(*hosts, size)
        ends[number] = library.Engine.clock
        for child in children[number]:
            ready[child].release()

    starts: list[tuple[Any, ...]] = []
    for number, (size, latency, *rest) in enumerate(transfers):
        cut = rest.index("/")
        hosts = tuple(
            _seal(_call(zone, "create_host", f"{end}{number}", 1.0)) for end in ("from", "to")
        )
        path = [library.LinkInRoute(links[name]) for name in rest[cut + 1 :]]
        _add_route(zone, hosts, path)
        for other in map(int, rest[:cut]):
            children[other].append(number)
        starts.append((number, int(size), float(latency), hosts, cut))
    zone.seal()
    for number, *others in starts:
        name, host = f"transfer{number}", others[2][0]
        if hasattr(host, "add_actor"):
            host.add_actor(name, carry, number, *others)
        else:
            library.Actor.create(name, host, carry, number, *others)
    engine.run()
    return ends


def _seal(thing: Any) -> Any:
    thing.seal()
    return thing


def _add_route(zone: Any, hosts: tuple[Any, ...], path: list[Any]) -> None:
    """Add a route in one direction; version 3 takes network points, and gateways."""
    if hasattr(zone, "add_netzone_full"):
        zone.add_route(*hosts, path, False)
    else:
        source, target = (host.netpoint for host in hosts)
        zone.add_route(source, target, None, None, path, False)


def main() -> None:
    """Read, simulate, write."""
    for end in finish_times(sys.stdin.read().splitlines()):
        print(repr(end))


if __name__ == "__main__":
    main()
