"""Whether graphs of sends and receives compute their collective, as far as can be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hespas.collectives.algorithm import Collective
from hespas.collectives.graph_algorithm import UnknownAlgorithmError, graph_algorithm
from hespas.collectives.graph_check import check_graphs
from hespas.collectives.verify import Verified, verify
from hespas.schedule.chakra_node import ParsedNode


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphsVerified:
    """What was found: ``verified`` where the graphs say which chunks they move.

    Else ``unknown`` says what they lack; then only that they end, that every message has its
    receive, and that every rank can have heard of every other, is known.
    """

    verified: Verified | None
    unknown: str = ""


def verify_graphs(
    graphs: Sequence[Sequence[ParsedNode]], collective: Collective, *, name: str
) -> GraphsVerified:
    """Return what can be told of graphs, one per rank, that are to do a collective.

    Raises `AlgorithmError` for what is found to be wrong: see
    `hespas.collectives.graph_check.check_graphs` and `hespas.collectives.verify.verify`.
    """
    check_graphs(graphs, collective)
    try:
        algorithm = graph_algorithm(graphs, collective, name=name)
    except UnknownAlgorithmError as error:
        return GraphsVerified(verified=None, unknown=str(error))
    return GraphsVerified(verified=verify(algorithm))
