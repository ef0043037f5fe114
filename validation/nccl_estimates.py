"""NCCL's estimates in a node beside its measured collectives: what its tables are worth.

    python validation/nccl_estimates.py

Across nodes `hespas.simulate.flow.nccl` takes latencies from NCCL's tables, without a measurement
to judge them by. In a node the same tables can be judged: each measured size of all-gathers and
reduce-scatters, of 2, 4 and 8 GPUs, beside the fastest of a ring's estimates at the bandwidth of
the largest size. The last column is what large messages, where bandwidth alone counts, are off.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "validation"))

from fit_links import FABRICS, nccl  # noqa: E402
from hespas.simulate.flow.nccl import Nodes, candidates  # noqa: E402

_SHORT_BYTES, _LARGE_BYTES = 1 << 16, 1 << 26
KINDS = ("all_gather", "reduce_scatter")


def errors(part: str) -> Iterator[tuple[int, float]]:
    """Yield the size and the relative error of each measured collective of a part."""
    for kind in KINDS:
        for members, points in nccl(part)[kind].items():
            largest = max(points, key=lambda point: point.size_bytes)
            ring = largest.size_bytes / largest.time_s * (members - 1) / members
            nodes = Nodes(count=1, members=members, hop_us=0.0, ring_bytes_per_s=ring)
            for point in points:
                size_bytes = round(point.size_bytes)
                estimated_s = min(
                    one.latency_us * 1e-6 + one.in_node_s
                    for one in candidates(kind, nodes, size_bytes)
                )
                yield size_bytes, estimated_s / point.time_s - 1


def _median(values: Sequence[float]) -> str:
    return f"{100 * median(values):+.0f} %" if values else "-"


def main() -> None:
    """Print a row for each link."""
    print("| link | up to 64 KiB | to 64 MiB | larger | median of all, without sign |")
    print("|---|---|---|---|---|")
    for name, fabric in FABRICS.items():
        if name == "PCIe4_L40S":
            continue
        found = list(errors(fabric.part))
        short = [error for size, error in found if size <= _SHORT_BYTES]
        middle = [error for size, error in found if _SHORT_BYTES < size <= _LARGE_BYTES]
        large = [error for size, error in found if size > _LARGE_BYTES]
        whole = median(abs(error) for _, error in found)
        cells = (_median(short), _median(middle), _median(large), f"{100 * whole:.0f} %")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
