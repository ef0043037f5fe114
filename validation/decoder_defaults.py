"""Write the defaults that transformers' classes of configurations have for decoders.

    python validation/decoder_defaults.py

In the interpreter of requirements/models.txt. transformers writes of a language model inside of
another configuration the fields alone that differ from these.
src/hespas/configs/decoder_defaults.json has the numbers, truth values and names of each family
that hespas reads, as the classes declare them: not what is computed from others, and not whether
embeddings are tied, which classes of whole models decide.
"""

# PyTorch's and transformers' types are not installed where types are checked.
# pyright: basic
# ruff: noqa: PLC0415

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from hespas.models.decoders import DECODERS
from hespas.models.fields import IGNORED
from model_judge import ROOT

RESULTS = ROOT / "src" / "hespas" / "configs" / "decoder_defaults.json"
LENGTHS = ("max_position_embeddings",)
LEFT_OUT = ("model_type", "pad_token_id", "tie_word_embeddings")


def declared(family: str) -> dict[str, Any]:
    """Return the defaults of a family's class; empty where the library has none."""
    from transformers import CONFIG_MAPPING

    names = (name for name in (f"{family}_text", family) if name in CONFIG_MAPPING)
    kind = next(names, None)
    if kind is None:
        return {}
    own = CONFIG_MAPPING[kind].__annotations__
    return {
        field.name: field.default
        for field in fields(CONFIG_MAPPING[kind])
        if isinstance(field.default, bool | int | float | str)
        and field.name in own
        and field.name not in LEFT_OUT
        and (field.name in LENGTHS or not IGNORED.fullmatch(field.name))
    }


def main() -> None:
    """Write the defaults of all families."""
    found = {name: declared(name) for name in sorted(DECODERS)}
    lines = (
        f"{json.dumps(name)}: {json.dumps(values)}" for name, values in found.items() if values
    )
    RESULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
