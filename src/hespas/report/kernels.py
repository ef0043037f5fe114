"""The kernels of a compiled program: which take longest, and what limits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hespas.cost.expand import expand
from hespas.cost.structure import Leaf
from hespas.estimate.ptx.kernels import KernelPricer, Reading
from hespas.estimate.ptx.terms import reasons
from hespas.program.program import Program, is_communication_op
from hespas.split.scheduled import FREE
from hespas.units import format_time

_LIBRARY_KINDS = frozenset({"custom_call", "dot_general", "dot", "convolution"})


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """Equal kernels: ``launches`` of them, ``time_s`` each."""

    name: str
    kind: str
    launches: int
    time_s: float
    bytes_moved: int
    reading: Reading

    @property
    def total_s(self) -> float:
        """The time of all launches."""
        return self.launches * self.time_s


def kernel_rows(program: Program, kernels: KernelPricer) -> tuple[KernelRow, ...]:
    """Return the kernels of the main function, by their total time, longest first.

    Libraries' kernels and those inside loops are left out.
    """
    groups: dict[tuple[object, ...], list[tuple[Leaf, Reading]]] = {}
    for op in program.main.body.operations:
        is_kernel = op.kind not in FREE | _LIBRARY_KINDS and not op.kind.startswith("async")
        if not is_kernel or op.kind in {"while", "case", "if"} or is_communication_op(op):
            continue
        for leaf in expand(op, program.functions):
            if isinstance(leaf, Leaf):
                reading = kernels.read(leaf)
                name = op.instruction if reading.analysis is None else reading.analysis.name
                key = (name if reading.analysis else reading.category, reading.terms)
                groups.setdefault(key, []).append((leaf, reading))
    rows = [
        KernelRow(
            name=found[0][1].analysis.name if found[0][1].analysis else found[0][0].op.instruction,
            kind=found[0][1].category,
            launches=len(found),
            time_s=kernels.time_s(found[0][1]),
            bytes_moved=found[0][0].work.bytes_moved,
            reading=found[0][1],
        )
        for found in groups.values()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.total_s, row.name)))


def kernels_text(rows: Sequence[KernelRow], *, shown: int) -> str:
    """Return a table of the first ``shown`` kernels, with what limits them."""
    whole_s = sum(row.total_s for row in rows)
    launches = sum(row.launches for row in rows)
    lines = [
        f"{launches} launches of {len(rows)} kernels take {format_time(whole_s)}",
        "",
        (
            f"  {'together':>10} {'each':>10} {'launches':>8}  {'memory':>8} {'L2':>8} {'L1':>8} "
            f"{'pipe':>8} {'turnover':>8}  kernel: why"
        ),
    ]
    for row in rows[:shown]:
        terms = row.reading.terms
        figures = (terms.memory_s, terms.l2_s, terms.l1_s, terms.pipe_s, terms.turnover_s)
        why = "; ".join(reasons(terms, row.reading.analysis, category=row.kind))
        lines.append(
            f"  {format_time(row.total_s):>10} {format_time(row.time_s):>10} {row.launches:>8}  "
            + " ".join(f"{1e6 * each:>8.1f}" for each in figures)
            + f"  {row.name} ({row.kind}): {why}"
        )
    if len(rows) > shown:
        lines.append(f"  and {len(rows) - shown} more")
    lines += ["", "Terms of one launch in microseconds."]
    return "\n".join(lines)


def kernels_json(rows: Sequence[KernelRow]) -> Mapping[str, object]:
    """Return all rows as JSON values, times in seconds."""
    return {"kernels": [_row_json(row) for row in rows]}


def _row_json(row: KernelRow) -> Mapping[str, object]:
    terms = row.reading.terms
    return {
        "name": row.name,
        "kind": row.kind,
        "launches": row.launches,
        "time_s": row.time_s,
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
        "reasons": list(reasons(terms, row.reading.analysis, category=row.kind)),
        "notes": list(row.reading.notes),
    }
