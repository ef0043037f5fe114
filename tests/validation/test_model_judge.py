"""Shipped configurations are facts with a source, and their own libraries build what cards say."""

from __future__ import annotations

import csv
import json
import re
from math import prod
from pathlib import Path

import pytest

import model_judge

RECORDED = model_judge.COUNTS.parent
CONFIGURATIONS = sorted(model_judge.MODELS.glob("*/*.json"))
NOT_COMPUTED = re.compile(r".*(dropout|initializer|token_id|_token_index|transformers_version).*")


def rows(name: str) -> list[dict[str, str]]:
    with (RECORDED / name).open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("file", CONFIGURATIONS, ids=lambda file: file.stem)
def test_a_configuration_has_a_source_and_only_what_is_computed(file: Path) -> None:
    fields = json.loads(file.read_text())
    assert fields["source"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", fields["date"])
    text = fields.get("text_config", {})
    assert not [key for key in (*fields, *text) if NOT_COMPUTED.fullmatch(key)]


def test_every_configuration_is_counted_and_has_a_card() -> None:
    names = model_judge.names()
    assert len(names) == len(CONFIGURATIONS)
    assert [row["name"] for row in rows("model_counts.csv")] == names
    assert {row["name"] for row in rows("model_cards.csv")} == set(names)


def test_parameters_are_the_sum_of_their_tensors() -> None:
    sums: dict[str, int] = {}
    for row in rows("model_tensors.csv"):
        elements = prod(int(size) for size in row["shape"].split("x") if size)
        sums[row["name"]] = sums.get(row["name"], 0) + elements * int(row["count"])
    counted = {row["name"]: int(row["parameters"] or 0) for row in rows("model_counts.csv")}
    assert {name: count for name, count in counted.items() if count} == sums


def test_parameters_are_those_of_cards() -> None:
    cards = {row["name"]: row for row in rows("model_cards.csv")}
    for row in rows("model_counts.csv"):
        card = cards[row["name"]]
        if not row["parameters"]:
            assert row["remark"]
        elif card["source"].startswith("keras-hub") and not row["remark"]:
            assert int(row["parameters"]) == int(card["parameters"]), row["name"]
        else:
            # Cards round, and count what takes in images and sound.
            assert int(row["parameters"]) == pytest.approx(float(card["parameters"]), rel=0.12)
