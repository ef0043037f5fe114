"""Predict how replicas of a model serve a load."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import msgspec

from hespas.base.frozen import frozen
from hespas.base.units import format_time
from hespas.errors import ConfigError, option
from hespas.hardware.presets import is_tpu, load_device
from hespas.hardware.sized import SIZED, find_system
from hespas.models.catalogue import find_model
from hespas.models.configured import configuration_of
from hespas.models.language import LanguageModel
from hespas.models.model import PIPE, MeshAxes
from hespas.prediction.served import without_capacity
from hespas.serve.activity import energy_of, mean_batch, working_batch
from hespas.serve.answer import (
    LEAST_OF_LOAD,
    Figures,
    Objectives,
    ServingReport,
    SurfaceReport,
    at_rates,
    bound_of,
    check_lengths,
    figures_of,
    largest_rate,
    latency,
    load_word,
    published_errors,
)
from hespas.serve.calibration import compared, read_log
from hespas.serve.engine import Engine, Setup, engine_named
from hespas.serve.load import PICOSECONDS, Requests
from hespas.serve.options import ServeOptions
from hespas.serve.simulation import NO_ENTRY, Prefill, ServingPlan
from hespas.serve.stage_models import ReplicaSteps, stage_models
from hespas.serve.step_times import StepFactors, interpolated
from hespas.serve.surface import Surface, Surfaces
from hespas.study.executor import Phase

_S_PER_HOUR = 3600.0
_HALVES = ("bf16", "f16")
_TYPE_NAMES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
_DECIDING = 0.25
"""The share of a step from which on an assumption about it is said."""
_OF_THE_STEP = ("the batch is", "the mesh is", "kernels are those of libraries", "network:")
"""How assumptions begin that hold for a step by itself, or for all that are served."""
_OF_ONE_STAGE = frozenset({"stage", "first_layer"})
"""Settings of steps that are one stage of a pipeline."""
_COPIES = "data"
"""The axis of copies of the model, which are replicas where it is served."""
_EXPERTS = "expert"
"""The axis of devices that have experts of their own, and attention too."""


@frozen
class Fleet:
    """Replicas on a cluster of devices of one ``part``.

    Beside them ``prefills`` replicas, of a mesh of their own, compute prompts alone.
    """

    part: str
    mesh: MeshAxes
    replicas: int
    prefill_mesh: MeshAxes
    prefills: int = 0

    @property
    def of_replica(self) -> int:
        """The devices of a replica."""
        return self.mesh.device_count

    @property
    def devices(self) -> int:
        """The devices of all replicas."""
        return sum(self.of_each)

    @property
    def of_each(self) -> list[int]:
        """The devices of each replica, those for prompts alone behind the others."""
        of_prefill = self.prefill_mesh.device_count
        return [self.of_replica] * self.replicas + [of_prefill] * self.prefills


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
    prefills = options.prefill_replicas
    if mesh is None:
        of_replica = count // ((options.replicas or 1) + prefills)
        mesh = MeshAxes(axes=(("tp", max(1, of_replica)),))
    prefill_mesh = options.prefill_mesh or mesh
    of_replica, of_prefill = mesh.device_count, prefill_mesh.device_count
    free = count - prefills * of_prefill
    replicas = options.replicas or free // of_replica
    if replicas < 1 or replicas * of_replica > free:
        beside = f" beside {prefills} of {of_prefill} that compute prompts" if prefills else ""
        raise ConfigError(
            f"{max(1, replicas)} replicas of {of_replica} devices{beside} do not fit "
            f"{options.cluster}",
            hint=f"give {option('mesh')} with at most {max(1, free)} devices",
        )
    return Fleet(
        part=sized[2],
        mesh=mesh,
        replicas=replicas,
        prefill_mesh=prefill_mesh,
        prefills=prefills,
    )


def serving(options: ServeOptions, surfaces: Surfaces | None = None) -> ServingReport:
    """Predict how a load is served.

    Raises `ConfigError` for a model that doesn't fit, requests longer than its context, and what
    the prediction of a step raises.
    """
    fleet = fleet_of(options)
    fidelity = options.fidelity or (Phase.SCREEN if is_tpu(fleet.part) else Phase.LIBRARY)
    capacity = _capacity_bytes(fleet.part)
    defaults = engine_named(
        options.engine.engine, memory_bytes=capacity, part=fleet.part, devices=fleet.of_replica
    )
    engine = options.engine.changed(defaults)
    options, surfaces = replace(options, fidelity=fidelity), surfaces or Surfaces()
    configuration = configuration_of(options.model_name)
    longest = None if configuration is None else configuration.longest
    model = _language_model(options.model_name)
    if model is not None:
        options = replace(options, model=without_capacity(options.model, model))
    _check(options, fleet, model)
    requests = options.load.made()
    check_lengths(requests, longest)
    speculation = options.engine.speculation(None if model is None else model.layers)

    def steps_on(mesh: MeshAxes) -> ReplicaSteps:
        dimensions = find_system(options.cluster).dimensions
        models = stage_models(
            options, fleet.part, mesh, model, engine=engine, dimensions=dimensions
        )
        surfaces_of = [
            surfaces.of(stage.model, fidelity=fidelity, executor=options.executor, longest=longest)
            for stage in models
        ]
        return ReplicaSteps(name=options.model_name, models=models, surfaces=tuple(surfaces_of))

    def setup_of(steps: ReplicaSteps, factors: StepFactors) -> Setup:
        setup = steps.setup(engine, capacity, shares=requests.chains is not None, factors=factors)
        return replace(setup, speculation=speculation)

    steps = steps_on(fleet.mesh)

    def plan_of(factors: StepFactors) -> ServingPlan:
        prefill = None
        if fleet.prefills:
            own = steps if fleet.prefill_mesh == fleet.mesh else steps_on(fleet.prefill_mesh)
            prefill = _prefill(options, fleet, setup_of(own, factors), steps)
        return ServingPlan(
            setup=setup_of(steps, factors),
            replicas=fleet.replicas,
            router=options.router,
            prefill=prefill,
            entry=options.engine.entry if options.load.log is None else NO_ENTRY,
        )

    log = None if options.load.log is None else compared(read_log(options.load.log), plan_of)
    if log is not None:
        factors = StepFactors(decode=log.decode_factor, prompts=log.prompts_factor)
        options = replace(options, step_factors=factors)
    plan = plan_of(options.step_factors)
    return msgspec.structs.replace(_report(options, fleet, requests, plan, steps), log=log)


def _capacity_bytes(part: str) -> int:
    capacity = load_device(part).memory_capacity_bytes
    if capacity is None:
        raise ConfigError(f"the memory of {part} is not known", hint="name another part")
    return capacity


def _check(options: ServeOptions, fleet: Fleet, model: LanguageModel | None) -> None:
    configuration = configuration_of(options.model_name)
    if configuration is not None and not isinstance(configuration.model, LanguageModel):
        raise ConfigError(
            f"{options.model_name} is no decoder, and engines are described for those alone",
            hint=f"hespas run {options.model_name} predicts a step of it",
        )
    if model is not None:
        _check_type(options, model, fleet.part)
    _check_unserved(options, fleet)
    _check_halves(options, fleet)
    _check_pipeline(options, fleet)


def _check_unserved(options: ServeOptions, fleet: Fleet) -> None:
    """Raise `ConfigError` for what steps have and engines have not."""
    if options.model.software is not None:
        raise ConfigError(
            f"{option('software')} has no effect on what is served",
            hint=f"drop it: training steps have it; {option('engine')} names the engine",
        )
    for name, mesh in (("mesh", fleet.mesh), ("prefill_mesh", fleet.prefill_mesh)):
        if mesh.size(_COPIES) > 1:
            raise ConfigError(
                f"{_COPIES}={mesh.size(_COPIES)} of {option(name)} makes copies of the model, "
                "which engines serve as replicas",
                hint=f"drop it: {option('replicas')} says how many there are",
            )


def _check_type(options: ServeOptions, model: LanguageModel, part: str) -> None:
    dtype, device = options.model.dtype or model.run.dtype, load_device(part)
    if dtype in _HALVES and not device.names(dtype):
        substitute = next((dtype_name for dtype_name in _HALVES if device.names(dtype_name)), "f32")
        raise ConfigError(
            f"{part} has no products of {dtype}, and engines refuse it there",
            hint=f"give {option('dtype')} {substitute}",
        )


def _check_halves(options: ServeOptions, fleet: Fleet) -> None:
    """Raise `ConfigError` for two batches of which none sends tokens to experts."""
    meshes = (fleet.mesh, fleet.prefill_mesh)
    if options.engine.two_batches and not any(_EXPERTS in mesh.names for mesh in meshes):
        raise ConfigError(
            f"{option('two_batches')} has no effect: no tokens travel to experts",
            hint=f"divide them by {option('mesh')}, as in expert=8",
        )


def _check_pipeline(options: ServeOptions, fleet: Fleet) -> None:
    """Raise `ConfigError` for what is unknown of engines in stages."""
    for name in sorted(_OF_ONE_STAGE & options.model.settings.keys()):
        raise ConfigError(
            f"{option('set')} {name} is of one stage alone, and engines serve whole models",
            hint=f"drop it; {option('mesh')} {PIPE}=2 cuts the layers into stages",
        )
    if all(mesh.size(PIPE) == 1 for mesh in (fleet.mesh, fleet.prefill_mesh)):
        return
    own = options.engine
    unpredicted = {
        "two_batches": own.two_batches,
        "speculative_tokens": own.speculative_tokens > 0,
        "poll_interval": own.poll_interval > 1,
    }
    for name, is_set in unpredicted.items():
        if is_set:
            raise ConfigError(
                f"{option(name)} is not predicted with stages of a pipeline",
                hint=f"drop it, or {PIPE} of {option('mesh')}",
            )


def _prefill(options: ServeOptions, fleet: Fleet, setup: Setup, steps: ReplicaSteps) -> Prefill:
    """Return the prefill replicas and their links.

    All devices of the smaller replica have a part of the keys and values, and send at a time over
    links of the cluster's last dimension, which joins its nodes where there are several.
    """
    dimensions = find_system(options.cluster).dimensions
    if not dimensions:
        raise ConfigError(
            f"the network of {options.cluster} is not known", hint="name another cluster"
        )
    link = dimensions[-1]
    senders = min(fleet.of_replica, fleet.prefill_mesh.device_count)
    return Prefill(
        setup=setup,
        replicas=fleet.prefills,
        bytes_per_token=steps.kv_bytes_per_token,
        bytes_per_s=link.bandwidth_bytes_per_s * senders,
        latency_s=link.latency_s,
    )


def _language_model(name: str) -> LanguageModel | None:
    """Return the language model that a name or configuration describes.

    None for models that write no tokens.
    """
    model = find_model(f"{name}:decode")
    return model.settings if model and isinstance(model.settings, LanguageModel) else None


def _report(
    options: ServeOptions,
    fleet: Fleet,
    requests: Requests,
    plan: ServingPlan,
    steps: ReplicaSteps,
) -> ServingReport:
    surface, usd = steps.joined, options.device_hour_usd
    setup, served = plan.setup, plan.serve(requests)
    errors = published_errors(setup.engine.name, fleet.part)
    figures = figures_of(requests, served)
    longer = options.load.longer(requests, LEAST_OF_LOAD)
    most = largest_rate(requests, plan, options.slo, longer=longer)
    tokens = sum(requests.outputs)
    rate = tokens / figures.duration_s
    duration_s = figures.duration_s
    working = working_batch(served.activities) / surface.parts
    batch = mean_batch(served.activities, duration_s) / fleet.replicas
    total_j = energy_of(surface, served.activities, fleet.of_each, duration_s)
    ttft, total, queue = map(latency, (figures.ttft_s, figures.latency_s, figures.queue_s))
    assert ttft is not None and total is not None and queue is not None  # noqa: S101, PT018
    hits = served.cached_tokens / sum(requests.prompts) if requests.chains is not None else None
    return ServingReport(
        model=options.model_name,
        engine=setup.engine.name,
        cluster=options.cluster,
        devices=fleet.devices,
        replicas=fleet.replicas,
        prefill_replicas=fleet.prefills,
        requests=len(requests),
        ttft_s=ttft,
        tpot_s=latency(figures.tpot_s),
        latency_s=total,
        queue_s=queue,
        duration_s=figures.duration_s,
        output_tokens_per_s=rate,
        output_tokens_per_s_per_device=rate / fleet.devices,
        requests_per_s=len(requests) / figures.duration_s,
        goodput=_goodput(options.slo, figures),
        max_rate=most,
        rates=at_rates(requests, plan, options.slo, most),
        load=load_word(requests, figures, most, plan.entry),
        prefix_hit_rate=hits,
        kv_blocks=setup.blocks,
        block_tokens=setup.engine.block_tokens,
        mean_batch=batch,
        prompt_share=_prompt_share(requests, surface, batch),
        preemptions=served.preemptions,
        iterations=served.iterations,
        bound=bound_of(surface, served, working, sum(requests.prompts) // len(requests)),
        expected_error=None if errors is None else errors.tpot,
        published_errors=errors,
        left_out_error=surface.times.left_out_error,
        energy_j_per_output_token=None if total_j is None else total_j / tokens,
        usd_per_million_output_tokens=usd
        and usd * fleet.devices * figures.duration_s / _S_PER_HOUR / tokens * 1e6,
        launch="\n".join(_launches(options, fleet, setup.engine)),
        steps=_steps_of(surface),
        states=served.samples,
        stages=steps.rows(setup, working, _capacity_bytes(fleet.part))
        if len(steps.models) > 1
        else [],
        assumptions=list(_assumptions(options, plan, requests, steps)),
    )


def _goodput(objectives: Objectives, figures: Figures) -> float | None:
    if not objectives.are_given:
        return None
    return float(objectives.met(figures).sum()) / figures.duration_s


def _steps_of(surface: Surface) -> SurfaceReport:
    times = surface.times
    return SurfaceReport(tokens_s=times.tokens_s, context_s=times.context_s, pair_s=times.pair_s)


def _prompt_share(requests: Requests, surface: Surface, batch: float) -> float:
    """Return prompts' share of iterations' time."""
    times, sequences = surface.times, max(1, round(batch))
    prompts = sum(requests.prompts)
    prompts_s = interpolated(times.tokens_s, prompts // len(requests)) * len(requests)
    context = sequences * prompts // len(requests)
    step_ps = times.of_tokens(sequences) + times.of_context(sequences) * context
    decoding_s = step_ps / PICOSECONDS * sum(requests.outputs) / sequences
    return prompts_s / (prompts_s + decoding_s)


def _launches(options: ServeOptions, fleet: Fleet, engine: Engine) -> Iterator[str]:
    settings, own = options.model.settings, options.engine
    of_options = {
        "weights in 8 bits": settings.get("weight_dtype") == "f8",
        "cache in 8 bits": settings.get("cache_dtype") == "f8",
        "whole experts": settings.get("expert_axes") == "tp",
        "memory share": own.memory_share is not None,
        "no prefixes": not own.prefix_caching,
        "guesses": own.speculative_tokens > 0,
        "no plan ahead": not own.plan_ahead,
        "two batches": own.two_batches,
        "type": options.model.dtype is not None,
        "polls": own.poll_interval > 1,
    }
    roles = {"": fleet.mesh}
    if fleet.prefills:
        roles = {"decode": fleet.mesh, "prefill": fleet.prefill_mesh}
    for role, mesh in roles.items():
        parts = dict(mesh.axes).get(_EXPERTS, 1)
        of_role = {
            **of_options,
            "pipeline": mesh.size(PIPE) > 1,
            "attention in parts": parts > 1,
            role: bool(role),
        }
        flags = [name for name, is_set in of_role.items() if is_set]
        missing = [name for name in flags if name not in engine.flags]
        command = " ".join([engine.launch, *(engine.flags.get(name, "") for name in flags)])
        yield command.format(
            model=options.model_name,
            tensor=dict(mesh.axes).get("tp", 1),
            devices=mesh.device_count // mesh.size(PIPE),
            parts=parts,
            stages=mesh.size(PIPE),
            sequences=engine.most_sequences,
            budget=engine.token_budget,
            share=engine.memory_share,
            guesses=own.speculative_tokens,
            polls=own.poll_interval,
            dtype=_TYPE_NAMES.get(options.model.dtype or "", options.model.dtype),
        ).strip() + (f"  # without {', '.join(missing)}" if missing else "")


def _assumptions(
    options: ServeOptions, plan: ServingPlan, requests: Requests, steps: ReplicaSteps
) -> Iterator[str]:
    surface = steps.joined
    configuration = configuration_of(options.model_name)
    notes = () if configuration is None else configuration.notes
    fidelity = next(iter(surface.reports.values())).fidelity
    yield from notes
    yield (
        f"steps are predicted ({fidelity}) at {len(surface.reports)} sizes and are linear between: "
        f"a size left out is off by {surface.times.left_out_error:.1%} at most"
    )
    yield from _step_assumptions(surface, said=notes)
    if (depths := surface.depths) is not None:
        yield (
            f"steps of {depths.layers} layers are those of {depths.shallow} and {depths.deep}, and "
            "grow by the same with each more"
        )
    yield (
        "attention is linear in the context that a batch attends to; prompts attend to all tokens "
        "before"
    )
    yield from _cache_assumptions(plan, surface)
    yield from _power_assumptions(surface)
    yield from _stage_assumptions(steps, plan.setup.engine)
    if options.step_factors != StepFactors():
        factors = options.step_factors
        origin = "given" if options.load.log is None else "fitted to every other request of the log"
        yield (
            f"iterations that decode take {factors.decode:.3g} times what is predicted, and those "
            f"of prompts {factors.prompts:.3g} times, as {origin}"
        )
    yield from _engine_assumptions(options, plan, shares=requests.chains is not None)


def _engine_assumptions(options: ServeOptions, plan: ServingPlan, *, shares: bool) -> Iterator[str]:
    """Say how engine and server work; requests may share prefixes."""
    setup, engine = plan.setup, plan.setup.engine
    yield _host_assumption(engine)
    shared = "whole blocks are shared" if shares else "no prompts share a prefix"
    yield f"{engine.name} has its defaults but for what options change; {shared}"
    if setup.speculation is not None:
        guessed = setup.speculation
        yield (
            f"{guessed.tokens} tokens are guessed ahead, each in {guessed.draft_share:.1%} of an "
            f"iteration, and an iteration makes {guessed.made:.2f} tokens of a sequence: each "
            f"guess is accepted with {guessed.acceptance:.0%} behind accepted ones"
        )
    if plan.prefill is not None:
        yield (
            f"keys and values go at {plan.prefill.bytes_per_s / 1e9:.0f} GB/s from a replica that "
            "computes prompts, one request after another; the first token comes with them"
        )
    if options.engine.two_batches:
        yield (
            "an iteration takes what two halves compute, or what their tokens travel where that is "
            "more: neither slows the other"
        )
    if engine.mixes and engine.cuts_prompts:
        yield "blocks of a whole prompt are taken when its first chunk is"
    if engine.plans_ahead and not setup.stages:
        yield (
            f"{engine.name} plans an iteration as the one before it starts: what comes while one "
            "runs waits for the next to end"
        )
    if engine.poll_interval > 1:
        yield (
            f"{engine.name} looks for requests once in {engine.poll_interval} iterations that "
            "decode, as given"
        )
    if plan.entry == NO_ENTRY:
        yield "requests come to the engine itself"
    else:
        yield (
            f"a server takes {format_time(plan.entry.request_s)} for a request and "
            f"{format_time(plan.entry.token_s)} for each token of its prompt, one request after "
            "another"
        )
    yield "no time passes between a user, a router and a server"


def _stage_assumptions(steps: ReplicaSteps, engine: Engine) -> Iterator[str]:
    if len(steps.models) == 1:
        return
    layers = ", ".join(str(stage.layers) for stage in steps.models)
    yield (
        f"layers are cut into stages of {layers}, as {engine.name} does; the first has the "
        "embedding, the last the head"
    )
    yield (
        f"{len(steps.models)} batches are under way, each of requests of its own: one takes what "
        "waits when it has been through all stages, and no time passes until it goes through again"
    )
    slowest = max((stage.link for stage in steps.models), key=lambda link: link.token_s)
    yield (
        "a stage works on nothing else while it receives hidden states and residuals: "
        f"{format_time(slowest.fixed_s)}, and {format_time(slowest.token_s)} for each token"
    )
    yield "blocks are those of the stage with the fewest; all stages draw the power of working ones"


def _step_assumptions(surface: Surface, *, said: Collection[str]) -> Iterator[str]:
    """Yield the steps' deciding assumptions that ``said`` lacks."""
    shares: dict[str, float] = {}
    for report in (surface.report_near(8, is_prompt=False), surface.report_near(0, is_prompt=True)):
        for group in report.assumption_groups:
            share = group.step_share or 0.0
            is_said = group.text in said or group.text.startswith(_OF_THE_STEP)
            if share >= _DECIDING and not is_said:
                shares[group.text] = max(share, shares.get(group.text, 0.0))
    for text, share in shares.items():
        yield f"steps: {text} (decides {share:.0%} of one)"


def _cache_assumptions(plan: ServingPlan, surface: Surface) -> Iterator[str]:
    setup, memory = plan.setup, surface.memory
    if window := setup.times.window:
        keeping = f"{setup.engine.name} keeps all tokens of these too"
        if setup.tokens_beyond is not None:
            keeping = f"{setup.engine.name} keeps no others of these"
        yield f"layers with a window attend to the last {window} tokens; {keeping}"
    if memory.state_bytes:
        yield f"a sequence has {memory.state_bytes / 1e6:.1f} MB of states on a device, in f32"


def _power_assumptions(surface: Surface) -> Iterator[str]:
    if surface.power_w is None:
        return
    if surface.idle_w:
        share = "its part of the machine and the network"
        yield f"a device that waits draws {surface.idle_w:.0f} W, with {share}"
    else:
        yield "what devices draw while they wait is not known, and not counted"


def _host_assumption(engine: Engine) -> str:
    if not engine.plans_ahead and any(engine.unhidden_s):
        fixed, of_sequence = map(format_time, engine.unhidden_s)
        return (
            f"{engine.name} schedules between iterations: {fixed}, and {of_sequence} for each "
            "sequence, chosen for published points"
        )
    if engine.host_s:
        return f"each iteration waits {format_time(engine.host_s)} for the host, as given"
    return "no iteration waits for the host: the engine schedules one while another runs"
