"""The surface finds what each part of a predicted step takes, and goes through the steps."""

from __future__ import annotations

import msgspec
import pytest

from hespas.prediction.figures.schema import EnergyParts, OpRow, RunReport
from hespas.serve.load import PICOSECONDS
from hespas.serve.surface import (
    LONG,
    SHORT,
    ServedModel,
    Size,
    Surface,
    Window,
    sizes,
    surface,
)
from step_reports import EMPTY_RESULT

BASE_S, OF_TOKEN_S, OF_CONTEXT_S, OF_PAIR_S = 5e-3, 2e-5, 1e-8, 4e-10
WEIGHTS, OF_ROW, KV = 10_000_000, 1000, 256


def _report(size: Size, *, travelling_s: float = 0.0) -> RunReport:
    tokens = size.batch * (size.tokens if size.is_prompt else 1)
    attended_s = OF_PAIR_S * size.pairs if size.is_prompt else 0.0
    if not size.is_prompt:
        attended_s = OF_CONTEXT_S * size.batch * size.tokens
    computed_s = BASE_S + OF_TOKEN_S * tokens + attended_s
    made = {
        "compute_s": computed_s,
        "communication_s": travelling_s * tokens,
        "exposed_communication_s": travelling_s * tokens,
        "step_time_s": computed_s + travelling_s * tokens,
        "peak_memory_bytes": WEIGHTS + OF_ROW * tokens + KV * size.batch * size.tokens,
        "memory_capacity_bytes": 80_000_000,
        "energy_j": 3.0,
    }
    empty = {**EMPTY_RESULT, "schema_version": 1, "memory_capacity_bytes": None}
    return msgspec.convert({**empty, **made}, RunReport, strict=False)


@pytest.fixture(scope="module")
def exact() -> Surface:
    return surface({size: _report(size) for size in sizes()}, parts=1)


def test_the_parts_of_a_linear_engine_are_found_exactly(exact: Surface) -> None:
    assert exact.times.pair_s == pytest.approx(OF_PAIR_S)
    assert [value for _, value in exact.times.context_s] == pytest.approx([OF_CONTEXT_S] * 3)
    for tokens, value in exact.times.tokens_s:
        assert value == pytest.approx(BASE_S + OF_TOKEN_S * tokens, rel=1e-6)
    assert exact.times.left_out_error == pytest.approx(0, abs=1e-9)


def test_halves_compute_while_tokens_travel() -> None:
    reports = {size: _report(size, travelling_s=1e-4) for size in sizes()}
    times = surface(reports, parts=1, in_halves=True).times
    # Two halves start twice, and have the tokens of one step.
    for tokens, value in times.tokens_s:
        assert value == pytest.approx(2 * BASE_S + OF_TOKEN_S * tokens, rel=1e-6)
    for tokens, value in times.exchange_s:
        assert value == pytest.approx(1e-4 * tokens)
    assert times.pair_s == pytest.approx(OF_PAIR_S)
    assert [value for _, value in times.context_s] == pytest.approx([OF_CONTEXT_S] * 3)


def test_memory_is_divided_into_weights_workspace_and_cache(exact: Surface) -> None:
    memory = exact.memory
    assert memory.kv_bytes_per_token == memory.kv_bytes_beyond == KV
    assert memory.weights_bytes == WEIGHTS + OF_ROW
    assert memory.workspace_bytes == OF_ROW * (8192 - 1)


def _windowed(size: Size, window: Window) -> RunReport:
    """Return the report of a step in which some layers see a window alone."""
    share = window.layers / (window.layers + window.full_layers)
    report, tokens = _report(size), size.tokens
    seen = min(tokens, window.tokens)
    unread_s = OF_PAIR_S * (size.pairs - size.pairs_within(window.tokens))
    if not size.is_prompt:
        unread_s = OF_CONTEXT_S * size.batch * (tokens - seen)
    return msgspec.structs.replace(
        report,
        step_time_s=report.step_time_s - share * unread_s,
        peak_memory_bytes=report.peak_memory_bytes
        - round(share * KV * size.batch * (tokens - seen)),
    )


@pytest.mark.parametrize("tokens", [128, 1024, 4096])
def test_layers_with_a_window_are_told_from_others(tokens: int) -> None:
    window = Window(tokens=tokens, layers=3, full_layers=1, cached_share=0.75)
    designed = sizes(window=tokens)
    reports = {size: _windowed(size, window) for size in designed}
    made = surface(reports, parts=1, window=window)
    times, memory = made.times, made.memory
    assert times.pair_s == pytest.approx(OF_PAIR_S / 4)
    assert times.window_pair_s == pytest.approx(3 * OF_PAIR_S / 4)
    assert [value for _, value in times.context_s] == pytest.approx([OF_CONTEXT_S / 4] * 3)
    assert memory.kv_bytes_beyond == pytest.approx(KV / 4)
    assert memory.kv_bytes_per_token == pytest.approx(KV)
    assert memory.weights_bytes == pytest.approx(WEIGHTS + OF_ROW, abs=2)
    if tokens > SHORT:
        assert [value for _, value in times.window_s] == pytest.approx([3 * OF_CONTEXT_S / 4] * 3)
        for size in designed:
            if size.is_prompt:
                continue
            of_tokens_s = dict(times.tokens_s)[size.batch]
            attended_ps, *_ = times.attended_ps(size.batch, size.batch * size.tokens, 1)
            step_s = of_tokens_s + attended_ps / PICOSECONDS
            assert step_s == pytest.approx(reports[size].step_time_s)


def test_of_recurrences_attention_alone_counts_pairs() -> None:
    """A recurrence takes as long as its longest sequence, which is no pair of tokens."""
    state, of_longest_s = 5_000, 1e-5

    def report_of(size: Size) -> RunReport:
        report = _report(size)
        attended = OpRow(count=1, time_s=OF_PAIR_S * size.pairs, flops=0.0, bytes=0.0)
        return msgspec.structs.replace(
            report,
            step_time_s=report.step_time_s + of_longest_s * size.tokens * size.is_prompt,
            peak_memory_bytes=report.peak_memory_bytes + state * size.batch,
            per_op={"stablehlo.custom_call": attended},
        )

    reports = {size: report_of(size) for size in sizes()}
    made = surface(reports, parts=1, state_bytes=state)
    assert made.times.pair_s == pytest.approx(OF_PAIR_S)
    assert dict(made.times.tokens_s)[8192] == pytest.approx(
        BASE_S + 8192 * (OF_TOKEN_S + of_longest_s)
    )
    assert made.memory.weights_bytes == WEIGHTS + OF_ROW


def test_power_is_that_of_the_steps(exact: Surface) -> None:
    assert exact.power_w is not None
    assert exact.power_w[0] == (1, pytest.approx(3.0 / exact.reports[sizes()[0]].step_time_s, 0.01))


def test_a_device_that_waits_draws_what_a_step_draws_beside_work() -> None:
    parts = EnergyParts(
        compute_j=20.0,
        memory_j=10.0,
        idle_j=10.0,
        node_j=6.0,
        network_j=None,
        facility_j=0.0,
        device_w=400.0,
        node_w=None,
        node_devices=None,
        clock=1.0,
        power_limit_w=700.0,
    )
    reports = {
        size: msgspec.structs.replace(_report(size), energy=parts, energy_j=46.0)
        for size in sizes()
    }
    # A step of 0.1 s: 40 J of 400 W.
    assert surface(reports, parts=1).idle_w == pytest.approx((10 + 6) / 0.1)
    reports = {size: msgspec.structs.replace(_report(size), energy=None) for size in sizes()}
    assert surface(reports, parts=1).idle_w == 0


def test_the_nearest_step_says_what_bounds_it(exact: Surface) -> None:
    assert exact.report_near(60, is_prompt=False) is exact.reports[Size(batch=64, tokens=SHORT)]
    whole = Size(batch=1, tokens=4096, is_prompt=True)
    assert exact.report_near(3000, is_prompt=True) is exact.reports[whole]


@pytest.mark.parametrize("longest", [None, 2048, 131072])
def test_no_step_is_longer_than_the_context(longest: int | None) -> None:
    designed = sizes(longest=longest)
    assert max(size.tokens for size in designed) <= (longest or 8192)
    assert {size.tokens for size in designed if not size.is_prompt} == {
        SHORT,
        min(LONG, longest or LONG),
    }
    cut, whole = designed[-1], designed[-2]
    assert cut.batch * cut.tokens == whole.tokens


def test_experts_have_more_batches_that_decode() -> None:
    batches = [size.batch for size in sizes(routes=True) if size.tokens == SHORT]
    assert batches == [1, 8, 16, 32, 64, 256]
    made = surface({size: _report(size) for size in sizes(routes=True)}, parts=1)
    assert made.times.left_out_error == pytest.approx(0, abs=1e-9)


def test_a_size_is_a_candidate_of_a_study() -> None:
    model = ServedModel(
        name="llama3-8b",
        cluster="2xH100_80GB",
        mesh=(("tp", 2),),
        settings={"weight_dtype": "f8"},
        values={},
    )
    decode = model.candidate(Size(batch=8, tokens=512)).to_dict()
    assert decode == {
        "model": "llama3-8b",
        "cluster": "2xH100_80GB",
        "batch": 8,
        "decode": True,
        "mesh": {"tp": 2},
        "set": {"weight_dtype": "f8", "context": 512},
    }
    prefill = model.candidate(Size(batch=1, tokens=1024, is_prompt=True)).to_dict()
    assert (prefill["sequence"], prefill["prefill"]) == (1024, True)


def test_contexts_of_selected_tokens_are_longer_than_those() -> None:
    (cut,) = (size for size in sizes(selected=2048) if size.is_prompt and size.batch > 1)
    assert (cut.batch, cut.tokens) == (2, 4096)
    decoded = {size.tokens for size in sizes(selected=2048) if not size.is_prompt}
    assert decoded == {4096, 8192}
    assert {size.tokens for size in sizes(selected=2048, longest=6000) if not size.is_prompt} == {
        4096,
        6000,
    }
