"""Encoders, encoders with decoders, and diffusion models: their figures, steps and limits."""

from __future__ import annotations

from typing import Any

import pytest

from hespas.errors import ConfigError
from hespas.models.catalogue import model_named
from hespas.models.flops import model_flops
from hespas.models.network_model import Network, network_parameters

SMALL = "openai/whisper-tiny"


def settings_of(name: str, **given: str) -> Network:
    settings: Any = model_named(name).with_options(given)
    assert isinstance(settings, Network)
    return settings


@pytest.mark.parametrize(
    ("name", "count"),
    [
        # As transformers 5.24 and diffusers 0.42 build them: measurements/model_counts.csv.
        ("google-bert/bert-large-uncased", 335_174_458),
        ("google/vit-huge-patch14-224-in21k", 632_404_480),
        ("google/siglip-base-patch16-224", 203_155_970),
        ("google-t5/t5-base", 222_903_552),
        ("openai/whisper-tiny", 37_760_640),
        ("facebook/DiT-XL-2-256", 749_826_464),
        ("black-forest-labs/FLUX.1-dev", 11_901_408_320),
        ("stabilityai/stable-diffusion-xl-base-1.0", 2_567_463_684),
    ],
)
def test_parameters_are_those_of_the_published_model(name: str, count: int) -> None:
    assert network_parameters(settings_of(name)) == count


def test_training_is_three_times_the_forward_pass() -> None:
    vit = settings_of("google/vit-base-patch16-224", mesh="data=2", batch="4")
    assert vit.flops == 35_127_656_448
    assert model_flops(vit) == 3 * 8 * vit.flops


def test_a_step_that_writes_attends_to_its_cache_and_the_source() -> None:
    short, long = (settings_of(f"{SMALL}:decode", context=size) for size in ("2", "102"))
    tower = 4 * 6 * 64
    assert long.flops - short.flops == 100 * 4 * tower


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("google-bert/bert-large-uncased", {"sequence": "1024"}, "positions for 512"),
        ("google-bert/bert-large-uncased", {"mesh": "tp=3"}, "heads = 16"),
        ("google-bert/bert-large-uncased", {"mesh": "expert=2"}, "expert divides nothing"),
        ("black-forest-labs/FLUX.1-dev", {"mesh": "tp=2"}, "tp divides nothing"),
        ("google/vit-base-patch16-224", {"attention": "splash"}, "splash"),
        ("google/vit-base-patch16-224", {"accumulation": "3"}, "accumulation"),
        ("google/vit-base-patch16-224", {"zero": "1", "mesh": "fsdp=2"}, "zero"),
        ("google/vit-base-patch16-224", {"sequence": "5"}, "no option 'sequence'"),
        (f"{SMALL}:decode", {"context": "500"}, "positions for 448"),
    ],
)
def test_what_does_not_fit_is_named(name: str, given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_of(name, **given).check()
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("google-bert/bert-large-uncased:decode", "writes no tokens"),
        ("openai/whisper-tiny:inference", "training, prefill, decode"),
        ("Qwen/Qwen3-8B:inference", "training, prefill, decode"),
    ],
)
def test_a_step_that_a_model_has_not_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        model_named(name)
    assert said in str(caught.value)
