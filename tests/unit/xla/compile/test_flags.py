"""The process that asks a compiler; `tests/unit/compile/test_settle.py` starts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hespas.xla.compile import flags
from hespas.xla.compile.messages import FlagsAnswer, FlagsQuestion, TpuSlice

NONE = "INVALID_ARGUMENT: No such compile option: 'xla_none'"
BAD = "INVALID_ARGUMENT: Failed to parse 'x' into flag xla_bad: "


def test_refusals_are_told_apart_and_other_failures_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = {"xla_none": NONE, "xla_bad": BAD, "xla_odd": "INTERNAL: odd"}

    class Compiler:
        def __init__(self, _accelerator: object) -> None:
            pass

        def refusal(self, given: dict[str, str]) -> str | None:
            return next((said[name] for name in given if name in said), None)

    monkeypatch.setattr(flags, "_Compiler", Compiler)
    question = FlagsQuestion(
        accelerator=TpuSlice(generation="v6e", topology="4x4"),
        flags={"xla_good": "1", "xla_none": "1", "xla_bad": "x", "xla_odd": "1"},
    )
    assert flags.check_flags(question, Path()) == FlagsAnswer(
        unknown=("xla_none",), bad=("xla_bad",)
    )
