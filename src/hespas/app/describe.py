"""The values of the page's knobs: models, parts, meshes, settings."""

from __future__ import annotations

from typing import Any

from hespas.app.state import State, options_of, source_by_any_mesh
from hespas.errors import HardwareError
from hespas.hardware.presets import device_names
from hespas.hardware.sized import find_system
from hespas.models.catalogue import names
from hespas.models.model import CHOICES, PIPE, MeshAxes, Model
from hespas.models.placement import ORDER
from hespas.prediction.machines import system_of
from hespas.sources import zoo
from hespas.sources.source import ModelSource
from hespas.study.space import meshes_of
from hespas.study.study import Axis
from hespas.tasks.pipelining.schedule import NAMES

_MOST_MESHES = 10_000
_OF_MESHES = frozenset(
    {"mesh", "batch", "global_batch", "micro_batch", "micro_batches", "schedule", "overlap"}
)
"""Keys that are legal with one mesh and not with another."""
_STEPS = ("-prefill", "-decode", "-inference")
_AXIS_HELP = {
    "data": "copies of the model, each with a part of the batch",
    "fsdp": "parts of the batch; weights and states are divided too",
    "tp": "parts of each product (tensor parallelism)",
    "context": "parts of the sequence, keys and values gathered",
    "sequence": "parts of the sequence outside of attention",
    "expert": "parts of the experts",
    PIPE: "stages of layers (a pipeline)",
}


def model_names() -> list[str]:
    """Return the names of all models, without steps of inference."""
    return [name for name in names() if not name.endswith(_STEPS)]


def hardware_names() -> list[str]:
    """Return the parts that clusters can be made of."""
    return [name for name in device_names() if _has_links(name)]


def _has_links(part: str) -> bool:
    try:
        find_system(f"2x{part}")
    except HardwareError:
        return False
    return True


def describe_model(state: State) -> dict[str, Any]:
    """Return a model's mesh axes, legal meshes and settings.

    Raises `ConfigError` where no mesh divides the model over the devices.
    """
    options = options_of({key: value for key, value in state.items() if key not in _OF_MESHES})
    system = system_of(options.network)
    devices = system.device_count if system is not None else options.program.devices or 1
    source, refused = source_by_any_mesh(options)
    if not isinstance(source, ModelSource):
        return {"devices": devices, "axes": [], "meshes": [], "mesh": {}, "settings": {}}
    axes = _axes(source.model)
    meshes = _legal_meshes(source, axes, devices)
    if refused is not None and not meshes:
        raise refused
    mesh = dict(source.mesh.axes) if refused is None else _widest(axes, meshes)
    return {
        "devices": devices,
        "axes": [{"name": axis, "help": _AXIS_HELP.get(axis, "")} for axis in axes],
        "meshes": meshes,
        "mesh": mesh,
        "settings": _settings(source),
        "choices": {name: list(values) for name, values in CHOICES.items()},
        "schedules": list(NAMES),
    }


def _widest(axes: list[str], meshes: list[list[int]]) -> dict[str, int]:
    """Return the mesh of the most parts of weights, then copies."""
    named = [dict(zip(axes, mesh, strict=True)) for mesh in meshes]
    return max(named, key=lambda mesh: (mesh.get("fsdp", 1), mesh.get("data", 1)))


def _axes(model: Model) -> list[str]:
    every = [*model.axes, PIPE] if model.can_be_cut else list(model.axes)
    # The order of studies: the last axis lies nearest.
    return sorted(every, key=lambda axis: ORDER.index(axis) if axis in ORDER else len(ORDER))


def _legal_meshes(source: ModelSource, axes: list[str], devices: int) -> list[list[int]]:
    """List the meshes that divide the model over devices."""
    layers = getattr(getattr(source.settings, "sizes_of_layers", None), "layers", None)
    free = tuple(Axis(name=axis, sizes=None) for axis in axes)
    meshes: list[list[int]] = []
    is_legal: dict[tuple[int, ...], bool] = {}
    for mesh in meshes_of(free, devices):
        sizes = dict(mesh)
        stages = sizes.get(PIPE, 1)
        if layers is not None and stages > layers:
            continue
        of_stage = tuple((name, size) for name, size in mesh if name != PIPE)
        inner = tuple(axis for axis in of_stage if axis[1] > 1)
        key = tuple(sizes[axis] for axis in axes if axis != PIPE)
        if key not in is_legal:
            is_legal[key] = zoo.is_legal(
                source.model, source.texts, MeshAxes(axes=inner or of_stage[:1])
            )
        if is_legal[key]:
            meshes.append([sizes[axis] for axis in axes])
        if len(meshes) >= _MOST_MESHES:
            break
    return meshes


def _settings(source: ModelSource) -> dict[str, Any]:
    return {
        name: value if isinstance(value, str | int | float | bool) else str(value)
        for name, value in source.model.options().items()
        if name != "mesh"
    }
