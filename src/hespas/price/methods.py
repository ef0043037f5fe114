"""Registry of estimation methods: one record for each.

Commands, the configuration reader and the pipeline read the record; the module that implements a
method is imported when an estimator is made. Another package adds a method by an entry point of the
group ``hespas.estimators`` that names a `Method`, or a function that makes an estimator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from hespas.base.decode import decode
from hespas.base.fields import Use
from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.errors import ConfigError, option
from hespas.hardware.device import Device, NodeHardware, RooflineHardware
from hespas.program.work import CustomCallCost

if TYPE_CHECKING:
    from hespas.price.driver import Estimator
    from hespas.program.kernels import CompiledKernels
    from hespas.program.program import Program


@frozen
class RooflineOptions:
    """How to treat types without a peak rate.

    Without either option, they are priced at the device's ``peak_flops``.
    """

    error_on_unknown_type: bool = False
    warn_on_unknown_type: bool = False


@frozen
class EstimatorSpec:
    """Everything that an estimator can be made from.

    ``device`` is None where only the configuration of a profiler or a simulator is given, and
    ``hardware`` where no configuration is. ``kernels`` are those that a compiler wrote for the
    program, where they are known; the analysis of their text is cached in ``kernels_directory``.
    ``in_graphs`` says that CUDA graphs launch them, ``is_served`` that an engine runs the program.
    """

    device: Device | None = None
    hardware: object | None = None
    roofline_options: RooflineOptions = field(default_factory=RooflineOptions)
    custom_calls: Mapping[str, CustomCallCost] = field(default_factory=dict[str, CustomCallCost])
    kernels: CompiledKernels | None = None
    kernels_directory: Path | None = None
    in_graphs: bool = False
    is_served: bool = False

    def needed_device(self, method: str) -> Device:
        """Return the device; raise `ConfigError` without one."""
        if self.device is None:
            raise ConfigError(f"method {method!r} needs a device", hint=f"give {option('node')}")
        return self.device


Factory: TypeAlias = "Callable[[EstimatorSpec], Estimator]"


_METHOD = " on method {}"
NODE = Use(
    _METHOD,
    "drop it; a configuration of the method (.json) is the device in Python, and on the command "
    "line the workload: hespas estimate CONFIG.json --mlir_file PROGRAM",
)
DEVICE = Use(_METHOD)
KERNELS = Use(_METHOD)
CLOCK = Use(_METHOD, f"drop it, or add {option('method')} measured")
LAUNCHES = Use(_METHOD, f"drop it, or add {option('method')} roofline")


class DeviceUse(Enum):
    """Whether a method reads a named device's figures."""

    NEEDED = "needed"
    OPTIONAL = "optional"
    NONE = "none"


@frozen
class Method:
    """An estimation method.

    ``factory`` makes its estimator: a function, or its path as in ``package.module:name``.
    ``configuration`` is the type that ``perf_estimator.hardware`` of a configuration is decoded
    into, a dataclass or a msgspec struct, or its path; None for a method that takes no
    configuration. ``device_use`` says whether a device is needed. ``device_here`` is for methods
    that time this machine: a function of the configuration that names the device that runs the
    program, or its path. ``follows`` lists the options that have an effect: `KERNELS` for the
    kernels that a compiler wrote, `LAUNCHES` for the cost of a launch, `CLOCK` for the device's
    clock. ``is_default`` returns whether the method is used for a program and a device where the
    user names none; ``default_text`` says so in words. ``extra`` is the optional dependency that
    the method needs.
    """

    name: str
    summary: str
    factory: str | Factory
    configuration: str | type[Any] | None = None
    device_use: DeviceUse = DeviceUse.OPTIONAL
    device_here: str | Callable[[Any], str] = ""
    follows: tuple[Use, ...] = ()
    is_default: Callable[[Program, Device], bool] | None = None
    default_text: str = ""
    extra: str = ""

    def runs_on(self, hardware: object | None) -> str | None:
        """Name the device of this machine that runs the program, if any."""
        if not self.device_here:
            return None
        name_of = cast("Callable[[Any], str]", _imported(self.device_here))
        return f"this machine's {name_of(hardware)} (method {self.name})"

    @property
    def absent(self) -> dict[Use, bool | str]:
        """The options without effect on the method, and why.

        >>> METHODS["xla"].absent[DEVICE]
        'xla, which runs on this machine'
        """
        lacks = (use for use in (CLOCK, LAUNCHES, KERNELS) if use not in self.follows)
        absent: dict[Use, bool | str] = dict.fromkeys(lacks, self.name)
        if self.device_use is DeviceUse.NONE:
            on_machine = "runs on this machine"
            why = on_machine if self.device_here else "has its device's figures by itself"
            absent |= dict.fromkeys((NODE, DEVICE), f"{self.name}, which {why}")
        return absent

    def decode(self, data: dict[str, object], *, location: str, json_path: str) -> object | None:
        """Decode the method's configuration, found at a JSON path.

        Raises `ConfigError` for keys or values that the method's configuration doesn't allow.
        """
        if self.configuration is not None:
            form = cast("type[object]", _imported(self.configuration))
            return decode(data, form, location=location, json_path=json_path)
        if data:
            message = f"{json_path} has no effect on method {self.name}"
            raise ConfigError(message, location=location, hint="drop it")
        return None

    def estimator(self, spec: EstimatorSpec) -> Estimator:
        """Return the estimator; raise `ConfigError` if an input is missing."""
        return cast("Factory", _imported(self.factory))(spec)


def _imported(path: str | Callable[..., object]) -> Callable[..., object]:
    if not isinstance(path, str):
        return path
    module, _, name = path.partition(":")
    return cast("Callable[..., object]", attrgetter(name)(import_module(module)))


def _has_tables(program: Program, device: Device) -> bool:
    is_tpu = device.clock_hz is not None or device.tensor_core is not None
    return program.is_scheduled and (device.measured is not None or not is_tpu)


def _has_cycles(program: Program, device: Device) -> bool:
    from hespas.program.program import all_ops  # noqa: PLC0415 - options need no programs

    if not program.is_scheduled or device.clock_hz is None:
        return False
    return any(op.estimated_cycles is not None for op in all_ops(program))


def _has_units(program: Program, device: Device) -> bool:
    core = device.tensor_core
    is_known = core is not None and device.clock_hz is not None
    return program.is_scheduled and is_known


_LISTED = (
    Method(
        name="roofline",
        summary="arithmetic and memory traffic at the device's peak rates",
        factory="hespas.price.roofline:Roofline.of",
        configuration=RooflineHardware,
        device_use=DeviceUse.NEEDED,
        follows=(LAUNCHES,),
    ),
    Method(
        name="measured",
        summary="tables of measured kernels",
        factory="hespas.price.measured:make",
        configuration=NodeHardware,
        device_use=DeviceUse.NEEDED,
        follows=(KERNELS, CLOCK),
        is_default=_has_tables,
        default_text="for compiled programs on GPUs, by tables of the part or of the nearest",
    ),
    Method(
        name="kernel",
        summary="each kernel's PTX, on the pipelines and caches of a GPU",
        factory="hespas.price.ptx.kernels:make",
        configuration=NodeHardware,
        device_use=DeviceUse.NEEDED,
        follows=(KERNELS,),
    ),
    Method(
        name="compiler",
        summary="the cycles that a TPU's compiler wrote",
        factory="hespas.price.tpu:compiler",
        configuration=NodeHardware,
        device_use=DeviceUse.NEEDED,
        is_default=_has_cycles,
        default_text="for programs that a TPU's compiler wrote cycles into",
    ),
    Method(
        name="tensor_core",
        summary="kernels as a TPU's compiler schedules them, at the rates of its units",
        factory="hespas.price.tpu:tensor_core",
        device_use=DeviceUse.NEEDED,
        configuration=NodeHardware,
        is_default=_has_units,
        default_text="for other kernels on a TPU's node",
    ),
    Method(
        name="xla",
        summary="regions compiled by XLA and timed on this machine",
        factory="hespas.backends.xla:make",
        configuration="hespas.backends.xla:XlaHardware",
        device_use=DeviceUse.NONE,
        device_here="hespas.backends.xla:device_of",
    ),
    Method(
        name="iree",
        summary="regions compiled by IREE and timed on this machine",
        factory="hespas.backends.iree:make",
        configuration="hespas.backends.iree:IreeHardware",
        device_here="hespas.backends.iree:device_of",
        extra="iree",
    ),
    Method(
        name="systolic",
        summary="closed forms of systolic arrays",
        factory="hespas.price.systolic:make",
        configuration="hespas.price.systolic:SystolicHardware",
        device_use=DeviceUse.NONE,
    ),
    Method(
        name="scalesim",
        summary="SCALE-Sim",
        factory="hespas.backends.packages:make",
        configuration="hespas.price.systolic:SystolicHardware",
        device_use=DeviceUse.NONE,
        extra="scalesim",
    ),
    Method(
        name="zigzag_onnx",
        summary="ZigZag",
        factory="hespas.backends.packages:make_zigzag",
        configuration="hespas.price.systolic:SystolicHardware",
        device_use=DeviceUse.NONE,
        extra="zigzag",
    ),
    Method(
        name="cocossim",
        summary="COCOSSim",
        factory="hespas.backends.cocossim:make",
        configuration="hespas.backends.cocossim:CocossimHardware",
        device_use=DeviceUse.NONE,
    ),
    Method(
        name="onnxim",
        summary="ONNXim",
        factory="hespas.backends.onnxim:make",
        configuration="hespas.backends.onnxim:OnnximHardware",
        device_use=DeviceUse.NONE,
        extra="onnxim",
    ),
)
METHODS: Mapping[str, Method] = {method.name: method for method in _LISTED}
"""The methods of hespas itself, by name."""
DEFAULT = METHODS["roofline"]
"""The method of programs and devices for which no other method is the default."""

_GROUP = "hespas.estimators"


def method_named(name: str, *, location: str = "", path: str = "") -> Method:
    """Return a method by its name, ours or another package's.

    ``location`` and ``path`` say in errors where the name was read. Raises `ConfigError` for an
    unknown name.

    >>> method_named("measured").summary
    'tables of measured kernels'
    """
    if name in METHODS:
        return METHODS[name]
    from importlib.metadata import entry_points  # noqa: PLC0415 - takes longer than all else here

    offered = {point.name: point for point in entry_points(group=_GROUP)}
    if name not in offered:
        raise ConfigError(
            f'{path} is "{name}"' if path else f"there is no method {name!r}",
            location=location,
            hint=suggestion(name, (*METHODS, *offered)),
        )
    loaded: object = offered[name].load()
    if isinstance(loaded, Method):
        return loaded
    return Method(name=name, summary="", factory=cast("Factory", loaded))


def default_method(program: Program, device: Device | None) -> Method:
    """Choose the method for a program when the user names none."""
    if device is not None:
        for method in METHODS.values():
            if method.is_default is not None and method.is_default(program, device):
                return method
    return DEFAULT


def default_text() -> str:
    """Describe which methods are used when the user names none.

    >>> default_text()
    "roofline; measured for compiled programs on GPUs, by tables of the part or of the nearest; \
compiler for \
programs that a TPU's compiler wrote cycles into; tensor_core for other kernels on a TPU's node"
    """
    conditional_methods = (
        f"{method.name} {method.default_text}" for method in METHODS.values() if method.default_text
    )
    return "; ".join((DEFAULT.name, *conditional_methods))


def estimator(method: str, spec: EstimatorSpec) -> Estimator:
    """Return the estimator of a method by its name.

    Raises `ConfigError` for an unknown name, and for a method that lacks an input.

    >>> device = Device(name="one", peak_flops=1e12, memory_bandwidth_bytes_per_s=1e11)
    >>> estimator("roofline", EstimatorSpec(device=device)).method
    'roofline'
    """
    return method_named(method).estimator(spec)
