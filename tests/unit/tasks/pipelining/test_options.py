from __future__ import annotations

from pathlib import Path

import pytest

from hespas.errors import ConfigError
from hespas.tasks.pipelining.options import (
    Overlap,
    PipelineOptions,
    parse_overlaps,
    parse_schedule,
    parse_stage_layers,
)


def test_messages_are_hidden_where_a_stage_has_several_chunks() -> None:
    assert not PipelineOptions().hides(Overlap.MESSAGES)
    assert PipelineOptions(schedule="interleaved:2").hides(Overlap.MESSAGES)
    assert PipelineOptions(schedule="zero-bubble").hides(Overlap.MESSAGES)
    assert PipelineOptions(overlap={"messages": True}).hides(Overlap.MESSAGES)


@pytest.mark.parametrize("what", [Overlap.EXPERTS, Overlap.EXCHANGES])
def test_all_to_alls_are_hidden_only_where_that_is_asked_for(what: Overlap) -> None:
    assert not PipelineOptions().hides(what)
    assert PipelineOptions(overlap={what.value: True}).hides(what)


def test_everything_else_is_hidden_unless_it_is_not_to_be() -> None:
    asked_for = {Overlap.MESSAGES, Overlap.EXPERTS, Overlap.EXCHANGES}
    others = [each for each in Overlap if each not in asked_for]
    assert all(map(PipelineOptions().hides, others))
    assert not any(map(PipelineOptions(overlap={o.value: False for o in others}).hides, others))


def test_a_file_says_how_many_chunks_it_has(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("F0 F0.1 B0.1 B0\n")
    assert parse_schedule(str(file)) == str(file)
    assert PipelineOptions(schedule=str(file)).hides(Overlap.MESSAGES)


@pytest.mark.parametrize("text", ["", "a", "1,,2", "1x", "-1", "2x99999999"])
def test_layers_of_stages_are_numbers(text: str) -> None:
    with pytest.raises(ConfigError, match="write it as in 15,16x6,15"):
        parse_stage_layers(text)


def test_overlaps_are_named_once() -> None:
    with pytest.raises(ConfigError, match="given twice for tp"):
        parse_overlaps(["tp=on", "tp=off"])
