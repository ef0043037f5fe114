"""The schema accepts what is read as a study, and refuses what isn't."""

from __future__ import annotations

from typing import Any

import pytest

from hespas.errors import ConfigError
from hespas.study.study import study_of, study_schema
from json_schema import faults

SMALL: dict[str, Any] = {"model": "llama3-100m", "cluster": "8xH100_80GB"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mesh": {"fsdp": "auto", "tp": [1, 2]}, "remat": ["full", "none"], "scan": True},
        {"mesh": ["fsdp=8", {"fsdp": 2, "tp": 4}], "peak_flops": ["90TFLOP/s", 9e13]},
        {"set": {"layers": [1, 2], "heads": 9}, "where": ["memory.fits", "step_time_s < 2"]},
        {"goal": {"pareto": ["mfu", "devices"]}, "budget": {"compile": 2, "minutes": 0.5}},
        {"goal": {"maximise": "mfu"}, "fidelity": "fused", "title": "a study"},
        {"prices": [{"part": "H100_80GB", "usd_per_device_hour": 2, "source": "a contract"}]},
    ],
)
def test_what_is_read_satisfies_the_schema(changes: dict[str, Any]) -> None:
    schema, given = study_schema(), {**SMALL, **changes}
    study_of(given)
    assert faults(given, schema, schema) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"clusters": "8xH100_80GB"},
        {"sequence": 0},
        {"scan": "yes"},
        {"mesh": {"tp": "all"}},
        {"goal": {"maximize": "mfu"}},
        {"goal": {"maximise": "mf"}},
        {"budget": {"evaluation": 2}},
        {"fidelity": "best"},
        {"prices": [{"part": "H100_80GB", "usd_per_device_hour": 2}]},
        {"remat": []},
    ],
)
def test_what_is_refused_does_not(changes: dict[str, Any]) -> None:
    schema, given = study_schema(), {**SMALL, **changes}
    with pytest.raises(ConfigError):
        study_of(given)
    assert faults(given, schema, schema)
