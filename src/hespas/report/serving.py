"""A served load as text."""

from __future__ import annotations

from collections.abc import Iterator

from hespas.base.units import format_amount, format_time
from hespas.report.text import assumption_lines, table_lines
from hespas.serve.answer import Latency, ServingReport

_WIDTHS = {"mean": 10, "p50": 10, "p90": 10, "p99": 10}


def serving_text(report: ServingReport) -> str:
    """Return a served load in a page of text."""
    replicas = f"{report.replicas} replicas" if report.replicas > 1 else "one replica"
    head = (
        f"{report.model} under {report.engine}: {report.requests:,} requests on {report.cluster}, "
        f"{replicas} of {report.devices // report.replicas} devices"
    )
    lines = [
        head,
        "",
        *(f"{name:<22}{value}" for name, value in _figures(report)),
        "",
        *table_lines("Seconds", _WIDTHS, list(_latencies(report)), least=20),
        "",
        "Launch it",
        f"  {report.launch}",
        "",
        *assumption_lines(report.assumptions, ()),
    ]
    return "\n".join(lines)


def _figures(report: ServingReport) -> Iterator[tuple[str, str]]:
    rate, of_device = report.output_tokens_per_s, report.output_tokens_per_s_per_device
    tokens = f"{format_amount(rate)}tokens/s, {format_amount(of_device)}tokens/s/device"
    yield "Output", f"{tokens}, {report.requests_per_s:.3g} requests/s"
    most = "" if report.max_rate is None else f"; at most {report.max_rate:.3g} requests/s"
    yield "Load", f"{report.load}{most}"
    if report.goodput is not None:
        share = report.goodput / report.requests_per_s
        yield "Goodput", f"{report.goodput:.3g} requests/s, {share:.1%} meet all objectives"
    blocks = f"{report.kv_blocks:,} blocks of {report.block_tokens} tokens"
    batch = f"{report.mean_batch:.1f} sequences decode at a time on a replica"
    yield "Batch", f"{batch}; {blocks}, {report.preemptions:,} preemptions"
    bound = report.bound
    yield (
        "Bound by",
        f"decoding: {bound.decode}; prompts: {bound.prefill}; the queue: {bound.queue}",
    )
    yield "Duration", f"{format_time(report.duration_s)}, {report.iterations:,} iterations"
    if report.energy_j_per_output_token is not None:
        yield "Energy", f"{report.energy_j_per_output_token:.3g} J for each output token"
    if report.usd_per_million_output_tokens is not None:
        yield "Cost", f"{report.usd_per_million_output_tokens:.3g} USD for 1 M output tokens"


def _latencies(report: ServingReport) -> Iterator[tuple[str, ...]]:
    named = {
        "time to first token": report.ttft_s,
        "time between tokens": report.tpot_s,
        "request": report.latency_s,
        "in the queue": report.queue_s,
    }
    for name, values in named.items():
        if values is not None:
            yield name, *_cells(values)


def _cells(values: Latency) -> Iterator[str]:
    for value in (values.mean, values.p50, values.p90, values.p99):
        yield format_time(value)
