"""Slices inside of slices: what a task runs, and where in the model that stands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hespas.report.timeline.chart import Slice, whole_ns
from hespas.report.timeline.details import Piece, Place
from hespas.simulate.timeline import Interval
from hespas.split.rounds import LoopRound

PlacedTime = tuple[Interval, Place]


def piece_slices(pieces: Sequence[Piece], within: Interval) -> Iterator[Slice]:
    """Yield pieces one after another, each followed by what is inside of it.

    They fill the interval: on a slower device each takes longer in proportion. What is shorter than
    the nanosecond that viewers count in is left out.
    """
    for piece, (start_ps, end_ps) in _placed(pieces, within):
        if whole_ns(start_ps) == whole_ns(end_ps):
            continue
        yield Slice(
            name=piece.name,
            start_ps=start_ps,
            end_ps=end_ps,
            category=piece.category,
            arguments=piece.arguments,
        )
        yield from piece_slices(piece.inside, (start_ps, end_ps))


def piece_places(pieces: Sequence[Piece], within: Interval) -> Iterator[PlacedTime]:
    """Yield the times of the innermost pieces, with where they stand in the model."""
    for piece, interval in _placed(pieces, within):
        if piece.inside:
            yield from piece_places(piece.inside, interval)
        else:
            yield interval, piece.place


def _placed(pieces: Sequence[Piece], within: Interval) -> Iterator[tuple[Piece, Interval]]:
    start_ps, end_ps = within
    whole_ps = sum(piece.duration_ps for piece in pieces)
    before_ps = 0
    at_ps = start_ps
    for piece in pieces:
        before_ps += piece.duration_ps
        next_ps = start_ps + (end_ps - start_ps) * before_ps // whole_ps
        yield piece, (at_ps, next_ps)
        at_ps = next_ps


def loop_slices(
    rounds: Iterable[tuple[LoopRound, tuple[int, ...]]], nodes: Mapping[int, Interval]
) -> Iterator[Slice]:
    """Yield a slice for each loop with its rounds inside, from the first to the last computation.

    A round whose computations run among those of another one is left out.
    """
    found: list[tuple[int, int, int, str]] = []
    began_ps: dict[str, int] = {}
    for each, tasks in rounds:
        times = [nodes[task] for task in tasks if task in nodes]
        if not times:
            continue
        start_ps, end_ps = min(times)[0], max(end for _, end in times)
        found.append((start_ps, -end_ps, 1, f"round {each.number} of {each.count}"))
        if each.number == 1:
            began_ps[each.loop] = start_ps
        if each.number == each.count and each.loop in began_ps:
            found.append((began_ps.pop(each.loop), -end_ps, 0, each.loop))
    open_ends: list[int] = []
    for start_ps, negative_end_ps, _, name in sorted(found):
        end_ps = -negative_end_ps
        while open_ends and open_ends[-1] <= start_ps:
            open_ends.pop()
        if not open_ends or end_ps <= open_ends[-1]:
            open_ends.append(end_ps)
            yield Slice(name=name, start_ps=start_ps, end_ps=end_ps, category="loop")


def phase_slices(times: Iterable[PlacedTime]) -> Iterator[Slice]:
    """Yield a slice for each phase, from its first operation to the last before another one."""
    return _runs(((place.phase,) if place.phase else (), interval) for interval, place in times)


def layer_slices(times: Iterable[PlacedTime]) -> Iterator[Slice]:
    """Yield a slice for each layer, with its inner layers behind it, as long as it is not left."""
    return _runs((place.layers, interval) for interval, place in times)


def _runs(times: Iterable[tuple[tuple[str, ...], Interval]]) -> Iterator[Slice]:
    """Yield runs of equal paths as nested slices; outer ones first, in order of their starts."""
    done: list[tuple[int, int, str, int]] = []
    opened: list[tuple[str, int]] = []
    reached_ps = 0
    for path, (start_ps, end_ps) in times:
        shared = 0
        while shared < min(len(path), len(opened)) and path[shared] == opened[shared][0]:
            shared += 1
        while len(opened) > shared:
            name, since_ps = opened.pop()
            done.append((since_ps, len(opened), name, reached_ps))
        opened.extend((name, start_ps) for name in path[shared:])
        reached_ps = end_ps
    while opened:
        name, since_ps = opened.pop()
        done.append((since_ps, len(opened), name, reached_ps))
    for since_ps, _, name, until_ps in sorted(done):
        yield Slice(name=name, start_ps=since_ps, end_ps=until_ps, category="layer")
