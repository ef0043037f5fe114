from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from hespas.errors import MeasurementError
from hespas.evidence.calibrate.ranks import read_ranks


def written(directory: Path, *, ranks: int = 256, steps: int = 50, slow: int = 0) -> Path:
    """Write devices that deviate by 2 % and steps by 1 %; steps have a trend of their own."""
    random = Random(3)  # noqa: S311 - no secret
    lines = ["rank,step,seconds"]
    for rank in range(ranks):
        factor = 1.3 if rank < slow else random.gauss(1.0, 0.02)
        for step in range(steps):
            seconds = (2.0 + 0.1 * step) * factor * random.gauss(1.0, 0.01)
            lines.append(f"{rank},{step},{seconds}")
    path = directory / "ranks.csv"
    path.write_text("\n".join(lines))
    return path


def test_deviations_are_those_that_were_drawn(tmp_path: Path) -> None:
    variation = read_ranks(written(tmp_path))
    assert variation.device_sigma == pytest.approx(0.02, rel=0.2)
    assert variation.step_sigma == pytest.approx(0.01, rel=0.2)
    assert variation.slow is None
    assert variation.source == "ranks.csv: 256 ranks, 50 steps"


def test_few_slow_ranks_are_told_from_the_others(tmp_path: Path) -> None:
    variation = read_ranks(written(tmp_path, slow=4))
    assert variation.slow is not None
    assert variation.slow.share == 4 / 256
    assert variation.slow.factor == pytest.approx(1.3, rel=0.02)
    assert variation.device_sigma == pytest.approx(0.02, rel=0.2)


BAD = [
    ("rank,seconds\n0,1", "no column 'step'"),
    ("rank,step,seconds\n0,1,1\n0,1,2", "step 1 of rank 0 is there twice"),
    ("rank,step,seconds\n0,1", "seconds is ''"),
    ("rank,step,seconds\n0,1,nothing", "seconds is 'nothing'"),
    ("rank,step,seconds\n0,1,1", "few steps"),
    ("rank,step\n0,1", "doesn't name one time with its unit; write rank,step,seconds"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_what_says_too_little_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "ranks.csv"
    path.write_text(text)
    with pytest.raises(MeasurementError, match=message):
        read_ranks(path)


def test_few_ranks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="the number of ranks is 7: too little"):
        read_ranks(written(tmp_path, ranks=7))


def of_factors(directory: Path, factors: Sequence[float], header: str = "seconds") -> Path:
    """Write the steps of ranks, all of which slow down and speed up together."""
    lines = [f"rank,step,{header}"]
    for rank, factor in enumerate(factors):
        lines += [f"{rank},{step},{(2.0 + 0.1 * (step % 3)) * factor}" for step in range(10)]
    path = directory / "ranks.csv"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("header", ["ms", "Step_Time_ms", "time (us)"])
def test_times_of_any_unit_are_read(tmp_path: Path, header: str) -> None:
    factors = [1.0 + 0.001 * rank for rank in range(20)]
    seconds = read_ranks(of_factors(tmp_path, factors))
    assert read_ranks(of_factors(tmp_path, factors, header)).device_sigma == pytest.approx(
        seconds.device_sigma
    )


def test_ranks_that_wait_for_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="differ by 0 %, as they do where each waits"):
        read_ranks(of_factors(tmp_path, [1.0] * 16))


def test_ranks_that_compute_something_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="such as those of one stage of a pipeline"):
        read_ranks(of_factors(tmp_path, [1.0, 4.0] * 8))
