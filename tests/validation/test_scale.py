from __future__ import annotations

import json

import pytest

import scale

SERIES = tuple(scale.all_series())


def test_the_record_is_that_of_the_script() -> None:
    recorded = json.loads((scale.DATA / "scale.json").read_text())["growth"]
    rows = [row for one in SERIES for row in scale.rows_of(one, SERIES)]
    assert len(rows) == len(recorded)
    for row, known in zip(rows, recorded, strict=True):
        assert row["series"] == known["series"]
        assert row["ring"] == pytest.approx(known["ring"], abs=0.05)


def test_the_model_that_is_shown_is_left_out_of_the_fit() -> None:
    (one, *others) = (each for each in SERIES if each.layers is not None)
    alone = scale.latency_s([one, *others], without=one.name)
    assert alone == scale.latency_s(others, without="")
    assert alone != scale.latency_s([one, *others], without="")


def test_slices_add_nothing_to_one_slice() -> None:
    for one in SERIES:
        for row in scale.rows_of(one, SERIES):
            assert row["unequal"] >= row["predicted"] - 1e-12
            assert (row["ring"] > row["unequal"]) == (one.layers is not None)
