from __future__ import annotations

import pytest

from hespas.collectives.algorithms import ALGORITHMS
from hespas.collectives.msccl_xml import parse_program, program_xml
from hespas.collectives.program import common_program, program
from hespas.collectives.verify import verify
from hespas.errors import AlgorithmError
from hespas.program.collectives import CollectiveKind

CASES = [
    (name, collective, ranks)
    for name, algorithm in ALGORITHMS.items()
    for collective in algorithm.rounds
    for ranks in (2, 3, 4, 7, 8, 12)
    if name not in ("in-switch", "dissemination") and algorithm.supports(collective, ranks)
]


@pytest.mark.parametrize(("name", "collective", "ranks"), CASES)
def test_a_generated_algorithm_computes_its_collective(
    name: str, collective: CollectiveKind, ranks: int
) -> None:
    algorithm = ALGORITHMS[name]

    for schedule in (
        algorithm.schedule(collective, ranks),
        algorithm.schedule(collective, ranks, is_contiguous=True),
    ):
        assert verify(program(schedule)).is_result_known


@pytest.mark.parametrize(("name", "collective", "ranks"), CASES)
def test_xml_gives_an_algorithm_back(name: str, collective: CollectiveKind, ranks: int) -> None:
    if collective.name not in ("GATHER", "SCATTER"):  # which MSCCL has no names for
        made = common_program(name, collective, ranks)

        assert parse_program(program_xml(made)) == made


@pytest.mark.parametrize(
    ("name", "collective", "chunks"),
    [
        # What a rank sends, of a buffer of 8 chunks (2 for the trees).
        ("ring", CollectiveKind.ALL_REDUCE, 14),
        ("ring", CollectiveKind.REDUCE_SCATTER, 7),
        ("ring", CollectiveKind.ALL_GATHER, 7),
        ("direct", CollectiveKind.ALL_REDUCE, 14),
        ("direct", CollectiveKind.ALL_TO_ALL, 7),
        ("halving-doubling", CollectiveKind.ALL_REDUCE, 14),
        ("halving-doubling", CollectiveKind.ALL_GATHER, 7),
    ],
)
def test_every_rank_sends_no_more_than_it_must(
    name: str, collective: CollectiveKind, chunks: int
) -> None:
    links = verify(common_program(name, collective, 8)).chunks_by_link()

    for rank in range(8):
        assert sum(count for (source, _), count in links.items() if source == rank) == chunks


@pytest.mark.parametrize("name", ["ring", "direct", "double-binary-tree"])
def test_one_rank_alone_needs_no_algorithm(name: str) -> None:
    with pytest.raises(AlgorithmError, match="among 1 ranks"):
        common_program(name, CollectiveKind.ALL_REDUCE, 1)


def test_halving_needs_a_power_of_two() -> None:
    with pytest.raises(AlgorithmError, match="6 ranks, which is not a power of two"):
        common_program("halving-doubling", CollectiveKind.ALL_REDUCE, 6)


@pytest.mark.parametrize(
    ("name", "collective"),
    [("in-switch", CollectiveKind.ALL_REDUCE), ("dissemination", CollectiveKind.BARRIER)],
)
def test_what_ranks_do_not_do_has_no_program(name: str, collective: CollectiveKind) -> None:
    with pytest.raises(AlgorithmError, match="has no program"):
        common_program(name, collective, 4)


@pytest.mark.parametrize(
    ("name", "collective", "threadblocks"),
    [
        ("ring", CollectiveKind.ALL_REDUCE, 1),
        ("bidirectional-ring", CollectiveKind.ALL_REDUCE, 2),
        ("halving-doubling", CollectiveKind.ALL_REDUCE, 3),
        ("direct", CollectiveKind.ALL_GATHER, 7),
        ("direct", CollectiveKind.ALL_REDUCE, 8),  # one more adds
    ],
)
def test_a_connection_has_one_threadblock(
    name: str, collective: CollectiveKind, threadblocks: int
) -> None:
    for rank in common_program(name, collective, 8).ranks:
        assert len(rank.threadblocks) == threadblocks
