"""All collective algorithms by name, and which of them can run a collective."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from hespas.collectives import families
from hespas.collectives.schedule import Collective, CollectiveAlgorithm


def algorithms_in(folder: ModuleType) -> dict[str, CollectiveAlgorithm]:
    """Return what the files of a folder describe, by name."""
    modules = [
        import_module(f"{folder.__name__}.{one.name}") for one in iter_modules(folder.__path__)
    ]
    algorithms: list[CollectiveAlgorithm] = [module.ALGORITHM for module in modules]
    return {algorithm.name: algorithm for algorithm in algorithms}


ALGORITHMS: Mapping[str, CollectiveAlgorithm] = algorithms_in(families)
"""The algorithms by name, such as ``double-binary-tree``."""


def algorithms_for(
    collective: Collective,
    members: int,
    algorithms: Mapping[str, CollectiveAlgorithm] = ALGORITHMS,
) -> tuple[CollectiveAlgorithm, ...]:
    """Return the algorithms that can run a collective among so many members.

    Those that are usual for it come first.

    >>> [one.name for one in algorithms_for(Collective.ALL_TO_ALL, 6)]
    ['direct', 'ring']
    """
    able = [one for one in algorithms.values() if one.supports(collective, members)]
    return tuple(sorted(able, key=lambda one: collective not in one.usual_for))
