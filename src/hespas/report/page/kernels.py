"""Chart a step's modules, kernels and stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hespas.base.units import format_quantity, format_time
from hespas.prediction.figures.schema import (
    NO_NAME_ROW,
    KernelTimeRow,
    Peaks,
    PipelineReport,
    RunReport,
    StageRow,
)
from hespas.report.page.document import (
    Cards,
    Cell,
    Notes,
    Section,
    Table,
    quantity_cell,
    share_cell,
    time_cell,
)
from hespas.report.page.vega import (
    PALETTE,
    Chart,
    Unit,
    across,
    capacity_rule,
    coloured,
    drawn_chart,
    large_unit,
    nominal,
    palette,
    quantitative,
    time_unit,
    tooltips,
)
from hespas.report.run import micro_batch_text

_LETTER_PIXELS = 7
"""The width of a letter; blocks narrower than their names lack labels."""
_LIMITS = {"compute": PALETTE[0], "memory": PALETTE[2], "launch": PALETTE[6], "other": PALETTE[7]}
_LEAST_INTENSITY = 0.01
"""FLOPs a byte, below which a kernel only moves data."""


@dataclass(slots=True, kw_only=True)
class Block:
    """A named time, divided into inner ones."""

    name: str
    time_s: float = 0.0
    inside: dict[str, Block] = field(default_factory=dict[str, "Block"])

    def add(self, path: tuple[str, ...], time_s: float) -> None:
        """Add a time to this block and along the path."""
        self.time_s += time_s
        if path:
            inner = self.inside.setdefault(path[0], Block(name=path[0]))
            inner.add(path[1:], time_s)


def step_blocks(report: RunReport) -> Block:
    """Return a step as blocks, which add up to it.

    They are its phases with their modules, and other parts.
    """
    step = Block(name="step")
    for row in report.layers:
        named_s = sum(row.phases.values())
        modules = tuple(row.path.split("/"))
        for phase, time_s in row.phases.items():
            step.add((phase, *modules), time_s)
        if row.time_s > named_s:
            step.add((NO_NAME_ROW, *modules), row.time_s - named_s)
    other_times = {
        "exposed communication": report.exposed_communication_s,
        "waiting for stages": report.stage_wait_s,
        "exposed host transfers": report.exposed_host_transfer_s,
        "waiting for launches": report.launch_wait_s,
        "stragglers": max(0.0, report.straggler_s),
    }
    for name, time_s in other_times.items():
        if time_s > 0:
            step.add((name,), time_s)
    return step


def icicle_chart(report: RunReport) -> Chart:
    """Return the step as an icicle; clicks enlarge its blocks."""
    step = step_blocks(report)
    unit = time_unit(step.time_s)
    rows = [
        {**row, "x0": unit.of(start_s), "x1": unit.of(end_s)}
        for row, start_s, end_s in _rectangles(step, 0.0, step.time_s)
    ]
    hues = {step.name: PALETTE[7], **palette([str(row["top"]) for row in rows if row["level"]])}
    span = {"domain": [{"expr": "low"}, {"expr": "high"}], "nice": False, "zero": False}
    row_encoding = nominal("level", None, axis=None, scale={"paddingInner": 0.04})
    fits_label = (
        "width * (min(datum.x1, high) - max(datum.x0, low)) / (high - low) "
        f"> {_LETTER_PIXELS} * (length(datum.name) + 1)"
    )
    middle = {"calculate": "(max(datum.x0, low) + min(datum.x1, high)) / 2", "as": "middle"}
    block = {"type": "bar", "clip": True, "cursor": "pointer", "stroke": "white"}
    blocks = {
        "mark": {**block, "strokeWidth": 0.5, "height": {"band": 1}},
        "encoding": {
            "x": quantitative("x0", f"time ({unit.name})", scale=span),
            "x2": {"field": "x1"},
            "y": row_encoding,
            "color": {**coloured("top", None, hues), "legend": {"values": list(hues)[1:]}},
            "tooltip": tooltips(name="what", text="time", share="of the step", path="in"),
        },
    }
    names = {
        "transform": [{"filter": fits_label}, middle],
        "mark": {"type": "text", "clip": True, "fontSize": 12, "color": "black", "tooltip": None},
        "encoding": {
            "x": quantitative("middle", None, scale=span),
            "y": row_encoding,
            "text": {"field": "name"},
        },
    }
    return drawn_chart(
        f"By phase and module, in {unit.name}",
        "From top to bottom: the step, its phases, and the modules of each. "
        "Click a block to see what is inside of it.",
        rows,
        height=30 * (1 + max(int(str(row["level"])) for row in rows)),
        layer=[blocks, names],
        params=[{"name": "low", "value": 0}, {"name": "high", "value": unit.of(step.time_s)}],
        usermeta={"drill": True},
    )


def _rectangles(
    block: Block, start_s: float, step_s: float, above: tuple[str, ...] = ()
) -> Iterator[tuple[dict[str, object], float, float]]:
    if block.time_s <= 0:
        return
    row: dict[str, object] = {
        "name": block.name,
        "path": " / ".join(above),
        "level": len(above),
        "top": above[1] if len(above) > 1 else block.name,
        "text": format_time(block.time_s),
        "share": f"{100 * block.time_s / step_s:.1f} %",
    }
    yield row, start_s, start_s + block.time_s
    inside = list(block.inside.values())
    if above:
        inside.sort(key=lambda inner: -inner.time_s)
    for inner in inside:
        yield from _rectangles(inner, start_s, step_s, (*above, block.name))
        start_s += inner.time_s


def kernel_sections(report: RunReport) -> Iterator[Section]:
    """Yield the section of kernels, if there are any."""
    single = [
        row for row in report.kernels if row.kind != "others" and row.time_s > 0 and row.count > 0
    ]
    if not single:
        return
    parts: list[Chart | Table] = []
    moving = [row for row in single if row.bytes > 0]
    arithmetic = [row for row in moving if row.flops / row.bytes >= _LEAST_INTENSITY]
    if report.peaks is not None and arithmetic:
        parts.append(_roofline(arithmetic, report.peaks))
    if report.peaks is not None and moving:
        parts.append(_bandwidths(moving, report.peaks))
    yield Section(title="Kernels", parts=(*parts, _table(report)))


def _point(row: KernelTimeRow, **more: object) -> dict[str, object]:
    return {
        "name": row.name,
        "kind": row.kind,
        "path": row.path,
        "limit": row.limit,
        "time": row.time_s,
        "text": f"{format_time(row.time_s)} in {row.count:.6g}",
        **more,
    }


def _circles(x: object, y: object) -> dict[str, object]:
    return {
        "mark": {"type": "point", "filled": True, "opacity": 0.75},
        "encoding": {
            "x": x,
            "y": y,
            "size": quantitative("time", None, legend=None, scale={"range": [12, 900]}),
            "color": coloured("limit", "limited by", _LIMITS),
            "tooltip": tooltips(
                name="kernel",
                kind="kind",
                path="module",
                text="time",
                limit="limited by",
                rate="rate",
            ),
        },
    }


def _roofline(kernels: Sequence[KernelTimeRow], peaks: Peaks) -> Chart:
    rows = [
        _point(
            row,
            intensity=_digits(row.flops / row.bytes),
            flops=_digits(row.flops / row.time_s),
            rate=format_quantity(row.flops / row.time_s, "FLOP/s"),
        )
        for row in kernels
    ]
    intensities = [row.flops / row.bytes for row in kernels]
    low, high = min(*intensities, 0.1), max(*intensities, 1e3)
    types: dict[float, list[str]] = {}
    for name, rate in peaks.flops_per_s.items():
        types.setdefault(rate, []).append(name)
    roofs = [
        {
            "type": ", ".join(names),
            "intensity": _digits(intensity),
            "flops": _digits(min(intensity * peaks.bytes_per_s, rate)),
        }
        for rate, names in sorted(types.items(), reverse=True)
        for intensity in (low, rate / peaks.bytes_per_s, high)
    ]
    axis = {"scale": {"type": "log"}, "axis": {"format": "~s"}}
    across = quantitative("intensity", "arithmetic intensity (FLOP/B)", **axis)
    rate_axis = quantitative("flops", "rate (FLOP/s)", **axis)
    lines = {
        "data": {"values": roofs},
        "mark": {"type": "line", "strokeWidth": 2},
        "encoding": {
            "x": across,
            "y": rate_axis,
            "strokeDash": {"field": "type", "type": "nominal", "title": "peak of"},
            "stroke": {"value": PALETTE[7]},
        },
    }
    return drawn_chart(
        "Kernels on the roofline",
        "Each circle is a group of equal kernels, its area the time that they take together. "
        "The lines are what memory and the peak rate of each type allow. Kernels that only "
        "move data are in the next chart.",
        rows,
        height=360,
        layer=[lines, _circles(across, rate_axis)],
    )


def _bandwidths(kernels: Sequence[KernelTimeRow], peaks: Peaks) -> Chart:
    unit = large_unit(peaks.bytes_per_s, "B/s")
    rows = [
        _point(
            row,
            bytes=_digits(row.bytes / row.count),
            reached=unit.of(row.bytes / row.time_s),
            rate=format_quantity(row.bytes / row.time_s, "B/s"),
        )
        for row in kernels
    ]
    peak = {
        "data": {"values": [{"reached": unit.of(peaks.bytes_per_s)}]},
        "mark": {"type": "rule", "strokeDash": [6, 4], "strokeWidth": 2},
        "encoding": {"y": quantitative("reached", None)},
    }
    axis = {"scale": {"type": "log"}, "axis": {"format": "~s"}}
    across = quantitative("bytes", "bytes of one launch", **axis)
    bandwidth_axis = quantitative("reached", f"bandwidth ({unit.name})")
    return drawn_chart(
        "Memory bandwidth that kernels reach",
        "By what one launch reads and writes; areas are times. The dashed line is the "
        f"memory's peak, {format_quantity(peaks.bytes_per_s, 'B/s')}; what lies above it is "
        "served by caches.",
        rows,
        height=300,
        layer=[peak, _circles(across, bandwidth_axis)],
    )


def _digits(value: float) -> float:
    return float(f"{value:.5g}")


def _table(report: RunReport) -> Table:
    numbers = ("Launches", "Time", "Share", "Arithmetic", "Memory")
    rows = [
        (
            *(row.name, row.kind, row.path, f"{row.count:.6g}"),
            time_cell(row.time_s),
            share_cell(row.time_s / report.compute_s if report.compute_s else None),
            _rate(row.flops, row.time_s, "FLOP/s"),
            _rate(row.bytes, row.time_s, "B/s"),
            row.limit,
        )
        for row in report.kernels
    ]
    return Table(
        caption="Kernels, longest first",
        columns=("Kernel", "Kind", "Module", *numbers, "Limited by"),
        rows=rows,
        numbers=numbers,
        has_filter=True,
    )


def _rate(amount: float, time_s: float, unit: str) -> Cell:
    rate = amount / time_s if time_s > 0 and amount > 0 else None
    return quantity_cell(rate, unit, unknown="")


_TIMES = {
    "computes": PALETTE[0],
    "exposed communication": PALETTE[1],
    "exposed host transfers": PALETTE[4],
    "waiting for launches": PALETTE[5],
    "waits for other stages": PALETTE[3],
    "waits for all gradients": PALETTE[2],
    "waits for the last stage": PALETTE[7],
}
_MEMORY = {
    "weights": PALETTE[0],
    "gradients": PALETTE[1],
    "optimiser": PALETTE[2],
    "micro-batches in flight": PALETTE[3],
    "a pass": PALETTE[7],
}


def stage_sections(report: RunReport) -> tuple[Section, ...]:
    """Return the section of a pipeline's stages, if any."""
    if report.pipeline is None:
        return ()
    return (Section(title="Stages", parts=tuple(_stage_parts(report, report.pipeline))),)


def stage_times(row: StageRow) -> dict[str, float]:
    """Return the times of a stage's device, in order.

    They add up to the step.
    """
    times = (
        *(row.compute_s, row.exposed_communication_s, row.exposed_host_transfer_s),
        *(row.launch_wait_s, row.waiting_s, row.sums_s, row.end_s),
    )
    return dict(zip(_TIMES, times, strict=True))


def stage_memory(row: StageRow) -> dict[str, int]:
    """Return the bytes of a stage's device by purpose."""
    sizes = (
        *(row.weight_bytes, row.gradient_bytes, row.state_bytes),
        *(row.kept_bytes, row.working_bytes),
    )
    return dict(zip(_MEMORY, sizes, strict=True))


def _stage_parts(
    report: RunReport, pipeline: PipelineReport
) -> Iterator[Cards | Notes | Chart | Table]:
    yield Cards(figures=tuple(_figures(pipeline)))
    unit = time_unit(report.step_time_s)
    sentences = [
        f"stage {row.stage} computes {format_time(row.compute_s)}, "
        f"waits {format_time(row.waiting_s + row.end_s)}"
        for row in pipeline.stages
    ]
    times = _bars(pipeline, stage_times, unit, format_time)
    yield drawn_chart(
        f"What a device of each stage does over the step, in {unit.name}",
        "; ".join(sentences).capitalize() + ".",
        times,
        height=30 * len(pipeline.stages),
        layer=[_layer(pipeline, across("amount", unit, stack="zero"), _TIMES, "time")],
    )
    size = large_unit(max(row.peak_memory_bytes for row in pipeline.stages), "B")
    size_axis = quantitative("amount", size.name, stack="zero")
    layers, line = [_layer(pipeline, size_axis, _MEMORY, "bytes")], ""
    if report.memory_capacity_bytes is not None:
        layers.append(capacity_rule("x", size.of(report.memory_capacity_bytes)))
        line = " The dashed line is the device's capacity."
    yield drawn_chart(
        f"What the memory of each stage is for, in {size.name}",
        f"Of one device, where it is fullest.{line}",
        _bars(pipeline, stage_memory, size, lambda held: format_quantity(held, "B")),
        height=30 * len(pipeline.stages),
        layer=layers,
    )
    yield _stage_table(pipeline)
    if pipeline.hidden:
        yield Notes(texts=(f"Hidden where it can be: {', '.join(pipeline.hidden)}",))


def _figures(pipeline: PipelineReport) -> Iterator[tuple[str, str, str]]:
    chunks = f", {pipeline.chunks} chunks each" if pipeline.chunks > 1 else ""
    yield "Schedule", pipeline.schedule, f"{len(pipeline.stages)} stages{chunks}"
    yield "Micro-batches", f"{pipeline.micro_batches}", micro_batch_text(pipeline).strip()
    ideal = pipeline.ideal_bubble
    note = "" if ideal is None else f"{100 * ideal:.1f} % if all stages were equal"
    yield "Bubble", f"{100 * pipeline.bubble:.1f} %", note
    yield "Message", format_time(pipeline.message_s), "from a stage to the next"


def _bars(
    pipeline: PipelineReport,
    amounts: Callable[[StageRow], Mapping[str, float]],
    unit: Unit,
    text: Callable[[float], str],
) -> list[dict[str, object]]:
    return [
        {
            "stage": f"stage {row.stage}",
            "what": amount_name,
            "amount": unit.of(amount),
            "text": text(amount),
            "order": order,
        }
        for row in pipeline.stages
        for order, (amount_name, amount) in enumerate(amounts(row).items())
        if amount > 0
    ]


def _layer(
    pipeline: PipelineReport, along: Mapping[str, object], hues: Mapping[str, str], title: str
) -> dict[str, object]:
    names = [f"stage {row.stage}" for row in pipeline.stages]
    return {
        "mark": "bar",
        "encoding": {
            "y": nominal("stage", None, sort=names),
            "x": along,
            "color": coloured("what", None, hues),
            "order": {"field": "order"},
            "tooltip": tooltips(stage="of", what="what", text=title),
        },
    }


def _stage_table(pipeline: PipelineReport) -> Table:
    numbers = ("Layers", "Forward", "Backward", "In flight", "Memory")
    return Table(
        caption="Each stage: passes are of one micro-batch",
        columns=("Stage", "Devices", *numbers),
        rows=[
            (
                Cell(text=f"{row.stage}", sort_by=row.stage),
                row.devices,
                Cell(text=f"{row.layers}", sort_by=row.layers),
                time_cell(row.forward_s),
                time_cell(row.backward_s),
                Cell(text=f"{row.in_flight}", sort_by=row.in_flight),
                quantity_cell(row.peak_memory_bytes, "B"),
            )
            for row in pipeline.stages
        ],
        numbers=numbers,
    )
