"""Bounds are never better than predictions, of memory and of time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from compilers import needs_gpu
from hespas.prediction import checks, composition, cutting, machines, staged, workload
from hespas.prediction.options import CompileChoice, Fidelity, PredictOptions
from hespas.sources.source import ModelSource
from hespas.study.bounds import Bounds, bounds_of, pipeline_bounds
from hespas.study.space import candidates_of
from hespas.study.study import study_of

SMALL: dict[str, Any] = {
    "model": "llama3-100m",
    "cluster": "8xH100_80GB",
    "set": {"layers": 2},
    "global_batch": 16,
    "sequence": 1024,
}


def options_of(**changes: Any) -> PredictOptions:
    (candidate,) = candidates_of(study_of({**SMALL, **changes}))
    return checks.checked(candidate.options())


def bounds(options: PredictOptions) -> Bounds:
    system = machines.system_of(options.network)
    source = workload.source_of(options)
    assert system is not None
    assert isinstance(source, ModelSource)
    return bounds_of(source, machines.device_of(options.estimate), system)


CASES: list[dict[str, Any]] = [
    {},
    {"remat": "full"},
    {"remat": "none"},
    {"mesh": "data=2,fsdp=4"},
    {"mesh": "data=8"},
    {"scan": False},
    {"scan": False, "remat": "full", "micro_batch": 1},
    {"micro_batch": 1},
    {"micro_batch": 1, "remat": "full", "mesh": "data=8"},
    {"model": "llama3-500m", "mesh": "fsdp=2,tp=4"},
    {"model": "llama2-7b"},
    {"dtype": "f32"},
]


OTHERS: list[dict[str, Any]] = [
    {"model": "gpt3-1.3b"},
    {"model": "mixtral-8x7b", "mesh": "fsdp=8"},
    {"model": "deepseek-v3", "mesh": "fsdp=8", "set": {"layers": 4, "experts": 8}},
]


EXPERTS: dict[str, Any] = {"model": "Qwen/Qwen3-30B-A3B", "set": {"layers": 2, "experts": 16}}
SENDING: list[dict[str, Any]] = [
    {"model": "llama3-8b", "mesh": "fsdp=16", "micro_batch": 1, "remat": "full"},
    {"model": "llama3-8b", "mesh": "data=2,tp=8", "micro_batch": 4},
    {**EXPERTS, "mesh": "data=2,expert=8", "micro_batch": 1},
    {**EXPERTS, "mesh": "fsdp=2,expert=4,tp=2", "micro_batch": 2, "remat": "full"},
    {**EXPERTS, "mesh": "fsdp=4,expert=4", "set": {**EXPERTS["set"], "capacity_percent": 50}},
    {"model": "llama3-8b", "mesh": "data=4,tp=4", "set": {"layers": 2, "sequence_parallel": True}},
    {"model": "llama3-8b", "mesh": "data=4,fsdp=4", "set": {"layers": 2, "lora_rank": 16}},
    {"model": "llama3-8b", "mesh": "data=4,fsdp=4", "set": {"layers": 2, "zero": 2}},
    {"model": "llama3-8b", "mesh": "fsdp=16", "set": {"layers": 2, "product_dtype": "f8"}},
]
"""Steps on two nodes, in which messages take longer than products."""


@pytest.mark.parametrize(
    "changes",
    [
        *SENDING[1:4],
        *(pytest.param(case, marks=pytest.mark.rest) for case in SENDING[:1] + SENDING[4:]),
    ],
    ids=str,
)
def test_no_step_is_shorter_than_its_messages(changes: dict[str, Any]) -> None:
    options = options_of(**{"cluster": "16xH100_80GB", "global_batch": 64, **changes})
    check(replace(options, compile=CompileChoice(fidelity=Fidelity.FUSED)))


@pytest.mark.parametrize(
    "changes",
    [
        *CASES[:2],
        *OTHERS[1:],
        *(pytest.param(case, marks=pytest.mark.rest) for case in (CASES[2], OTHERS[0])),
    ],
    ids=str,
)
def test_no_bound_exceeds_what_is_predicted_without_a_compiler(changes: dict[str, Any]) -> None:
    options = replace(options_of(**changes), compile=CompileChoice(fidelity=Fidelity.FUSED))
    check(options)


@needs_gpu
@pytest.mark.parametrize("changes", CASES, ids=str)
def test_no_bound_exceeds_what_the_compiler_makes(changes: dict[str, Any]) -> None:
    options = replace(options_of(**changes), compile=CompileChoice(fidelity=Fidelity.COMPILED))
    check(options)


def check(options: PredictOptions) -> None:
    least = bounds(options)
    prediction = composition.predict(options)
    assert 0 < least.memory_bytes <= prediction.memory.peak_bytes
    assert 0 < least.time_s <= prediction.step_time_s


PIPELINES: list[dict[str, Any]] = [
    {"mesh": "pipe=2,fsdp=4", "micro_batches": 2},
    {"mesh": "pipe=4,data=2", "micro_batches": 8, "schedule": "gpipe"},
    {"mesh": "pipe=2,fsdp=4", "micro_batches": 4, "schedule": "interleaved:2"},
    {"mesh": "pipe=2,tp=4", "micro_batches": 4, "schedule": "zero-bubble", "dtype": "f32"},
]


@pytest.mark.parametrize("changes", PIPELINES, ids=str)
def test_no_bound_exceeds_what_is_predicted_of_a_pipeline(changes: dict[str, Any]) -> None:
    given = {**SMALL, "model": "llama3-500m", "set": {"layers": 4}, **changes}
    (candidate,) = candidates_of(study_of(given))
    options = replace(candidate.options(), compile=CompileChoice(fidelity=Fidelity.FUSED))
    cut = cutting.cut_of(options)
    least = pipeline_bounds(cut, machines.device_of(cut.options.estimate))
    prediction = staged.predict_pipeline(options)
    assert 0 < least.memory_bytes <= prediction.peak_memory_bytes
    assert 0 < least.time_s <= prediction.step_time_s


FRAMEWORKS: list[dict[str, Any]] = [
    {"mesh": "pipe=1,fsdp=8"},
    {"mesh": "pipe=2,fsdp=2,tp=2", "micro_batch": 1, "set": {"layers": 4}},
    {"mesh": "pipe=1,fsdp=2,tp=4", "micro_batch": 2, "remat": "full"},
    {"mesh": "pipe=1,fsdp=2,tp=4", "set": {"layers": 2, "sequence_parallel": True}},
    {"mesh": "pipe=2,fsdp=4", "model": "gpt3-1.3b", "micro_batch": 1},
    {**EXPERTS, "mesh": "pipe=1,expert=8", "micro_batch": 1},
    {
        "model": "deepseek-v3",
        "mesh": "pipe=2,expert=4",
        "micro_batch": 1,
        "set": {"layers": 4, "experts": 8},
    },
    {"mesh": "fsdp=8", "software": "torchtitan"},
    {"mesh": "fsdp=8", "software": "torchtitan", "remat": "elementwise"},
]


@pytest.mark.parametrize(
    "changes",
    [
        *FRAMEWORKS[:2],
        *(pytest.param(case, marks=pytest.mark.rest) for case in FRAMEWORKS[2:]),
    ],
    ids=str,
)
def test_no_bound_exceeds_what_a_framework_takes(changes: dict[str, Any]) -> None:
    given = {**SMALL, "model": "llama3-500m", "software": "megatron", **changes}
    (candidate,) = candidates_of(study_of(given))
    options = candidate.options()
    if not options.is_pipeline:
        check(checks.checked(options))
        return
    cut = cutting.cut_of(options)
    least = pipeline_bounds(cut, machines.device_of(cut.options.estimate))
    prediction = staged.predict_pipeline(options)
    assert 0.4 * prediction.peak_memory_bytes < least.memory_bytes <= prediction.peak_memory_bytes
    assert 0 < least.time_s <= prediction.step_time_s


def test_the_bound_of_a_pipeline_has_its_messages() -> None:
    given: dict[str, Any] = {"model": "Qwen/Qwen3-30B-A3B", "cluster": "64xH100_80GB"}
    given |= {"mesh": "pipe=2,expert=32", "global_batch": 64, "micro_batch": 1, "remat": "full"}
    (candidate,) = candidates_of(study_of({**given, "set": {"layers": 4}}))
    options = replace(candidate.options(), compile=CompileChoice(fidelity=Fidelity.FUSED))
    cut = cutting.cut_of(options)
    least_s = pipeline_bounds(cut, machines.device_of(cut.options.estimate)).time_s
    # Two sequences in two layers: rows of 8 experts cross links six times, from 24 of 32 devices.
    rows_bytes = 2 * 2 * 6 * 8 * 4096 * 2048 * 2
    assert least_s == pytest.approx(rows_bytes * 24 / 32 / 50e9, rel=0.01)
    assert least_s < staged.predict_pipeline(options).step_time_s


def test_the_bound_of_a_pipeline_has_its_bubble() -> None:
    given: dict[str, Any] = {
        **SMALL,
        "model": "llama3-8b",
        "set": {},
        "mesh": "pipe=8",
        "micro_batch": 1,
    }

    def least_s(batch: int) -> float:
        (candidate,) = candidates_of(study_of({**given, "global_batch": batch}))
        cut = cutting.cut_of(candidate.options())
        return pipeline_bounds(cut, machines.device_of(cut.options.estimate)).time_s

    # The last of 8 stages computes all micro-batches after one came to it through the others.
    assert least_s(4) / 4 > 1.1 * least_s(64) / 64


def test_bounds_grow_with_what_is_kept_and_fall_with_devices() -> None:
    kept, again = bounds(options_of()), bounds(options_of(remat="full"))
    assert kept.memory_bytes > again.memory_bytes
    whole, divided = bounds(options_of(mesh="data=8")), bounds(options_of(mesh="fsdp=8"))
    assert whole.memory_bytes > divided.memory_bytes
    assert whole.time_s == pytest.approx(divided.time_s, rel=0.5)


def test_weights_come_twice_and_their_gradients_leave_through_a_node_s_links() -> None:
    keys: dict[str, Any] = {"model": "llama3-8b", "set": {}, "cluster": "64xH100_80GB"}
    keys |= {"mesh": "fsdp=64", "global_batch": 256, "sequence": 1024}
    # Other nodes send a node 7/8 of the layers' 6.98e9 weights in bf16, through its 8 links.
    gathered_s = 3 * 2 * 6.98e9 * 7 / 8 / (8 * 50e9)
    assert bounds(options_of(**keys, micro_batch=1)).time_s == pytest.approx(
        4 * gathered_s, rel=0.01
    )


def test_rows_go_to_experts_and_back_in_both_passes() -> None:
    keys: dict[str, Any] = {"model": "Qwen/Qwen3-30B-A3B", "set": {}, "cluster": "64xH100_80GB"}
    keys |= {"global_batch": 256, "sequence": 4096, "micro_batch": 4}
    rows_bytes = 4 * 8 * 4 * 4096 * 2048 * 2 * 48
    far = bounds(options_of(**keys, mesh="expert=64"))
    # 3.3e9 weights of a token in forward products and those of rows' gradients, at 989 TFLOP/s.
    computing_s = 4 * 3.3e9 * 4 * 4096 / 989e12
    sending_s = rows_bytes * 56 / 64 / 50e9
    assert far.time_s == pytest.approx(sending_s + computing_s, rel=0.03)
    again = bounds(options_of(**keys, mesh="expert=64", remat="full"))
    assert again.time_s == pytest.approx(1.5 * sending_s + computing_s, rel=0.03)
    near = bounds(options_of(**keys, mesh="data=8,expert=8"))
    assert near.time_s < far.time_s / 2


def test_a_network_that_is_no_switch_has_no_bound_of_messages() -> None:
    keys: dict[str, Any] = {"model": "llama3-8b", "set": {}, "mesh": "fsdp=16"}
    ring = bounds(options_of(**keys, cluster="16xTPUv5e", sequence=64))
    switched = bounds(options_of(**keys, cluster="16xH100_80GB", sequence=64))
    # States pass through the TPU's memory, its gathered weights through the GPU's links.
    assert ring.time_s == pytest.approx(2 * 12 * 8.03e9 / 16 / 819e9, rel=0.02)
    assert switched.time_s == pytest.approx(3 * 2 * 6.98e9 * 8 / 16 / (8 * 50e9), rel=0.02)


def test_what_has_no_sizes_has_a_bound_of_time_alone() -> None:
    (candidate,) = candidates_of(study_of({"model": "gemm-rows", "cluster": "4xH100_80GB"}))
    least = bounds(checks.checked(candidate.options()))
    assert least.memory_bytes == 0
    assert least.time_s > 0
