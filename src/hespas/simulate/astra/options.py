"""What system.json asks for: which algorithm runs a collective, and which are written out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hespas.base.limits import MOST_DIGITS
from hespas.errors import SimulationError
from hespas.hardware.system import System
from hespas.program.collectives import COMMON_KINDS, CollectiveKind
from hespas.simulate.astra.closed_forms import AlgorithmName

_NAME = re.compile(
    rf"(one)?(ring|direct|halvingdoubling|doublebinarytree)([0-9]{{0,{MOST_DIGITS}}})",
    re.IGNORECASE,
)
_ALGORITHMS: Mapping[str, AlgorithmName] = {
    "ring": "ring",
    "direct": "direct",
    "halvingdoubling": "halving-doubling",
    "doublebinarytree": "double-binary-tree",
}


@dataclass(frozen=True, slots=True)
class Implementation:
    """An entry of ``<collective>-implementation``.

    ``window`` is how many peers a direct collective serves at once (None: all of them);
    ``is_one_ring`` puts all devices in one ring, whatever the dimensions.
    """

    algorithm: AlgorithmName
    window: int | None
    is_one_ring: bool


_RING = Implementation("ring", window=None, is_one_ring=False)


def parse_implementation(name: str) -> Implementation:
    """Return what a name says. Raises `SimulationError` for a name without a model.

    >>> parse_implementation("oneDirect2")
    Implementation(algorithm='direct', window=2, is_one_ring=True)
    """
    match = _NAME.fullmatch(name)
    has_number = match is not None and match[3] and match[2].lower() != "direct"
    one_tree = match is not None and match[1] and match[2].lower() == "doublebinarytree"
    if match is None or has_number or one_tree:
        hint = "use ring, direct, halvingDoubling or doubleBinaryTree"
        raise SimulationError(f"the collective algorithm {name} has no model here", hint=hint)
    return Implementation(
        algorithm=_ALGORITHMS[match[2].lower()],
        window=int(match[3]) if match[3] else None,
        is_one_ring=match[1] is not None,
    )


def implementations(system: System, kind: CollectiveKind) -> tuple[Implementation, ...]:
    """Return how a collective of all devices runs along each dimension.

    Dimensions beyond the list's end take no part. Raises `SimulationError` without a list.
    """
    names = system.implementations.get(kind)
    if not names:
        message = f"there is no {kind.option}-implementation"
        raise SimulationError(message, location=system.name, hint="add one to system.json")
    return tuple([parse_implementation(name) for name in names])


def group_implementation(system: System, kind: CollectiveKind) -> Implementation:
    """Return how a group smaller than the system runs: by the only entry, else as a ring.

    Raises `SimulationError` for the double binary tree, which ASTRA-sim can't run there.
    """
    named = implementations(system, kind)
    if len(named) == 1 and named[0].algorithm == "double-binary-tree":
        message = "doubleBinaryTree in a group smaller than the system has no model here"
        raise SimulationError(message, location=system.name)
    return named[0] if len(named) == 1 else _RING


PER_NODE = "per-node-custom-implementation"
"""The option that names a map from tasks to prefixes."""


def custom_option(kind: CollectiveKind) -> str:
    """Return the option that gives a kind's prefix."""
    return f"{kind.option}-implementation-custom"


def has_custom_collectives(system: System) -> bool:
    """Return whether the system writes out any collective."""
    names = (PER_NODE, *map(custom_option, COMMON_KINDS))
    return any(system.options.get(name) for name in names)
