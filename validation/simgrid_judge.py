"""SimGrid as the judge of how hespas shares links: random networks, random transfers.

    make simgrid                              make its environment, and judge
    python validation/simgrid_judge.py        print the table
        --write    put some cases into tests/

Every case is a network, and transfers that wait for each other. Both simulators get the same links
and the same route of each transfer; what is compared is when each transfer ends. Each simulation by
SimGrid is a process of its own in SimGrid's environment (see simgrid_worker.py).
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flow_transfers import Transfer, simulate_transfers
from hespas.hardware.interconnect import (
    Dimension,
    Dimensions,
    Dragonfly,
    Fabric,
    Graph,
    Interconnect,
    Shape,
)
from hespas.hardware.links import LinkParameters
from hespas.hardware.machine_links import Edge
from hespas.simulate.flow.topology import make_topology

CASES = 20
TOLERANCE = 1e-9
STORED = Path("tests/unit/simulate/flow/simgrid_cases.json")
_STORED_TRANSFERS = 50
_STORED_TOO = (9,)
_WORKER = Path(__file__).parent / "simgrid_worker.py"


def link(draw: random.Random) -> LinkParameters:
    """Return one direction of a wire, of 1 to 100 GB/s and 1 to 10 us."""
    return LinkParameters(
        bandwidth_bytes_per_s=1e9 * 10 ** draw.uniform(0, 2), latency_s=draw.uniform(1e-6, 1e-5)
    )


def along(draw: random.Random, shape: Shape, size: int) -> Dimension:
    """Return a dimension; a fat tree has two or more leaves, oversubscribed."""
    if shape is not Shape.FAT_TREE:
        return Dimension(shape=shape, size=size, parameters=link(draw))
    return Dimension(
        shape=shape,
        size=size,
        parameters=link(draw),
        leaf_size=size // 4,
        oversubscription=draw.choice((1.0, 2.0, 3.5)),
    )


def dimensions(*shapes: tuple[Shape, int]) -> Callable[[random.Random], Fabric]:
    """Return what draws a network of these shapes and sizes."""
    return lambda draw: Dimensions(dimensions=tuple([along(draw, *one) for one in shapes]))


def dragonfly(draw: random.Random) -> Fabric:
    """Return a dragonfly of 5 groups of 3 routers with 2 devices."""
    return Dragonfly(
        groups=5,
        routers_per_group=3,
        devices_per_router=2,
        device_link=link(draw),
        local_link=link(draw),
        global_link=link(draw),
    )


def graph(draw: random.Random) -> Fabric:
    """Return 12 devices at 5 switches that are connected at random, but all reach each other."""
    devices = tuple([f"d{number}" for number in range(12)])
    switches = tuple([f"s{number}" for number in range(5)])
    wires = [(device, draw.choice(switches)) for device in devices]
    wires += [(one, draw.choice(switches[:k])) for k, one in enumerate(switches) if k]
    wires += [tuple(draw.sample(switches, 2)) for _ in range(4)]
    edges: dict[tuple[str, str], Edge] = {}
    for one, other in wires:
        for source, target in ((one, other), (other, one)):
            wire = link(draw)
            edges[source, target] = Edge(
                source=source,
                target=target,
                bandwidth_bytes_per_s=wire.bandwidth_bytes_per_s,
                latency_s=wire.latency_s,
            )
    return Graph(devices=devices, switches=switches, edges=tuple(edges.values()))


NETWORKS: Sequence[tuple[str, Callable[[random.Random], Fabric]]] = (
    ("ring of 8", dimensions((Shape.RING, 8))),
    ("8 fully connected", dimensions((Shape.FULLY_CONNECTED, 8))),
    ("switch of 16", dimensions((Shape.SWITCH, 16))),
    ("fat tree of 16", dimensions((Shape.FAT_TREE, 16))),
    ("torus 4 x 4", dimensions((Shape.RING, 4), (Shape.RING, 4))),
    ("torus 3 x 3 x 3", dimensions((Shape.RING, 3), (Shape.RING, 3), (Shape.RING, 3))),
    ("8 in a node, 4 nodes on rails", dimensions((Shape.FULLY_CONNECTED, 8), (Shape.SWITCH, 4))),
    ("nodes of 4 on a fat tree", dimensions((Shape.SWITCH, 4), (Shape.FAT_TREE, 8))),
    ("dragonfly of 30", dragonfly),
    ("free graph of 12", graph),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Links by name, and transfers with the links that they cross."""

    name: str
    network: Interconnect
    transfers: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """When the transfers of a case end, by both."""

    case: Case
    ours_s: tuple[float, ...]
    theirs_s: tuple[float, ...]

    @property
    def difference(self) -> float:
        """The largest difference of two ends, relative to the end."""
        both = zip(self.ours_s, self.theirs_s, strict=True)
        return max(abs(one - other) / other for one, other in both)


def random_case(number: int) -> Case:
    """Return a case, always the same for a number."""
    draw = random.Random(number)  # noqa: S311 - no secret
    name, make = NETWORKS[number % len(NETWORKS)]
    network = Interconnect(name=name, fabric=make(draw))
    transfers: list[Transfer] = []
    for index in range(draw.randrange(20, 150)):
        source, target = draw.sample(range(network.device_count), 2)
        before = draw.sample(range(index), min(index, draw.choice((0, 0, 1, 1, 2, 3))))
        transfers.append(
            Transfer(
                source=source,
                target=target,
                size_bytes=round(2 ** draw.uniform(16, 28)),
                depends_on=tuple(sorted(before)),
            )
        )
    return Case(name=name, network=network, transfers=tuple(transfers))


def worker_lines(case: Case) -> list[str]:
    """Return SimGrid's input: the same links, and the same route of each transfer."""
    topology = make_topology(case.network)
    routes = topology.routes(
        [one.source for one in case.transfers], [one.target for one in case.transfers]
    )
    crossed: list[list[int]] = [[] for _ in case.transfers]
    for transfer, number in zip(routes.message.tolist(), routes.link.tolist(), strict=True):
        crossed[transfer].append(number)
    links = sorted({number for one in crossed for number in one})
    rates = topology.bytes_per_ns(links).tolist()
    lines = [f"link l{number} {rate * 1e9!r}" for number, rate in zip(links, rates, strict=True)]
    for transfer, one, latency_ns in zip(
        case.transfers, crossed, routes.latency_ns.tolist(), strict=True
    ):
        before = " ".join(map(str, transfer.depends_on))
        names = " ".join(f"l{number}" for number in one)
        lines.append(f"transfer {transfer.size_bytes} {latency_ns / 1e9!r} {before} / {names}")
    return lines


def judged(case: Case, python: Path) -> Judged:
    """Return what both simulators say."""
    done = subprocess.run(
        [str(python), str(_WORKER)],
        input="\n".join(worker_lines(case)),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"SimGrid failed on {case.name}: {done.stderr[-600:]}")
    return Judged(
        case=case,
        ours_s=simulate_transfers(case.network, case.transfers),
        theirs_s=tuple(map(float, done.stdout.split())),
    )


def table(results: Sequence[Judged]) -> str:
    """Return the results in Markdown."""
    lines = [
        "| case | network | devices | transfers | last end, hespas | SimGrid | difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for number, one in enumerate(results):
        network = one.case.network
        ends = f"{max(one.ours_s) * 1e3:.9f} ms | {max(one.theirs_s) * 1e3:.9f} ms"
        sizes = f"{network.device_count} | {len(one.case.transfers)}"
        lines.append(f"| {number} | {network.name} | {sizes} | {ends} | {one.difference:.1e} |")
    return "\n".join(lines)


def stored(results: Sequence[Judged]) -> str:
    """Return when the transfers of the smaller cases end by SimGrid, for the tests."""
    cases = {
        str(number): [float(f"{end:.12g}") for end in one.theirs_s]
        for number, one in enumerate(results)
        if len(one.case.transfers) <= _STORED_TRANSFERS or number in _STORED_TOO
    }
    return json.dumps(cases, indent=1) + "\n"


def main() -> None:
    """Judge, and print or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, default=Path(".simgrid/bin/python"))
    parser.add_argument("--write", action="store_true", help="put cases into tests/")
    arguments = parser.parse_args()
    if not arguments.python.exists():
        raise SystemExit(f"there is no {arguments.python}: make simgrid")
    results = [judged(random_case(number), arguments.python) for number in range(CASES)]
    print(table(results))
    if arguments.write:
        STORED.write_text(stored(results))
    worst = max(one.difference for one in results)
    if worst > TOLERANCE:
        raise SystemExit(f"the largest difference is {worst:.1e}, more than {TOLERANCE:g}")


if __name__ == "__main__":
    main()
