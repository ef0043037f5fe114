from __future__ import annotations

from typing import Any

import pytest

from hespas.errors import ConfigError
from hespas.evidence.measure.measured import MeasureOptions


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"warm_up": -1}, "warm_up is -1"),
        ({"coordinator": "host"}, "host:port"),
        ({"coordinator": "host:x", "num_processes": 2, "process_id": 0}, "host:port"),
        ({"coordinator": "host:1", "process_id": 0}, "num_processes is not"),
        ({"coordinator": "host:1", "num_processes": 2}, "process_id is not"),
        ({"coordinator": "host:1", "num_processes": 2, "process_id": 2}, "give 0 to 1"),
        ({"coordinator": "host:1", "num_processes": 0, "process_id": 0}, "give 1 process"),
        ({"coordinator": "auto", "num_processes": 2}, "num_processes has no effect"),
        ({"coordinator": "auto", "process_id": 0}, "process_id has no effect"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        MeasureOptions(**given)


def test_processes_are_given_whole_or_found_by_jax() -> None:
    assert MeasureOptions(coordinator="auto").num_processes is None
    assert MeasureOptions(coordinator="h:1", num_processes=2, process_id=1).process_id == 1
