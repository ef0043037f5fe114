"""Estimates of a candidate's step: closed forms, and the order that predictions have."""

from __future__ import annotations

from typing import Any

import pytest

from hespas.study.entry import Entry, entry_of
from hespas.study.space import candidates_of
from hespas.study.study import study_of

PREDICTED = (
    ("fsdp=64", "full", 4, 1.36),
    ("data=2,fsdp=32", "full", 4, 1.38),
    ("fsdp=64", "minimal_with_context", 2, 1.46),
    ("data=2,fsdp=4,expert=8", "full", 4, 1.89),
    ("data=2,fsdp=4,expert=8", "full", 2, 2.43),
    ("fsdp=64", "minimal_with_context", 1, 2.67),
    ("data=2,fsdp=4,expert=4,tp=2", "minimal_with_context", 4, 3.42),
    ("data=2,fsdp=8,expert=4", "minimal_with_context", 1, 3.57),
    ("data=4,expert=16", "full", 1, 3.93),
    ("fsdp=16,expert=2,tp=2", "minimal_with_context", 2, 4.19),
    ("expert=64", "full", 4, 4.38),
    ("data=4,expert=8,tp=2", "full", 4, 5.80),
    ("fsdp=8,expert=4,tp=2", "minimal_with_context", 1, 6.69),
    ("data=4,expert=8,tp=2", "full", 1, 7.30),
    ("fsdp=4,expert=4,tp=4", "full", 4, 10.54),
    ("data=2,fsdp=2,expert=4,tp=4", "full", 1, 13.98),
)
"""Steps of Qwen3-30B-A3B with 256 sequences on 64 H100s, in s, as hespas predicts them (fused)."""


def entry(**keys: Any) -> Entry:
    (candidate,) = candidates_of(study_of({"cluster": "64xH100_80GB", "global_batch": 256, **keys}))
    return entry_of(0, candidate)


def test_what_is_predicted_to_be_fast_is_expected_to_be() -> None:
    expected = [
        entry(
            model="Qwen/Qwen3-30B-A3B", mesh=mesh, remat=remat, micro_batch=micro_batch
        ).expected.time_s
        for mesh, remat, micro_batch, _ in PREDICTED
    ]
    assert expected.index(min(expected)) == 0
    pairs = [(one, two) for two in range(len(expected)) for one in range(two)]
    as_predicted = sum(expected[one] < expected[two] for one, two in pairs)
    assert as_predicted > 0.9 * len(pairs)


def test_no_bound_exceeds_a_predicted_step() -> None:
    for mesh, remat, micro_batch, predicted_s in PREDICTED:
        found = entry(model="Qwen/Qwen3-30B-A3B", mesh=mesh, remat=remat, micro_batch=micro_batch)
        assert predicted_s / 5 < found.bounds.time_s < predicted_s


def test_weights_are_gathered_and_scattered_through_the_links_of_a_node_together() -> None:
    dense: dict[str, Any] = {"model": "llama3-8b", "remat": "none", "micro_batch": 4}
    once, twice = (entry(mesh="fsdp=64", **dense | {"micro_batch": size}) for size in (4, 2))
    # 16 GB of weights in bf16 three times for each of as many rounds, at 8 times 50 GB/s.
    gathered_s = 3 * 2 * 8.03e9 * 63 / 64 / (8 * 50e9)
    read_s = 3 * 2 * 8.03e9 / 3.35e12
    assert twice.expected.time_s - once.expected.time_s == pytest.approx(
        gathered_s + read_s, rel=0.02
    )


def test_rows_are_sent_to_experts_through_a_device_s_own_link() -> None:
    keys: dict[str, Any] = {"model": "Qwen/Qwen3-30B-A3B", "remat": "none", "micro_batch": 4}
    near, far = entry(mesh="data=8,expert=8", **keys), entry(mesh="expert=64", **keys)
    # 8 experts get 4 sequences of 4,096 rows of 2,048 numbers in 48 layers, there and back in both
    # passes; of 64 devices 56 are in other nodes, and each sends them 50 GB/s.
    rows_bytes = 8 * 4 * 4096 * 2048 * 2 * 48 * 4
    assert far.expected.time_s > rows_bytes * 56 / 64 / 50e9
    assert near.expected.time_s < far.expected.time_s


def test_what_is_no_language_model_is_expected_to_meet_its_bound() -> None:
    one = entry(model="microsoft/resnet-50", global_batch=64)
    assert one.expected.time_s == one.bounds.time_s > 0


def test_stages_of_a_pipeline_compute_at_the_same_time() -> None:
    keys: dict[str, Any] = {"model": "llama3-70b", "remat": "full"}
    whole = entry(mesh="fsdp=64", micro_batch=1, **keys)
    staged = entry(mesh="pipe=4,fsdp=16", micro_batch=1, **keys)
    assert staged.bounds.time_s < staged.expected.time_s < 2 * whole.expected.time_s


PEAKS = (
    ("fsdp=64", "full", 4, 25.1),
    ("fsdp=64", "minimal_with_context", 2, 54.3),
    ("data=2,fsdp=32", "minimal_with_context", 2, 67.9),
    ("fsdp=64", "minimal_with_context", 4, 86.3),
    ("data=2,fsdp=32", "minimal_with_context", 4, 96.4),
    ("data=4,fsdp=2,expert=8", "minimal_with_context", 4, 125.6),
)
"""Peak memory of a device in the same steps, in GB, as hespas predicts it; 85.9 GB fit."""


def test_what_does_not_fit_is_expected_to_be_too_large() -> None:
    for mesh, remat, micro_batch, peak_gb in PEAKS:
        found = entry(model="Qwen/Qwen3-30B-A3B", mesh=mesh, remat=remat, micro_batch=micro_batch)
        assert found.capacity_bytes is not None
        is_large = found.expected.memory_bytes > found.capacity_bytes
        assert is_large == (peak_gb * 1e9 > found.capacity_bytes), mesh
        assert found.bounds.memory_bytes < found.expected.memory_bytes < 1.3 * peak_gb * 1e9
