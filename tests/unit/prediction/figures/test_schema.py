from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import hespas
from hespas.base.files import json_bytes
from hespas.prediction.figures.schema import RunReport, run_schema
from json_schema import faults

DOCUMENTED = Path("docs/reference/output.md").read_text()


def answer(program: str = "examples/attention_block.mlir", **given: Any) -> Any:
    prediction = hespas.predict(program, "H100_80GB", "H100_80GB_4GPU", **given)
    return json.loads(json_bytes(prediction.to_dict()))


@pytest.mark.parametrize("method", ["roofline", "measured", "kernel"])
def test_an_answer_is_as_the_schema_says(method: str) -> None:
    assert not faults(answer(method=method), run_schema(), run_schema())


def test_a_sharded_training_step_is_as_the_schema_says() -> None:
    found = answer("examples/llama3_100m_fsdp4.mlir", model="hespas")
    assert not faults(found, run_schema(), run_schema())


def test_an_answer_without_a_network_is_as_the_schema_says(tmp_path: Path) -> None:
    program = tmp_path / "p.mlir"
    program.write_text("func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {\n"
                       "  return %a : tensor<8xf32>\n}\n")  # fmt: skip
    found = json.loads(json_bytes(hespas.predict(program, "V100_32GB").to_dict()))
    assert found["system"] is None
    assert not faults(found, run_schema(), run_schema())


FAULTY: list[tuple[dict[str, Any], str]] = [
    ({"devices": "four"}, "devices: 'four' is no integer"),
    ({"fidelity": "guessed"}, "fidelity: 'guessed' is none of"),
    ({"surprise": 1}, "surprise: is not in the schema"),
    ({"step_time_s": -1.0}, "step_time_s: -1.0 is below 0"),
    ({"energy_j": []}, "energy_j: [] is none of what is allowed"),
    ({"communication": [{}]}, "communication[0].kind: is missing"),
]


@pytest.mark.parametrize(("changed", "fault"), FAULTY)
def test_what_is_not_as_the_schema_says_is_found(changed: dict[str, Any], fault: str) -> None:
    found = faults({**answer(), **changed}, run_schema(), run_schema())
    assert any(fault in each for each in found), found


def test_every_key_is_documented() -> None:
    rows = [line.split(" | ")[0] for line in DOCUMENTED.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert set(RunReport.__struct_fields__) <= named
