"""The page of served loads, or of a serving search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from hespas.base.units import format_amount, format_time
from hespas.errors import ConfigError
from hespas.report.page.document import Cards, Notes, Page, Section, Table, time_cell
from hespas.report.page.vega import (
    PALETTE,
    Chart,
    Unit,
    across,
    coloured,
    drawn_chart,
    palette,
    quantitative,
    time_unit,
    tooltips,
)
from hespas.report.serving import latencies
from hespas.serve.answer import ServingReport
from hespas.serve.search import Layout, ServingSearch, layout_name
from hespas.serve.together import TogetherReport

_HEIGHT = 260
_MOST_STATES = 2000
"""The most points of all replicas over time."""

_Result = ServingReport | ServingSearch | TogetherReport


def serving_result(data: Mapping[str, object], location: Path) -> _Result:
    """Decode a JSON result of ``hespas serve`` or ``search --serve``.

    Raises `ConfigError` for a file of another version.
    """
    kind: type[_Result] = ServingSearch if "layouts" in data else ServingReport
    if "models" in data:
        kind = TogetherReport
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"the result is not this version's: {error}",
            location=str(location),
            hint="serve again, with --json",
        ) from error


def is_served(data: object) -> bool:
    """Return whether a result is one of serving."""
    if not isinstance(data, dict):
        return False
    keys = cast("dict[str, object]", data).keys()
    shapes = ({"kv_blocks", "launch"}, {"layouts", "cluster"}, {"models", "idle_devices"})
    return any(shape <= keys for shape in shapes)


def serving_page(result: _Result) -> Page:
    """Return the page of a serving result."""
    match result:
        case ServingReport():
            return _load_page(result)
        case TogetherReport():
            return _together_page(result)
        case ServingSearch():
            return _search_page(result)


def _together_page(result: TogetherReport) -> Page:
    of_device = f"{format_amount(result.output_tokens_per_s_per_device)}tokens/s a device"
    figures = [
        ("Output", f"{format_amount(result.output_tokens_per_s)}tokens/s", of_device),
        ("Requests", f"{result.requests_per_s:.3g} a second", ""),
        ("Idle devices", str(result.idle_devices), f"of {result.devices}"),
    ]
    sections = [Section(title="All models", parts=(Cards(figures=tuple(figures)),))]
    launches: list[str] = []
    assumed = list(result.assumptions)
    for model in result.models:
        report = model.report
        parts = (Cards(figures=tuple(_figures(report))), _times(report), *_rates(report))
        sections.append(Section(title=model.name, parts=parts))
        launches += [f"{command}  # {model.name}" for command in report.launch.split("\n")]
        assumed += [f"{model.name}: {text}" for text in report.assumptions]
    sections += [
        Section(title="Launch them", parts=(Notes(texts=tuple(launches)),)),
        Section(title="What was assumed", parts=(Notes(texts=tuple(assumed)),)),
    ]
    return Page(
        title=f"{len(result.models)} models on {result.cluster}",
        subtitle=", ".join(model.report.model for model in result.models),
        sections=tuple(sections),
    )


def _load_page(report: ServingReport) -> Page:
    sections = (
        Section(title="The answer", parts=(Cards(figures=tuple(_figures(report))), _times(report))),
        Section(title="Latency against rate", parts=tuple(_rates(report))),
        *_stages(report),
        Section(title="The engine over time", parts=tuple(_states(report))),
        Section(title="An iteration", parts=(_iterations(report),)),
        Section(title="Launch it", parts=(Notes(texts=tuple(report.launch.split("\n"))),)),
        Section(title="What was assumed", parts=(Notes(texts=tuple(report.assumptions)),)),
    )
    return Page(
        title=f"{report.model} under {report.engine}",
        subtitle=f"{report.requests:,} requests on {report.cluster}, {report.load}",
        sections=sections,
    )


def _figures(report: ServingReport) -> Iterator[tuple[str, str, str]]:
    of_device = f"{format_amount(report.output_tokens_per_s_per_device)}tokens/s a device"
    yield "Output", f"{format_amount(report.output_tokens_per_s)}tokens/s", of_device
    limit_text = "" if report.max_rate is None else f"at most {report.max_rate:.3g} requests/s"
    yield "Load", report.load, limit_text
    yield "First token", format_time(report.ttft_s.mean), f"p99 {format_time(report.ttft_s.p99)}"
    if report.tpot_s is not None:
        p99 = f"p99 {format_time(report.tpot_s.p99)}"
        yield "Between tokens", format_time(report.tpot_s.mean), p99
    bound = report.bound
    waits = f"prompts by {bound.prefill}, the queue by {bound.queue}"
    yield "Decoding is bound by", bound.decode, waits
    blocks = f"{report.kv_blocks:,} blocks of {report.block_tokens} tokens"
    yield "Sequences a replica", f"{report.mean_batch:.1f}", blocks
    if report.prefix_hit_rate is not None:
        yield "Prompts kept", f"{report.prefix_hit_rate:.1%}", "of their tokens"
    if report.energy_j_per_output_token is not None:
        energy = report.energy_j_per_output_token
        yield "Energy", f"{energy:.3g} J a token", f"{energy / 3.6:.3g} kWh for 1 M"
    if report.usd_per_million_output_tokens is not None:
        yield "Cost", f"{report.usd_per_million_output_tokens:.3g} USD", "for 1 M output tokens"


def _times(report: ServingReport) -> Table:
    rows = [(name, *map(time_cell, times_s)) for name, times_s in latencies(report).items()]
    columns = ("", "mean", "p50", "p90", "p99")
    return Table(caption="Seconds", columns=columns, rows=rows, numbers=columns[1:])


def _stages(report: ServingReport) -> Iterator[Section]:
    if not report.stages:
        return
    columns = ("stage", "layers", "weights, GB a device", "blocks", "decodes in", "receives in")
    rows = [
        (
            str(number),
            str(stage.layers),
            f"{stage.weight_bytes / 1e9:.1f}",
            f"{stage.kv_blocks:,}",
            time_cell(stage.decode_s),
            time_cell(stage.receive_s),
        )
        for number, stage in enumerate(report.stages)
    ]
    caption = "A replica's stages, for a batch of the mean size"
    table = Table(caption=caption, columns=columns, rows=rows, numbers=columns[1:])
    yield Section(title="The pipeline", parts=(table,))


def _rates(report: ServingReport) -> Iterator[Chart]:
    fields = {"first token, mean": "ttft_s", "between tokens, mean": "tpot_s"}
    for name, field in fields.items():
        values = [
            (point.rate, latency.mean, latency.p99)
            for point in report.rates
            if (latency := getattr(point, field)) is not None
        ]
        if not values:
            continue
        unit = time_unit(max(mean_s for _, mean_s, _ in values))
        rows = [
            {
                "rate": float(f"{rate:.4g}"),
                "time": unit.of(time_s),
                "text": format_time(time_s),
                "of": statistic,
            }
            for rate, mean_s, p99_s in values
            for statistic, time_s in (("mean", mean_s), ("p99", p99_s))
        ]
        encoding = {
            "x": quantitative("rate", "requests a second"),
            "y": quantitative("time", unit.name),
            "color": coloured("of", None, palette(["mean", "p99"])),
            "tooltip": tooltips(rate="requests/s", of="of", text="time"),
        }
        yield drawn_chart(
            f"{name.split(',')[0].capitalize()} against rate, in {unit.name}",
            f"{len(values)} rates up to {values[-1][0]:.3g} requests a second.",
            rows,
            height=_HEIGHT,
            mark={"type": "line", "point": True},
            encoding=encoding,
        )


def _states(report: ServingReport) -> Iterator[Chart]:
    states = report.states[:: max(1, len(report.states) // _MOST_STATES)]
    if not states:
        return
    unit = time_unit(report.duration_s)
    names = {
        "decoding": "Sequences that decode",
        "waiting": "Requests that wait",
        "kv_blocks": "Blocks in use",
    }
    for field, title in names.items():
        rows = [
            {
                "time": unit.of(state.time_s),
                "value": getattr(state, field),
                "replica": f"replica {state.replica}",
            }
            for state in states
        ]
        hues = palette(sorted({str(row["replica"]) for row in rows}))
        largest = max(int(row["value"]) for row in rows)
        if not largest:
            continue
        yield drawn_chart(
            title,
            f"At most {largest:,}, over {format_time(report.duration_s)}.",
            rows,
            height=_HEIGHT // 2,
            layer=[
                {
                    "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1},
                    "encoding": {
                        "x": across("time", unit),
                        "y": quantitative("value", None),
                        "color": coloured("replica", None, hues),
                        "tooltip": tooltips(time="time", value=title, replica="of"),
                    },
                }
            ],
        )


def _iterations(report: ServingReport) -> Chart:
    points = report.steps.tokens_s
    unit = time_unit(max(time_s for _, time_s in points))
    rows = [{"tokens": tokens, "time": unit.of(time_s)} for tokens, time_s in points]
    return drawn_chart(
        f"An iteration by its new tokens, without attention, in {unit.name}",
        f"{len(points)} predicted sizes; one left out is off by "
        f"{report.left_out_error:.1%} at most.",
        rows,
        height=_HEIGHT,
        mark={"type": "line", "point": True, "color": PALETTE[0]},
        encoding={
            "x": quantitative("tokens", "new tokens", scale={"type": "log"}),
            "y": quantitative("time", unit.name),
            "tooltip": tooltips(tokens="new tokens", time=unit.name),
        },
    )


def _search_page(search: ServingSearch) -> Page:
    best = search.layouts[0].report
    sections = [
        Section(title="Layouts", parts=(_layouts(search.layouts),)),
        Section(title="Trade-offs", parts=tuple(_trade_offs(search.layouts))),
    ]
    if best is not None:
        launch = Notes(texts=tuple(best.launch.split("\n")))
        sections.append(Section(title="Launch the best", parts=(launch,)))
        sections.append(Section(title="The best against rate", parts=tuple(_rates(best))))
    return Page(
        title=f"{search.model} on {search.cluster}",
        subtitle=f"{len(search.layouts)} layouts, by the largest rate within the objectives",
        sections=tuple(sections),
    )


def _layouts(layouts: Sequence[Layout]) -> Table:
    columns = ("layout", "replicas", "requests/s", "first token", "between tokens", "why not")
    rows: list[tuple[Any, ...]] = []
    for layout in layouts:
        report = layout.report
        if report is None:
            rows.append((layout_name(layout), str(layout.replicas), "", "", "", layout.reason))
            continue
        rate_text = "none" if report.max_rate is None else f"{report.max_rate:.3g}"
        tpot = "" if report.tpot_s is None else time_cell(report.tpot_s.mean)
        first = time_cell(report.ttft_s.mean)
        cells = (layout_name(layout), str(layout.replicas), rate_text, first, tpot)
        rows.append((*cells, layout.reason or "the best"))
    numbers = columns[1:5]
    return Table(caption="Ranked layouts", columns=columns, rows=rows, numbers=numbers)


def _trade_offs(layouts: Sequence[Layout]) -> Iterator[Chart]:
    user, device = Unit(name="tokens/s", size=1.0), Unit(name="tokens/s", size=1.0)
    rows = [
        {
            "user": user.of(point.tokens_per_s_per_user),
            "device": device.of(point.tokens_per_s_per_device),
            "layout": layout_name(layout),
            "under_way": point.concurrency,
            "best": "no other gives more of both" if point.is_best else "another gives more",
        }
        for layout in layouts
        for point in layout.trade_offs
    ]
    if not rows:
        return
    hues = palette(list(dict.fromkeys(str(row["layout"]) for row in rows)))
    encoding = {
        "x": quantitative("user", "tokens/s to a user"),
        "y": quantitative("device", "tokens/s of a device"),
        "color": coloured("layout", None, hues),
        "shape": {"field": "best", "type": "nominal", "title": None},
        "tooltip": tooltips(
            layout="layout", under_way="under way", user="to a user", device="of a device"
        ),
    }
    yield drawn_chart(
        "Tokens a second to a user and of a device",
        f"{len(rows)} points of {len(hues)} layouts.",
        rows,
        height=2 * _HEIGHT,
        mark={"type": "point", "filled": True},
        encoding=encoding,
    )
