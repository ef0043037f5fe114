"""Serve a load with replicas of a model: predict its steps, simulate the engine, gather figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hespas.errors import ConfigError, option
from hespas.hardware.presets import load_device
from hespas.hardware.sized import SIZED, find_system
from hespas.models.configured import configuration_of
from hespas.models.language import LanguageModel
from hespas.models.model import MeshAxes
from hespas.serve.answer import (
    Figures,
    ServingReport,
    SurfaceReport,
    bound_of,
    check_lengths,
    figures_of,
    largest_rate,
    latency,
    load_word,
    mean_batch,
    states,
)
from hespas.serve.engine import Engine, engine_named
from hespas.serve.load import Requests
from hespas.serve.options import ServeOptions
from hespas.serve.simulation import Served, Setup, serve
from hespas.serve.step_times import interpolated
from hespas.serve.surface import ServedModel, Surface, surface_of
from hespas.study.keys import Scalar

_S_PER_HOUR = 3600.0
_CAPACITY = {"dropless": "true", "expert_groups": "1", "chosen_groups": "1"}
"""How tokens are sent to experts: groups of those decide where, and not how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Replicas on a cluster: ``part`` names the device, ``of_replica`` counts those of one."""

    part: str
    mesh: MeshAxes
    of_replica: int
    replicas: int

    @property
    def devices(self) -> int:
        """The devices of all replicas."""
        return self.of_replica * self.replicas


def fleet_of(options: ServeOptions) -> Fleet:
    """Return how replicas stand on the cluster; `ConfigError` where they don't fit.

    Without a mesh one replica has all devices that its share of the cluster has.
    """
    sized = SIZED.fullmatch(options.cluster)
    if sized is None:
        raise ConfigError(
            f"{option('cluster')} is {options.cluster!r}", hint="write it as in 8xH100_80GB"
        )
    system = find_system(options.cluster)
    count, mesh = system.device_count, options.model.mesh
    if mesh is None:
        of_replica = count // (options.replicas or 1)
        mesh = MeshAxes(axes=(("tp", max(1, of_replica)),))
    of_replica = mesh.device_count
    replicas = options.replicas or count // of_replica
    if not replicas or replicas * of_replica > count:
        raise ConfigError(
            f"{max(1, replicas)} replicas of {of_replica} devices do not fit {options.cluster}",
            hint=f"give {option('mesh')} with at most {count} devices",
        )
    return Fleet(part=sized[2], mesh=mesh, of_replica=of_replica, replicas=replicas)


def serving(options: ServeOptions) -> ServingReport:
    """Predict how a load is served.

    Raises `ConfigError` for a model that doesn't fit, requests longer than its context, and what
    the prediction of a step raises.
    """
    fleet, requests = fleet_of(options), options.load.made()
    configuration = configuration_of(options.model_name)
    if configuration is not None and isinstance(configuration.model, LanguageModel):
        options = _without_capacity(options, configuration.model)
    longest = None if configuration is None else configuration.longest
    check_lengths(requests, longest)
    device = load_device(fleet.part)
    capacity = device.memory_capacity_bytes
    if capacity is None:
        raise ConfigError(f"the memory of {fleet.part} is not known", hint="name another part")
    engine = engine_named(options.engine.engine, memory_bytes=capacity, part=fleet.part)
    engine = options.engine.changed(engine)
    surface = surface_of(
        _served_model(options, fleet),
        fidelity=options.fidelity,
        executor=options.executor,
        longest=longest,
    )
    setup = Setup(
        engine=engine,
        times=surface.times,
        blocks=_blocks(engine, surface, capacity, options, fleet),
        parts=surface.parts,
    )
    served = serve(requests, setup, replicas=fleet.replicas, router=options.router)
    return _report(options, fleet, requests, served, setup=setup, surface=surface)


def _without_capacity(options: ServeOptions, model: LanguageModel) -> ServeOptions:
    """Return options with experts as engines have them: no token is dropped, none is padded."""
    mesh, settings = options.model.mesh, options.model.settings
    is_divided = mesh is not None and "expert" in mesh.names
    if model.routing is None or is_divided or _CAPACITY.keys() & settings.keys():
        return options
    return replace(options, model=replace(options.model, settings={**settings, **_CAPACITY}))


def _served_model(options: ServeOptions, fleet: Fleet) -> ServedModel:
    model = options.model
    values: dict[str, Scalar] = {}
    if model.dtype is not None:
        values["dtype"] = model.dtype
    if model.attention is not None:
        values["attention"] = model.attention
    return ServedModel(
        name=options.model_name,
        cluster=f"{fleet.of_replica}x{fleet.part}",
        mesh=fleet.mesh.axes,
        settings=dict(model.settings),
        values=values,
    )


def _blocks(
    engine: Engine, surface: Surface, capacity: int, options: ServeOptions, fleet: Fleet
) -> int:
    left = engine.cache_bytes(
        capacity=capacity, weights=surface.weights_bytes, workspace=surface.workspace_bytes
    )
    bytes_of_block = surface.kv_bytes_per_token * engine.block_tokens
    blocks = int(left // bytes_of_block) * surface.parts if bytes_of_block else 0
    if blocks:
        return blocks
    needed = surface.weights_bytes + surface.workspace_bytes
    more = 2 * fleet.of_replica
    raise ConfigError(
        f"{options.model_name} does not fit: a device needs {needed / 1e9:.1f} GB for weights and "
        f"workspace, and {engine.name} takes {engine.memory_share:.0%} of {capacity / 1e9:.1f} GB",
        hint=f"divide it over more devices, as in {option('mesh')} tp={more}",
    )


def _report(
    options: ServeOptions,
    fleet: Fleet,
    requests: Requests,
    served: Served,
    *,
    setup: Setup,
    surface: Surface,
) -> ServingReport:
    figures = figures_of(requests, served)
    most = largest_rate(
        requests, setup, options.slo, replicas=fleet.replicas, router=options.router
    )
    tokens = sum(requests.outputs)
    rate = tokens / figures.duration_s
    batch = mean_batch(served, figures)
    ttft, whole, queue = (
        latency(values) for values in (figures.ttft_s, figures.latency_s, figures.queue_s)
    )
    assert ttft is not None and whole is not None and queue is not None  # noqa: S101, PT018
    met = options.slo.met(figures) if options.slo.are_given else None
    good = None if met is None else float(met.sum()) / figures.duration_s
    prompt = sum(requests.prompts) // len(requests)
    energy_j = _energy(surface, batch / fleet.replicas, fleet, figures, tokens)
    usd = options.device_hour_usd
    cost = usd and usd * fleet.devices * figures.duration_s / _S_PER_HOUR / tokens * 1e6
    return ServingReport(
        model=options.model_name,
        engine=setup.engine.name,
        cluster=options.cluster,
        devices=fleet.devices,
        replicas=fleet.replicas,
        requests=len(requests),
        ttft_s=ttft,
        tpot_s=latency(figures.tpot_s),
        latency_s=whole,
        queue_s=queue,
        duration_s=figures.duration_s,
        output_tokens_per_s=rate,
        output_tokens_per_s_per_device=rate / fleet.devices,
        requests_per_s=len(requests) / figures.duration_s,
        goodput=good,
        max_rate=most,
        load=load_word(requests, figures, most),
        kv_blocks=setup.blocks,
        block_tokens=setup.engine.block_tokens,
        mean_batch=batch / fleet.replicas,
        preemptions=served.preemptions,
        iterations=served.iterations,
        bound=bound_of(surface, served, batch / fleet.replicas, prompt),
        expected_error=surface.times.left_out_error,
        energy_j_per_output_token=energy_j,
        usd_per_million_output_tokens=cost,
        launch=_launch(options, fleet, setup.engine),
        steps=SurfaceReport(
            tokens_s=surface.times.tokens_s,
            context_s=surface.times.context_s,
            pair_s=surface.times.pair_s,
        ),
        states=states(served),
        assumptions=list(_assumptions(options, setup, surface)),
    )


def _energy(
    surface: Surface, batch: float, fleet: Fleet, figures: Figures, tokens: int
) -> float | None:
    """Return the joules for each output token: devices draw what the mean batch does."""
    if surface.power_w is None:
        return None
    power_w = interpolated(surface.power_w, round(batch))
    return power_w * fleet.devices * figures.duration_s / tokens


def _launch(options: ServeOptions, fleet: Fleet, engine: Engine) -> str:
    tensor = dict(fleet.mesh.axes).get("tp", 1)
    return engine.launch.format(
        model=options.model_name,
        tensor=tensor,
        sequences=engine.most_sequences,
        budget=engine.token_budget,
    )


def _assumptions(options: ServeOptions, setup: Setup, surface: Surface) -> Iterator[str]:
    engine = setup.engine
    yield (
        f"steps are predicted ({options.fidelity.value}) at {len(surface.reports)} sizes and are "
        f"linear between: a size left out is off by {surface.times.left_out_error:.1%} at most"
    )
    yield (
        "attention is linear in the context that a batch attends to; prompts attend to all tokens "
        "before"
    )
    if engine.host_s == 0:
        yield "no iteration waits for the host: the engine schedules one while another runs"
    yield f"{engine.name} has its defaults but for what options change; no prefix is shared"
    if engine.mixes and engine.cuts_prompts:
        yield "blocks of a whole prompt are taken when its first chunk is"
    yield "no time passes between a user, a router and a replica"
