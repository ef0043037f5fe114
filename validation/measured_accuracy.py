"""Print how well measured tables of matrix products tell what is left out of them.

    python validation/measured_accuracy.py [--xla-tables DIRECTORY] [--held-out]

Each measured cell is left out in turn and told from its neighbours by the rule that fills gaps;
the error is relative to what was measured. ``levelled`` is how far making a table monotone moves
a cell. With DIRECTORY a second table compares products of bf16 with those that openxla/xla timed on
two parts (xla_matmul_perf_table.csv, see validation/distil_tables.py), which no table of bf16 has
seen but for the time that a product takes more by itself. --held-out (with the extra tables)
compares with the odd sizes that distilling leaves out, most of them one row more than fills tiles.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass
from math import exp, isnan
from pathlib import Path
from statistics import median, quantiles

from distil_tables import RECIPES, data_root, gemm_times
from hespas.hardware.presets import load_device
from hespas.price.gemm import GemmModel, Product, gemm_model
from hespas.price.tables import completed, load_part, monotone, part_names, read, without

XLA_PARTS = {"H100_80GB": "sm_90", "B200_180GB": "sm_100_B200"}
KINDS = ("bf16", "f8", "tf32", "f4")


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


def against_xla(node: str, directory: Path, *, batch: int) -> Spread:
    """Return the errors of products of bf16 beside XLA's timings of batches of one size."""
    model = gemm_model(load_device(node))
    with (directory / "xla_matmul_perf_table.csv").open(encoding="utf-8") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["arch"] == XLA_PARTS[node]
            and row["dtypes"] == "bf16xbf16->bf16"
            and int(row["b"]) == batch
        ]
    return _spread([abs(_xla_error(row, model)) for row in rows])


def _xla_error(row: dict[str, str], model: GemmModel) -> float:
    b, m, n, k = (int(row[key]) for key in "bmnk")
    product = Product(type_name="bf16", m=m, n=n, k=k, batch=b)
    told_s = model.price(product).time_s + model.part.about.alone_s
    return told_s / (product.flops / float(row["flops_per_s"])) - 1


def held_out(part: str) -> Spread | None:
    """Return the errors for products of bf16 that no table has; None where all are kept."""
    grid = monotone(completed(load_part(part).tables["gemm.bf16"].grid))
    recipe, kept = RECIPES[part], set(grid.axes[0].sizes)
    home = data_root() / recipe.directory / "gemm"
    tables = [
        gemm_times(home / each / "gemm_perf.parquet", "bfloat16") for each in recipe.frameworks
    ]
    known = set(tables[0]).intersection(*tables[1:])
    errors = [
        abs(read(grid, cell).time_s / median(table[cell] for table in tables) - 1)
        for cell in sorted(known)
        if cell[0] not in kept
    ]
    return _spread(errors) if errors else None


def _spread(errors: list[float]) -> Spread:
    return Spread(count=len(errors), median=median(errors), p90=quantiles(errors, n=10)[-1])


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Print how well measured tables tell.")
    parser.add_argument("--xla-tables", type=Path)
    parser.add_argument("--held-out", action="store_true")
    given = parser.parse_args()
    directory: Path | None = given.xla_tables
    print("| part | type | cells | left out: median | 90 % | levelled: median | 90 % |")
    print("|---|---|---|---|---|---|---|")
    for part, kind in tables():
        found, moved = leave_one_out(part, kind), levelled(part, kind)
        errors = (found.median, found.p90, moved.median, moved.p90)
        cells = " | ".join(f"{100 * error:.1f} %" for error in errors)
        print(f"| {part} | {kind} | {found.count} | {cells} |")
    if directory is not None:
        print("\n| node | batch | products | median | 90 % |")
        print("|---|---|---|---|---|")
        for node in XLA_PARTS:
            for batch in (1, 2, 4):
                each = against_xla(node, directory, batch=batch)
                errors = f"{100 * each.median:.1f} % | {100 * each.p90:.1f} %"
                print(f"| {node} | {batch} | {each.count} | {errors} |")
    if given.held_out:
        print("\n| part | products held out | median | 90 % |")
        print("|---|---|---|---|")
        for part in part_names():
            found = held_out(part)
            if found is not None:
                errors = f"{100 * found.median:.1f} % | {100 * found.p90:.1f} %"
                print(f"| {part} | {found.count} | {errors} |")


if __name__ == "__main__":
    main()
