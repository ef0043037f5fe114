from __future__ import annotations

import pytest

from hespas.errors import ExtraMissingError, MeasurementError, ToolError
from hespas.evidence.calibrate.samples import at_line


def test_what_another_program_says_of_a_line_names_the_line() -> None:
    with (
        pytest.raises(ToolError, match=r"^steps\.csv:2: worker: region 22: fails; give another$"),
        at_line("steps.csv:2"),
    ):
        raise ToolError("region 22: fails", location="worker", hint="give another")


def test_what_is_not_installed_is_no_fault_of_a_line() -> None:
    with (
        pytest.raises(ExtraMissingError, match=r"^the compiler needs packages"),
        at_line("steps.csv:2"),
    ):
        raise ExtraMissingError("the compiler", extra="gpu")


def test_a_line_is_named_once() -> None:
    with (
        pytest.raises(MeasurementError, match=r"^steps\.csv:2: is too short$"),
        at_line("steps.csv:2"),
    ):
        raise MeasurementError("is too short", location="steps.csv:2")
