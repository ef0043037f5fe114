"""Prices that are kept between runs are those that would be made again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from hespas.prediction import composition
from hespas.prediction.explain import changes
from hespas.prediction.figures.step import run_report
from hespas.prediction.options import (
    AS_GIVEN,
    EstimateOptions,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.prediction.result import Prediction

KERNELS = 40
GROUPS = "replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%add"


def program() -> str:
    """Return a compiled program of kernels of different sizes, with collectives between."""
    return "\n".join(["HloModule step, is_scheduled=true, num_partitions=4", *_lines(), "}"])


def _lines() -> Iterator[str]:
    yield "%add (x: f32[], y: f32[]) -> f32[] {"
    yield "  %x = f32[] parameter(0)\n  %y = f32[] parameter(1)"
    yield "  ROOT %sum = f32[] add(%x, %y)\n}"
    for size in range(1, KERNELS + 1):
        kind = f"f32[{size}]"
        yield f"%fused_{size} (p: f32[]) -> {kind} {{\n  %p = f32[] parameter(0)"
        yield f"  ROOT %b = {kind} broadcast(%p), dimensions={{}}\n}}"
    yield f"ENTRY %main (a: f32[]) -> f32[{KERNELS}] {{\n  %a = f32[] parameter(0)"
    for size in range(1, KERNELS + 1):
        root = "ROOT " if size == KERNELS else ""
        kind = f"f32[{size}]"
        yield f"  %k_{size} = {kind} fusion(%a), kind=kLoop, calls=%fused_{size}"
        yield f"  {root}%r_{size} = {kind} all-reduce(%k_{size}), channel_id={size}, {GROUPS}"


def predicted(tmp_path: Path, cache: Path | None) -> Prediction:
    file = tmp_path / "step.hlo"
    file.write_text(program())
    return composition.predict(
        PredictOptions(
            program=ProgramOptions(file=file),
            compile=AS_GIVEN,
            estimate=EstimateOptions(
                node="H100_80GB", cache_dir=cache, in_memory_only_cache=cache is None
            ),
            network=NetworkOptions(system="H100_80GB_4GPU"),
        )
    )


def answer(prediction: Prediction) -> str:
    given = msgspec.to_builtins(run_report(prediction))
    # They say where the cache is, and whether there is one.
    return json.dumps({key: value for key, value in given.items() if key != "options"})


def test_the_answer_is_the_same_with_prices_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    made = answer(predicted(tmp_path, None))
    assert answer(predicted(tmp_path, cache)) == made
    # Memory, arithmetic and launches.
    assert len(list(cache.glob("*.prices"))) == 3
    monkeypatch.setattr(changes, "priced_again", _none_again)
    assert answer(predicted(tmp_path, cache)) == made


def _none_again(
    _graph: object, _before: object, methods: list[object], **_: object
) -> list[object]:
    assert not methods
    return []
