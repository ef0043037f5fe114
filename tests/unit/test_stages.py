"""Stages that take time are in the log, with their beginnings and ends."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from hespas import pipeline
from hespas.errors import ProgramError
from hespas.options import EstimateOptions, NetworkOptions, PredictOptions, ProgramOptions
from hespas.stages import LOG, Stage, stage

EXAMPLE = "examples/attention_block.mlir"
Seen = list[tuple[str, str, bool]]


class Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Seen = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = vars(record)
        has_time = fields["seconds"] is not None
        self.seen.append((fields["stage"].value, fields["event"].value, has_time))


@pytest.fixture
def seen() -> Iterator[Seen]:
    listener = Listener()
    LOG.addHandler(listener)
    LOG.setLevel(logging.INFO)
    yield listener.seen
    LOG.removeHandler(listener)
    LOG.setLevel(logging.NOTSET)


def test_a_prediction_says_which_stage_it_is_in(seen: Seen) -> None:
    options = PredictOptions(
        program=ProgramOptions(file=Path(EXAMPLE)),
        estimate=EstimateOptions(node="A100_SXM_40GB"),
        network=NetworkOptions(system="A100_SXM_40GB_4GPU"),
    )
    pipeline.predict(options)
    assert seen == [
        ("estimate", "begin", False),
        ("estimate", "end", True),
        ("simulate", "begin", False),
        ("simulate", "end", True),
    ]


def test_a_stage_that_raises_has_failed(seen: Seen) -> None:
    with pytest.raises(ProgramError), stage(Stage.EXPORT):
        raise ProgramError("not this one")
    assert seen == [("export", "begin", False), ("export", "fail", True)]
