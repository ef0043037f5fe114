"""What is named beside a family that is not known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from hespas.errors import ConfigError
from hespas.models.configuration import read_configuration

DENSE: dict[str, object] = {"hidden_size": 2048, "num_hidden_layers": 24, "vocab_size": 65536}
HEADS: dict[str, object] = {
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
}
EXPERTS: dict[str, object] = {
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1536,
}


def hint(tmp_path: Path, fields: Mapping[str, object]) -> str:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "mine", **fields}))
    with pytest.raises(ConfigError, match="model_type 'mine' is not known") as caught:
        read_configuration(file)
    return caught.value.hint or ""


def test_experts_are_nearest_to_a_family_with_their_fields(tmp_path: Path) -> None:
    assert "the nearest that is known is qwen3_moe;" in hint(tmp_path, DENSE | HEADS | EXPERTS)


@pytest.mark.parametrize(
    "fields",
    [
        {"attention_hidden_size": 2048, "head_size": 64, "head_size_divisor": 8},
        {"decay_low_rank_dim": 64, "gate_low_rank_dim": 128, "a_low_rank_dim": 64},
    ],
)
def test_states_of_rwkv_are_near_no_family(tmp_path: Path, fields: Mapping[str, object]) -> None:
    assert hint(tmp_path, {**DENSE, **fields}).startswith("no family that is known is near")
