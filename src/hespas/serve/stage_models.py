"""One replica: the models of its stages, and their predicted steps.

A replica without a pipeline is one stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from hespas.base.frozen import frozen
from hespas.errors import ConfigError, option
from hespas.hardware.interconnect import Dimension
from hespas.models.figures import state_bytes, windowed_share
from hespas.models.language import LanguageModel
from hespas.models.model import PIPE, TYPE_BYTES, MeshAxes
from hespas.serve.answer import StageRow
from hespas.serve.engine import Engine, Setup, layers_of_stages
from hespas.serve.load import PICOSECONDS
from hespas.serve.options import ServeOptions
from hespas.serve.step_times import StepFactors, summed
from hespas.serve.surface import ServedModel, Surface, Window, settings_of
from hespas.study.keys import Scalar

_SENT = 2
"""Rows of a token that a stage sends on: the hidden state, and the residual beside it."""


@frozen
class Link:
    """A stage's time to receive a batch: ``fixed_s`` + tokens * ``token_s``."""

    fixed_s: float = 0.0
    token_s: float = 0.0


@frozen
class StageModel:
    """A stage of a replica, and the link that brings its batches."""

    model: ServedModel
    layers: int
    link: Link

    @property
    def devices(self) -> int:
        """The devices of the stage."""
        return MeshAxes(axes=self.model.mesh).device_count


def within_stages(mesh: MeshAxes) -> MeshAxes:
    """Return the mesh of one stage.

    >>> str(within_stages(MeshAxes(axes=(("pipe", 2), ("tp", 8)))))
    'tp=8'
    """
    axes = tuple(axis for axis in mesh.axes if axis[0] != PIPE)
    return MeshAxes(axes=axes or (("tp", 1),))


def stage_models(
    options: ServeOptions,
    part: str,
    mesh: MeshAxes,
    model: LanguageModel | None,
    *,
    engine: Engine,
    dimensions: Sequence[Dimension],
) -> tuple[StageModel, ...]:
    """Return a replica's stages on a mesh; ``dimensions`` are of the cluster.

    Raises `ConfigError` for more stages than layers, and layers that need others.
    """
    stages, inner = mesh.size(PIPE), within_stages(mesh)
    served = _served_model(options, part, inner, model)
    if stages == 1:
        return (StageModel(model=served, layers=0 if model is None else model.layers, link=Link()),)
    settings = settings_of(served)
    if not isinstance(settings, LanguageModel):
        raise ConfigError(
            f"{options.model_name} is not cut into stages", hint=f"drop {PIPE} of {option('mesh')}"
        )
    if stages > settings.layers:
        raise ConfigError(
            f"{options.model_name} has {settings.layers} layers for {stages} stages",
            hint=f"give {PIPE}={settings.layers} or less",
        )
    return tuple(_stages(served, settings, stages, engine, dimensions))


def _stages(
    served: ServedModel,
    settings: LanguageModel,
    stages: int,
    engine: Engine,
    dimensions: Sequence[Dimension],
) -> Iterator[StageModel]:
    mesh, begin = MeshAxes(axes=served.mesh), 0
    for number, layers in enumerate(layers_of_stages(settings.layers, stages, engine.more_layers)):
        of_stage = settings.with_layers(layers, first=begin)
        is_last = number == stages - 1
        model = replace(
            served,
            stage=("first" if not number else "last" if is_last else "middle"),
            layers=layers,
            # Stages of equal layers are predicted once.
            first_layer=settings.first_like(begin, layers),
            window=_window_of(of_stage),
            state_bytes=state_bytes(of_stage) // mesh.size("tp"),
        )
        link = _link_to(number, settings, mesh, dimensions) if number else Link()
        yield StageModel(model=model, layers=layers, link=link)
        begin += layers


def _link_to(
    stage: int, settings: LanguageModel, mesh: MeshAxes, dimensions: Sequence[Dimension]
) -> Link:
    """Return what a stage takes to receive from the one before.

    Each of ``tp`` devices sends a part, and the receivers gather the parts. Source: vLLM,
    distributed/parallel_state.py, send_tensor_dict; SGLang's is alike.
    """
    if not dimensions:
        raise ConfigError("the network of the cluster is not known", hint="name another cluster")
    last, stride, between = stage * mesh.device_count, 1, dimensions[0]
    for dimension in dimensions:
        if last // stride % dimension.size != (last - 1) // stride % dimension.size:
            between = dimension
        stride *= dimension.size
    near, devices = dimensions[0], mesh.size("tp")
    row_bytes = _SENT * settings.sizes_of_layers.embedding * TYPE_BYTES[settings.dtype]
    gathered = row_bytes * (devices - 1) / devices / near.bandwidth_bytes_per_s
    return Link(
        fixed_s=between.latency_s + (near.latency_s if devices > 1 else 0.0),
        token_s=row_bytes / devices / between.bandwidth_bytes_per_s + gathered,
    )


@frozen
class ReplicaSteps:
    """The stages of a model's replica, with their predicted steps."""

    name: str
    models: tuple[StageModel, ...]
    surfaces: tuple[Surface, ...]

    @property
    def joined(self) -> Surface:
        """The steps of all stages as one: times summed, others the slowest's.

        Devices draw the mean of the stages.
        """
        if len(self.surfaces) == 1:
            return self.surfaces[0]
        slowest = max(self.surfaces, key=lambda surface: surface.times.of_tokens(_TYPICAL))
        powers = [dict(surface.power_w or ()) for surface in self.surfaces]
        power_w = tuple((size, sum(surface[size] for surface in powers)) for size in powers[0])
        mean_w = tuple((size, value / len(powers)) for size, value in power_w)
        return replace(
            slowest,
            times=summed([surface.times for surface in self.surfaces]),
            power_w=mean_w if all(powers) else None,
        )

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of a token's keys and values, on all devices together."""
        pairs = zip(self.models, self.surfaces, strict=True)
        return sum(
            surface.memory.kv_bytes_per_token * stage.devices / surface.parts
            for stage, surface in pairs
        )

    def setup(self, engine: Engine, capacity: int, *, shares: bool, factors: StepFactors) -> Setup:
        """Return what a replica runs; `ConfigError` if a cache doesn't fit.

        Blocks are those of the stage that has the fewest. Requests that ``shares`` prefixes keep
        all tokens of them.
        """
        has_tokens = all(surface.memory.kv_bytes_per_token > 0 for surface in self.surfaces)
        if not has_tokens and len(self.models) > 1:
            raise ConfigError(
                "a stage of the pipeline has no layer with keys and values",
                hint=f"give {option('mesh')} fewer stages",
            )
        cached = min(self._caches(engine, capacity), key=lambda surface: surface.blocks)
        scaled = [
            surface.times.scaled(factors, most_decoded=surface.most_decoded)
            for surface in self.surfaces
        ]
        # Whole prefixes are kept: of layers with windows too, as far as is known here.
        keeps_all = shares and engine.caches_prefixes and has_tokens
        setup = Setup(
            engine=replace(engine, caches_prefixes=engine.caches_prefixes and has_tokens),
            times=scaled[0],
            blocks=cached.blocks,
            tokens_beyond=None if keeps_all else cached.tokens_beyond,
            state_blocks=cached.state_blocks,
            parts=self.surfaces[0].parts,
        )
        if len(scaled) == 1:
            return setup
        pairs = zip(scaled, self.models, strict=True)
        received = tuple(
            own.received(surface.link.fixed_s, surface.link.token_s) for own, surface in pairs
        )
        return replace(setup, times=summed(received), stages=received)

    def _caches(self, engine: Engine, capacity: int) -> list[_Cached]:
        return [
            _cache_of(engine, surface, capacity, self.name, MeshAxes(axes=stage.model.mesh))
            for stage, surface in zip(self.models, self.surfaces, strict=True)
        ]

    def rows(self, setup: Setup, batch: float, capacity: int) -> list[StageRow]:
        """Return what each stage has, and takes for a batch that decodes."""
        sequences = max(1, round(batch))
        caches = self._caches(setup.engine, capacity)
        return [
            StageRow(
                layers=stage.layers,
                weight_bytes=surface.memory.weights_bytes,
                kv_blocks=cached.blocks,
                decode_s=times.of_tokens(sequences) / PICOSECONDS,
                receive_s=stage.link.fixed_s + stage.link.token_s * sequences,
            )
            for stage, surface, cached, times in zip(
                self.models, self.surfaces, caches, setup.stages, strict=True
            )
        ]


_TYPICAL = 32
"""Sequences of a batch by which the slowest stage is chosen."""


def _served_model(
    options: ServeOptions, part: str, mesh: MeshAxes, model: LanguageModel | None
) -> ServedModel:
    chosen = options.model
    values: dict[str, Scalar] = {}
    if chosen.dtype is not None:
        values["dtype"] = chosen.dtype
    if chosen.attention is not None:
        values["attention"] = chosen.attention
    latent = None if model is None else model.latent
    return ServedModel(
        name=options.model_name,
        cluster=f"{mesh.device_count}x{part}",
        mesh=mesh.axes,
        settings=dict(chosen.settings),
        values=values,
        routes=model is not None and model.routing is not None,
        selected=0 if latent is None else latent.indexed_tokens,
        window=None if model is None else _window_of(model),
        in_halves=options.engine.two_batches,
        state_bytes=0 if model is None else state_bytes(model) // mesh.size("tp"),
    )


def _window_of(model: LanguageModel) -> Window | None:
    """Return the longest window or chunk of a model's attention, if any."""
    kinds = [kind for kind in model.kinds if kind.mixer == "attention"]
    seen = [kind.window or kind.chunk for kind in kinds]
    layers = sum(map(bool, seen))
    if not layers or model.latent is not None:
        return None
    return Window(
        tokens=max(seen),
        layers=layers,
        full_layers=len(kinds) - layers,
        cached_share=windowed_share(model),
    )


class _Cached(NamedTuple):
    blocks: int
    tokens_beyond: int | None
    state_blocks: int


def _cache_of(
    engine: Engine, surface: Surface, capacity: int, name: str, mesh: MeshAxes
) -> _Cached:
    """Return the blocks of a replica; `ConfigError` where it has none."""
    memory = surface.memory
    free_bytes = engine.cache_bytes(
        capacity=capacity, weights=memory.weights_bytes, workspace=memory.workspace_bytes
    )
    block_bytes = memory.kv_bytes_per_token * engine.block_tokens
    if block_bytes:
        blocks = int(free_bytes // block_bytes) * surface.parts
        states = ceil(memory.state_bytes / block_bytes)
        frees = engine.frees_windows and surface.times.window > 0
        beyond = memory.kv_bytes_beyond
        period = round(block_bytes / beyond) if beyond else 0
        cached = _Cached(
            blocks=blocks, state_blocks=states, tokens_beyond=period if frees else None
        )
    else:
        # Nothing is cached of a token: a block is a sequence's state.
        blocks = free_bytes // max(1, memory.state_bytes) * surface.parts
        cached = _Cached(blocks, 0, 1)
    if cached.blocks:
        return cached
    needed = memory.weights_bytes + memory.workspace_bytes
    more = 2 * mesh.device_count
    raise ConfigError(
        f"{name} does not fit: a device needs {needed / 1e9:.1f} GB for weights and "
        f"workspace, and {engine.name} takes {engine.memory_share:.0%} of {capacity / 1e9:.1f} GB",
        hint=f"divide it over more devices, as in {option('mesh')} tp={more}",
    )
