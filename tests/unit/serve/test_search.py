"""A search ranks layouts by the rate that they serve, and says why others are not the best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from hespas.errors import ConfigError
from hespas.models.model import parse_mesh
from hespas.report.serving import serving_search_text
from hespas.serve import search
from hespas.serve.answer import Bound, Latency, Objectives, ServingReport, SurfaceReport
from hespas.serve.options import LoadOptions, ServeOptions
from hespas.serve.search import CONCURRENT, layout_name, search_serving
from hespas.serve.surface import Surfaces
from hespas.sources.options import ModelOptions

OPTIONS = ServeOptions(model_name="m", cluster="8xH100_80GB", load=LoadOptions(rate=5.0))
RATES: Mapping[int, float | None] = {2: 10.0, 4: 20.0, 8: None, 16: 5.0, 32: 4.0}


def _report(tensor: int, concurrent: int) -> ServingReport:
    """A larger ``tp`` is faster for a user, and no better for a device."""
    time = Latency(mean=1 / tensor, p50=1 / tensor, p90=1.0, p99=1.0)
    return ServingReport(
        model="m",
        engine="vllm",
        cluster="8xH100_80GB",
        devices=8,
        replicas=8 // tensor,
        requests=1,
        ttft_s=time,
        tpot_s=msgspec.structs.replace(time, mean=(1 + concurrent) / tensor),
        latency_s=time,
        queue_s=time,
        duration_s=1.0,
        output_tokens_per_s=1.0,
        output_tokens_per_s_per_device=concurrent / tensor,
        requests_per_s=1.0,
        goodput=None,
        max_rate=RATES[tensor],
        prefill_replicas=0,
        prefix_hit_rate=None,
        prompt_share=0.3,
        load="stable",
        rates=[],
        kv_blocks=1,
        block_tokens=16,
        mean_batch=1.0,
        preemptions=0,
        iterations=1,
        bound=Bound(decode="memory", prefill="compute", queue="KV blocks"),
        expected_error=None,
        left_out_error=0.0,
        energy_j_per_output_token=None,
        usd_per_million_output_tokens=None,
        launch=f"serve {tensor}",
        steps=SurfaceReport(tokens_s=(), context_s=(), pair_s=0.0),
        states=[],
        assumptions=[],
    )


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    def serving(options: ServeOptions, surfaces: Surfaces) -> ServingReport:
        assert isinstance(surfaces, Surfaces)
        assert options.model.mesh is not None
        tensor = options.model.mesh.device_count
        if tensor == 1:
            raise ConfigError("m does not fit")
        report = _report(tensor, options.load.concurrency or 1)
        if options.prefill_replicas:
            return msgspec.structs.replace(report, max_rate=1.0)
        return report

    monkeypatch.setattr(search, "serving", serving)


@pytest.mark.usefixtures("served")
def test_layouts_are_ranked_and_explained() -> None:
    found = search_serving(OPTIONS)
    assert [layout.tp for layout in found.layouts] == [4, 2, 4, 2, 8, 1]
    best, second, *divided, missing, refused = found.layouts
    assert [(one.replicas, one.prefill_replicas) for one in divided] == [(1, 1), (3, 1)]
    assert (best.reason, best.replicas) == ("", 2)
    assert second.reason.startswith("50% of the best; decoding is bound by memory")
    assert second.reason.endswith("the queue by KV blocks")
    assert missing.reason.startswith("no rate meets the objectives: a request takes 125 ms")
    assert (refused.reason, refused.report) == ("m does not fit", None)
    text = serving_search_text(found)
    assert "serve 4" in text
    assert "tp=1: m does not fit" in text


@pytest.mark.usefixtures("served")
def test_stages_are_searched_where_a_replica_is_more_than_a_node() -> None:
    found = search_serving(replace(OPTIONS, cluster="32xH100_80GB"))
    names = {layout_name(each) for each in found.layouts if not each.prefill_replicas}
    assert names == {
        *(f"tp={size}" for size in (1, 2, 4, 8, 16, 32)),
        *("pipe=2, tp=8", "pipe=4, tp=8"),
    }
    assert {each.replicas for each in found.layouts if each.pipe == 2} >= {2}


@pytest.mark.usefixtures("served")
def test_a_trade_off_is_best_where_no_other_has_more_of_both() -> None:
    points = [point for layout in search_serving(OPTIONS).layouts for point in layout.trade_offs]
    assert len(points) == 3 * len(CONCURRENT)
    for point in points:
        beaten = [
            other
            for other in points
            if other.tokens_per_s_per_user > point.tokens_per_s_per_user
            and other.tokens_per_s_per_device > point.tokens_per_s_per_device
        ]
        assert not (point.is_best and beaten)
    assert any(point.is_best for point in points)


def test_trade_offs_have_the_mean_lengths_of_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "load.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,100,20\n1,300,40\n")
    lengths: set[tuple[int, int]] = set()

    def serving(options: ServeOptions, surfaces: Surfaces) -> ServingReport:
        del surfaces
        if options.load.concurrency is not None:
            lengths.add((options.load.isl, options.load.osl))
        return _report(2, options.load.concurrency or 1)

    monkeypatch.setattr(search, "serving", serving)
    search_serving(replace(OPTIONS, load=LoadOptions(load=file)))
    assert lengths == {(200, 30)}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"load": LoadOptions(concurrency=3)}, "no effect in a search"),
        ({"replicas": 2}, "chooses the mesh and the replicas"),
        ({"model": ModelOptions(mesh=parse_mesh("tp=2"))}, "chooses the mesh and the replicas"),
    ],
)
def test_what_a_search_chooses_is_not_given(changed: dict[str, object], message: str) -> None:
    given = {"model_name": "m", "cluster": "8xH100_80GB", "load": LoadOptions(rate=5.0)}
    options = ServeOptions(**{**given, **changed})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=message):
        search_serving(options)


@pytest.mark.usefixtures("served")
def test_each_type_of_weights_is_searched() -> None:
    found = search_serving(OPTIONS, weights=("bf16", "f8"))
    assert {layout.weight_dtype for layout in found.layouts} == {"bf16", "f8"}
    assert layout_name(found.layouts[0]) == "tp=4, bf16"
    fixed = replace(OPTIONS, model=ModelOptions(settings={"weight_dtype": "f8"}))
    with pytest.raises(ConfigError, match="types of weights are given"):
        search_serving(fixed, weights=("bf16",))


def test_smaller_batches_are_a_layout_where_objectives_ask_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def serving(options: ServeOptions, surfaces: Surfaces) -> ServingReport:
        del surfaces
        limit = options.engine.max_sequences
        most = {None: None, 16: 3.0, 64: 5.0, 256: 5.01}[limit]
        return msgspec.structs.replace(_report(2, options.load.concurrency or 1), max_rate=most)

    monkeypatch.setattr(search, "serving", serving)
    best, *others = search_serving(replace(OPTIONS, slo=Objectives(tpot_s=0.01))).layouts
    assert (best.max_sequences, best.reason) == (64, "")
    assert layout_name(best).endswith("batches of 64")
    assert any("no rate meets the objectives" in layout.reason for layout in others)


def test_objectives_that_no_layout_meets_are_said_of_the_first_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def serving(options: ServeOptions, surfaces: Surfaces) -> ServingReport:
        del surfaces
        return msgspec.structs.replace(_report(2, options.load.concurrency or 1), max_rate=None)

    monkeypatch.setattr(search, "serving", serving)
    layouts = search_serving(replace(OPTIONS, slo=Objectives(tpot_s=1e-6))).layouts
    assert all("no rate meets the objectives" in layout.reason for layout in layouts)
