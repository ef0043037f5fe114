"""Why a kernel takes as long as it does, in a few words."""

from __future__ import annotations

from hespas.estimate.kernel.access import SECTOR_BYTES, WARP, Access
from hespas.estimate.kernel.analysis import KernelAnalysis
from hespas.estimate.kernel.price import KernelTerms, memory_turns
from hespas.units import format_bytes_binary

_WORTH_TELLING = 1.5
_PART_WORTH_TELLING = 0.2


def reasons(terms: KernelTerms, analysis: KernelAnalysis | None) -> tuple[str, ...]:
    """Return what slows a kernel, the largest term first."""
    if analysis is None:
        return (f"no PTX: priced by its kind and bytes, {terms.limit}",)
    about = {
        "launch": "shorter than its launch",
        "block turnover": _turnover(analysis),
        "device memory": _memory(analysis),
        "L2": _sectors(analysis),
        "L1": _lines(analysis),
        f"{terms.pipe} pipe": _pipe(terms, analysis),
    }
    found = [about[terms.limit]]
    if terms.limit != "L2" and terms.l2_s > _PART_WORTH_TELLING * terms.time_s:
        found.append(_sectors(analysis))
    if (
        terms.limit != "device memory"
        and memory_turns(analysis)
        and terms.memory_s > _PART_WORTH_TELLING * terms.time_s
    ):
        found.append(_memory(analysis))
    return tuple(each for each in dict.fromkeys(found) if each)


def _turnover(analysis: KernelAnalysis) -> str:
    sectors = (analysis.fresh_sectors + analysis.store_sectors) * SECTOR_BYTES
    return (
        f"{analysis.blocks} blocks of {analysis.threads} threads start and end for "
        f"{format_bytes_binary(sectors)} each"
    )


def _memory(analysis: KernelAnalysis) -> str:
    if not memory_turns(analysis):
        return "streams through device memory"
    run = analysis.loop_sectors * SECTOR_BYTES / analysis.loop_runs
    return (
        f"{1 + memory_turns(analysis):.1f}x device memory: "
        f"runs of {run:.0f} bytes, row after row, {analysis.loop_rounds:.0f} rounds"
    )


def _sectors(analysis: KernelAnalysis) -> str:
    worst = _worst(analysis)
    if worst is None:
        return "asks L2 again for what it had"
    factor, access = worst
    kind, noun = ("write", "stores") if access.is_store else ("read", "loads")
    return (
        f"{factor:.0f}x L2 {kind} sectors: {access.width_bytes}-byte {noun} at "
        f"{access.stride}-byte stride"
    )


def _worst(analysis: KernelAnalysis) -> tuple[float, Access] | None:
    """Return the access whose sectors exceed its bytes by most, and how many times they do."""
    wasteful = [each for each in analysis.accesses if each.amplification >= _WORTH_TELLING]
    if not wasteful:
        return None
    worst = max(wasteful, key=lambda each: (each.is_store, each.sectors))
    return worst.amplification, worst


def _lines(analysis: KernelAnalysis) -> str:
    lines, passes = analysis.l1_lines, analysis.shared_passes
    what = "lines of L1" if lines >= passes else "passes of shared memory"
    return f"{max(lines, passes) / analysis.warps:.0f} {what} a warp"


def _pipe(terms: KernelTerms, analysis: KernelAnalysis) -> str:
    issued = analysis.slots.issued / analysis.warps
    return f"the {terms.pipe} pipe: {issued:.0f} instructions a warp of {WARP} threads"
