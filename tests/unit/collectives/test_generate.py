from __future__ import annotations

import pytest

from hespas.collectives.algorithm import Algorithm, Collective
from hespas.collectives.generate import GENERATORS
from hespas.collectives.msccl_xml import algorithm_xml, parse_algorithm
from hespas.collectives.trees import first_tree, second_tree
from hespas.collectives.verify import verify
from hespas.errors import AlgorithmError

CASES = [
    (name, collective, ranks)
    for name, collective in GENERATORS
    for ranks in (2, 3, 4, 7, 8, 12)
    if name != "halving-doubling" or ranks & ranks - 1 == 0
]


def generated(name: str, collective: Collective, ranks: int) -> Algorithm:
    return GENERATORS[name, collective](ranks)


@pytest.mark.parametrize(("name", "collective", "ranks"), CASES)
def test_a_generated_algorithm_computes_its_collective(
    name: str, collective: Collective, ranks: int
) -> None:
    assert verify(generated(name, collective, ranks)).is_result_known


@pytest.mark.parametrize(("name", "collective", "ranks"), CASES)
def test_xml_gives_an_algorithm_back(name: str, collective: Collective, ranks: int) -> None:
    algorithm = generated(name, collective, ranks)

    assert parse_algorithm(algorithm_xml(algorithm)) == algorithm


@pytest.mark.parametrize(
    ("name", "collective", "chunks"),
    [
        # What a rank sends, of a buffer of 8 chunks (2 for the trees).
        ("ring", Collective.ALL_REDUCE, 14),
        ("ring", Collective.REDUCE_SCATTER, 7),
        ("ring", Collective.ALL_GATHER, 7),
        ("direct", Collective.ALL_REDUCE, 14),
        ("direct", Collective.ALL_TO_ALL, 7),
        ("halving-doubling", Collective.ALL_REDUCE, 14),
        ("halving-doubling", Collective.ALL_GATHER, 7),
    ],
)
def test_every_rank_sends_no_more_than_it_must(
    name: str, collective: Collective, chunks: int
) -> None:
    links = verify(generated(name, collective, 8)).chunks_by_link()

    for rank in range(8):
        assert sum(count for (source, _), count in links.items() if source == rank) == chunks


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 13, 16, 31])
def test_each_tree_joins_all_ranks_and_its_inner_nodes_are_the_others_leaves(ranks: int) -> None:
    for tree in (first_tree, second_tree):
        nodes = [tree(rank, ranks) for rank in range(ranks)]
        (root,) = [rank for rank in range(ranks) if nodes[rank].parent is None]
        reached = {root}
        for _ in range(ranks):
            reached |= {child for rank in reached for child in nodes[rank].children}
        assert reached == set(range(ranks))
        for rank, node in enumerate(nodes):
            assert len(node.children) <= 2
            assert all(nodes[child].parent == rank for child in node.children)
    both = [
        r for r in range(ranks) if first_tree(r, ranks).children and second_tree(r, ranks).children
    ]
    assert len(both) <= 2


@pytest.mark.parametrize("name", ["ring", "direct", "double-binary-tree"])
def test_one_rank_alone_needs_no_algorithm(name: str) -> None:
    with pytest.raises(AlgorithmError, match="among 1 ranks"):
        generated(name, Collective.ALL_REDUCE, 1)


def test_halving_needs_a_power_of_two() -> None:
    with pytest.raises(AlgorithmError, match="6 ranks, which is not a power of two"):
        generated("halving-doubling", Collective.ALL_REDUCE, 6)
