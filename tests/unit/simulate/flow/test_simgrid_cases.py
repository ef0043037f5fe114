"""Random transfers end when SimGrid says so: figures that validation/simgrid_judge.py wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flow_transfers import simulate_transfers
from simgrid_judge import TOLERANCE, random_case

ENDS_S: dict[str, list[float]] = json.loads(
    (Path(__file__).parent / "simgrid_cases.json").read_text()
)


@pytest.mark.parametrize("number", ENDS_S)
def test_transfers_end_when_they_do_in_simgrid(number: str) -> None:
    case = random_case(int(number))

    ends_s = simulate_transfers(case.network, case.transfers)

    assert ends_s == pytest.approx(ENDS_S[number], rel=TOLERANCE, abs=0)


def test_several_kinds_of_networks_are_compared() -> None:
    assert len({random_case(int(number)).name for number in ENDS_S}) >= 6
