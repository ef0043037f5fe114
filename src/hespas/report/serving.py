"""Report a served load as text."""

from __future__ import annotations

from collections.abc import Iterator

from hespas.base.units import format_amount, format_quantity, format_time
from hespas.report.text import assumption_lines, table_lines
from hespas.serve.answer import Latency, LogReport, ServingReport, unlike_published
from hespas.serve.search import Layout, ServingSearch, layout_name
from hespas.serve.together import ServedTogether, TogetherReport

_WIDTHS = {"mean": 10, "p50": 10, "p90": 10, "p99": 10}


def serving_text(report: ServingReport) -> str:
    """Return a served load in a page of text."""
    replicas = f"{report.replicas} replicas" if report.replicas > 1 else "one replica"
    if report.prefill_replicas:
        replicas += f" and {report.prefill_replicas} for prompts alone"
    head = (
        f"{report.model} under {report.engine}: {report.requests:,} requests on {report.cluster}, "
        f"{replicas}, on {report.devices} device{'s' if report.devices > 1 else ''}"
    )
    lines = [
        head,
        "",
        *(f"{name:<22}{value}" for name, value in _figures(report)),
        "",
        *table_lines("Seconds", _WIDTHS, list(_latencies(report)), least=20),
        "",
        *_log(report.log),
        "Launch it",
        *(f"  {command}" for command in report.launch.split("\n")),
        "",
        *assumption_lines(report.assumptions, ()),
    ]
    return "\n".join(lines)


def _log(log: LogReport | None) -> Iterator[str]:
    """Yield the errors against measured requests, if any."""
    if log is None:
        return
    widths = {"between tokens": 16, "of a request": 14, "first token": 13, "in the queue": 14}
    rows = [
        (
            name,
            _error(errors.tpot_mean),
            f"{errors.tpot_median:.1%}",
            _error(errors.ttft_mean),
            _error(errors.queue_mean),
        )
        for name, errors in (("as predicted", log.predicted), ("fitted", log.fitted))
    ]
    yield from table_lines(f"{log.requests} measured requests", widths, rows, least=24)
    yield (
        f"Fitted to every other one, errors of the rest: --step-factors "
        f"decode={log.decode_factor:.3f},prompts={log.prompts_factor:.3f}"
    )
    yield ""


def _error(share: float | None) -> str:
    return "" if share is None else f"{share:+.1%}"


def _figures(report: ServingReport) -> Iterator[tuple[str, str]]:
    rate, of_device = report.output_tokens_per_s, report.output_tokens_per_s_per_device
    tokens = f"{format_amount(rate)}tokens/s, {format_amount(of_device)}tokens/s/device"
    yield "Output", f"{tokens}, {report.requests_per_s:.3g} requests/s"
    limit_text = "" if report.max_rate is None else f"; at most {report.max_rate:.3g} requests/s"
    yield "Load", f"{report.load}{limit_text}"
    if (errors := report.published_errors) is not None:
        sizes = f"{errors.tpot:.1%} between tokens, {errors.output_tokens_per_s:.1%} of tokens/s"
        first = f"{errors.ttft:.1%} to the first token"
        points = f"medians of {errors.points} published points{unlike_published(report)}"
        yield "Expected error", f"{sizes}, {first}: {points}"
    else:
        yield "Expected error", "not known: no point of its kind is published"
    if report.goodput == 0:
        nearest = f"{format_time(report.ttft_s.p50)} to the first token"
        if report.tpot_s is not None:
            nearest += f", {format_time(report.tpot_s.p50)} between tokens"
        yield "Objectives", f"no request meets them; the nearest that this gives: {nearest}"
    if report.goodput is not None:
        share = report.goodput / report.requests_per_s
        yield "Goodput", f"{report.goodput:.3g} requests/s, {share:.1%} meet all objectives"
    blocks = f"{report.kv_blocks:,} blocks of {report.block_tokens} tokens"
    batch = f"{report.mean_batch:.1f} sequences decode at a time on a replica"
    yield "Batch", f"{batch}; {blocks}, {report.preemptions:,} preemptions"
    if report.stages:
        layers = ", ".join(str(stage.layers) for stage in report.stages)
        times = ", ".join(format_time(stage.decode_s) for stage in report.stages)
        yield "Stages", f"of {layers} layers; a batch of the mean size decodes in {times}"
    if report.prefix_hit_rate is not None:
        yield "Prefixes", f"{report.prefix_hit_rate:.1%} of the tokens of prompts were kept"
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
    for name, times_s in latencies(report).items():
        yield name, *map(format_time, times_s)


def latencies(report: ServingReport) -> dict[str, tuple[float, ...]]:
    """Return the mean and p50, p90 and p99 of latencies."""
    by_name: dict[str, Latency | None] = {
        "time to first token": report.ttft_s,
        "time between tokens": report.tpot_s,
        "request": report.latency_s,
        "in the queue": report.queue_s,
    }
    return {
        name: (latency.mean, latency.p50, latency.p90, latency.p99)
        for name, latency in by_name.items()
        if latency is not None
    }


_MODEL_WIDTHS = {
    "devices": 9,
    "requests/s": 11,
    "tokens/s": 10,
    "first token": 12,
    "between": 11,
    "load": 12,
}


def together_text(report: TogetherReport) -> str:
    """Return models that share a cluster as text."""
    idle = f", {report.idle_devices} of them idle" if report.idle_devices else ""
    total, of_device = report.output_tokens_per_s, report.output_tokens_per_s_per_device
    output = f"{format_amount(total)}tokens/s, {format_amount(of_device)}tokens/s/device"
    lines = [
        f"{len(report.models)} models on {report.cluster}, {report.devices} devices{idle}",
        "",
        f"{'Output':<22}{output}, {report.requests_per_s:.3g} requests/s",
    ]
    if report.goodput is not None:
        share = report.goodput / report.requests_per_s
        lines.append(f"{'Goodput':<22}{report.goodput:.3g} requests/s, {share:.1%} meet objectives")
    if report.power_w is not None:
        lines.append(f"{'Power':<22}{format_quantity(report.power_w, 'W')}, devices that serve")
    if report.usd_per_million_output_tokens is not None:
        cost = f"{report.usd_per_million_output_tokens:.3g} USD for 1 M output tokens"
        lines.append(f"{'Cost':<22}{cost}, idle devices too")
    rows = [_model_cells(model) for model in report.models]
    lines += ["", *table_lines("Model", _MODEL_WIDTHS, rows, least=20), "", "Launch them"]
    for model in report.models:
        lines += [f"  {command}  # {model.name}" for command in model.report.launch.split("\n")]
    shared = set[str].intersection(*(set(model.report.assumptions) for model in report.models))
    own_assumptions = [
        f"{model.name}: {text}"
        for model in report.models
        for text in model.report.assumptions
        if text not in shared
    ]
    common = [text for text in report.models[0].report.assumptions if text in shared]
    return "\n".join(
        [*lines, "", *assumption_lines([*report.assumptions, *common, *own_assumptions], ())]
    )


def _model_cells(served: ServedTogether) -> tuple[str, ...]:
    report = served.report
    return (
        served.name,
        str(report.devices),
        f"{report.requests_per_s:.3g}",
        f"{report.output_tokens_per_s:.1f}",
        format_time(report.ttft_s.mean),
        "" if report.tpot_s is None else format_time(report.tpot_s.mean),
        report.load,
    )


_LAYOUT_WIDTHS = {
    "replicas": 9,
    "requests/s": 11,
    "first token": 12,
    "between": 11,
    "tokens/s/device": 16,
}


def serving_search_text(search: ServingSearch) -> str:
    """Return a search's layouts and trade-offs as text."""
    best = search.layouts[0].report
    lines = [
        f"{search.model} on {search.cluster}: {len(search.layouts)} layouts, by the largest rate",
        "",
        *table_lines(
            "Layout", _LAYOUT_WIDTHS, [_layout_cells(layout) for layout in search.layouts], least=20
        ),
        "",
    ]
    lines += [
        f"{layout_name(layout)}: {layout.reason}" for layout in search.layouts if layout.reason
    ]
    trade_offs = [
        (f"{layout_name(layout)}, {point.concurrency} under way", point)
        for layout in search.layouts
        for point in layout.trade_offs
        if point.is_best
    ]
    trade_offs.sort(key=lambda pair: pair[1].tokens_per_s_per_user)
    rows = [
        (name, f"{point.tokens_per_s_per_user:.1f}", f"{point.tokens_per_s_per_device:.1f}")
        for name, point in trade_offs
    ]
    columns = {"tokens/s/user": 15, "tokens/s/device": 17}
    lines += ["", *table_lines("No other gives more of both", columns, rows)]
    if best is not None:
        lines += ["", "Launch the best", *(f"  {command}" for command in best.launch.split("\n"))]
    return "\n".join(lines)


def _layout_cells(layout: Layout) -> tuple[str, ...]:
    report = layout.report
    if report is None:
        return layout_name(layout), str(layout.replicas), "refused", "", "", ""
    rate_text = "none" if report.max_rate is None else f"{report.max_rate:.3g}"
    tpot = "" if report.tpot_s is None else format_time(report.tpot_s.mean)
    return (
        layout_name(layout),
        str(layout.replicas),
        rate_text,
        format_time(report.ttft_s.mean),
        tpot,
        f"{report.output_tokens_per_s_per_device:.1f}",
    )
