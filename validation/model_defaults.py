"""Count the models that transformers builds of its own default configurations.

    python validation/model_defaults.py

In the interpreter of requirements/models.txt. The families of `FAMILIES` are those that hespas
reads and whose values `model_values` does not compare. Each is built on PyTorch's ``meta`` device;
validation/measurements/model_defaults.json has its configuration, the number of its parameters and
of the biases that correct its routers, which no gradient changes.
"""

# PyTorch's and transformers' types are not installed where types are checked.
# pyright: basic
# ruff: noqa: PLC0415

from __future__ import annotations

import json
from typing import Any

from hespas.models.fields import IGNORED
from model_judge import ROOT

RESULTS = ROOT / "validation" / "measurements" / "model_defaults.json"
FAMILIES = (
    "cwm",
    "ernie4_5_moe",
    "exaone",
    "exaone_moe",
    "falcon",
    "flex_olmo",
    "glm_moe_dsa",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "granitemoeshared",
    "internlm3",
    "jais2",
    "ministral3",
    "opt",
    "qwen3_5_moe_text",
    "sarvam_mla",
    "stablelm",
    "starcoder2",
    "youtu",
)
LENGTHS = ("max_position_embeddings",)
"""What is kept of the fields that change nothing of most families."""


def counted(family: str) -> dict[str, Any]:
    """Return the configuration of a family, and how many weights it has."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config = CONFIG_MAPPING[family]()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    fields = {
        name: value
        for name, value in config.to_dict().items()
        if value is not None and (name in LENGTHS or not IGNORED.fullmatch(name))
    }
    biases = {
        name: buffer.numel()
        for name, buffer in model.named_buffers()
        if name.endswith("correction_bias")
    }
    return {
        "config": fields,
        "parameters": sum(each.numel() for each in model.parameters()),
        "correction_biases": sum(biases.values()),
    }


def main() -> None:
    """Write the counts of all families."""
    lines = (f"{json.dumps(name)}: {json.dumps(counted(name))}" for name in FAMILIES)
    RESULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
