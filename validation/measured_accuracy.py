"""Print how well measured tables of matrix products tell what is left out of them.

    python validation/measured_accuracy.py

Each measured cell is left out in turn and told from its neighbours by the rule that fills gaps;
the error is relative to what was measured. ``levelled`` is how far making a table monotone moves
a cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, isnan
from statistics import median, quantiles

from hespas.estimate.measured.grid import completed, monotone, without
from hespas.estimate.measured.tables import load_part, part_names

KINDS = ("bf16", "f8", "tf32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Relative errors: how many, their median and their ninetieth percentile."""

    count: int
    median: float
    p90: float


def tables() -> list[tuple[str, str]]:
    """Return the parts and types that were measured."""
    return [
        (part, kind)
        for part in part_names()
        for kind in KINDS
        if f"gemm.{kind}" in load_part(part).tables
    ]


def leave_one_out(part: str, kind: str, *, every: int = 1) -> Spread:
    """Return the errors of every ``every``-th cell, told from its neighbours."""
    grid = load_part(part).tables[f"gemm.{kind}"].grid
    told = (
        (without(grid, cell), grid.log_times[cell])
        for cell in range(0, len(grid.log_times), every)
        if not isnan(grid.log_times[cell])
    )
    return _spread([abs(exp(guess - time) - 1) for guess, time in told if not isnan(guess)])


def levelled(part: str, kind: str) -> Spread:
    """Return by how much cells move when the table is made monotone."""
    grid = load_part(part).tables[f"gemm.{kind}"].grid
    level = monotone(completed(grid)).log_times
    pairs = zip(level, grid.log_times, strict=True)
    return _spread([abs(exp(now - time) - 1) for now, time in pairs if not isnan(time)])


def _spread(errors: list[float]) -> Spread:
    return Spread(count=len(errors), median=median(errors), p90=quantiles(errors, n=10)[-1])


def main() -> None:
    """Print the table."""
    print("| part | type | cells | left out: median | 90 % | levelled: median | 90 % |")
    print("|---|---|---|---|---|---|---|")
    for part, kind in tables():
        found, moved = leave_one_out(part, kind), levelled(part, kind)
        errors = (found.median, found.p90, moved.median, moved.p90)
        cells = " | ".join(f"{100 * error:.1f} %" for error in errors)
        print(f"| {part} | {kind} | {found.count} | {cells} |")


if __name__ == "__main__":
    main()
