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


@pytest.mark.parametrize("name", ["llama3-8b", "Qwen/Qwen3-8B"])
def test_settings_change_figures(name: str) -> None:
    (whole,), (part,) = figures_of(name), figures_of(name, {"layers": "4"})
    assert part.parameters < whole.parameters
    assert "   4 x " in models_text(name, {"layers": "4"})


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("llama3-8b", {"layers": "32"}, "set layers=32 changes no figure of llama3-8b"),
        ("llama3-8b", {"batch": "4"}, "set batch=4 changes no figure of llama3-8b"),
        ("llama3-8b", {"layer": "4"}, "llama3-8b has no option 'layer'"),
        ("qwen3-", {"layers": "4"}, "set changes one model, and qwen3- is none"),
        (None, {"layers": "4"}, "set changes one model, and no name is none"),
    ],
)
def test_settings_without_an_effect_are_refused(
    name: str | None, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        models_text(name, settings)
