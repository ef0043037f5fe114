"""Lower MaxText's training step to StableHLO, by its interpreter.

MaxText needs a newer Python and packages of its own, so that it runs in a process of another
interpreter (`hespas.sources.maxtext_worker`), on devices that need not be attached. Its
configuration, a file and ``key=value`` settings, is passed as it is written for a real run.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from hespas.base.frozen import frozen
from hespas.base.process import LOG_NAME, Limits, run_program, scratch_directory
from hespas.base.units import format_quantity
from hespas.compile.targets import Target, TpuTarget
from hespas.errors import ConfigError, DeviceCountError, ToolError, option
from hespas.frontend.mesh import with_device_order, with_step
from hespas.hardware.system import System
from hespas.program.groups import DeviceOrder
from hespas.program.program import GlobalFacts
from hespas.sources.exported import Exported

PYTHON_VARIABLE = "HESPAS_MAXTEXT_PYTHON"
DEFAULT_CONFIG = "base.yml"
_WORKER = Path(__file__).with_name("maxtext_worker.py")
_LOWER = Limits(time_s=1200.0)
_ASK = Limits(time_s=60.0)
_INSTALL = (
    f"name one that has MaxText with --python or {PYTHON_VARIABLE}; the documentation's page "
    "'Predict a MaxText recipe' shows how to make one"
)
_VERSIONS = """
import importlib.metadata as m, json, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
names = ("maxtext", "jax", "jaxlib", "jax-cuda12-pjrt", "libtpu")
print(json.dumps({"python": "%d.%d" % sys.version_info[:2], **{n: version(n) for n in names}}))
"""


@frozen
class MaxTextStep:
    """A step that MaxText lowers, and its target.

    ``config`` is a file, or the name of one of MaxText's own, and ``settings`` are ``key=value`` as
    on MaxText's command line. ``python`` is the interpreter; None is the one that the environment
    variable HESPAS_MAXTEXT_PYTHON names, or else this one.
    """

    config: str = DEFAULT_CONFIG
    settings: tuple[str, ...] = ()
    target: Target
    devices: int
    topology: str | None = None
    python: Path | None = None

    def __post_init__(self) -> None:
        _check(self.settings)
        if self.devices < 1:
            raise DeviceCountError(f"{self.devices} devices are asked for", hint="give 1 or more")
        slices = self.slices
        if slices < 1 or self.devices % slices:
            raise DeviceCountError(
                f"the axes between slices (dcn_..._parallelism) make {slices} slices, which do not "
                f"divide {self.devices} devices",
                hint=f"let them multiply to a divisor of {self.devices}",
            )

    @property
    def slices(self) -> int:
        """The slices that the axes between slices make."""
        return _slices(self.settings, self.devices)

    @property
    def name(self) -> str:
        """The name in messages."""
        values = dict(setting.split("=", 1) for setting in self.settings)
        return f"maxtext:{values.get('model_name', self.config)}"


@frozen
class Request:
    """The request that the worker reads.

    ``topology`` are keywords of JAX's ``get_topology_desc``, ``slices`` the groups of devices that
    MaxText's axes between slices (``dcn_``) divide.
    """

    config: str
    settings: tuple[str, ...]
    kind: str
    platform: str
    topology: Mapping[str, Any]
    count: int
    slices: int


class _Order(msgspec.Struct, frozen=True, kw_only=True):
    """The form of `hespas.program.groups.DeviceOrder` with axes of one device."""

    dimensions: tuple[int, ...]
    permutation: tuple[int, ...]

    def read(self) -> DeviceOrder:
        """Return the order of the axes of several devices."""
        longer = [axis for axis, size in enumerate(self.dimensions) if size > 1]
        return DeviceOrder(
            dimensions=tuple(self.dimensions[axis] for axis in longer),
            permutation=tuple(longer.index(axis) for axis in self.permutation if axis in longer),
        )


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    devices: int = 0
    mesh: dict[str, int] = {}
    tokens: int = 0
    model_flops: float | None = None
    order: _Order | None = None
    notes: tuple[str, ...] = ()
    refused: str = ""


def export_maxtext(step: MaxTextStep) -> Exported:
    """Lower a step of MaxText for absent devices.

    Raises `ToolError` for an interpreter without MaxText, or if MaxText fails, and `ConfigError`
    for a configuration that MaxText refuses.
    """
    python = interpreter(step)
    request = request_of(step)
    with scratch_directory("maxtext") as directory:
        file = directory / "request.json"
        file.write_text(json.dumps(asdict(request)), encoding="utf-8")
        # Without -P, `import maxtext` would find this file, beside the worker.
        command = [str(python), "-P", str(_WORKER)]
        run_program(command, name="MaxText", directory=directory, limits=_LOWER)
        answer = msgspec.json.decode((directory / "answer.json").read_bytes(), type=_Answer)
        if answer.refused:
            raise ConfigError(answer.refused, location=f"MaxText's {step.config}")
        text = (directory / "program.mlir").read_bytes()
    shape = ", ".join(f"{name}={size}" for name, size in answer.mesh.items())
    note = f"lowered by MaxText for {step.target.name}, {answer.tokens} tokens a step, mesh {shape}"
    order = None if answer.order is None else answer.order.read()
    placed = ()
    if order is not None and not order.is_ascending:
        placed = (f"the mesh takes devices in the order {order}: an axis has parts between slices",)
    counted = ()
    if answer.model_flops is not None:
        flops = format_quantity(answer.model_flops, "FLOP")
        counted = (f"model FLOPs are those that MaxText counts, {flops} a step on all devices",)
    facts = GlobalFacts(tokens=answer.tokens or None, model_flops=answer.model_flops)
    return Exported(
        content=with_step(with_device_order(text, order), facts),
        name=step.name,
        devices=answer.devices,
        notes=(note, *placed, *counted, *answer.notes),
    )


def step_key(step: MaxTextStep) -> str:
    """Return the key of a step's program.

    That is the request, the content of a configuration file, and the versions of the interpreter's
    packages. Raises `ToolError` as `export_maxtext` does.
    """
    versions = _versions(_python_of(step))
    path = Path(step.config)
    config = path.read_bytes() if path.is_file() else b""
    request = json.dumps([asdict(request_of(step)), versions], sort_keys=True).encode()
    parts = (request, config, _WORKER.read_bytes(), Path(__file__).read_bytes())
    return sha256(b"".join(sha256(part).digest() for part in parts)).hexdigest()


def request_of(step: MaxTextStep) -> Request:
    """Return the request to the worker.

    Raises `DeviceCountError` for a device count without a topology.
    """
    # Only steps of MaxText need these.
    from hespas.compile.job import Layout, accelerator_of  # noqa: PLC0415
    from hespas.xla.compile.messages import GpuHosts  # noqa: PLC0415
    from hespas.xla.compile.topology import topology_settings  # noqa: PLC0415

    of_tpus = step.slices if isinstance(step.target, TpuTarget) else 1
    accelerator = accelerator_of(step.target, Layout(topology=step.topology, slices=of_tpus))
    platform, settings = topology_settings(accelerator, count=step.devices)
    path = Path(step.config)
    return Request(
        config=str(path.resolve()) if path.is_file() else step.config,
        settings=step.settings,
        kind="gpu" if isinstance(accelerator, GpuHosts) else "tpu",
        platform=platform,
        topology=settings,
        count=step.devices,
        slices=step.slices,
    )


def check_slices(step: MaxTextStep, system: System) -> None:
    """Raise `DeviceCountError` if the system's slices differ.

    For GPUs, axes between slices stand for any groups of nodes.
    """
    if not isinstance(step.target, TpuTarget) or step.slices == system.slices:
        return
    axes = f"the axes between slices (dcn_..._parallelism) make {_slices_text(step.slices)}"
    inside, left_over = divmod(system.device_count, step.slices)
    cluster = f"{step.slices}x{inside}x{system.part}" if step.slices > 1 else ""
    cluster_hint = f", or give {option('cluster')} {cluster}" if cluster and not left_over else ""
    raise DeviceCountError(
        f"{axes}, and {system.name} has {_slices_text(system.slices)}",
        location=step.name,
        hint=f"let them multiply to {system.slices}, as in "
        f"dcn_data_parallelism={system.slices}{cluster_hint}",
    )


def _slices_text(slices: int) -> str:
    return "one slice" if slices == 1 else f"{slices} slices"


def _check(settings: Sequence[str]) -> None:
    names: set[str] = set()
    for setting in settings:
        name, equals, _ = setting.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(
                f"{setting!r} is no setting of MaxText", hint="write KEY=VALUE, as MaxText does"
            )
        if name in names:
            raise ConfigError(f"MaxText's {name} is given twice", hint="keep one")
        names.add(name)


def _slices(settings: Sequence[str], devices: int) -> int:
    """Return the number of slices, from the ``dcn_`` axes.

    An axis of -1 takes the devices that the axes inside a slice (``ici_``) leave.

    >>> _slices(["dcn_data_parallelism=2", "dcn_fsdp_parallelism=16"], 256)
    32
    >>> _slices(["dcn_data_parallelism=-1", "ici_fsdp_parallelism=8"], 256)
    32
    """
    sizes = {
        kind: [
            int(value)
            for name, _, value in (setting.partition("=") for setting in settings)
            if name.startswith(f"{kind}_") and name.endswith("_parallelism") and _is_count(value)
        ]
        for kind in ("dcn", "ici")
    }
    between = prod(size for size in sizes["dcn"] if size > 0)
    if -1 not in sizes["dcn"]:
        return between
    if -1 in sizes["ici"]:
        raise ConfigError(
            "MaxText has an axis of -1 between slices (dcn_) and one inside (ici_)",
            hint="give one of them a number",
        )
    return devices // prod(sizes["ici"])


def _is_count(value: str) -> bool:
    return value.removeprefix("-").isdecimal()


def interpreter(step: MaxTextStep) -> Path:
    """Return the lowering interpreter."""
    python = _python_of(step)
    versions = _versions(python)
    compiler = "libtpu" if isinstance(step.target, TpuTarget) else "jax-cuda12-pjrt"
    for name in ("maxtext", "jax", compiler):
        if versions[name] is None:
            raise ToolError(
                f"this interpreter (Python {versions['python']}) has no {name}",
                location=str(python),
                hint=_INSTALL,
            )
    return python


def _python_of(step: MaxTextStep) -> Path:
    """Return the interpreter; raise `ToolError` for a path without one."""
    python = step.python or Path(os.environ.get(PYTHON_VARIABLE) or sys.executable)
    if "/" in str(python) and not python.exists():
        raise ToolError("there is no such interpreter", location=str(python), hint=_INSTALL)
    return python


def _versions(python: Path) -> dict[str, str | None]:
    with scratch_directory("maxtext") as directory:
        command = [str(python), "-c", _VERSIONS]
        run_program(command, name=str(python), directory=directory, limits=_ASK)
        return json.loads((directory / LOG_NAME).read_text().splitlines()[-1])
