"""What a collective algorithm is, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping

from hespas.collectives.algorithm import Algorithm
from hespas.collectives.verify import Verified

_SHOWN_LINKS = 16


def algorithm_json(verified: Verified, *, size_bytes: int) -> dict[str, object]:
    """Return the object that ``hespas algorithm`` prints.

    Keys: ``name``, ``collective``, ``is_verified`` (False for a custom collective, of which only
    the run could be checked), ``ranks``, ``input_chunks``, ``output_chunks``, ``is_in_place``,
    ``protocol``, ``threadblocks`` and ``steps`` (of all ranks), ``messages``, ``size_bytes`` and
    ``chunk_bytes`` of a rank's input, ``links`` as [source, target, chunks, bytes].
    """
    algorithm = verified.algorithm
    chunk_bytes = algorithm.chunk_bytes(size_bytes)
    return {
        "name": algorithm.name,
        "collective": algorithm.collective.value,
        "is_verified": verified.is_result_known,
        "ranks": len(algorithm.ranks),
        "input_chunks": algorithm.input_chunks,
        "output_chunks": algorithm.output_chunks,
        "is_in_place": algorithm.is_in_place,
        "protocol": algorithm.protocol,
        "threadblocks": sum(len(rank.threadblocks) for rank in algorithm.ranks),
        "steps": sum(1 for _ in algorithm.steps()),
        "messages": len(verified.transfers),
        "size_bytes": size_bytes,
        "chunk_bytes": chunk_bytes,
        "links": [
            [source, target, chunks, chunks * chunk_bytes]
            for (source, target), chunks in verified.chunks_by_link().items()
        ],
    }


def algorithm_text(verified: Verified, *, size_bytes: int) -> str:
    """Return the same as some lines of text."""
    algorithm = verified.algorithm
    computes = (
        f"computes {algorithm.collective.value}: verified"
        if verified.is_result_known
        else "runs to its end without races; what a custom collective must compute is not known"
    )
    location = "in place" if algorithm.is_in_place else "out of place"
    links = verified.chunks_by_link()
    chunks = f"{algorithm.input_chunks} chunks of input, {algorithm.output_chunks} of output"
    return "\n".join([
        f"{algorithm.name} {computes}",
        f"{len(algorithm.ranks)} ranks, {location}: {chunks}",
        f"{_counts(algorithm)}, {len(verified.transfers)} messages",
        _sent(algorithm, links),
        f"Of {size_bytes:,} bytes a rank, each link carries",
        *_links(links, algorithm.chunk_bytes(size_bytes)),
    ])  # fmt: skip


def _counts(algorithm: Algorithm) -> str:
    threadblocks = sum(len(rank.threadblocks) for rank in algorithm.ranks)
    return f"{threadblocks} threadblocks, {sum(1 for _ in algorithm.steps())} steps"


def _sent(algorithm: Algorithm, links: Mapping[tuple[int, int], int]) -> str:
    """Return how much a rank sends, in terms of the larger of its buffers."""
    sent = [0] * len(algorithm.ranks)
    for (source, _), chunks in links.items():
        sent[source] += chunks
    whole = max(algorithm.input_chunks, algorithm.output_chunks)
    least, most = (f"{chunks / whole:.4g}" for chunks in (min(sent), max(sent)))
    amount = most if least == most else f"{least} to {most}"
    return f"Each rank sends {amount} times its buffer of {whole} chunks"


def _links(links: Mapping[tuple[int, int], int], chunk_bytes: int) -> list[str]:
    shown = [
        f"  {source} -> {target}: {chunks * chunk_bytes:,} bytes"
        for (source, target), chunks in list(links.items())[:_SHOWN_LINKS]
    ]
    if len(links) > _SHOWN_LINKS:
        least, most = (f"{limit(links.values()) * chunk_bytes:,}" for limit in (min, max))
        shown.append(f"  ... {len(links)} links in all, of {least} to {most} bytes: see --json")
    return shown
