from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Sequence
from pathlib import Path

import pytest

from hespas.collectives.algorithms import ALGORITHMS
from hespas.collectives.chakra_graphs import read_graphs, verify_graphs, write_graphs
from hespas.collectives.program import common_program
from hespas.collectives.verify import verify
from hespas.errors import AlgorithmError
from hespas.program.collectives import CollectiveKind
from hespas.tasks.chakra.nodes import ParsedNode
from hespas.tasks.graph import ReceiveTask, SendTask

CORPUS = Path(__file__).parents[2] / "corpus" / "astra-sim.json.xz"
Graphs = Sequence[Sequence[ParsedNode]]


WRITTEN = [
    (name, collective)
    for name, algorithm in ALGORITHMS.items()
    for collective in algorithm.rounds
    if name != "in-switch"
    and collective.name in ("ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER", "ALL_TO_ALL")
]


@pytest.mark.parametrize(("name", "collective"), WRITTEN)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_graphs_say_all_that_their_algorithm_does(
    name: str, collective: CollectiveKind, ranks: int, tmp_path: Path
) -> None:
    program = common_program(name, collective, ranks)

    write_graphs(program, tmp_path / "a", size_bytes=1 << 20)
    found = verify_graphs(read_graphs(tmp_path / "a"), collective, name="a").verified

    assert found is not None
    assert found.chunks_by_link() == verify(program).chunks_by_link()


def test_the_same_algorithm_gives_the_same_bytes(tmp_path: Path) -> None:
    files = [
        write_graphs(
            common_program("ring", CollectiveKind.ALL_REDUCE, 4),
            tmp_path / name / "a",
            size_bytes=1000,
        )
        for name in "xy"
    ]

    assert [file.name for file in files[0]] == ["a.0.et", "a.1.et", "a.2.et", "a.3.et"]
    for one, other in zip(*files, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_chunks_are_rounded_up_to_whole_bytes(tmp_path: Path) -> None:
    write_graphs(
        common_program("ring", CollectiveKind.ALL_REDUCE, 4), tmp_path / "a", size_bytes=1001
    )

    (sizes,) = {
        tuple(node.task.size_bytes for node in nodes if isinstance(node.task, SendTask))
        for nodes in read_graphs(tmp_path / "a")
    }
    assert sizes == (251,) * 6


def test_fewer_bytes_than_chunks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AlgorithmError, match="3 bytes cannot be cut into 4 chunks"):
        write_graphs(
            common_program("ring", CollectiveKind.ALL_REDUCE, 4), tmp_path / "a", size_bytes=3
        )


def ring_graphs(tmp_path: Path, *, with_notes: bool = True) -> list[list[ParsedNode]]:
    write_graphs(
        common_program("ring", CollectiveKind.ALL_REDUCE, 4), tmp_path / "a", size_bytes=1000
    )
    graphs = [list(nodes) for nodes in read_graphs(tmp_path / "a")]
    if not with_notes:
        graphs = [[node._replace(notes={}) for node in nodes] for nodes in graphs]
    return graphs


def test_of_graphs_without_notes_it_is_reported_what_they_lack(tmp_path: Path) -> None:
    found = verify_graphs(
        ring_graphs(tmp_path, with_notes=False), CollectiveKind.ALL_REDUCE, name="a"
    )

    assert found.verified is None
    assert found.unknown == "they don't say into how many chunks the buffer is cut"


def test_a_graph_that_moves_the_wrong_chunk_is_found_by_its_notes(tmp_path: Path) -> None:
    graphs = ring_graphs(tmp_path)
    index = next(i for i, node in enumerate(graphs[2]) if isinstance(node.task, ReceiveTask))
    node = graphs[2][index]
    graphs[2][index] = node._replace(notes={**node.notes, "srcoff": 2, "dstoff": 2})

    with pytest.raises(AlgorithmError, match="output chunk 1 lacks the contribution of rank"):
        verify_graphs(graphs, CollectiveKind.ALL_REDUCE, name="a")


def without(graphs: Graphs, rank: int, last: int) -> list[list[ParsedNode]]:
    """Return graphs of which one rank leaves out its last nodes."""
    return [list(nodes[:-last]) if i == rank else list(nodes) for i, nodes in enumerate(graphs)]


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (1, "rank 0: node 30 .*: sends a message that rank 1 never receives"),
        (2, "rank 2: node 33 .*: waits for ever for a message of rank 1"),
    ],
)
def test_messages_without_their_other_end_are_found_without_notes(
    tmp_path: Path, last: int, message: str
) -> None:
    graphs = without(ring_graphs(tmp_path, with_notes=False), 1, last)

    with pytest.raises(AlgorithmError, match=message):
        verify_graphs(graphs, CollectiveKind.ALL_REDUCE, name="a")


def test_a_rank_that_never_hears_of_another_is_found_without_notes(tmp_path: Path) -> None:
    # Three steps of a ring are enough for everyone to hear of everyone; two are not.
    graphs = [
        [node for node in nodes if node.task.id < 3 * 4]
        for nodes in ring_graphs(tmp_path, with_notes=False)
    ]

    with pytest.raises(AlgorithmError, match="rank 0: nothing of rank 1 ever comes"):
        verify_graphs(graphs, CollectiveKind.ALL_REDUCE, name="a")


def test_graphs_that_others_made_are_verified_by_their_notes(tmp_path: Path) -> None:
    cases = {case["case"]: case for case in json.loads(lzma.decompress(CORPUS.read_bytes()))}
    for name, content in cases["custom_msccl_rhd8_R8"]["files"].items():
        path = tmp_path / Path(name).name
        path.write_bytes(base64.b64decode(content))

    found = verify_graphs(read_graphs(tmp_path / "a"), CollectiveKind.ALL_REDUCE, name="a").verified

    assert found is not None
    assert sum(found.chunks_by_link().values()) == 8 * 14
    with pytest.raises(AlgorithmError, match="rank 0's output chunk 0 has a contribution of"):
        verify_graphs(read_graphs(tmp_path / "a"), CollectiveKind.ALL_TO_ALL, name="a")


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    first, second, *_ = write_graphs(
        common_program("ring", CollectiveKind.ALL_REDUCE, 4), tmp_path / "a", size_bytes=1000
    )
    second.unlink()

    with pytest.raises(AlgorithmError, match=r"there is no a\.1\.et"):
        read_graphs(tmp_path / "a")
    assert first.exists()
    with pytest.raises(AlgorithmError, match=r"there is no b\.0\.et"):
        read_graphs(tmp_path / "b")
