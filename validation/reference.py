"""What the reference implementation would charge for the Llama example, step by step.

    python validation/reference.py            print the table
    python validation/reference.py --write    put it into docs/evidence/reference-implementation.md

The reference's rules are taken as its users found them: every operation reads its operands and
writes its results whole, reshapes included, and a boolean takes one bit. Each rule is put in
place of ours alone, over the same operations, and the change of the sum is a line of the table.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import hespas
from hespas.hardware.presets import load_device
from hespas.price.roofline import Roofline
from hespas.program.program import Op
from hespas.program.types import TensorType, Type, size_bytes
from hespas.work.expand import expand, total

PROGRAM = "examples/llama3_100m_fsdp4.mlir"
NODE = "A100_SXM_40GB"
PAGE = Path("docs/evidence/reference-implementation.md")
REFERENCE_LINEAR_MS, REFERENCE_INDIVIDUAL_MS = 211.8, 218.6
_TABLE = re.compile(r"<!-- table -->\n.*?<!-- end -->", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One rule of the reference in place of ours, and the milliseconds that it adds."""

    name: str
    added_ms: float


def whole_bytes(op: Op) -> float:
    """Return the bytes of all operands and results, an operand used twice counted twice."""
    return sum(size_bytes(value.type) for value in (*op.operands, *op.results))


def whole_bytes_with_bits(op: Op) -> float:
    """Return the same with one bit for a boolean."""
    return sum(_bytes_with_bits(value.type) for value in (*op.operands, *op.results))


def _bytes_with_bits(kind: Type) -> float:
    if isinstance(kind, TensorType) and kind.element.name == "i1":
        return kind.element_count / 8
    return size_bytes(kind)


_GROUPS = {
    "reshape": "reshapes read and write their operand",
    "optimization_barrier": "optimization barriers copy what passes",
    "slice": "slices read their whole operand",
    "dynamic_slice": "dynamic slices read their whole operand",
}
_TWICE = "an operand that is used twice is read twice"
_BITS = "a boolean takes one bit, not one byte"


def steps(operations: Iterable[Op], estimator: Roofline) -> tuple[float, list[Step]]:
    """Return our sum in milliseconds, and what each rule of the reference adds to it."""
    bandwidth = estimator.device.memory_bandwidth_bytes_per_s
    added: dict[str, float] = {}
    ours_s = 0.0
    for op in operations:
        estimate = estimator.at_peaks(op.name, total(expand(op)))
        compute_s = estimate.compute_time_at_peak_s
        whole_s = max(compute_s, whole_bytes(op) / bandwidth)
        bits_s = max(compute_s, whole_bytes_with_bits(op) / bandwidth)
        ours_s += estimate.time_s
        group = _GROUPS.get(op.kind, _TWICE)
        added[group] = added.get(group, 0.0) + whole_s - estimate.time_s
        added[_BITS] = added.get(_BITS, 0.0) + bits_s - whole_s
    ordered = sorted(added.items(), key=lambda pair: -abs(pair[1]))
    return ours_s * 1e3, [Step(name=name, added_ms=s * 1e3) for name, s in ordered if abs(s) > 1e-5]


def table() -> str:
    """Return the steps from our sum to the reference's in Markdown."""
    graph = hespas.stages.split(hespas.stages.load(PROGRAM))
    operations = (op for region in graph.compute_regions for op in region.operations)
    ours_ms, found = steps(operations, Roofline(device=load_device(NODE)))
    sum_ms = ours_ms + sum(step.added_ms for step in found)
    row: Callable[[str, str], str] = "| {} | {} |".format
    lines = [row("", "ms"), "|---|---|", row("hespas, linear and individual", f"{ours_ms:.1f}")]
    lines += [row(step.name, f"{step.added_ms:+.2f}") for step in found]
    lines += [
        row("sum", f"{sum_ms:.1f}"),
        row("reference, linear", f"{REFERENCE_LINEAR_MS} ({REFERENCE_LINEAR_MS - sum_ms:+.1f})"),
        row(
            "reference, individual",
            f"{REFERENCE_INDIVIDUAL_MS} ({REFERENCE_INDIVIDUAL_MS - sum_ms:+.1f})",
        ),
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the table, or write it to its page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE}")
    made = table()
    if parser.parse_args().write:
        text = _TABLE.sub(f"<!-- table -->\n{made}\n<!-- end -->", PAGE.read_text())
        PAGE.write_text(text)
    print(made)


if __name__ == "__main__":
    main()
