"""A drawing of measurements beside predictions: one SVG file, a panel for each fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

_SIZE, _MARGIN = 320, 52
_STYLE = (
    "text{font:11px sans-serif;fill:#333}.t{font-weight:bold}.g{stroke:#ddd}.a{stroke:#888}"
    ".d{stroke:#c60;stroke-width:1.5;fill:none}.p{fill:#06c;fill-opacity:.6}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Points as (x, y), a line through (x, y), and what the axes mean; both axes logarithmic."""

    title: str
    x_name: str
    y_name: str
    points: Sequence[tuple[float, float]]
    line: Sequence[tuple[float, float]]


def svg(panels: Sequence[Panel]) -> str:
    """Return the drawing: the same panels make the same text."""
    width, height = _SIZE * max(1, len(panels)), _SIZE + 20
    body = "".join(_panel(panel, at * _SIZE) for at, panel in enumerate(panels))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}"><style>{_STYLE}</style>'
        f'<rect width="{width}" height="{height}" fill="#fff"/>{body}</svg>\n'
    )


def _panel(panel: Panel, left: float) -> str:
    both = [*panel.points, *panel.line]
    x_range, y_range = _decades([x for x, _ in both]), _decades([y for _, y in both])
    side = _SIZE - _MARGIN - 16

    def x_of(value: float) -> float:
        return left + _MARGIN + side * (log10(value) - x_range[0]) / (x_range[1] - x_range[0])

    def y_of(value: float) -> float:
        return 24 + side * (1 - (log10(value) - y_range[0]) / (y_range[1] - y_range[0]))

    points = "".join(
        f'<circle class="p" cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="2.5"/>'
        for x, y in panel.points
    )
    line = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in panel.line)
    middle = left + _MARGIN + side / 2
    return (
        _grid(x_range, y_range, x_of, y_of)
        + f'<polyline class="d" points="{line}"/>{points}'
        + _text(middle, 15, panel.title, "t")
        + _text(middle, 24 + side + 34, panel.x_name)
        + f'<g transform="rotate(-90 {left + 12:.1f} {24 + side / 2:.1f})">'
        + f"{_text(left + 12, 24 + side / 2, panel.y_name)}</g>"
    )


def _grid(
    x_range: tuple[int, int],
    y_range: tuple[int, int],
    x_of: Callable[[float], float],
    y_of: Callable[[float], float],
) -> str:
    made: list[str] = []
    (left, right), (bottom, top) = x_range, y_range
    for power in range(left, right + 1):
        x = x_of(10.0**power)
        made.append(_line(x, y_of(10.0**bottom), x, y_of(10.0**top)))
        made.append(_text(x, y_of(10.0**bottom) + 16, f"1e{power}"))
    for power in range(bottom, top + 1):
        y = y_of(10.0**power)
        made.append(_line(x_of(10.0**left), y, x_of(10.0**right), y))
        made.append(_text(x_of(10.0**left) - 18, y + 4, f"1e{power}"))
    return "".join(made)


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="g" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(text)}</text>'


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    return low, max(high, low + 1)
