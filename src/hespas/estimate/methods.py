"""Find an estimator by the name of its method.

Each method's module is imported when it is asked for. Other packages add methods by an entry
point of the group ``hespas.estimators`` that names a function like those here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path

from hespas.config.load import METHODS, load_config
from hespas.config.run_config import (
    EstimatorHardware,
    NodeHardware,
    RooflineHardware,
)
from hespas.config.suggest import suggestion
from hespas.cost.rules.custom_call import CustomCallCost
from hespas.errors import ConfigError
from hespas.estimate.driver import Estimator
from hespas.estimate.roofline import Roofline, RooflineOptions
from hespas.hardware.device import Device
from hespas.hardware.presets import load_device
from hespas.program.kernels import CompiledKernels
from hespas.program.program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """All that an estimator may be made from.

    ``device`` is None where only a configuration of a profiler or a simulator is given;
    ``hardware`` and ``method``, which it names, are None where no configuration is. ``kernels`` are
    what a compiler wrote for the program, where that is known; what is read of them is kept in
    ``kernels_directory``.
    """

    method: str | None = None
    device: Device | None = None
    hardware: EstimatorHardware | None = None
    roofline_options: RooflineOptions = field(default_factory=RooflineOptions)
    custom_calls: Mapping[str, CustomCallCost] = field(default_factory=dict[str, CustomCallCost])
    kernels: CompiledKernels | None = None
    kernels_directory: Path | None = None

    def needed_device(self, method: str) -> Device:
        """Return the device; `ConfigError` where none is given."""
        if self.device is None:
            raise ConfigError(f"method {method!r} needs a device", hint="give --node")
        return self.device


Factory = Callable[[Wanted], Estimator]

_MODULES = {
    "measured": "hespas.estimate.tables.method",
    "kernel": "hespas.estimate.ptx.method",
    "compiler": "hespas.estimate.tpu",
    "systolic": "hespas.estimate.systolic.method",
    "scalesim": "hespas.backends.scalesim",
    "zigzag_onnx": "hespas.backends.zigzag",
    "cocossim": "hespas.backends.cocossim",
    "onnxim": "hespas.backends.onnxim",
    "xla": "hespas.backends.xla",
    "iree": "hespas.backends.iree",
}
"""Where the function ``make`` of each method stands."""

_GROUP = "hespas.estimators"


def estimator(method: str, wanted: Wanted) -> Estimator:
    """Return the estimator of ``method``.

    Raises `ConfigError` for a method that there isn't, or that lacks what it needs.

    >>> device = Device(name="one", peak_flops=1e12, memory_bandwidth_bytes_per_s=1e11)
    >>> estimator("roofline", Wanted(device=device)).method
    'roofline'
    """
    if method == "roofline":
        return _roofline(wanted)
    module = _MODULES.get(method)
    if module is None:
        return _added(method)(wanted)
    make: Factory = import_module(module).make
    return make(wanted)


OF_A_DEVICE = ("roofline", "measured", "kernel", "compiler")
"""Methods that need a device."""

_RUNS_HERE = "runs on this machine"
_DESCRIBED = "has its device's figures by itself"
_WITHOUT_A_NODE = {
    "xla": _RUNS_HERE,
    "systolic": _DESCRIBED,
    "scalesim": _DESCRIBED,
    "zigzag_onnx": _DESCRIBED,
    "cocossim": _DESCRIBED,
    "onnxim": _DESCRIBED,
}
"""Methods in whose prices no device that is named elsewhere has a part, and why."""


def check_uses_node(method: str, given: str, *, hint: str) -> None:
    """Raise `ConfigError` where a device is ``given`` to a method that uses none.

    >>> check_uses_node("roofline", "--node", hint="drop it")
    >>> check_uses_node("xla", "H100", hint="drop it")
    Traceback (most recent call last):
        ...
    hespas.errors.ConfigError: H100 has no effect on method xla, which runs on this machine; drop it
    """
    why = _WITHOUT_A_NODE.get(method)
    if why is not None:
        raise ConfigError(f"{given} has no effect on method {method}, which {why}", hint=hint)


def wanted_on(
    device: Device | str, options: RooflineOptions, custom_calls: Mapping[str, CustomCallCost]
) -> Wanted:
    """Return what an estimator is made from: on a device, a preset's, or a configuration's.

    Raises what reading them raises.
    """
    bare = Wanted(roofline_options=options, custom_calls=custom_calls)
    if isinstance(device, Device):
        return replace(bare, device=device)
    configured = load_config(device).perf_estimator if device.endswith(".json") else None
    if configured is None:
        return replace(bare, device=load_device(device))
    hardware = configured.hardware
    found = configured_device(hardware, device)
    return replace(bare, method=configured.method, hardware=hardware, device=found)


def usual_method(program: Program, device: Device) -> str:
    """Return who estimates where nobody says: tables, if any serve what a compiler scheduled."""
    return "measured" if program.is_scheduled and device.measured is not None else "roofline"


def configured_device(hardware: EstimatorHardware, path: str | Path) -> Device | None:
    """Return the device that a configuration names or describes; None where it does neither.

    Raises what `hespas.hardware.presets.load_device` raises.
    """
    match hardware:
        case NodeHardware(node=node):
            return load_device(node)
        case RooflineHardware():
            return load_device(path)
        case _:
            return None


def _roofline(wanted: Wanted) -> Roofline:
    return Roofline(
        device=wanted.needed_device("roofline"),
        options=wanted.roofline_options,
        custom_calls=wanted.custom_calls,
    )


def _added(method: str) -> Factory:
    """Return the factory that another package offers."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - takes longer than all else here

    offered = {point.name: point for point in entry_points(group=_GROUP)}
    if method not in offered:
        raise ConfigError(
            f"there is no method {method!r}", hint=suggestion(method, (*METHODS, *offered))
        )
    make: Factory = offered[method].load()
    return make
