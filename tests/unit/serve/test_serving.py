"""What `serving` asks of steps, before any is predicted."""

from __future__ import annotations

from typing import Any

import pytest

from hespas.errors import ConfigError
from hespas.serve.options import LoadOptions, ServeOptions
from hespas.serve.serving import serving
from hespas.serve.surface import ServedModel, Surfaces, Window
from hespas.sources.options import ModelOptions
from hespas.study.executor import Phase


class _AskedError(Exception):
    """Carries the model whose steps are asked for."""

    def __init__(self, model: ServedModel, fidelity: Phase) -> None:
        self.model, self.fidelity = model, fidelity


class _Asked(Surfaces):
    def of(self, model: ServedModel, *, fidelity: Phase, **_: Any) -> Any:
        raise _AskedError(model, fidelity)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1"])
def test_experts_of_the_zoo_are_served_as_those_of_configurations(name: str) -> None:
    options = ServeOptions(
        model_name=name, cluster="2xH100_80GB", load=LoadOptions(rate=1.0, requests=10)
    )
    with pytest.raises(_AskedError) as asked:
        serving(options, _Asked())
    assert asked.value.model.routes
    assert asked.value.model.settings["dropless"] == "true"


def _asked(name: str, cluster: str, **changed: Any) -> None:
    load = LoadOptions(rate=1.0, requests=10)
    serving(ServeOptions(model_name=name, cluster=cluster, load=load, **changed), _Asked())


def test_models_that_are_no_decoders_are_refused() -> None:
    with pytest.raises(ConfigError, match="is no decoder"):
        _asked("google-t5/t5-large", "1xH100_80GB")


def test_a_type_that_a_part_does_not_multiply_is_refused() -> None:
    with pytest.raises(ConfigError, match="no products of bf16") as refused:
        _asked("meta-llama/Llama-3.1-8B", "1xV100_32GB")
    assert refused.value.hint == "give dtype f16"
    with pytest.raises(_AskedError):
        _asked("meta-llama/Llama-3.1-8B", "1xV100_32GB", model=ModelOptions(dtype="f16"))


@pytest.mark.parametrize(
    ("cluster", "fidelity"), [("1xH100_80GB", Phase.LIBRARY), ("8xTPUv6e", Phase.SCREEN)]
)
def test_steps_are_predicted_as_the_part_can(cluster: str, fidelity: Phase) -> None:
    with pytest.raises(_AskedError) as asked:
        _asked("meta-llama/Llama-3.1-8B", cluster)
    assert asked.value.fidelity is fidelity


@pytest.mark.parametrize(
    ("name", "window"),
    [
        ("google/gemma-3-27b-it", Window(tokens=1024, layers=52, others=10, cached_share=52 / 62)),
        ("openai/gpt-oss-120b", Window(tokens=128, layers=18, others=18, cached_share=0.5)),
        ("meta-llama/Llama-3.1-8B", None),
        ("deepseek-ai/DeepSeek-V3", None),
    ],
)
def test_windows_are_those_of_the_layers(name: str, window: Window | None) -> None:
    with pytest.raises(_AskedError) as asked:
        _asked(name, "8xH200_141GB")
    assert asked.value.model.window == window


def test_a_sequence_has_its_states_on_every_device() -> None:
    with pytest.raises(_AskedError) as asked:
        _asked("ibm-granite/granite-4.0-h-small", "2xH100_80GB")
    # 36 layers of 128 heads of 64 x 128 numbers in f32, on two devices.
    assert asked.value.model.state_bytes == 36 * 128 * 64 * 128 * 4 // 2
