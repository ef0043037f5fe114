"""Report single commands' results as text and JSON.

They are changes, kernels, algorithms, memory and simulations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from hespas.backends.result import DeviceFigures, ExternalResult
from hespas.base.units import PS_PER_NS, PS_PER_S, format_quantity, format_time
from hespas.memory.usage import MemoryUse
from hespas.prediction.explain.changes import Change
from hespas.prediction.explain.kernels import KernelRow, KernelTable
from hespas.prediction.figures.assumptions import assumptions_of_step
from hespas.prediction.figures.communication import communication_rows
from hespas.prediction.figures.step import explain_rows
from hespas.prediction.result import Prediction
from hespas.price.ptx.terms import reasons
from hespas.report.run import LEAST_GAIN, change_lines, communication_lines
from hespas.report.text import (
    assumption_lines,
    plain_number,
    short_place,
    step_assumption_lines,
    wrapped,
)
from hespas.simulate.timeline import Timeline
from hespas.tasks.graph import devices_text

if TYPE_CHECKING:
    # The import brings numpy.
    from hespas.collectives.program import Program
    from hespas.collectives.verify import Verified

_SHOWN_LINKS = 16


def explain_text(
    prediction: Prediction, changes: Sequence[Change], *, verbose: bool = False
) -> str:
    """Return a step's changes, communication and assumptions as text."""
    system = prediction.system
    machine = f"{prediction.devices} x {prediction.device_name}"
    machine += f" on {system.name}" if system else ""
    step = format_time(prediction.step_time_s)
    groups = assumptions_of_step(prediction, prediction.estimates.total)
    notes = [change.note for change in changes if change.note and change.gain >= LEAST_GAIN]
    noted = [wrapped(f"  - {note}", "    ") for note in notes]
    communication = communication_lines(communication_rows(prediction))
    return "\n".join([
        f"{prediction.graph.program.source}: one step on {machine} takes {step}",
        "",
        *change_lines("If this changed, and nothing else", explain_rows(changes)),
        "",
        *(["What was found:", *noted, ""] if noted else []),
        *([*communication, ""] if communication else []),
        *step_assumption_lines(groups, prediction.warnings, verbose=verbose),
    ])  # fmt: skip


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
    """Return the object of `algorithm_json` as some lines of text."""
    program = verified.program
    computes = (
        f"computes {program.collective.value}: verified"
        if verified.is_result_known
        else "runs to its end without races; what a custom collective must compute is not known"
    )
    location = "in place" if program.is_in_place else "out of place"
    links = verified.chunks_by_link()
    threadblocks = sum(len(rank.threadblocks) for rank in program.ranks)
    steps = sum(1 for _ in program.steps())
    chunks = f"{program.input_chunks} chunks of input, {program.output_chunks} of output"
    return "\n".join([
        f"{program.name} {computes}",
        f"{len(program.ranks)} ranks, {location}: {chunks}",
        f"{threadblocks} threadblocks, {steps} steps, {len(verified.transfers)} messages",
        _sent_text(program, links),
        f"Of {size_bytes:,} bytes a rank, each link carries",
        *_links(links, program.chunk_bytes(size_bytes)),
    ])  # fmt: skip


def _sent_text(program: Program, links: Mapping[tuple[int, int], int]) -> str:
    sent = [0] * len(program.ranks)
    for (source, _), chunks in links.items():
        sent[source] += chunks
    buffer_chunks = max(program.input_chunks, program.output_chunks)
    least, most = (f"{chunks / buffer_chunks:.4g}" for chunks in (min(sent), max(sent)))
    amount = most if least == most else f"{least} to {most}"
    return f"Each rank sends {amount} times its buffer of {buffer_chunks} chunks"


def _links(links: Mapping[tuple[int, int], int], chunk_bytes: int) -> list[str]:
    lines = [
        f"  {source} -> {target}: {chunks * chunk_bytes:,} bytes"
        for (source, target), chunks in list(links.items())[:_SHOWN_LINKS]
    ]
    if len(links) > _SHOWN_LINKS:
        least, most = (f"{limit(links.values()) * chunk_bytes:,}" for limit in (min, max))
        lines.append(
            f"  ... {len(links)} links in all, of {least} to {most} bytes: see the JSON output"
        )
    return lines


def memory_json(use: MemoryUse, capacity_bytes: int | None, *, shown: int) -> dict[str, object]:
    """Return memory use as the documented object.

    ``shown`` of the buffers at the peak are listed, the largest first. Figures of the host's memory
    have the keys of device memory.
    """
    return {
        "peak_memory_bytes": use.peak_bytes,
        "memory_capacity_bytes": capacity_bytes,
        "fits": None if capacity_bytes is None else use.peak_bytes <= capacity_bytes,
        **_use_json(use, shown),
        "host_memory_bytes": use.host_bytes,
        "host": None if use.host is None else _use_json(use.host, shown),
    }


def _use_json(use: MemoryUse, shown: int) -> dict[str, object]:
    return {
        "peak_memory_bytes": use.peak_bytes,
        "argument_bytes": use.argument_bytes,
        "output_bytes": use.output_bytes,
        "alias_bytes": use.alias_bytes,
        "temporary_bytes": use.temporary_bytes,
        "gap_bytes": use.gap_bytes,
        "peak_place": use.peak_location,
        "held": [
            {
                "size_bytes": buffer.size_bytes,
                "type": buffer.type,
                "role": buffer.role,
                "place": buffer.location,
            }
            for buffer in use.held[:shown]
        ],
        "held_buffers": len(use.held),
    }


def memory_text(use: MemoryUse, capacity_bytes: int | None, *, source: str, shown: int) -> str:
    """Return memory use as text, with the ``shown`` largest buffers.

    ``source`` is left out of locations.
    """
    fits = ""
    if capacity_bytes is not None:
        verb = "fits into" if use.peak_bytes <= capacity_bytes else "does not fit into"
        fits = f"{verb} {_size(capacity_bytes)}"
    lines = _use_lines("Peak", fits, use, source, shown)
    if use.host is not None:
        lines += ["", *_use_lines("Host memory", "for one device", use.host, source, shown)]
    return "\n".join(lines)


def _use_lines(name: str, note: str, use: MemoryUse, source: str, shown: int) -> list[str]:
    place = short_place(use.peak_location, source)
    aliased = f"{_size(use.alias_bytes)} of them written over arguments" if use.alias_bytes else ""
    rows = (
        (name, use.peak_bytes, note),
        ("  arguments", use.argument_bytes, ""),
        ("  outputs", use.output_bytes, aliased),
        ("  temporaries", use.temporary_bytes, place and f"at {place}"),
    )
    lines = [f"{name:<16}{_size(size):>12}  {note}".rstrip() for name, size, note in rows]
    buffers, other_buffers = use.held[:shown], use.held[shown:]
    if not buffers:
        return lines
    width = max(len(buffer.type) for buffer in buffers)
    roles = max(9, *(len(buffer.role) for buffer in buffers))
    lines += ["", "At the peak:"]
    lines += [
        f"{_size(buffer.size_bytes):>12}  {buffer.role:<{roles}}  {buffer.type:<{width}}  "
        f"{short_place(buffer.location, source)}"
        for buffer in buffers
    ]
    if other_buffers:
        size = _size(sum(buffer.size_bytes for buffer in other_buffers))
        lines.append(f"{size:>12}  {len(other_buffers)} more")
    if use.gap_bytes:
        lines.append(f"{_size(use.gap_bytes):>12}  between them")
    return lines


def _size(size_bytes: int) -> str:
    return format_quantity(size_bytes, "B")


_SHOWN_CLASSES = 16
_HEADINGS = ("finish", "compute", "communication", "exposed communication", "overlap")


def simulation_text(timeline: Timeline) -> str:
    """Return a simulated step as text, by device class."""
    rows = [
        (
            device_class.devices,
            (
                device_class.finish_ps,
                device_class.compute_ps,
                device_class.communication_ps,
                device_class.exposed_communication_ps,
                device_class.overlap_ps,
            ),
        )
        for device_class in timeline.classes
    ]
    return "\n".join([
        f"Step time: {format_time(timeline.step_time_s)}",
        *_step_parts(timeline),
        *_table(rows),
        *assumption_lines((*timeline.imperfections, *timeline.assumptions), ()),
    ])  # fmt: skip


def _step_parts(timeline: Timeline) -> list[str]:
    specified = timeline.specified
    has_host = specified.host_transfer_ps or specified.launch_wait_ps
    if timeline.as_specified is None and not has_host:
        return []
    rows = [
        ("compute", specified.compute_ps),
        ("exposed communication", specified.exposed_communication_ps),
    ]
    if specified.host_transfer_ps:
        rows.append(("exposed host transfers", specified.exposed_host_transfer_ps))
    if specified.launch_wait_ps:
        rows.append(("waiting for launches", specified.launch_wait_ps))
    if timeline.as_specified is not None:
        rows.append(("stragglers", timeline.straggler_ps))
    return [f"  {name:<22}{format_time(part_ps / PS_PER_S):>12}" for name, part_ps in rows]


def external_text(result: ExternalResult) -> str:
    """Return another simulator's step as text, by equal devices.

    Figures that it does not report are "-".
    """
    devices_of: dict[DeviceFigures, list[int]] = {}
    for device, figures in sorted(result.devices.items()):
        devices_of.setdefault(figures, []).append(device)
    rows = [
        (
            devices,
            [
                None if time_ns is None else time_ns * PS_PER_NS
                for time_ns in (
                    figures.finish_ns,
                    figures.compute_ns,
                    figures.communication_ns,
                    figures.exposed_communication_ns,
                    figures.overlap_ns,
                )
            ],
        )
        for figures, devices in devices_of.items()
    ]
    finish = format_time(result.finish_ns * PS_PER_NS / PS_PER_S)
    return "\n".join([
        f"Step time: {finish} (by {result.engine})",
        *(_table(rows) if rows else []),
        *[f"Note: {note}" for note in result.notes],
    ])  # fmt: skip


def _table(rows: Sequence[tuple[Iterable[int], Sequence[int | None]]]) -> list[str]:
    cells = [("", *_HEADINGS)]
    cells += [
        (
            devices_text(devices),
            *["-" if ps is None else format_time(ps / PS_PER_S) for ps in times_ps],
        )
        for devices, times_ps in rows[:_SHOWN_CLASSES]
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join([
            f"{first:<{widths[0]}}",
            *[f"{cell:>{width}}" for cell, width in zip(other_cells, widths[1:], strict=True)],
        ])
        for first, *other_cells in cells
    ]  # fmt: skip
    if len(rows) > _SHOWN_CLASSES:
        lines.append(
            f"... and {len(rows) - _SHOWN_CLASSES} more classes of devices: see the JSON output"
        )
    return lines


def kernels_text(table: KernelTable, *, shown: int) -> str:
    """Return a table of ``shown`` kernels with their limits."""
    lines = [
        (
            f"{table.launches:g} launches of {len(table.rows)} kernels take "
            f"{format_time(table.kernels_s)} of a step"
        )
    ]
    if table.library.count:
        lines.append(
            f"{table.library.count:g} calls of libraries (matrix products, convolutions, fused "
            f"attention) take {format_time(table.library.time_s)} more"
        )
    lines += [
        "",
        (
            f"  {'together':>10} {'each':>10} {'launches':>8}  {'memory':>8} {'L2':>8} {'L1':>8} "
            f"{'pipe':>8} {'turnover':>8}  kernel: why"
        ),
    ]
    for row in table.rows[:shown]:
        terms = row.reading.terms
        figures = (terms.memory_s, terms.l2_s, terms.l1_s, terms.pipe_s, terms.turnover_s)
        lines.append(
            f"  {format_time(row.total_s):>10} {format_time(row.time_s):>10} {row.launches:>8g}  "
            + " ".join(f"{1e6 * term_s:>8.1f}" for term_s in figures)
            + f"  {row.name}{_module_text(row)} ({row.kind}): {'; '.join(_reasons(row))}"
        )
    if len(table.rows) > shown:
        lines.append(f"  and {len(table.rows) - shown} more")
    lines += ["", "Terms of one launch in microseconds."]
    return "\n".join(lines)


def _module_text(row: KernelRow) -> str:
    if not row.modules:
        return ""
    first, *other_modules = row.modules
    return f" in {first}" + (f" and {len(other_modules)} more" if other_modules else "")


def _reasons(row: KernelRow) -> Sequence[str]:
    return reasons(row.reading.terms, row.reading.analysis, category=row.kind)


def kernels_json(table: KernelTable) -> Mapping[str, object]:
    """Return all rows as JSON values, times in seconds."""
    return {
        "method": table.method,
        "launches": plain_number(table.launches),
        "kernels_s": table.kernels_s,
        "library": {"launches": plain_number(table.library.count), "time_s": table.library.time_s},
        "kernels": [_row_json(row) for row in table.rows],
    }


def _row_json(row: KernelRow) -> Mapping[str, object]:
    terms = row.reading.terms
    return {
        "name": row.name,
        "kind": row.kind,
        "modules": list(row.modules),
        "launches": plain_number(row.launches),
        "time_s": row.time_s,
        "total_s": row.total_s,
        "bytes_moved": row.bytes_moved,
        "limit": terms.limit,
        "terms_s": {
            "memory": terms.memory_s,
            "l2": terms.l2_s,
            "l1": terms.l1_s,
            "pipe": terms.pipe_s,
            "turnover": terms.turnover_s,
            "launch": terms.launch_s,
        },
        "pipe": terms.pipe,
        "reasons": list(_reasons(row)),
        "notes": list(row.reading.notes),
    }
