"""Collisions, incast and two jobs on a leaf-spine fabric: hespas' hash beside chance in SimGrid.

    python validation/simgrid_fabrics.py --python .simgrid/bin/python --write
    python validation/simgrid_fabrics.py --traces DIR

hespas chooses the spine of a message by a hash of both ends and a seed; SimGrid gets spines that
are drawn at random. Each case is run with 20 seeds by both; the medians of its last and of its mean
end are compared. The second command writes each case as traces with a system:

    hespas simulate DIR/CASE/traces/dev --system DIR/CASE/system --model hespas
    hespas simulate DIR/CASE/traces/dev --system DIR/CASE/system --backend htsim
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from flow_transfers import Transfer, simulate_transfers
from hespas.base.files import json_bytes, write_file
from hespas.hardware.interconnect import Dimension, Dimensions, Interconnect, Shape
from hespas.hardware.links import LinkParameters
from hespas.tasks.chakra.writer import write_traces
from hespas.tasks.graph import Job, ReceiveTask, SendTask, Task, TaskGraph, as_job

SEEDS = 20
TOLERANCE = 0.05
STORED = Path("tests/validation/simgrid_fabrics.json")
_WORKER = Path(__file__).parent / "simgrid_worker.py"
LEAVES, PER_LEAF, SPINES = 8, 8, 4
RATE, UPLINK = 25e9, 25e9
"""A leaf's uplinks have half the bandwidth of its devices."""
_SIZE = 1 << 28
_HOP_S = 5e-7
"""Of a link, where cases are written for simulators of packets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A case: transfers that start together; the first ``judged`` of them are compared."""

    name: str
    transfers: tuple[Transfer, ...]
    judged: int


def cases() -> tuple[Fabric, ...]:
    """Return the cases."""
    devices = LEAVES * PER_LEAF
    draw = random.Random(7)  # noqa: S311 - no secret
    targets = list(range(devices))
    while any(source == target for source, target in enumerate(targets)):
        draw.shuffle(targets)
    shuffled = _transfers(enumerate(targets))
    # Each device sends to the next leaf, and half of the leaves' devices are another job's.
    job = _transfers((one, (one + PER_LEAF) % devices) for one in range(0, devices, 2))
    other = _transfers((one, (one + 2 * PER_LEAF) % devices) for one in range(1, devices, 2))
    incast = _transfers((source, 0) for source in range(PER_LEAF, 3 * PER_LEAF))
    return (
        Fabric(name="collisions: a random permutation", transfers=shuffled, judged=len(shuffled)),
        Fabric(name="incast: 16 to one", transfers=incast, judged=len(incast)),
        Fabric(name="one job", transfers=job, judged=len(job)),
        Fabric(name="two jobs on the spines", transfers=(*job, *other), judged=len(job)),
    )


def _transfers(ends: Iterable[tuple[int, int]]) -> tuple[Transfer, ...]:
    return tuple(
        Transfer(source=source, target=target, size_bytes=_SIZE) for source, target in ends
    )


def network(seed: int) -> Interconnect:
    """Return the fabric whose hash has a seed."""
    tree = Dimension(
        shape=Shape.FAT_TREE,
        size=LEAVES * PER_LEAF,
        parameters=LinkParameters(bandwidth_bytes_per_s=RATE, latency_s=0.0),
        leaf_size=PER_LEAF,
        oversubscription=PER_LEAF * RATE / (SPINES * UPLINK),
        spines=SPINES,
        seed=seed,
    )
    return Interconnect(name="fabric", fabric=Dimensions(dimensions=(tree,)))


def write_cases(directory: Path) -> None:
    """Write each case as traces, with the system that they run on."""
    fabric = {
        "leaves": LEAVES,
        "devices_per_leaf": PER_LEAF,
        "spines": SPINES,
        "oversubscription": PER_LEAF * RATE / (SPINES * UPLINK),
        "device_link": {"bandwidth_bytes_per_s": RATE, "latency_s": _HOP_S},
    }
    for case in cases():
        home = directory / case.name.partition(":")[0].replace(" ", "_")
        write_traces(job_of(case), home / "traces")
        (home / "system" / "hespas").mkdir(parents=True, exist_ok=True)
        content = json_bytes({"source": __file__, "leaf_spine": fabric})
        write_file(home / "system" / "hespas" / "network.json", content)


def job_of(case: Fabric) -> Job:
    """Return the transfers as messages: a send, and a receive that waits for it."""
    tasks: list[Task] = []
    for number, one in enumerate(case.transfers):
        pairs = ((one.source, one.target),)
        send = SendTask(
            id=2 * number, name=f"send {number}", depends_on=(), pairs=pairs,
            size_bytes=one.size_bytes, tag=number,
        )  # fmt: skip
        receive = ReceiveTask(
            id=2 * number + 1, name=f"receive {number}", depends_on=(), pairs=pairs,
            size_bytes=one.size_bytes, tag=number,
        )  # fmt: skip
        tasks += [send, receive]
    graph = TaskGraph(
        name=case.name, device_count=LEAVES * PER_LEAF, tasks=tuple(tasks), group_tables=()
    )
    return as_job(graph)


def ours(case: Fabric) -> tuple[float, float]:
    """Return the medians over seeds of the last and of the mean end, by hespas."""
    return _medians(
        [simulate_transfers(network(seed), case.transfers) for seed in range(SEEDS)], case
    )


def theirs(case: Fabric, python: Path) -> tuple[float, float]:
    """Return the same by SimGrid, with spines drawn at random."""
    return _medians([_by_simgrid(case, seed, python) for seed in range(SEEDS)], case)


def _medians(ends: Sequence[Sequence[float]], case: Fabric) -> tuple[float, float]:
    own = [one[: case.judged] for one in ends]
    return median(map(max, own)), median(map(mean, own))


def _by_simgrid(case: Fabric, seed: int, python: Path) -> tuple[float, ...]:
    draw = random.Random(f"{case.name} {seed}")  # noqa: S311 - no secret
    rates: dict[str, float] = {}
    rows: list[str] = []
    for one in case.transfers:
        leaves = one.source // PER_LEAF, one.target // PER_LEAF
        route = [f"up{one.source}", f"down{one.target}"]
        rates |= dict.fromkeys(route, RATE)
        if leaves[0] != leaves[1]:
            spine = draw.randrange(SPINES)
            middle = [f"leaf{leaves[0]}to{spine}", f"spine{spine}to{leaves[1]}"]
            rates |= dict.fromkeys(middle, UPLINK)
            route[1:1] = middle
        rows.append(f"transfer {one.size_bytes} 0.0 / {' '.join(route)}")
    links = [f"link {name} {rate!r}" for name, rate in rates.items()]
    done = subprocess.run(
        [str(python), str(_WORKER)],
        input="\n".join([*links, *rows]),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"SimGrid failed on {case.name}: {done.stderr[-600:]}")
    return tuple(map(float, done.stdout.split()))


def main() -> None:
    """Judge, and print or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, default=Path(".simgrid/bin/python"))
    parser.add_argument("--write", action="store_true", help="keep SimGrid's medians for tests")
    parser.add_argument("--traces", type=Path, help="write the cases into this directory instead")
    arguments = parser.parse_args()
    if arguments.traces is not None:
        write_cases(arguments.traces)
        return
    medians = {case.name: theirs(case, arguments.python) for case in cases()}
    print("| case | last end, hespas | SimGrid | off | mean end, hespas | SimGrid | off |")
    print("|---|---|---|---|---|---|---|")
    for case in cases():
        cells = [
            f"{1e3 * own:.2f} ms | {1e3 * other:.2f} ms | {own / other - 1:+.1%}"
            for own, other in zip(ours(case), medians[case.name], strict=True)
        ]
        print(f"| {case.name} | {' | '.join(cells)} |")
    if arguments.write:
        STORED.write_text(json.dumps(medians, indent=1) + "\n")


if __name__ == "__main__":
    main()
