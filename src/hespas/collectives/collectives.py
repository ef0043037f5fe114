"""Algorithms in the place of a system's own: for which collective, how many ranks, what size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hespas.collectives.algorithm import Algorithm, Collective
from hespas.collectives.graphs import rank_graph
from hespas.collectives.msccl_xml import read_algorithm
from hespas.collectives.verify import verify
from hespas.errors import AlgorithmError
from hespas.hardware.system import CollectiveKind
from hespas.schedule.chakra_node import ParsedNode

COLLECTIVE_OF = {
    CollectiveKind.ALL_REDUCE: Collective.ALL_REDUCE,
    CollectiveKind.ALL_GATHER: Collective.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER: Collective.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL: Collective.ALL_TO_ALL,
}


def read_verified(path: Path) -> Algorithm:
    """Read an MSCCL XML file and verify it. Raises `AlgorithmError`, naming the file."""
    algorithm = read_algorithm(path)
    try:
        verify(algorithm)
    except AlgorithmError as error:
        where = f"{path}: {error.location}" if error.location else str(path)
        raise AlgorithmError(error.message, location=where, hint=error.hint) from error
    return algorithm


def collective_graphs(
    path: Path, algorithm: Algorithm, *, kind: CollectiveKind, members: int, size_bytes: int
) -> Sequence[Sequence[ParsedNode]]:
    """Return what every member of a collective does.

    Raises `AlgorithmError` for an algorithm of another collective or number of ranks, and for
    nothing to send. One whose ``coll`` is custom is taken for whatever it is used for.
    """
    wanted = COLLECTIVE_OF[kind]
    problem = ""
    if algorithm.collective not in (wanted, Collective.CUSTOM):
        problem = f"the algorithm does {algorithm.collective.value}, not {wanted.value}"
    elif len(algorithm.ranks) != members:
        problem = f"the algorithm is for {len(algorithm.ranks)} ranks, the collective has {members}"
    elif size_bytes < 1:
        problem = f"a collective of {size_bytes} bytes"
    if problem:
        raise AlgorithmError(problem, location=str(path))
    return [rank_graph(algorithm, rank, size_bytes) for rank in range(members)]
