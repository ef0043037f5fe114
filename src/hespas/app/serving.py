"""A served load for the page, at several rates."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from hespas.base.fields import build
from hespas.base.units import format_amount, format_time
from hespas.errors import ConfigError
from hespas.models.model import parse_mesh
from hespas.serve.answer import Latency, ServingReport, unlike_published
from hespas.serve.options import ServeOptions, parse_objectives
from hespas.serve.serving import serving

_SHARES = (0.1, 0.25, 0.5, 0.7, 0.85, 0.95, 1.05)
"""Of the largest rate: where latencies are drawn."""
_KEYS: Mapping[str, Callable[[str], object]] = {
    "cluster": str,
    "mesh": parse_mesh,
    "replicas": int,
    "rate": float,
    "isl": int,
    "osl": int,
    "slo": parse_objectives,
    "engine": str,
    "requests": int,
}
"""The keys of a load, each with the reader of its text."""


def _options(state: Mapping[str, Any]) -> ServeOptions:
    values = {key: parse(str(state[key])) for key, parse in _KEYS.items() if _is_set(state, key)}
    return build(ServeOptions, {"model_name": str(state["model"]), **values})


def _is_set(state: Mapping[str, Any], key: str) -> bool:
    return state.get(key) not in {None, ""}


def serve_command(state: Mapping[str, Any]) -> str:
    """Return the command line of a served load.

    >>> serve_command({"model": "Qwen/Qwen3-8B", "cluster": "8xH100_80GB", "rate": 20})
    'hespas serve Qwen/Qwen3-8B --cluster 8xH100_80GB --rate 20'
    """
    words = ["hespas", "serve", str(state["model"])]
    for key in _KEYS:
        if _is_set(state, key):
            words += [f"--{key}", str(state[key])]
    return shlex.join(words)


def serve_load(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a load's figures, and latencies against the rate."""
    try:
        options = _options(state)
    except ValueError as error:
        raise ConfigError(f"a figure is no number: {error}") from error
    report = serving(options)
    points = [_point(report, options.load.rate)]
    for share in _SHARES if report.max_rate is not None else ():
        rate = float(f"{share * (report.max_rate or 0.0):.4g}")
        load = replace(options.load, rate=rate, requests=min(report.requests, 400))
        points.append(_point(serving(replace(options, load=load)), rate))
    return {
        "rows": _rows(report),
        "points": sorted(points, key=lambda point: point["rate"]),
        "rate": options.load.rate,
        "max_rate": report.max_rate,
        "launch": report.launch,
        "command": serve_command(state),
        "assumptions": report.assumptions,
        "json": msgspec.json.encode(report).decode(),
    }


def _point(report: ServingReport, rate: float | None) -> dict[str, float]:
    tpot = report.tpot_s
    return {
        "rate": rate or report.requests_per_s,
        "ttft_p50_s": report.ttft_s.p50,
        "ttft_p99_s": report.ttft_s.p99,
        "tpot_p50_s": 0.0 if tpot is None else tpot.p50,
        "tokens_per_s_per_user": 0.0 if tpot is None or not tpot.mean else 1 / tpot.mean,
        "tokens_per_s_per_device": report.output_tokens_per_s_per_device,
    }


def _rows(report: ServingReport) -> list[tuple[str, str]]:
    def shown(latency: Latency | None) -> str:
        if latency is None:
            return "not known"
        return f"{format_time(latency.p50)} median, {format_time(latency.p99)} p99"

    rate = format_amount(report.output_tokens_per_s)
    of_device = format_amount(report.output_tokens_per_s_per_device)
    largest_rate = "not known" if report.max_rate is None else f"{report.max_rate:.3g} requests/s"
    met = report.goodput
    rows = [
        ("Output", f"{rate}tokens/s, {of_device}a device"),
        ("Load", report.load),
        ("Largest rate", largest_rate),
        ("First token", shown(report.ttft_s)),
        ("Each further token", shown(report.tpot_s)),
        ("Batch", f"{report.mean_batch:.1f} sequences a replica"),
        ("Decoding is bound by", report.bound.decode),
        ("Replicas", f"{report.replicas}, of {report.devices // report.replicas} devices each"),
    ]
    if report.stages:
        layers = ", ".join(str(stage.layers) for stage in report.stages)
        rows.append(("Stages", f"{len(report.stages)} of a replica, of {layers} layers"))
    if (errors := report.published_errors) is not None:
        text = f"{100 * errors.ttft:.0f} % (first token), {100 * errors.tpot:.0f} % (each further)"
        points = f"medians of {errors.points} published points{unlike_published(report)}"
        rows.append(("Expected error", f"{text}: {points}"))
    else:
        rows.append(("Expected error", "not known: no point of its kind is published"))
    if met is not None:
        share = met / report.requests_per_s
        rows.insert(3, ("Meet all objectives", f"{100 * share:.1f} % of requests"))
    return rows
