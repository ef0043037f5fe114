"""What a collective algorithm is, as JSON and as text."""

from __future__ import annotations

from collections.abc import Mapping

from hespas.collectives.program import Program
from hespas.collectives.verify import Verified

_SHOWN_LINKS = 16


def algorithm_json(verified: Verified, *, size_bytes: int) -> dict[str, object]:
    """Return the object that ``hespas algorithm`` prints.

    Keys: ``name``, ``collective``, ``is_verified`` (False for a custom collective, of which only
    the run could be checked), ``ranks``, ``input_chunks``, ``output_chunks``, ``is_in_place``,
    ``protocol``, ``threadblocks`` and ``steps`` (of all ranks), ``messages``, ``size_bytes`` and
    ``chunk_bytes`` of a rank's input, ``links`` as [source, target, chunks, bytes].
    """
    program = verified.program
    chunk_bytes = program.chunk_bytes(size_bytes)
    return {
        "name": program.name,
        "collective": program.collective.value,
        "is_verified": verified.is_result_known,
        "ranks": len(program.ranks),
        "input_chunks": program.input_chunks,
        "output_chunks": program.output_chunks,
        "is_in_place": program.is_in_place,
        "protocol": program.protocol,
        "threadblocks": sum(len(rank.threadblocks) for rank in program.ranks),
        "steps": sum(1 for _ in program.steps()),
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
    program = verified.program
    computes = (
        f"computes {program.collective.value}: verified"
        if verified.is_result_known
        else "runs to its end without races; what a custom collective must compute is not known"
    )
    location = "in place" if program.is_in_place else "out of place"
    links = verified.chunks_by_link()
    chunks = f"{program.input_chunks} chunks of input, {program.output_chunks} of output"
    return "\n".join([
        f"{program.name} {computes}",
        f"{len(program.ranks)} ranks, {location}: {chunks}",
        f"{_counts(program)}, {len(verified.transfers)} messages",
        _sent(program, links),
        f"Of {size_bytes:,} bytes a rank, each link carries",
        *_links(links, program.chunk_bytes(size_bytes)),
    ])  # fmt: skip


def _counts(program: Program) -> str:
    threadblocks = sum(len(rank.threadblocks) for rank in program.ranks)
    return f"{threadblocks} threadblocks, {sum(1 for _ in program.steps())} steps"


def _sent(program: Program, links: Mapping[tuple[int, int], int]) -> str:
    """Return how much a rank sends, in terms of the larger of its buffers."""
    sent = [0] * len(program.ranks)
    for (source, _), chunks in links.items():
        sent[source] += chunks
    whole = max(program.input_chunks, program.output_chunks)
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
        shown.append(
            f"  ... {len(links)} links in all, of {least} to {most} bytes: see the JSON output"
        )
    return shown
