"""A served load for the page, at several rates."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from hespas.app.view import Card
from hespas.base.fields import build
from hespas.base.files import json_bytes
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
_NUMBER = re.compile(r"(0|[1-9]\d*)(\.\d+)?")


def _options(state: Mapping[str, Any]) -> ServeOptions:
    try:
        values = {
            key: parse(str(state[key])) for key, parse in _KEYS.items() if _is_set(state, key)
        }
    except ValueError as error:
        raise ConfigError(f"a figure is no number: {error}") from error
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


def serve_python(state: Mapping[str, Any]) -> str:
    """Return the Python that answers a served load.

    >>> print(serve_python({"model": "Qwen/Qwen3-8B", "cluster": "8xH100_80GB", "rate": 20}))
    import hespas
    <BLANKLINE>
    served = hespas.predict_serving(
        'Qwen/Qwen3-8B',
        '8xH100_80GB',
        rate=20,
    )
    print(served.ttft_s, served.tpot_s, served.output_tokens_per_s)
    <BLANKLINE>
    """
    arguments = [repr(str(state["model"])), repr(str(state["cluster"]))]
    for key in _KEYS:
        if key != "cluster" and _is_set(state, key):
            text = str(state[key])
            arguments.append(f"{key}={text if _NUMBER.fullmatch(text) else repr(text)}")
    listed = "".join(f"    {argument},\n" for argument in arguments)
    printed = "print(served.ttft_s, served.tpot_s, served.output_tokens_per_s)"
    return f"import hespas\n\nserved = hespas.predict_serving(\n{listed})\n{printed}\n"


def serve_copies(state: Mapping[str, Any]) -> dict[str, str]:
    """Return a load as command line and Python; no study has loads."""
    _options(state)
    return {"command": serve_command(state), "python": serve_python(state)}


def serve_load(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a load's figures, and latencies against the rate."""
    options = _options(state)
    report = serving(options)
    points = [_point(report, options.load.rate)]
    for share in _SHARES if report.max_rate is not None else ():
        rate = float(f"{share * (report.max_rate or 0.0):.4g}")
        load = replace(options.load, rate=rate, requests=min(report.requests, 400))
        points.append(_point(serving(replace(options, load=load)), rate))
    return {
        "title": f"{report.model} under {report.engine} on {report.cluster}, {_replicas(report)}",
        "cards": [msgspec.to_builtins(card) for card in _cards(report)],
        "expected": _expected(report),
        "points": sorted(points, key=lambda point: point["rate"]),
        "rate": options.load.rate,
        "max_rate": report.max_rate,
        "launch": report.launch,
        "assumptions": report.assumptions,
        "json": json_bytes(msgspec.to_builtins(report)).decode(),
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


def _replicas(report: ServingReport) -> str:
    count, devices = report.replicas, report.devices // report.replicas
    replicas = "one replica" if count == 1 else f"{count} replicas"
    stages = f", in {len(report.stages)} stages" if report.stages else ""
    return f"{replicas} of {devices} device{'' if devices == 1 else 's'}{stages}"


def _expected(report: ServingReport) -> str:
    if (errors := report.published_errors) is None:
        return "Expected errors are not known: no point of its kind is published."
    points = f"medians of {errors.points} published points{unlike_published(report)}"
    return f"Expected errors are {points}."


def _cards(report: ServingReport) -> Iterator[Card]:
    rate, of_device = report.output_tokens_per_s, report.output_tokens_per_s_per_device
    yield Card(
        name="Tokens/s",
        text=format_amount(rate).strip(),
        note=f"{format_amount(of_device)}a device",
        value=rate,
    )
    yield Card(
        name="Requests/s at most",
        text="not known" if report.max_rate is None else f"{report.max_rate:.3g}",
        note=f"the load is {report.load}",
        value=report.max_rate,
    )
    errors = report.published_errors
    yield _latency("First token", report.ttft_s, None if errors is None else errors.ttft)
    yield _latency("Each further token", report.tpot_s, None if errors is None else errors.tpot)
    if report.goodput is not None:
        share = report.goodput / report.requests_per_s
        yield Card(name="Meet all objectives", text=f"{100 * share:.1f} %", value=share)
    yield Card(
        name="Sequences of a batch",
        text=f"{report.mean_batch:.1f}",
        note=f"decoding is bound by {report.bound.decode}",
    )


def _latency(name: str, latency: Latency | None, error: float | None) -> Card:
    if latency is None:
        return Card(name=name, text="not known")
    expected = "" if error is None else f"; expected error {100 * error:.0f} %"
    return Card(
        name=name,
        text=format_time(latency.p50),
        note=f"median; p99 {format_time(latency.p99)}{expected}",
        value=latency.p50,
        is_less_better=True,
    )
