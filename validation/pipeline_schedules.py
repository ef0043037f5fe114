"""Draw four schedules of a pipeline, by ``python validation/pipeline_schedules.py``.

docs/images/pipeline-schedules.svg is drawn from the schedules and their times alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hespas.base.files import write_file
from hespas.tasks.pipelining.schedule import Action, Pass, Schedule, schedule_named
from hespas.tasks.pipelining.timing import Durations, Times, timed

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "pipeline-schedules.svg"
STAGES, MICRO_BATCHES = 4, 8
SHOWN = ("gpipe", "1f1b", "interleaved:2", "zero-bubble")
_UNIT = 12
"""What a forward pass through a whole stage takes; divided by the chunks of all that is shown."""
_LEFT, _TOP, _ROW, _GAP, _PER_UNIT = 70, 46, 22, 44, 1.75
_HUES = {Pass.FORWARD: 215, Pass.BACKWARD: 150, Pass.WEIGHTS: 35}
_FONT = "DejaVu Sans, Helvetica, Arial, sans-serif"
_WORDS = {
    Pass.FORWARD: "forward",
    Pass.BACKWARD: "backward",
    Pass.WEIGHTS: "gradients of weights",
}


def times_of(name: str) -> Times:
    """Return when passes run: stages are equal, backward passes twice as long as forward ones."""
    schedule = schedule_named(name, stages=STAGES, micro_batches=MICRO_BATCHES)

    def lasts(_stage: int, action: Action) -> int:
        whole = {Pass.FORWARD: 1, Pass.BACKWARD: 2, Pass.WEIGHTS: 1}[action.kind]
        if schedule.splits_backward:
            whole = 1
        return whole * _UNIT // schedule.chunks

    return timed(schedule, Durations(pass_ps=lasts, message_ps=lambda _source, _target: 0))


def picture() -> str:
    """Return the picture of all that is shown."""
    charts = [(name, times_of(name)) for name in SHOWN]
    longest = max(times.finish_ps for _, times in charts)
    width = round(_LEFT + longest * _PER_UNIT + 20)
    height = _TOP + len(charts) * (STAGES * _ROW + _GAP)
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{_FONT}" role="img">',
        f"<title>Four schedules of {STAGES} stages and {MICRO_BATCHES} micro-batches</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *_legend(),
    ]
    for number, (name, times) in enumerate(charts):
        lines += _chart(name, times, _TOP + number * (STAGES * _ROW + _GAP))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _legend() -> Iterator[str]:
    x = _LEFT
    for kind, words in _WORDS.items():
        yield f'<rect x="{x}" y="10" width="14" height="14" fill="{_colour(kind, 3)}"/>'
        yield _text(x + 20, 21, words)
        x += 40 + 8 * len(words)
    yield _text(x, 21, "framed: the second chunk")


def in_flight(schedule: Schedule, stage: int) -> int:
    """Return the most chunks of micro-batches whose activations a stage holds at a time.

    They are held from the forward pass on until the last pass that reads them: the backward pass,
    or that of the weights.
    """
    last = Pass.WEIGHTS if schedule.splits_backward else Pass.BACKWARD
    held = most = 0
    for action in schedule.order[stage]:
        held += (action.kind is Pass.FORWARD) - (action.kind is last)
        most = max(most, held)
    return most


def _chart(name: str, times: Times, top: int) -> Iterator[str]:
    bubble = f"{100 * times.bubble:.1f} % of the time waiting"
    held = max(in_flight(times.schedule, stage) for stage in range(STAGES))
    what = "half stages" if times.schedule.chunks > 1 else "micro-batches"
    yield _text(_LEFT, top + 12, f"{name}: {bubble}, at most {held} {what} held", weight="bold")
    for stage in range(STAGES):
        y = top + 18 + stage * _ROW
        yield _text(8, y + 14, f"stage {stage}")
        for action, (start, end) in times.passes[stage].items():
            yield from _pass(times.schedule, action, (start, end), y)


def _pass(schedule: Schedule, action: Action, interval: tuple[int, int], y: int) -> Iterator[str]:
    x, width = _LEFT + interval[0] * _PER_UNIT, (interval[1] - interval[0]) * _PER_UNIT
    frame = "#263238" if action.chunk else "#ffffff"
    yield (
        f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW - 3}" '
        f'fill="{_colour(action.kind, action.micro_batch)}" stroke="{frame}" stroke-width="0.8">'
        f"<title>{action} of {schedule.name}</title></rect>"
    )
    if width > 9:
        yield _text(x + width / 2, y + 13, str(action.micro_batch), anchor="middle", size=9)


def _colour(kind: Pass, micro_batch: int) -> str:
    return f"hsl({_HUES[kind]},60%,{86 - 5 * micro_batch}%)"


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="#212121" '
        f'font-weight="{weight}">{text}</text>'
    )


if __name__ == "__main__":
    write_file(PICTURE, picture().encode())
