"""Several models on one cluster: what each has, their sums, and typical mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.report.page.test_serving import REPORT

from hespas.errors import ConfigError
from hespas.models.model import parse_mesh
from hespas.serve import together
from hespas.serve.options import LoadOptions, ServeOptions
from hespas.serve.surface import Surfaces
from hespas.serve.together import is_file_of_models, serving_together

OPTIONS = ServeOptions(cluster="8xH100_80GB", load=LoadOptions(requests=50))
TWO = """
chat: {model: Qwen/Qwen3-0.6B, mesh: tp=2, replicas: 2, rate: 5, slo: "ttft=1s"}
code:
  model: Qwen/Qwen3-8B
  concurrency: 4
  max-sequences: 64
  set: {weight_dtype: f8, dropless: true}
"""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ServeOptions]:
    """What each model is asked for; all have one answer."""
    given: list[ServeOptions] = []

    def served(options: ServeOptions, surfaces: Surfaces) -> object:
        del surfaces
        given.append(options)
        return REPORT

    monkeypatch.setattr(together, "serving", served)
    return given


def _written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "models.yaml"
    file.write_text(text)
    return file


def test_each_model_has_its_own_options_and_those_of_all(
    tmp_path: Path, asked: list[ServeOptions]
) -> None:
    report = serving_together(_written(tmp_path, TWO), OPTIONS)
    chat, code = asked
    assert (chat.model_name, code.model_name) == ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B")
    assert (chat.model.mesh, code.model.mesh) == (parse_mesh("tp=2"), parse_mesh("tp=1"))
    assert (chat.replicas, code.replicas) == (2, 1)
    assert (chat.load.rate, code.load.concurrency) == (5.0, 4)
    assert {chat.load.requests, code.load.requests} == {50}
    assert code.engine.max_sequences == 64
    assert code.model.settings == {"weight_dtype": "f8", "dropless": "true"}
    assert report.idle_devices == 8 - 2 * 2 - 1
    assert report.output_tokens_per_s == 2 * REPORT.output_tokens_per_s
    assert report.output_tokens_per_s_per_device == report.output_tokens_per_s / 8
    assert report.requests_per_s == 2 * REPORT.requests_per_s
    assert report.goodput is None
    assert [each.name for each in report.models] == ["chat", "code"]
    assert is_file_of_models("models.yml")
    assert not is_file_of_models("ORG/M")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no models"),
        ("- model: ORG/M", "names no models"),
        ("chat: {rate: 5}", "chat: has no model"),
        ("chat: {model: ORG/M, rat: 5}", "did you mean 'rate'"),
        ("chat: {model: ORG/M, batch: 5}", "there is no option batch"),
        ("chat: {model: ORG/M, cluster: 8xH100_80GB}", "there is no option cluster"),
        ("chat: {model: ORG/M, rate: fast}", "rate"),
        ("chat: {model: ORG/M, rate: 1, concurrency: 2}", "chat: concurrency has no effect"),
        ("chat: {model: ORG/M, mesh: tp=16}", "chat: 1 replicas of 16 devices do not fit"),
        (
            "a: {model: ORG/M, mesh: tp=4}\nb: {model: ORG/M, mesh: tp=2, replicas: 3}",
            "the models need 10 devices (a 4, b 6), and 8xH100_80GB has 8",
        ),
    ],
)
def test_mistakes_name_the_model(
    tmp_path: Path, asked: list[ServeOptions], text: str, message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        serving_together(_written(tmp_path, text), OPTIONS)
    assert message in str(refused.value)
    assert not asked


def test_an_error_of_a_model_says_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(options: ServeOptions, surfaces: Surfaces) -> object:
        del surfaces
        raise ConfigError(f"{options.model_name} does not fit")

    monkeypatch.setattr(together, "serving", refused)
    with pytest.raises(ConfigError, match=r"models.yaml: chat: Qwen/Qwen3-0.6B does not fit"):
        serving_together(_written(tmp_path, TWO), OPTIONS)
