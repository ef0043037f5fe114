"""The common algorithms, written out: ring, direct, halving-doubling, double binary tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hespas.collectives.algorithm import Algorithm, Collective
from hespas.collectives.generate_direct import (
    direct_all_gather,
    direct_all_reduce,
    direct_all_to_all,
    direct_reduce_scatter,
)
from hespas.collectives.generate_halving import (
    halving_doubling_all_gather,
    halving_doubling_all_reduce,
    halving_doubling_reduce_scatter,
)
from hespas.collectives.generate_ring import (
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from hespas.collectives.generate_tree import double_binary_tree_all_reduce

GENERATORS: Mapping[tuple[str, Collective], Callable[[int], Algorithm]] = {
    ("ring", Collective.ALL_REDUCE): ring_all_reduce,
    ("ring", Collective.REDUCE_SCATTER): ring_reduce_scatter,
    ("ring", Collective.ALL_GATHER): ring_all_gather,
    ("direct", Collective.ALL_REDUCE): direct_all_reduce,
    ("direct", Collective.REDUCE_SCATTER): direct_reduce_scatter,
    ("direct", Collective.ALL_GATHER): direct_all_gather,
    ("direct", Collective.ALL_TO_ALL): direct_all_to_all,
    ("halving-doubling", Collective.ALL_REDUCE): halving_doubling_all_reduce,
    ("halving-doubling", Collective.REDUCE_SCATTER): halving_doubling_reduce_scatter,
    ("halving-doubling", Collective.ALL_GATHER): halving_doubling_all_gather,
    ("double-binary-tree", Collective.ALL_REDUCE): double_binary_tree_all_reduce,
}
"""The algorithms by name and collective, each for a number of ranks."""
