"""Models of a family from its sizes: a training step, and steps of prefill and decode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from hespas.models.language import Decode, LanguageModel, Prefill, Training
from hespas.models.model import MeshAxes, Model

_TRAINING = "hespas.models.training"
_SERVING = "hespas.models.serving:build"
_NODE = MeshAxes(axes=(("fsdp", 8),))
_NODES = MeshAxes(axes=(("fsdp", 64),))
_LARGE = 30e9
"""Parameters from which the states of training do not fit the memory of eight devices."""
_DEVICE_BYTES = 70e9
_BYTES = 2

Sized = Callable[..., LanguageModel]


def training(name: str, summary: str, settings: LanguageModel) -> Model:
    """Return a training step."""
    return Model(
        name=name,
        summary=summary,
        settings=settings,
        build=f"{_TRAINING}:build",
        build_part=f"{_TRAINING}:build_part",
    )


def listed(
    name: str,
    title: str,
    parameters: float,
    model: Sized,
    *,
    trains: bool = True,
    sequence: int = 4096,
) -> Iterator[Model]:
    """Yield the steps of a model; ``model(run=..)`` makes its settings.

    ``parameters`` is the count that was published; ``trains`` is False for a model whose training
    step is another.
    """
    count = f"{parameters / 1e9:.3f} B parameters"
    is_large = parameters > _LARGE
    if trains:
        mesh = _NODES if is_large else _NODE
        run = Training(mesh=mesh, sequence=sequence)
        yield training(name, f"{title} training step, {count}", model(run=run))
    alone = model(run=Prefill(mesh=MeshAxes(axes=(("tp", 1),))))
    devices = 1
    while parameters * _BYTES / devices > _DEVICE_BYTES and devices < alone.sizes["kv_heads"]:
        devices *= 2
    serving = MeshAxes(axes=(("tp", devices),))
    prefill = replace(alone, run=replace(alone.run, mesh=serving))
    yield Model(
        name=f"{name}-prefill",
        summary=f"{title} on prompts, whose keys and values fill a cache, {count}",
        settings=prefill,
        build=_SERVING,
    )
    yield Model(
        name=f"{name}-decode",
        summary=f"{title} making a token for each sequence of a cache, {count}",
        settings=replace(prefill, run=Decode(mesh=serving)),
        build=_SERVING,
    )
