# pyright: reportUnknownMemberType=false
"""Decode steps read each weight once: their traffic is that of weights, states and keys."""

from __future__ import annotations

from typing import Any

import pytest

import hespas


@pytest.mark.parametrize(
    ("model", "cluster", "settings"),
    [
        ("nvidia/Nemotron-H-8B-Base-8K", "1xH100_80GB", {"context": 1024}),
        ("ibm-granite/granite-4.0-h-micro", "1xH100_80GB", {"context": 1024}),
        ("Qwen/Qwen3-4B", "1xH100_80GB", {"context": 1024, "layers": 4}),
        ("google/gemma-3-4b-it", "1xH100_80GB", {"context": 1024}),
    ],
)
def test_a_decode_step_of_one_sequence_reads_what_it_holds_once(
    model: str, cluster: str, settings: dict[str, int]
) -> None:
    step = hespas.predict(
        f"{model}:decode", cluster=cluster, mesh="tp=1", batch=1, settings=settings,
        fidelity="library", disable_cache=True,
    )  # fmt: skip
    report: Any = step.to_dict()
    assert report["memory_traffic_bytes"] < 1.03 * report["memory"]["argument_bytes"]
