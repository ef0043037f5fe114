"""Report the kernels of a step as text and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hespas.base.units import format_time
from hespas.prediction.explain.kernels import KernelRow, KernelTable
from hespas.price.ptx.terms import reasons
from hespas.report.text import plain_number


def kernels_text(table: KernelTable, *, shown: int) -> str:
    """Return a table of ``shown`` kernels with their limits."""
    lines = [
        (
            f"{table.launches:g} launches of {len(table.rows)} kernels take "
            f"{format_time(table.kernels_s)} of a step"
        )
    ]
    if table.library.count:
        lines.append(
            f"{table.library.count:g} calls of libraries (matrix products, convolutions, fused "
            f"attention) take {format_time(table.library.time_s)} more"
        )
    lines += [
        "",
        (
            f"  {'together':>10} {'each':>10} {'launches':>8}  {'memory':>8} {'L2':>8} {'L1':>8} "
            f"{'pipe':>8} {'turnover':>8}  kernel: why"
        ),
    ]
    for row in table.rows[:shown]:
        terms = row.reading.terms
        figures = (terms.memory_s, terms.l2_s, terms.l1_s, terms.pipe_s, terms.turnover_s)
        lines.append(
            f"  {format_time(row.total_s):>10} {format_time(row.time_s):>10} {row.launches:>8g}  "
            + " ".join(f"{1e6 * term_s:>8.1f}" for term_s in figures)
            + f"  {row.name}{_module_text(row)} ({row.kind}): {'; '.join(_reasons(row))}"
        )
    if len(table.rows) > shown:
        lines.append(f"  and {len(table.rows) - shown} more")
    lines += ["", "Terms of one launch in microseconds."]
    return "\n".join(lines)


def _module_text(row: KernelRow) -> str:
    if not row.modules:
        return ""
    first, *other_modules = row.modules
    return f" in {first}" + (f" and {len(other_modules)} more" if other_modules else "")


def _reasons(row: KernelRow) -> Sequence[str]:
    return reasons(row.reading.terms, row.reading.analysis, category=row.kind)


def kernels_json(table: KernelTable) -> Mapping[str, object]:
    """Return all rows as JSON values, times in seconds."""
    return {
        "method": table.method,
        "launches": plain_number(table.launches),
        "kernels_s": table.kernels_s,
        "library": {"launches": plain_number(table.library.count), "time_s": table.library.time_s},
        "kernels": [_row_json(row) for row in table.rows],
    }


def _row_json(row: KernelRow) -> Mapping[str, object]:
    terms = row.reading.terms
    return {
        "name": row.name,
        "kind": row.kind,
        "modules": list(row.modules),
        "launches": plain_number(row.launches),
        "time_s": row.time_s,
        "total_s": row.total_s,
        "bytes_moved": row.bytes_moved,
        "limit": terms.limit,
        "terms_s": {
            "memory": terms.memory_s,
            "l2": terms.l2_s,
            "l1": terms.l1_s,
            "pipe": terms.pipe_s,
            "turnover": terms.turnover_s,
            "launch": terms.launch_s,
        },
        "pipe": terms.pipe,
        "reasons": list(_reasons(row)),
        "notes": list(row.reading.notes),
    }
