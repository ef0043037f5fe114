"""Find the layout in which a cluster serves a model best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import Meta

from hespas.errors import ConfigError, HespasError, option
from hespas.hardware.sized import find_system
from hespas.hardware.system import System
from hespas.models.model import PIPE, MeshAxes
from hespas.serve.answer import IDLE_QUEUE, ServingReport
from hespas.serve.options import LoadOptions, ServeOptions
from hespas.serve.serving import serving
from hespas.serve.surface import Surfaces

CONCURRENT = (1, 4, 16, 64, 256)
"""Requests under way on a replica, for the trade-off of speed and throughput."""
_SAMPLED = 4
"""Requests for each that is under way."""
_LIMITS = (16, 64, 256)
"""Sequences of a batch, where objectives may ask for fewer than the engine takes."""
_BETTER = 1.01
"""How much more is served by fewer sequences where a layout has a limit of them."""


class TradeOff(msgspec.Struct, frozen=True, kw_only=True):
    """A concurrency's speed for users, and throughput of devices."""

    concurrency: int
    tokens_per_s_per_user: float
    tokens_per_s_per_device: float
    is_best: Annotated[bool, Meta(description="no layout gives more of both")] = False


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas of ``tp`` devices; refused ones have no ``report``.

    Those with layers cut into ``pipe`` stages have as many devices for each. Of those beside them,
    ``prefill_replicas`` compute prompts alone. Weights are of ``weight_dtype``, empty for the
    model's own; ``max_sequences`` limits a batch, and where it is None the engine does. ``reason``
    says why it is not the best, empty for the best.
    """

    tp: int
    replicas: int
    pipe: int = 1
    prefill_replicas: int = 0
    weight_dtype: str = ""
    max_sequences: int | None = None
    reason: str = ""
    report: ServingReport | None = None
    trade_offs: tuple[TradeOff, ...] = ()


def layout_name(layout: Layout) -> str:
    """Return what tables call a layout."""
    parts = [f"tp={layout.tp}"] if layout.pipe == 1 else [f"pipe={layout.pipe}", f"tp={layout.tp}"]
    if layout.weight_dtype:
        parts.append(layout.weight_dtype)
    if layout.prefill_replicas:
        parts.append(f"{layout.prefill_replicas} for prompts")
    if layout.max_sequences is not None:
        parts.append(f"batches of {layout.max_sequences}")
    return ", ".join(parts)


class ServingSearch(msgspec.Struct, frozen=True, kw_only=True):
    """Layouts of a cluster, best first; without a rate they miss objectives."""

    model: str
    cluster: str
    layouts: tuple[Layout, ...]


def search_serving(options: ServeOptions, *, weights: Sequence[str] = ("",)) -> ServingSearch:
    """Rank a cluster's layouts by the largest rate served within the objectives.

    Layouts are the powers of two of ``tp``, beside those that are more than a node stages of a
    node each, with ``weights`` of each type, with as many replicas as
    there is room for; of these about as many that compute prompts alone as prompts are of the work;
    and, where it meets objectives better, a smaller limit of a batch. Raises `ConfigError` for a
    load without a rate, and where the options fix a layout.
    """
    if options.load.concurrency is not None:
        raise ConfigError(
            f"{option('concurrency')} has no effect in a search", hint=f"give {option('rate')}"
        )
    if options.model.mesh is not None or options.replicas is not None:
        raise ConfigError(
            "a search chooses the mesh and the replicas",
            hint=f"drop {option('mesh')} and {option('replicas')}",
        )
    if weights != ("",) and "weight_dtype" in options.model.settings:
        raise ConfigError(
            f"the types of weights are given by {option('set')} too", hint="give them once"
        )
    candidates = [
        layout for weight in weights for layout in _layouts(_with_weights(options, weight))
    ]
    layouts = sorted(candidates, key=_rank)
    explained = [_explained(layout, layouts[0]) for layout in layouts]
    return ServingSearch(
        model=options.model_name, cluster=options.cluster, layouts=_with_best(explained)
    )


def _rank(layout: Layout) -> tuple[bool, float, float]:
    """Return a sort key: served, then rate, then latency."""
    report = layout.report
    if report is None:
        return True, 0.0, 0.0
    return False, -(report.max_rate or 0.0), report.latency_s.mean


def _with_weights(options: ServeOptions, weight: str) -> ServeOptions:
    if not weight:
        return options
    settings = {**options.model.settings, "weight_dtype": weight}
    return replace(options, model=replace(options.model, settings=settings))


def _meshes(system: System) -> Iterator[MeshAxes]:
    """Yield a replica's meshes: powers of two of devices, node-sized stages."""
    node = system.dimensions[0].size if system.dimensions else system.device_count
    tensor = 1
    while tensor <= system.device_count:
        yield MeshAxes(axes=(("tp", tensor),))
        if tensor > node and tensor % node == 0:
            yield MeshAxes(axes=((PIPE, tensor // node), ("tp", node)))
        tensor *= 2


def _layouts(options: ServeOptions) -> Iterator[Layout]:
    system, surfaces = find_system(options.cluster), Surfaces()
    weight = str(options.model.settings.get("weight_dtype", ""))
    for mesh in _meshes(system):
        own = replace(options, model=replace(options.model, mesh=mesh))
        layout = Layout(
            tp=mesh.size("tp"),
            pipe=mesh.size(PIPE),
            replicas=system.device_count // mesh.device_count,
            weight_dtype=weight,
        )
        try:
            report = serving(own, surfaces)
        except HespasError as error:
            yield msgspec.structs.replace(layout, reason=error.message)
            continue
        trade_offs = tuple(_trade_offs(own, layout.replicas, surfaces))
        reported = msgspec.structs.replace(layout, report=report, trade_offs=trade_offs)
        yield reported
        yield from _limited(own, reported, surfaces)
        if layout.replicas > 1:
            yield _divided(own, reported, report, surfaces)


def _limited(options: ServeOptions, layout: Layout, surfaces: Surfaces) -> Iterator[Layout]:
    """Yield the layout with the best batch limit, where it serves more."""
    if not options.slo.are_given or options.engine.max_sequences is not None:
        return
    best = layout
    for limit in _LIMITS:
        engine = replace(options.engine, max_sequences=limit)
        report = serving(replace(options, engine=engine), surfaces)
        most = 0.0 if best.report is None else best.report.max_rate or 0.0
        if (report.max_rate or 0.0) > _BETTER * most:
            best = msgspec.structs.replace(
                layout, report=report, max_sequences=limit, trade_offs=()
            )
    if best is not layout:
        yield best


def _divided(
    options: ServeOptions, layout: Layout, together: ServingReport, surfaces: Surfaces
) -> Layout:
    """Return the best layout in which some replicas compute prompts alone."""
    replicas = layout.replicas
    share = round(replicas * together.prompt_share)
    counts = {min(replicas - 1, max(1, share + more)) for more in (-1, 0, 1)}
    divided: list[Layout] = []
    for count in sorted(counts):
        report, reason = None, ""
        try:
            report = serving(replace(options, prefill_replicas=count), surfaces)
        except HespasError as error:
            reason = error.message
        divided.append(
            msgspec.structs.replace(
                layout,
                replicas=replicas - count,
                prefill_replicas=count,
                report=report,
                reason=reason,
                trade_offs=(),
            )
        )
    return min(divided, key=_rank)


def _trade_offs(options: ServeOptions, replicas: int, surfaces: Surfaces) -> Iterator[TradeOff]:
    requests = options.load.made()
    prompt, output = (
        sum(lengths) // len(requests) for lengths in (requests.prompts, requests.outputs)
    )
    for concurrent in CONCURRENT:
        under_way = concurrent * replicas
        closed = LoadOptions(
            concurrency=under_way, isl=prompt, osl=output, requests=_SAMPLED * under_way
        )
        report = serving(replace(options, load=closed), surfaces)
        if report.tpot_s is not None:
            yield TradeOff(
                concurrency=under_way,
                tokens_per_s_per_user=1 / report.tpot_s.mean,
                tokens_per_s_per_device=report.output_tokens_per_s_per_device,
            )


def _explained(layout: Layout, best: Layout) -> Layout:
    report, most = layout.report, best.report
    if report is None or most is None:
        return layout
    if report.max_rate is None:
        alone = f"a request takes {report.ttft_s.p50 * 1e3:.0f} ms to its first token"
        if report.tpot_s is not None:
            alone += f" and {report.tpot_s.p50 * 1e3:.1f} ms between tokens"
        return msgspec.structs.replace(layout, reason=f"no rate meets the objectives: {alone}")
    if layout is best:
        return layout
    share = "as fast" if not most.max_rate else f"{report.max_rate / most.max_rate:.0%} of the best"
    bound = report.bound
    reason = f"{share}; decoding is bound by {bound.decode}, prompts by {bound.prefill}"
    if bound.queue != IDLE_QUEUE:
        reason += f", the queue by {bound.queue}"
    return msgspec.structs.replace(layout, reason=reason)


def _with_best(layouts: Sequence[Layout]) -> tuple[Layout, ...]:
    """Mark the trade-offs that no other one beats."""
    points = [point for layout in layouts for point in layout.trade_offs]

    def marked(point: TradeOff) -> TradeOff:
        is_beaten = any(
            rival.tokens_per_s_per_user >= point.tokens_per_s_per_user
            and rival.tokens_per_s_per_device >= point.tokens_per_s_per_device
            and rival is not point
            for rival in points
        )
        return msgspec.structs.replace(point, is_best=not is_beaten)

    return tuple(
        msgspec.structs.replace(layout, trade_offs=tuple(map(marked, layout.trade_offs)))
        for layout in layouts
    )
