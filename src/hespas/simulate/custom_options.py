"""The options of a system that write its collectives out."""

from __future__ import annotations

from hespas.hardware.system import CollectiveKind, System

PER_NODE = "per-node-custom-implementation"
"""The option that names a map from tasks to prefixes."""


def custom_option(kind: CollectiveKind) -> str:
    """Return the option that gives a kind's prefix."""
    return f"{kind.value}-implementation-custom"


def has_custom_collectives(system: System) -> bool:
    """Return whether the system writes out any collective."""
    names = (PER_NODE, *map(custom_option, CollectiveKind))
    return any(system.options.get(name) for name in names)
