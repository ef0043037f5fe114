"""What `serving` asks of steps, before any is predicted."""

from __future__ import annotations

from typing import Any

import pytest

from hespas.serve.options import LoadOptions, ServeOptions
from hespas.serve.serving import serving
from hespas.serve.surface import ServedModel, Surfaces


class _AskedError(Exception):
    """Carries the model whose steps are asked for."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model


class _Asked(Surfaces):
    def of(self, model: ServedModel, **_: Any) -> Any:
        raise _AskedError(model)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1"])
def test_experts_of_the_zoo_are_served_as_those_of_configurations(name: str) -> None:
    options = ServeOptions(
        model_name=name, cluster="2xH100_80GB", load=LoadOptions(rate=1.0, requests=10)
    )
    with pytest.raises(_AskedError) as asked:
        serving(options, _Asked())
    assert asked.value.model.routes
    assert asked.value.model.settings["dropless"] == "true"
