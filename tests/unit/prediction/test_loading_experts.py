"""What a layer of experts of the zoo drops, by the load that it is given."""

from __future__ import annotations

import json
from pathlib import Path

import hespas


def test_a_layer_of_the_zoo_drops_what_is_beyond_its_capacity(tmp_path: Path) -> None:
    """Of 12 parts one expert gets 5, and takes 1.25 times an eighth."""
    load = tmp_path / "load.json"
    load.write_text(json.dumps([5, *[1] * 7]), encoding="utf-8")
    found = hespas.predict(
        "moe",
        cluster="8xH100_80GB",
        settings={"embedding": "64", "mlp": "128"},
        sequence=64,
        fidelity="exported",
        expert_load=str(load),
    )
    dropped = 100 * (5 / 12 - 1.25 / 8)
    (note,) = (note for note in found.graph.program.assumptions if "are dropped" in note)
    assert note.startswith("an expert takes 125 % of an even share")
    assert f"{dropped:.3g} % of the tokens" in note
