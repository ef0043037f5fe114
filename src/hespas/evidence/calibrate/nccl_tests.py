"""Read nccl-tests' output: a collective's times by size.

A line of results starts ``size count type redop root time algbw busbw``; the time is out of place
and, as the header says, in us. ``# Rank`` lines count the group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hespas.base.decode import read_text
from hespas.base.figures import MOST_DIGITS
from hespas.base.frozen import frozen
from hespas.base.units import format_time
from hespas.errors import MeasurementError, option
from hespas.evidence.calibrate.piecewise import Piece, Point, fit, left_out_errors, residuals
from hespas.evidence.calibrate.samples import Case, check_agreement
from hespas.hardware.interconnect import Dimensions, Interconnect
from hespas.hardware.links import Link
from hespas.simulate.flow.measured import nearest_size

KINDS = {
    name: kind
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
    for name in (kind, kind.replace("_", ""))
}
_COUNT = rf"\d{{1,{MOST_DIGITS}}}"
_FIGURE = r"\d{1,18}(?:\.\d{0,18})?"
_RESULT = re.compile(
    rf"\s*{_COUNT}\s+{_COUNT}\s+\w+\s+\w+\s+-?\d+\s+{_FIGURE}\s+{_FIGURE}\s+{_FIGURE}(?:\s|$)"
)
_RESULT_START = re.compile(r"\s*\d+\s+\d+\s+\w+\s")
"""A line that must be a result, since it begins like one."""
_RANK = re.compile(r"#\s+Rank\s+\d+\s")
_PROGRAM = re.compile(r"(\w+)_perf\b")
_SIZES_A_PIECE = 3
_WRONG = (8, 12)
"""Columns of ``#wrong``, out of place and in place."""

SHORTEST_COLLECTIVE_S = 1e-6
"""The shortest time in which a collective crosses a link and back."""


@frozen
class CollectiveRun:
    """Measurements of one kind among ``gpus`` devices, with fitted pieces."""

    kind: str
    gpus: int
    points: tuple[Point, ...]
    pieces: tuple[Piece, ...]
    notes: tuple[str, ...] = ()

    @property
    def errors(self) -> tuple[float, ...]:
        """Relative errors of the fit, point by point."""
        return residuals(self.pieces, self.points)

    @property
    def left_out_errors(self) -> tuple[float | None, ...]:
        """Relative errors under fits without a point's size, if possible."""
        return left_out_errors(self.points, sizes_a_piece=_SIZES_A_PIECE)


def read_run(path: Path, kind: str = "", *, fastest_bytes_per_s: float | None) -> CollectiveRun:
    """Read a file of nccl-tests output.

    An empty ``kind`` is read from the file (``all_reduce_perf`` in it, or its name).
    ``fastest_bytes_per_s`` is a rate that no wire of the device exceeds. Raises `MeasurementError`,
    naming ``file:line``, for an unknown kind or group or another than the bus bandwidth shows, for
    wrong results, and for times whose unit is not us, that lie below the physical floor, or that
    contradict each other.
    """
    text = read_text(path)
    lines = text.splitlines()
    run_kind = _kind(path, text, kind)
    gpus = sum(1 for line in lines if _RANK.match(line))
    if gpus < 2:
        raise MeasurementError(
            "it doesn't list two ranks or more", location=str(path), hint="keep the header's # Rank"
        )
    results = _result_lines(path, lines)
    points = tuple(_point(line, f"{path}:{number}") for number, line in results.items())
    if not any("(us)" in line for line in lines if line.startswith("#")):
        raise MeasurementError(
            "the header doesn't say that times are in us",
            location=str(path),
            hint="keep the header",
        )
    _check_results(path, results)
    for number, line in results.items():
        _check_kind(line, f"{path}:{number}", run_kind, gpus)
    notes = check_agreement([
        (
            point.size_bytes,
            Case(
                label=f"{run_kind} of {point.size_bytes} bytes",
                location=point.location,
                measured_s=point.time_s,
            ),
        )
        for point in points
    ])  # fmt: skip
    for point in points:
        _check_floor(point, run_kind, gpus, fastest_bytes_per_s)
    measured = [point for point in points if point.size_bytes]
    if len(measured) < 2:
        raise MeasurementError("there are fewer than two sizes", location=str(path))
    return CollectiveRun(
        kind=run_kind,
        gpus=gpus,
        points=tuple(measured),
        pieces=fit(measured, sizes_a_piece=_SIZES_A_PIECE),
        notes=notes,
    )


def _result_lines(path: Path, lines: Sequence[str]) -> dict[int, str]:
    results = {
        number: line for number, line in enumerate(lines, start=1) if _RESULT_START.match(line)
    }
    unread = next((number for number, line in results.items() if not _RESULT.match(line)), None)
    if unread is not None:
        raise MeasurementError(
            "it is no line of results: size, count, type, redop, root, time, algbw, busbw",
            location=f"{path}:{unread}",
            hint="keep lines as nccl-tests print them",
        )
    return results


def _kind(path: Path, text: str, kind: str) -> str:
    """Return the kind, by default the output's or file name's."""
    kinds = list(dict.fromkeys(KINDS[name] for name in _PROGRAM.findall(text) if name in KINDS))
    if len(kinds) > 1:
        message = f"it is output of several tests: {', '.join(kinds)}"
        raise MeasurementError(message, location=str(path), hint="give a file for each")
    if kind and kinds and kind != kinds[0]:
        raise MeasurementError(
            f"it is output of {kinds[0]}_perf, not of {kind}",
            location=str(path),
            hint=f"give {option('nccl')} {kinds[0]}=FILE",
        )
    if kind:
        return kind
    kinds += [KINDS[name] for name in sorted(KINDS, key=len) if name in path.name.lower()]
    if not kinds:
        raise MeasurementError(
            "it doesn't say which collective it measures",
            location=str(path),
            hint=f"give {option('nccl')} all_reduce=FILE",
        )
    return kinds[0]


def _point(line: str, location: str) -> Point:
    size, _, _, _, _, time_us, algorithm_bandwidth = line.split()[:7]
    point = Point(size_bytes=int(size), time_s=float(time_us) * 1e-6, location=location)
    printed = float(algorithm_bandwidth)
    computed = point.size_bytes / point.time_s / 1e9 if point.time_s else 0.0
    if abs(computed - printed) > max(0.05 * printed, 0.011):
        raise MeasurementError(
            f"{size} bytes in {format_time(point.time_s)} are {computed:.4g} GB/s, but algbw says "
            f"{printed:.4g}",
            location=location,
            hint="give times in us",
        )
    return point


def _check_results(path: Path, results: Mapping[int, str]) -> None:
    wrong = [number for number, line in results.items() if _wrong_results(line)]
    if wrong:
        listed = ", ".join(str(number) for number in wrong)
        raise MeasurementError(
            f"results are wrong (#wrong is not 0) in line{'s' * (len(wrong) > 1)} {listed}",
            location=f"{path}:{wrong[0]}",
            hint="repair the cluster first, and measure again",
        )


def _wrong_results(line: str) -> bool:
    cells = line.split()
    counts = [cells[column] for column in _WRONG if column < len(cells)]
    return any(count not in {"0", "N/A"} for count in counts)


def _bus_share(kind: str, gpus: int) -> float:
    """Return busbw / algbw, as nccl-tests defines it (doc/PERFORMANCE.md there)."""
    if kind == "send_recv":
        return 1.0
    return (2 if kind == "all_reduce" else 1) * (gpus - 1) / gpus


def _check_kind(line: str, location: str, kind: str, gpus: int) -> None:
    algorithm, bus = (float(text) for text in line.split()[6:8])
    share = _bus_share(kind, gpus)
    # Both are printed with two decimals.
    if abs(bus - share * algorithm) > 0.005 * (1 + share) + 0.002 * bus + 1e-9:
        raise MeasurementError(
            f"busbw {bus:g} is not the {share:.4g} times algbw {algorithm:g} of {kind} among the "
            f"{gpus} ranks that it lists",
            location=location,
            hint=f"keep all lines # Rank, and give {option('nccl')} KIND=FILE with the kind "
            "that ran",
        )


def _check_floor(point: Point, kind: str, gpus: int, fastest_bytes_per_s: float | None) -> None:
    if point.size_bytes and point.time_s < SHORTEST_COLLECTIVE_S:
        raise MeasurementError(
            f"{kind} of {point.size_bytes} bytes in {format_time(point.time_s)} is below the "
            f"physical floor of {format_time(SHORTEST_COLLECTIVE_S)}",
            location=point.location,
            hint="give times in us",
        )
    if fastest_bytes_per_s is None:
        return
    # In every algorithm a device sends or receives what the others have: (n - 1) / n of all bytes.
    share = 1.0 if kind == "send_recv" else (gpus - 1) / gpus
    least_s = point.size_bytes * share / fastest_bytes_per_s
    if point.time_s < least_s:
        raise MeasurementError(
            f"{kind} of {point.size_bytes} bytes in {format_time(point.time_s)} is below the "
            f"{format_time(least_s)} that the link's bandwidth allows",
            location=point.location,
            hint=f"give times in us, or the right {option('link')}",
        )


def collectives_json(
    runs: Sequence[CollectiveRun],
) -> dict[str, dict[str, list[dict[str, object]]]]:
    """Return the ``collectives`` of a link preset.

    Raises `MeasurementError` for two runs of one kind and group.
    """
    collectives: dict[str, dict[str, list[dict[str, object]]]] = {}
    for run in runs:
        by_size = collectives.setdefault(run.kind, {})
        if str(run.gpus) in by_size:
            message = f"{run.kind} among {run.gpus} is measured in two files"
            raise MeasurementError(
                message, location=run.points[0].location, hint="give one of them"
            )
        by_size[str(run.gpus)] = [
            {
                "algorithm": "measured",
                "protocol": "measured",
                "up_to_bytes": piece.up_to_bytes,
                "latency_s": piece.latency_s,
                "bandwidth_bytes_per_s": piece.bandwidth_bytes_per_s,
            }
            for piece in run.pieces
        ]
    return collectives


_PAIR = 2
_PARTS = ("reduce_scatter", "all_gather")
"""The phases of an all-reduce along all dimensions of its group but the last."""


def check_messages(runs: Sequence[CollectiveRun]) -> None:
    """Raise `MeasurementError` for messages among more than two devices."""
    for run in runs:
        if run.kind == "send_recv" and run.gpus != _PAIR:
            raise MeasurementError(
                f"send_recv among {run.gpus} is of no group: messages are between two devices",
                location=run.points[0].location,
                hint="measure it with 2 ranks",
            )


def with_coverage(
    runs: Sequence[CollectiveRun], network: Interconnect, base: Link | None
) -> list[CollectiveRun]:
    """Return the runs with notes on uncovered groups.

    They change ``base``, the link of the first dimension of ``network``.
    Raises `MeasurementError` for more ranks than that dimension has.
    """
    fabric = network.fabric
    if not isinstance(fabric, Dimensions):
        return list(runs)
    size = fabric.dimensions[0].size
    for run in runs:
        if run.gpus > size:
            raise MeasurementError(
                f"{run.kind} among {run.gpus} is of no group: {size} devices stand along the first "
                f"dimension of {network.name}, whose link is measured",
                location=run.points[0].location,
                hint=f"measure {size} ranks or fewer, or give a {option('system')} whose first "
                f"dimension has {run.gpus}",
            )
    return [
        replace(run, notes=(*run.notes, *_notes(run, runs, network, fabric, base))) for run in runs
    ]


def _notes(
    run: CollectiveRun,
    runs: Sequence[CollectiveRun],
    network: Interconnect,
    fabric: Dimensions,
    base: Link | None,
) -> Iterator[str]:
    kinds = {measured.kind for measured in runs}
    first, *more = fabric.dimensions
    own = {measured.gpus for measured in runs if measured.kind == run.kind}
    if network.algorithms.get(run.kind, ("hierarchical",))[0] != "hierarchical":
        yield f"{network.name} says how {run.kind} runs, which goes before what is measured"
    if run.kind != "send_recv" and run.gpus == max(own) < first.size:
        yield _coverage_note(run, own, first.size, base)
    if more and run.kind == "all_reduce" and not kinds.issuperset(_PARTS):
        yield (
            f"it is for groups within the first dimension of {network.name}: along it, those that "
            "go beyond reduce-scatter and gather, which are measurements of their own"
        )


def _coverage_note(run: CollectiveRun, own: set[int], size: int, base: Link | None) -> str:
    base_sizes = set[int]() if base is None else set(base.collectives.get(run.kind, ()))
    nearest = nearest_size(own | base_sizes, size)
    scope = f"it is for groups of {run.gpus}; those of all {size} devices of the first dimension "
    if nearest in own:
        return f"{scope}are scaled from it"
    stay = "stay as" if nearest == size else f"are scaled from those of {nearest}"
    return f"{scope}{stay} in {'the link' if base is None else base.name}"
