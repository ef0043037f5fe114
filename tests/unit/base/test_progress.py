"""Stages that take time are in the log, with their beginnings and ends."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from hespas.base.progress import LOG, Event, Report, Stage, stage
from hespas.errors import ProgramError
from hespas.prediction import composition
from hespas.prediction.options import (
    EstimateOptions,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)

EXAMPLE = "examples/attention_block.mlir"
Seen = list[tuple[str, str, bool]]


class Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Seen = []

    def emit(self, record: logging.LogRecord) -> None:
        report: Report = vars(record)["report"]
        self.seen.append((report.stage.value, report.event.value, report.seconds is not None))


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
    composition.predict(options)
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


def test_parts_are_counted_where_somebody_listens_for_them() -> None:
    reports: list[Report] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            reports.append(vars(record)["report"])

    listening = Listening()
    LOG.addHandler(listening)
    LOG.setLevel(logging.DEBUG)
    with stage(Stage.ESTIMATE, "1000 regions", total=1000) as advance:
        for _ in range(1000):
            advance(1)
    LOG.setLevel(logging.INFO)
    with stage(Stage.ESTIMATE, "3 regions", total=3) as advance:
        advance(3)
    LOG.removeHandler(listening)
    LOG.setLevel(logging.NOTSET)
    counted = [each.done for each in reports if each.event is Event.ADVANCE]
    assert counted == list(range(10, 1001, 10))
