"""What `serving` asks of steps, before any is predicted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hespas.errors import ConfigError
from hespas.models.model import parse_mesh
from hespas.prediction.figures.schema import RunReport
from hespas.serve.answer import ServingReport
from hespas.serve.options import EngineOptions, LoadOptions, ServeOptions
from hespas.serve.serving import serving
from hespas.serve.step_times import StepTimes
from hespas.serve.surface import CacheMemory, ServedModel, Size, Surface, Surfaces, Window
from hespas.sources.options import ModelOptions
from hespas.study.executor import Phase
from step_reports import EMPTY_RESULT


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


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": ModelOptions(mesh=parse_mesh("data=2,tp=2"))}, "data=2 of mesh makes copies"),
        (
            {"prefill_replicas": 1, "prefill_mesh": parse_mesh("data=2"), "replicas": 1},
            "data=2 of prefill_mesh makes copies",
        ),
        ({"model": ModelOptions(software="megatron")}, "software has no effect"),
    ],
)
def test_what_no_engine_has_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _asked("Qwen/Qwen3-4B", "4xH100_80GB", **changed)


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
        (
            "google/gemma-3-27b-it",
            Window(tokens=1024, layers=52, full_layers=10, cached_share=52 / 62),
        ),
        ("openai/gpt-oss-120b", Window(tokens=128, layers=18, full_layers=18, cached_share=0.5)),
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


_MADE = {
    "compute_s": 1.0,
    "communication_s": 0.0,
    "exposed_communication_s": 0.0,
    "step_time_s": 1.0,
    "peak_memory_bytes": 10**9,
}


class _Seen(Surfaces):
    """Notes the models whose steps are asked for, and has the same surface for each."""

    def __init__(self) -> None:
        super().__init__()
        self.models: list[ServedModel] = []

    def of(self, model: ServedModel, **_: Any) -> Surface:
        self.models.append(model)
        times = StepTimes(tokens_s=((1, 5e-3), (8192, 0.5)), context_s=((1, 1e-9),))
        memory = CacheMemory(
            weights_bytes=10**9,
            workspace_bytes=0,
            kv_bytes_per_token=1e4 * (model.layers or 1),
            kv_bytes_beyond=1e4,
            state_bytes=0,
        )
        report = msgspec.convert(
            {**EMPTY_RESULT, **_MADE, "schema_version": 1, "memory_capacity_bytes": None},
            RunReport,
            strict=False,
        )
        sizes = (Size(batch=1, tokens=512), Size(batch=1, tokens=1024, is_prompt=True))
        return Surface(
            times=times,
            most_decoded=256,
            memory=memory,
            parts=1,
            power_w=None,
            idle_w=0.0,
            reports=dict.fromkeys(sizes, report),
            depths=None,
        )


def _cut(name: str, cluster: str, mesh: str, **changed: Any) -> tuple[_Seen, ServingReport]:
    seen, model = _Seen(), ModelOptions(mesh=parse_mesh(mesh))
    load = LoadOptions(concurrency=1, requests=3, osl=20)
    options = ServeOptions(model_name=name, cluster=cluster, load=load, model=model, **changed)
    return seen, serving(options, seen)


def test_stages_are_models_of_their_own() -> None:
    seen, report = _cut("meta-llama/Llama-3.1-405B", "32xH100_80GB", "pipe=4,tp=8")
    assert [each.layers for each in report.stages] == [31, 32, 32, 31]
    assert [each.stage for each in seen.models] == ["first", "middle", "middle", "last"]
    # Equal layers are predicted once.
    assert {each.first_layer for each in seen.models} == {0}
    assert {each.cluster for each in seen.models} == {"8xH100_80GB"}
    assert report.kv_blocks == min(each.kv_blocks for each in report.stages)


def test_stages_of_a_model_with_dense_layers_have_theirs() -> None:
    seen, report = _cut(
        "deepseek-ai/DeepSeek-V3",
        "16xH200_141GB",
        "pipe=2,tp=8",
        engine=EngineOptions(engine="trtllm"),
    )
    assert [each.layers for each in report.stages] == [31, 30]
    assert [each.first_layer for each in seen.models] == [0, 3]


def test_a_lone_token_goes_through_all_stages_and_their_links() -> None:
    _, whole = _cut("meta-llama/Llama-3.1-70B", "8xH100_80GB", "tp=8", replicas=1)
    _, near = _cut("meta-llama/Llama-3.1-70B", "16xH100_80GB", "pipe=2,tp=4", replicas=1)
    _, far = _cut("meta-llama/Llama-3.1-70B", "16xH100_80GB", "pipe=2,tp=8")
    assert whole.tpot_s is not None
    assert near.tpot_s is not None
    assert far.tpot_s is not None
    for cut in (near, far):
        assert cut.tpot_s is not None
        sent_s = sum(each.receive_s for each in cut.stages)
        assert cut.tpot_s.mean == pytest.approx(2 * whole.tpot_s.mean + sent_s, rel=1e-3)
    # 2 rows of 8192 numbers of 2 bytes, a part of each device, gathered in the node.
    row = 2 * 2 * 8192
    link = row / 4 / 450e9 + row * 3 / 4 / 450e9 + 2e-6
    assert near.stages[1].receive_s == pytest.approx(link, rel=1e-3)
    assert far.stages[1].receive_s > near.stages[1].receive_s


@pytest.mark.parametrize("name", ["stage", "first_layer"])
def test_a_stage_alone_is_not_served(name: str) -> None:
    with pytest.raises(ConfigError, match=f"set {name} is of one stage"):
        _asked("Qwen/Qwen3-8B", "1xH100_80GB", model=ModelOptions(settings={name: "1"}))


@pytest.mark.parametrize(
    ("mesh", "changed", "message"),
    [
        ("pipe=40,tp=1", {}, "has 36 layers for 40 stages"),
        ("pipe=2,tp=1", {"engine": EngineOptions(poll_interval=3)}, "not predicted with stages"),
        (
            "pipe=2,tp=1",
            {"engine": EngineOptions(speculative_tokens=2, acceptance_rate=0.5)},
            "not predicted with stages",
        ),
    ],
)
def test_what_no_pipeline_serves_is_refused(
    mesh: str, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        _cut("Qwen/Qwen3-8B", "64xH100_80GB", mesh, **changed)
