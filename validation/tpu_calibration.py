"""How much of libtpu's cycles for matrix products published steps on TPUs leave, by part.

    python validation/tpu_calibration.py            print the table
    python validation/tpu_calibration.py --write    put it into docs/evidence/tpus.md

A step takes what its products take by the roofline, a part of what the compiler's cycles exceed
that by, and what all else takes: docs/data/tpu_calibration.json has the three for each step, as
method `compiler` priced them, and, of parts whose other kernels take memory's time, what the
cycles of those exceed that by. The part is fitted by the least squares of relative errors, from 0
to 1. Each step is also predicted with the part that the other steps of its TPU leave, or, where it
is the only one, those of all other TPUs, whose other kernels take all cycles.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import msgspec

PAGE = Path("docs/evidence/tpus.md")
DATA = Path("docs/data/tpu_calibration.json")


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A published step: what its products take by either bound, and all else.

    ``moving_cycles_s`` is by what cycles of other kernels exceed ``other_s``, 0 where they are in
    it.
    """

    part: str
    step: str
    devices: int
    published_s: float
    other_s: float
    products_roofline_s: float
    products_written_s: float
    moving_cycles_s: float = 0.0

    def predicted_s(self, share: float, moving: float = 1.0) -> float:
        """Return the step's time with parts of what the cycles exceed the bounds by."""
        excess_s = self.products_written_s - self.products_roofline_s
        other_s = self.other_s + moving * self.moving_cycles_s
        return other_s + self.products_roofline_s + share * excess_s

    def error(self, share: float, moving: float = 1.0) -> float:
        """Return predicted over published, less one."""
        return self.predicted_s(share, moving) / self.published_s - 1


class _Data(msgspec.Struct, frozen=True, kw_only=True):
    software: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A step's errors: with all cycles, with the part that is used, and with that of others."""

    point: Point
    written: float
    used: float
    left_out: float
    is_alone: bool


def read_points(path: Path = DATA) -> tuple[Point, ...]:
    """Return the published steps."""
    return msgspec.json.decode(path.read_bytes(), type=_Data).points


def fitted(points: Sequence[Point]) -> float:
    """Return the part that leaves the least squares of relative errors, from 0 to 1.

    >>> point = Point(part="x", step="y", devices=1, published_s=3.0, other_s=1.0,
    ...               products_roofline_s=1.0, products_written_s=3.0)
    >>> fitted([point])
    0.5
    """
    slopes = [point.error(1.0) - point.error(0.0) for point in points]
    errors = [point.error(0.0) for point in points]
    best = -sum(s * e for s, e in zip(slopes, errors, strict=True)) / sum(s * s for s in slopes)
    return min(1.0, max(0.0, best))


def used_share(part: str) -> float:
    """Return the part that the preset of a TPU has."""
    from hespas.hardware.presets import load_device  # noqa: PLC0415 - the fit needs none

    core = load_device(part).tensor_core
    return 1.0 if core is None else core.product_cycles


def used_moving(part: str) -> float:
    """Return the part of other kernels' cycles that the preset of a TPU has."""
    from hespas.hardware.presets import load_device  # noqa: PLC0415 - the fit needs none

    core = load_device(part).tensor_core
    return 1.0 if core is None else core.moving_cycles


def rows(points: Sequence[Point]) -> tuple[Row, ...]:
    """Return the errors of each step."""
    made: list[Row] = []
    for point in points:
        others = [each for each in points if each is not point]
        alike = [each for each in others if each.part == point.part]
        made.append(
            Row(
                point=point,
                written=point.error(1.0),
                used=point.error(used_share(point.part), used_moving(point.part)),
                left_out=point.error(fitted(alike or others)),
                is_alone=not alike,
            )
        )
    return tuple(made)


def table(points: Sequence[Point]) -> str:
    """Return the table of the page."""
    lines = [
        "| published step | | published | all cycles | calibrated | left out |",
        "|---|---|---|---|---|---|",
    ]
    found = rows(points)
    for row in found:
        point = row.point
        seconds = f"{point.published_s:.4g} s"
        star = " (only step of its part)" if row.is_alone else ""
        errors = f"{row.written:+.1%} | {row.used:+.1%} | {row.left_out:+.1%}{star}"
        lines.append(f"| {point.step} | {point.devices} {point.part} | {seconds} | {errors} |")
    means = [
        mean(abs(error) for error in errors)
        for errors in zip(*((row.written, row.used, row.left_out) for row in found), strict=True)
    ]
    lines.append(f"| mean of absolute errors | | | {' | '.join(f'{each:.1%}' for each in means)} |")
    return "\n".join(lines).replace("%", " %")


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE}")
    made = table(read_points())
    if parser.parse_args().write:
        place = re.compile(r"<!-- calibration -->\n.*?<!-- end -->", re.DOTALL)
        PAGE.write_text(place.sub(f"<!-- calibration -->\n{made}\n<!-- end -->", PAGE.read_text()))
    else:
        print(made)


if __name__ == "__main__":
    main()
