"""Figures in the sentences of pages that follow from what the same page shows of commands.

A sentence has one between ``<!-- shown NAME -->`` and ``<!-- end -->``; `FIGURES` computes it from
the examples of its page, so that no sentence contradicts what stands above it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hespas.base.units import parse_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """What a page shows of commands, by command: those that are executed, and those recorded."""

    executed: Mapping[str, str]
    recorded: Mapping[str, str]


def quantity(text: str, row: str, unit: str) -> float:
    """Return the figure of a row of an answer.

    >>> quantity("Step time                 85.08 ms", "Step time", "s")
    0.08508
    """
    match = re.search(rf"^ *{re.escape(row)} +([0-9.]+ \w+)", text, re.MULTILINE)
    if match is None:
        raise SystemExit(f"no row {row!r} is shown in:\n{text}")
    return parse_quantity(match[1], unit)


def _step_s(text: str) -> float:
    return quantity(text, "Step time", "s")


_DEMO = (
    "hespas run examples/llama3_100m_fsdp4.mlir --node A100_SXM_40GB --system A100_SXM_40GB_4GPU"
)
_ON_32 = "--node H100_80GB --system H100_80GB_8GPU_4"
_CANDIDATES = ("fsdp", "mixed", "replicated")


def _as_exported(page: Examples) -> str:
    one_by_one, compiled = page.recorded[f"{_DEMO} --as-exported"], page.recorded[_DEMO]
    return f"{_step_s(one_by_one) / _step_s(compiled):.1f} times"


def _run(candidate: str) -> str:
    return f"hespas run {candidate}.mlir {_ON_32}"


def _exposed(page: Examples) -> str:
    text = page.executed[_run("fsdp")]
    share = quantity(text, "exposed communication", "s") / _step_s(text)
    return f"{100 * share:.0f} %"


def _lead(page: Examples) -> str:
    """Return by how much the first candidate is faster than the others, which are slower."""
    steps = {name: _step_s(page.executed[_run(name)]) for name in _CANDIDATES}
    ahead = steps.pop("fsdp")
    shares = sorted(round(100 * (1 - ahead / other)) for other in steps.values())
    if shares[0] < 0:
        raise SystemExit("the tutorial's decision is no longer what is shown")
    return f"{shares[0]} and {shares[1]} %"


def _copies(page: Examples) -> str:
    sizes = [
        quantity(
            page.executed[f"hespas memory {name}.mlir --node H100_80GB --top 2"], "arguments", "B"
        )
        for name in ("mixed", "replicated")
    ]
    return f"{sizes[1] / sizes[0]:.1f} times"


def _compiled(page: Examples) -> str:
    """Return by how much compiled steps are shorter than with a model of the compiler."""
    steps = {name: _step_s(page.recorded[_run(name)]) for name in _CANDIDATES}
    if min(steps, key=lambda name: steps[name]) != "fsdp":
        raise SystemExit("the tutorial's decision does not survive the compiler")
    shorter = [1 - steps[name] / _step_s(page.executed[_run(name)]) for name in _CANDIDATES]
    return f"{100 * min(shorter):.0f} to {100 * max(shorter):.0f} %"


FIGURES: Mapping[str, Callable[[Examples], str]] = {
    "asexported": _as_exported,
    "tutorialexposed": _exposed,
    "tutoriallead": _lead,
    "tutorialcopies": _copies,
    "tutorialcompiled": _compiled,
}
