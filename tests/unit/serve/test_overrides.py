from __future__ import annotations

import pytest

import hespas
from hespas.base.fields import options_by_field
from hespas.errors import ConfigError
from hespas.serve.options import NOT_SERVED, ServeOptions
from hespas.serve.overrides import ServingOverrides

_ARGUMENTS = {"model_name", "cluster"}


def test_every_option_of_serving_can_be_given() -> None:
    options = options_by_field(ServeOptions)
    flags = {field for field, option in options.items() if option.has_flag}
    assert ServingOverrides.__annotations__.keys() == flags - NOT_SERVED - _ARGUMENTS


@pytest.mark.parametrize("name", ["batch", "sequenc"])
def test_what_means_nothing_is_refused(name: str) -> None:
    wrong: dict[str, int] = {name: 2}
    with pytest.raises(ConfigError, match=name):
        hespas.predict_serving("Qwen/Qwen3-0.6B", "1xH100_80GB", **wrong)  # pyright: ignore
