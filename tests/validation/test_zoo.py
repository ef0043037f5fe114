"""The page of the zoo is what was recorded, and has every model that trains."""

from __future__ import annotations

import json

import pytest

import zoo
from hespas.models.catalogue import model_named, models


def test_the_page_shows_what_was_recorded() -> None:
    data = json.loads(zoo.DATA.read_text())
    text = zoo.PAGE.read_text()
    assert zoo.with_tables(text, data) == text
    assert [row["name"] for row in data["models"]] == list(zoo.PUBLISHED)


def test_parameters_are_those_published() -> None:
    for row in json.loads(zoo.DATA.read_text())["models"]:
        assert row["parameters"] == pytest.approx(row["published"], rel=0.02), row["name"]


def test_every_language_model_with_a_published_count_is_there() -> None:
    language = {name.rsplit("-", 1)[0] for name in models() if name.endswith("-prefill")}
    # It has the sizes of Llama 3.1 405B, in the form that was published.
    assert language - {"llama3-405b"} <= set(zoo.PUBLISHED)
    assert all(model_named(name) for name in zoo.PUBLISHED)


def test_a_step_is_within_a_twentieth_of_maxtexts() -> None:
    for row in json.loads(zoo.DATA.read_text())["maxtext"]:
        ours, theirs = row["ours"], row["maxtext"]
        assert ours["step_time_s"] == pytest.approx(theirs["step_time_s"], rel=0.05)
