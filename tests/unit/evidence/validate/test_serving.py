"""Points of engines under load are read, served as their clients did, and ranked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hespas.errors import MeasurementError
from hespas.evidence.validate.serving import (
    SERVING_TABLE,
    Client,
    ServedPoint,
    ServingPoint,
    ranking,
    read_serving_points,
    serving_json,
    serving_summary,
)

POINT = ServingPoint(
    line=2,
    source="a page",
    client=Client.AICONFIGURATOR,
    model="Qwen/Qwen3-8B",
    hardware="H100_80GB",
    engine="vllm",
    precision="bf16",
    tensor=2,
    experts=1,
    concurrency=8,
    isl=1000,
    osl=100,
    statistic="mean",
    ttft_s=0.1,
    tpot_s=0.01,
)


def test_every_published_point_has_options() -> None:
    points = read_serving_points()
    assert len({point.name + str(point.ttft_s) for point in points}) == len(points)
    for point in points:
        assert point.options().load.made().concurrency == point.concurrency


def test_a_client_decides_lengths_and_the_budget() -> None:
    own = POINT.options()
    assert own.load.length_spread == 0
    assert own.engine.max_batched_tokens == 8 + 1000 + 1500
    assert replace(POINT, engine="trtllm").options().engine.max_batched_tokens == 2528
    assert replace(POINT, engine="sglang").options().engine.max_batched_tokens is None
    other = replace(POINT, client=Client.INFERENCEX).options()
    assert other.engine.max_batched_tokens is None
    lengths = other.load.made().prompts
    assert (min(lengths), max(lengths)) >= (800, 900)
    assert max(lengths) <= 1000


def test_only_tensorrt_llm_caches_keys_in_8_bits_in_fp8() -> None:
    fp8 = replace(POINT, precision="fp8")
    assert "cache_dtype" not in fp8.options().model.settings
    assert replace(fp8, engine="trtllm").options().model.settings["cache_dtype"] == "f8"


@pytest.mark.parametrize(
    ("engine", "version", "ahead"),
    [
        ("vllm", "0.12.0", False),
        ("vllm", "0.16.0", True),
        ("vllm", "", True),
        ("trtllm", "0.12.0", True),
        ("sglang", "nightly-dev", True),
    ],
)
def test_versions_of_vllm_schedule_ahead(*, engine: str, version: str, ahead: bool) -> None:
    point = replace(POINT, engine=engine, version=version)
    assert point.options().engine.plan_ahead == ahead


def test_pairs_are_ranked_by_tokens_of_a_device() -> None:
    def served(tensor: int, published_s: float, predicted_s: float) -> ServedPoint:
        point = replace(POINT, tensor=tensor, tpot_s=published_s)
        return ServedPoint(point=point, ttft_s=0.1, tpot_s=predicted_s)

    points = [served(1, 0.01, 0.012), served(2, 0.008, 0.007), served(4, 0.001, 0.1)]
    assert ranking(points) == {"pairs": 3, "right": 1}
    close = served(1, 0.0101, 0.001)
    assert ranking([points[0], close]) == {"pairs": 0, "right": 0}
    again = served(1, 0.005, 0.012)
    assert ranking([points[0], again]) == {"pairs": 0, "right": 0}
    moved = replace(points[1].point, concurrency=4)
    other = [points[0], replace(points[1], point=moved)]
    assert ranking(other)["pairs"] == 0
    assert ranking(other, same_load=False)["pairs"] == 1


def test_a_point_that_is_not_predicted_has_a_reason_and_no_error() -> None:
    refused = ServedPoint(point=POINT, reason="does not fit")
    rows = serving_json([refused])["points"]
    assert isinstance(rows, list)
    assert rows[0]["tpot_error"] is None
    assert serving_summary([refused])[0]["median_tpot_error"] is None


@pytest.mark.parametrize(
    ("column", "value"), [("engine", "mine"), ("client", "me"), ("statistic", "p42")]
)
def test_a_value_that_is_not_known_is_named(tmp_path: Path, column: str, value: str) -> None:
    head, first, *_ = SERVING_TABLE.read_text().splitlines()
    cells = dict(zip(head.split(","), first.split(","), strict=True)) | {column: value}
    file = tmp_path / "points.csv"
    file.write_text(f"{head}\n{','.join(cells.values())}\n")
    with pytest.raises(MeasurementError, match=f"{column} '{value}'"):
        read_serving_points(file)


def test_experts_of_a_point_are_whole_where_its_engine_has_them_so() -> None:
    assert "expert_axes" not in POINT.options().model.settings
    assert replace(POINT, experts=2).options().model.settings["expert_axes"] == "tp"
