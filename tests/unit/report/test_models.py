"""What is listed of models, and shown of one."""

from __future__ import annotations

import pytest

from hespas.errors import ConfigError
from hespas.report.models import figures_of, models_text


def listed(name: str | None) -> list[str]:
    return [figures.name for figures in figures_of(name)]


def test_a_part_of_names_lists_those_that_have_it() -> None:
    found = listed("QWEN3-")
    assert "Qwen/Qwen3-8B" in found
    assert all("qwen3-" in name.casefold() for name in found)
    text = models_text("QWEN3-")
    assert all(name in text for name in found)
    assert "Llama" not in text


def test_a_whole_name_is_one_model_although_others_hold_it() -> None:
    assert listed("llama2-7b") == ["llama2-7b"]
    assert listed("Qwen3-4B") == ["Qwen3-4B"]
    assert models_text("llama2-7b").startswith("llama2-7b\n")


@pytest.mark.parametrize(
    ("name", "said"), [("Qwen/Qwen3-9B", "did you mean 'Qwen/Qwen3-8B'"), ("resnet50", "no tokens")]
)
def test_a_name_that_none_has_is_an_error(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        models_text(name)
