from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hespas.base.decode import preset_names
from hespas.errors import ConfigError
from hespas.prediction.hazards import PRESETS, hazards_of, read_hazards

CAUSE = {"name": "a node", "interval_h": 1000}


def written(directory: Path, **given: Any) -> Path:
    path = directory / "hazards.json"
    path.write_text(json.dumps({"source": "an example", "causes": [CAUSE], **given}))
    return path


@pytest.mark.parametrize("name", preset_names(PRESETS))
def test_every_preset_is_read(name: str) -> None:
    assert hazards_of(read_hazards(name), devices=1024, node_devices=None).interval_s > 0


def test_llama_3_is_interrupted_466_times_in_54_days() -> None:
    hazards = hazards_of(read_hazards("H100_Llama3"), devices=16_384, node_devices=None)
    assert 54 * 86_400 / hazards.interval_s == pytest.approx(466)


RATES = [
    ({"per": "device"}, 64),
    ({"per": "node"}, 8),
    ({"per": "group", "nodes": 4}, 2),
    ({"per": "run"}, 1),
]


@pytest.mark.parametrize(("given", "struck"), RATES)
def test_a_rate_is_that_of_one_of_what_it_strikes(
    tmp_path: Path, given: dict[str, Any], struck: int
) -> None:
    file = read_hazards(written(tmp_path, causes=[{**CAUSE, **given}]))
    (cause,) = hazards_of(file, devices=64, node_devices=8).causes
    assert cause.interval_s == pytest.approx(1000 * 3600 / struck)
    assert cause.nodes == {"run": 0, "group": 4}.get(given["per"], 1)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"causes": [{"name": "a"}]}, "a rate is missing"),
    ({"causes": [{**CAUSE, "events": 3}]}, "given twice"),
    ({"causes": [{"name": "a", "events": 3}]}, "events have no time"),
    ({"causes": [{**CAUSE, "per": "group"}]}, "a group has no size"),
    ({"causes": [{**CAUSE, "validation_s": 3}]}, "no effect without validation_h"),
    ({"causes": [{**CAUSE, "planned": True, "detection_s": 3}]}, "planned stop needs no detection"),
    ({"unequal": {"nodes": 0.5, "failures": 0.1}}, "0.5 of the nodes cause 0.1"),
    (
        {"unequal": {"nodes": 0.1, "failures": 0.5}, "causes": [{**CAUSE, "per": "run"}]},
        "unequal has no effect: no cause is of one node; drop it",
    ),
    ({"causes": [CAUSE, CAUSE]}, "two causes are named 'a node'; rename one"),
    (
        {"causes": [{"name": "a", "events": 0}], "observed": {"devices": 8, "days": 3}},
        "nothing fails; give a cause events",
    ),
    ({"observed": {"devices": 8, "days": 3}}, "observed has no effect: no cause has events"),
    ({"causes": []}, "causes"),
]


@pytest.mark.parametrize(("given", "message"), BAD)
def test_what_has_no_meaning_is_refused(
    tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_hazards(written(tmp_path, **given))


def test_another_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="H100_Llama3"):
        read_hazards("H100_Llama")


def test_nodes_of_unknown_size_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="how many devices a node has"):
        hazards_of(read_hazards(written(tmp_path)), devices=8, node_devices=None)
