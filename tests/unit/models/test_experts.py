from __future__ import annotations

import pytest

import hespas
from hespas.frontend.experts import Capacity
from hespas.models.catalogue import model_named
from hespas.models.experts import capacity_of
from hespas.program.program import all_ops
from hespas.program.scopes import Phase, read_scope


def test_experts_of_the_zoo_have_a_capacity() -> None:
    assert capacity_of(model_named("moe").settings) == Capacity(experts=8, factor=1.25)
    assert capacity_of(model_named("llama3-8b").settings) is None


@pytest.mark.parametrize("more", [{}, {"dropless": "true"}], ids=str)
def test_what_the_experts_products_make_is_kept_as_that_of_other_layers(
    more: dict[str, str],
) -> None:
    sizes = {"layers": "2", "embedding": "512", "heads": "8", "kv_heads": "4", "mlp": "512"}
    found = hespas.predict(
        "mixtral-8x7b",
        cluster="4xH100_80GB",
        mesh="fsdp=4",
        sequence=1024,
        settings={**sizes, "expert_mlp": "512", "vocabulary": "1024", **more},
        fidelity="exported",
    )
    again = [
        op
        for op in all_ops(found.graph.program)
        if read_scope(op.scope).phase is Phase.RECOMPUTATION
        and "experts" in read_scope(op.scope).path
        and op.kind in {"dot_general", "ragged_dot"}
    ]
    assert not again
