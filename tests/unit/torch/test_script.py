from __future__ import annotations

from typing import Literal

import pytest

from hespas.errors import ConfigError
from hespas.torch.script import read_arguments


def takes(
    layers: int = 2,
    rate: float = 0.1,
    *,
    fused: bool = True,
    kind: Literal["a", "b"] = "a",
    limit: int | None = None,
    untyped=3,  # noqa: ANN001, RUF100 # pyright: ignore[reportMissingParameterType]
) -> None:
    del layers, rate, fused, kind, limit, untyped


def needs(batch: int) -> None:
    del batch


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        ({"layers": "32"}, {"layers": 32}),
        ({"rate": "1e-3"}, {"rate": 1e-3}),
        ({"fused": "false"}, {"fused": False}),
        ({"kind": "b"}, {"kind": "b"}),
        ({"limit": "none"}, {"limit": None}),
        ({"limit": "4"}, {"limit": 4}),
        ({"untyped": "5"}, {"untyped": 5}),
    ],
)
def test_arguments_are_read_by_type(texts: dict[str, str], values: dict[str, object]) -> None:
    assert read_arguments(takes, texts, location="train.py") == values


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"layer": "2"}, "no argument 'layer'; did you mean 'layers'?"),
        ({"layers": "two"}, "layers is 'two', and the function takes int"),
        ({"fused": "maybe"}, "fused is 'maybe', and the function takes bool"),
        ({"kind": "c"}, "kind is 'c', and the function takes"),
    ],
)
def test_other_arguments_are_refused(texts: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_arguments(takes, texts, location="train.py:train")
    assert message in str(error.value)


def test_an_argument_without_a_default_must_be_given() -> None:
    with pytest.raises(ConfigError, match="'batch' has no value; give set batch=VALUE"):
        read_arguments(needs, {}, location="train.py:train")
