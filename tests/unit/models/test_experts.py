from __future__ import annotations

from hespas.frontend.experts import Capacity
from hespas.models.catalogue import model_named
from hespas.models.experts import capacity_of


def test_experts_of_the_zoo_have_a_capacity() -> None:
    assert capacity_of(model_named("moe").settings) == Capacity(experts=8, factor=1.25)
    assert capacity_of(model_named("llama3-8b").settings) is None
