"""The page of a served load and of a search: each figure of a chart is one of the result."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hespas.errors import ConfigError
from hespas.report.page.document import Table, page_html
from hespas.report.page.serving import is_served, serving_page, serving_result
from hespas.report.page.vega import Chart
from hespas.serve.answer import (
    Bound,
    Latency,
    RatePoint,
    ServingReport,
    StageRow,
    SurfaceReport,
)
from hespas.serve.search import Layout, ServingSearch, TradeOff
from hespas.serve.simulation import StateRow

TIME = Latency(mean=0.05, p50=0.04, p90=0.08, p99=0.2)
REPORT = ServingReport(
    model="ORG/M",
    engine="vllm",
    cluster="8xH100_80GB",
    devices=8,
    replicas=2,
    prefill_replicas=0,
    requests=10,
    ttft_s=TIME,
    tpot_s=TIME,
    latency_s=TIME,
    queue_s=TIME,
    duration_s=20.0,
    output_tokens_per_s=1000.0,
    output_tokens_per_s_per_device=125.0,
    requests_per_s=2.0,
    goodput=None,
    max_rate=4.0,
    rates=[RatePoint(rate=1.0 * at, ttft_s=TIME, tpot_s=TIME, met=1.0) for at in (1, 2, 4)],
    load="stable",
    prefix_hit_rate=0.5,
    kv_blocks=100,
    block_tokens=16,
    mean_batch=3.0,
    prompt_share=0.2,
    preemptions=0,
    iterations=50,
    bound=Bound(decode="memory", prefill="compute", queue="KV blocks"),
    expected_error=None,
    left_out_error=0.1,
    energy_j_per_output_token=2.0,
    usd_per_million_output_tokens=0.4,
    launch="serve <it>",
    steps=SurfaceReport(tokens_s=((1, 1e-3), (64, 2e-3)), context_s=(), pair_s=0.0),
    states=[StateRow(time_s=1.0, replica=0, decoding=3, waiting=7, kv_blocks=9)],
    assumptions=["steps are linear"],
)


def test_the_page_of_a_load_shows_rates_states_and_iterations() -> None:
    page = serving_page(REPORT)
    charts = {
        part.title: part
        for section in page.sections
        for part in section.parts
        if isinstance(part, Chart)
    }
    assert list(charts) == [
        "First token against rate, in ms",
        "Between tokens against rate, in ms",
        "Sequences that decode",
        "Requests that wait",
        "Blocks in use",
        "An iteration by its new tokens, without attention, in ms",
    ]
    values = charts["First token against rate, in ms"].specification["data"]["values"]
    assert [(row["rate"], row["time"]) for row in values if row["of"] == "p99"] == [
        (1.0, 200.0),
        (2.0, 200.0),
        (4.0, 200.0),
    ]
    html = page_html(page)
    assert "serve &lt;it&gt;" in html
    assert "the queue by KV blocks" in html


def test_the_stages_of_a_pipeline_are_a_table() -> None:
    stages = [
        StageRow(layers=layers, weight_bytes=10**10, kv_blocks=900, decode_s=5e-3, receive_s=0.0)
        for layers in (40, 41)
    ]
    tables = [
        part
        for section in serving_page(msgspec.structs.replace(REPORT, stages=stages)).sections
        if section.title == "The pipeline"
        for part in section.parts
    ]
    assert isinstance(tables[0], Table)
    assert [row[:4] for row in tables[0].rows] == [
        ("0", "40", "10.0", "900"),
        ("1", "41", "10.0", "900"),
    ]


def test_the_page_of_a_search_shows_each_trade_off() -> None:
    point = TradeOff(concurrency=4, tokens_per_s_per_user=50.0, tokens_per_s_per_device=200.0)
    search = ServingSearch(
        model="ORG/M",
        cluster="8xH100_80GB",
        layouts=(
            Layout(tp=4, replicas=2, report=REPORT, trade_offs=(point,)),
            Layout(tp=4, replicas=1, prefill_replicas=1, report=REPORT, reason="50% of the best"),
            Layout(tp=1, replicas=8, reason="does not fit"),
        ),
    )
    page = serving_page(search)
    assert "tp=4, 1 for prompts" in page_html(page)
    (chart,) = page.sections[1].parts
    assert isinstance(chart, Chart)
    assert [row["user"] for row in chart.specification["data"]["values"]] == [50.0]


def test_a_result_is_read_back_and_one_of_another_version_is_refused() -> None:
    data = msgspec.json.decode(msgspec.json.encode(REPORT))
    assert is_served(data)
    assert serving_result(data, Path("a.json")) == REPORT
    assert not is_served({"step_time_s": 1.0, "compute_s": 1.0})
    del data["rates"]
    with pytest.raises(ConfigError, match="not this version's"):
        serving_result(data, Path("a.json"))
