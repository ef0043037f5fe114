"""Bounds are never better than predictions, of memory and of time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from compilers import needs_gpu
from hespas.prediction import checks, composition, cutting, machines, staged, workload
from hespas.prediction.options import CompileChoice, Fidelity, PredictOptions
from hespas.sources.source import ModelSource
from hespas.study.entry import Bounds, bounds_of, pipeline_bounds
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
    source = workload.source_of(options, system)
    assert system is not None
    assert isinstance(source, ModelSource)
    return bounds_of(source, machines.device_of(options.estimate), system.device_count)


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


def test_what_has_no_sizes_has_a_bound_of_time_alone() -> None:
    (candidate,) = candidates_of(study_of({"model": "gemm-rows", "cluster": "4xH100_80GB"}))
    least = bounds(checks.checked(candidate.options()))
    assert least.memory_bytes == 0
    assert least.time_s > 0
