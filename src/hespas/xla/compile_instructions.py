"""Names of the instructions of an optimised module, from its text."""

from __future__ import annotations

import re
from dataclasses import dataclass

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^  (?:ROOT )?%?([\w.\-]+) = .*? ([a-z][\w\-]*)\(")
_FUSED = re.compile(r" fusion\(.*? calls=%?([\w.\-]+)")
_APPLIED = re.compile(r" to_apply=%?([\w.\-]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """The names of all instructions, and of the fusions that a schedule runs."""

    all: frozenset[str]
    fusions: frozenset[str]


def read_instructions(text: str) -> Instructions:
    r"""Read the names of instructions.

    Fusions inside of the bodies of other fusions, and of what is applied element by element,
    are part of these.

    >>> read_instructions("ENTRY %m (a: f32[]) -> f32[] {\n"
    ...                   "  ROOT %f = f32[] fusion(%a), kind=kLoop, calls=%b\n}").fusions
    frozenset({'f'})
    """
    bodies: set[str] = set()
    every: set[str] = set()
    fusions: dict[str, list[str]] = {}
    computation = ""
    for line in text.splitlines():
        if not line.startswith(" "):
            head = _COMPUTATION.match(line)
            computation = head[1] if head else ""
            continue
        found = _INSTRUCTION.match(line)
        if found is None:
            continue
        every.add(found[1])
        if found[2] == "fusion":
            fusions.setdefault(computation, []).append(found[1])
            bodies.update(_FUSED.findall(line))
        bodies.update(_APPLIED.findall(line))
    run = (name for home, names in fusions.items() if home not in bodies for name in names)
    return Instructions(all=frozenset(every), fusions=frozenset(run))
