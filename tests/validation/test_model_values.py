"""Programs of configurations compute what transformers does, from the same weights."""

from __future__ import annotations

import json
import re
from math import prod
from typing import Any

import numpy as np
import pytest

import model_comparison
import model_values
from hespas.models.configuration import configured
from hespas.models.language import LanguageModel
from hespas.models.parameters import parameters
from model_weights import draw

CASES: dict[str, dict[str, Any]] = json.loads(model_values.RESULTS.read_text())
CLOSE = 1e-3
FIRST = ("llama3.1", "qwen3-next", "deepseek-v3.2", "gpt-oss", "nemotron-super", "t5", "flux")


def test_every_case_is_recorded_or_says_why_not() -> None:
    assert list(CASES) == list(model_values.CASES)
    for name, case in CASES.items():
        assert ("difference" in case) != bool(case.get("refused")), name
        if "difference" in case:
            assert case["difference"] < CLOSE, name


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FIRST else [pytest.mark.rest])
        for name, case in CASES.items()
        if "difference" in case
    ],
)
def test_logits_are_those_recorded(name: str) -> None:
    case = CASES[name]
    weights = {key: draw(key, tuple(shape)) for key, shape in case["tensors"].items()}
    made = model_values.made_of(case["config"], weights, model_values.inputs(case["config"]))[0]
    last = made.reshape(-1, made.shape[-1])[-1]
    assert np.abs(last - case["logits"]).max() < CLOSE


def test_the_page_shows_what_is_recorded_and_predicted() -> None:
    text = model_comparison.PAGE.read_text()
    assert model_comparison.with_tables(text) == text


TIED = {"google/t5-v1_1-xxl": 131_596_288}
"""The heads that transformers ties to the embedding, and the published model has."""
NAMED = re.compile(r"t5-v1_1|resnet|Qwen3-Next|Qwen3\.5|DeepSeek-V3\.2|granite|Nemotron|Llama-4")
"""Models whose FLOPs differ for reasons that the page names."""


def test_figures_are_those_of_transformers() -> None:
    models = list(model_comparison.compared())
    assert len(models) >= 70
    for model in models:
        name, figures = model.figures.name, model.figures
        assert figures.parameters - TIED.get(name, 0) == model.parameters, name
        if model.network is None:
            assert figures.kv_bytes_per_token == 2 * int(model.counted["kv_elements"]), name
        for prefix, tokens in (("", model_comparison.SHORT), ("long_", model_comparison.LONG)):
            error = model.flops_error(prefix, tokens)
            if error is not None and not NAMED.search(name):
                assert abs(error) < 0.005, name


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if not case["configuration"]]
)
def test_a_family_without_a_published_file_has_as_many_weights(name: str) -> None:
    """Of a small model: those that transformers built, and what routers are corrected by."""
    case = CASES[name]
    found = configured(case["config"], location=name, name=name).model
    assert isinstance(found, LanguageModel)
    assert parameters(found) == sum(prod(shape) for shape in case["tensors"].values())
