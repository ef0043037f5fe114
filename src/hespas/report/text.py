"""Pieces that texts share: tables, wrapped lines, and the assumptions under every result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from hespas.prediction.figures.schema import AssumptionGroup

if TYPE_CHECKING:
    pass


_SHOWN = 3


_WIDTH = 100


def group_text(group: AssumptionGroup) -> str:
    """Return a group as a sentence, with the share of the step or computation it decides."""
    decided = [_OTHERS_DECIDED[each] for each in group.about if each in _OTHERS_DECIDED]
    if group.step_share is not None:
        decided.insert(0, f"{_per_cent(group.step_share)} of the step")
    elif group.share is not None:
        decided.insert(0, f"{_per_cent(group.share)} of the computation")
    if decided:
        return f"{group.text} (decides {_listed(decided)})"
    return f"{group.text} (share of the step not known)" if group.about else group.text


def _listed(texts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


_OTHERS_DECIDED = {"memory": "what fits", "overlap": "what is hidden"}


def step_assumption_lines(
    groups: Sequence[AssumptionGroup], warnings: Iterable[str], *, verbose: bool
) -> list[str]:
    """Return the assumptions that decide most, or what fits or is hidden, and the warnings."""
    shown = list(groups)
    if not verbose:
        shown = [
            group
            for number, group in enumerate(groups)
            if number < _SHOWN or not _OTHERS_DECIDED.keys().isdisjoint(group.about)
        ]
    lines = assumption_lines(map(group_text, shown), warnings)
    if len(shown) < len(groups):
        lines[0] = (
            f"Assumed ({len(shown)} of {len(groups)}, by the share of the step that each decides; "
            "--verbose shows all):"
        )
    return lines


def _per_cent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else "less than 1 %"


def assumption_lines(assumptions: Iterable[str], warnings: Iterable[str]) -> list[str]:
    """Return the list of assumptions under its heading, and the warnings below it.

    >>> assumption_lines(["the device never waits"], ["it does"])
    ['Assumed:', '  - the device never waits', 'warning: it does']
    """
    listed = [wrapped(f"  - {assumption}", "    ") for assumption in assumptions]
    heading = ["Assumed:"] if listed else []
    return [*heading, *listed, *[wrapped(f"warning: {each}", "  ") for each in warnings]]


def wrapped(text: str, indent: str) -> str:
    """Return a text in lines of 100, all but the first indented."""
    return fill(
        text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def table_lines(
    title: str, columns: Mapping[str, int], rows: Sequence[Sequence[str]], *, least: int = 24
) -> list[str]:
    """Return a table: a name and cells in each row, those to the right in ``columns`` of a width.

    >>> table_lines("Kinds", {"time": 8}, [("copy", "1 s")], least=6)
    ['Kinds       time', '  copy       1 s']
    """
    width = max([least, len(title) - 2, *(len(name) for name, *_ in rows)])
    lines = [(title, *columns), *((f"  {name}", *cells) for name, *cells in rows)]
    return [
        "".join([f"{name:<{width + 2}}", *map(str.rjust, cells, columns.values())]).rstrip()
        for name, *cells in lines
    ]
