"""Run whole steps of a program on this machine.

The module runs as a process of its own and answers a question (`hespas.base.question`). JAX takes
its platform and its processes when it starts, and a step that hangs can only be ended with its
process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any

from hespas.base.frozen import frozen
from hespas.base.question import PROGRAM_FILE, answer_question, end_process
from hespas.base.units import format_bytes_binary
from hespas.base.version import installed_versions
from hespas.errors import DeviceCountError, HardwareError, HespasError, ToolError, option
from hespas.xla.compile.messages import MemoryAnalysis
from hespas.xla.compile.prepare import Prepared, prepare
from hespas.xla.compile.worker import compile_options, memory_analysis, status_error
from hespas.xla.hlo.schema import message_class
from hespas.xla.run import messages

_LARGEST_FLOAT = 1 / 16
_DISTINCT_FLOATS = 1 << 16
_INTEGER_COUNT = 100
_NARROW_INTEGERS = ("int2", "uint2", "int4", "uint4")


def synthetic_input(shape: tuple[int, ...], kind: Any) -> Any:
    """Return a deterministic array for an input.

    Numbers are not zeros, with which arithmetic takes less power: floating point is spread evenly
    over 0 to 1/16, integers count from 0 to 99 over and over, and single integers, such as counts
    of steps, are 1. They are small enough to be valid indices; XLA clamps others.

    >>> synthetic_input((4,), "int32").tolist(), synthetic_input((), "int64").tolist()
    ([0, 1, 2, 3], 1)
    >>> synthetic_input((2, 2), "bool").tolist()
    [[True, True], [True, True]]
    >>> bool((synthetic_input((300,), "float32") < 1 / 16).all())
    True
    """
    numpy = import_module("numpy")
    dtype = numpy.dtype(kind)
    is_whole = dtype.name.startswith(("int", "uint"))
    if dtype == numpy.bool_ or (is_whole and not shape):
        return numpy.ones(shape, dtype)
    if is_whole:
        values = numpy.arange(2 if dtype.name in _NARROW_INTEGERS else _INTEGER_COUNT)
    else:
        count = max(1, min(_DISTINCT_FLOATS, prod(shape)))
        values = numpy.random.default_rng(0).random(count) * _LARGEST_FLOAT
    # Types that numpy doesn't know itself are repeated as they are.
    return numpy.resize(values.astype(dtype), shape)


_BOOLEANS = {"true": True, "false": False}
_CUSTOM_CALL = "custom call"
_START_S = 300
"""How long processes wait for one another, in seconds; JAX's own default."""
_HOST_DEVICES = "--xla_force_host_platform_device_count"
_PLUGINS = {
    "cuda": ("jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "nvidia-cudnn-cu12"),
    "rocm": ("jaxlib", "jax-rocm60-plugin", "jax-rocm7-plugin"),
    "tpu": ("jaxlib", "libtpu"),
}


@frozen
class _Loaded:
    """A compiled program on its devices.

    ``arguments`` are the shapes and types on one device, ``aliases`` the outputs that take the
    memory of arguments, by argument.
    """

    executable: Any
    devices: tuple[Any, ...]
    arguments: tuple[tuple[tuple[int, ...], Any], ...]
    aliases: Mapping[int, int]
    memory: MemoryAnalysis
    compile_s: float

    @property
    def local(self) -> list[Any]:
        """The devices of this process."""
        own = import_module("jax").process_index()
        return [device for device in self.devices if device.process_index == own]

    def placed(self, shards: Sequence[Any]) -> Any:
        """Return an array with one of ``shards`` per local device."""
        jax = import_module("jax")
        sharding = import_module("jax.sharding")
        numpy = import_module("numpy")
        mesh = sharding.Mesh(numpy.array(self.devices), ("device",))
        # How the shards relate to each other is the program's affair.
        replicated = sharding.NamedSharding(mesh, sharding.PartitionSpec())
        return jax.make_array_from_single_device_arrays(shards[0].shape, replicated, list(shards))

    def new_input(self, argument: int) -> Any:
        """Return an argument with new content."""
        jax = import_module("jax")
        content = synthetic_input(*self.arguments[argument])
        return self.placed([jax.device_put(content, device) for device in self.local])


def main() -> None:
    """Answer the question in the working directory."""
    answer_question(messages.StepRequest, _time_steps)
    distributed = import_module("jax").distributed
    if distributed.is_initialized():
        # The other processes end with the first one, unless all wait for the last.
        distributed.shutdown()
    end_process()


def _time_steps(request: messages.StepRequest, home: Path) -> messages.StepAnswer:
    source = (home / PROGRAM_FILE).read_bytes()
    prepare_source = partial(prepare, source, name=request.name, devices=request.devices)
    prepared = prepare_source(partitions_as_replicas=False)
    count = prepared.replicas * prepared.partitions
    devices = _devices(request, count)
    platform: str = devices[0].platform
    if prepared.partitions > 1 and not prepared.partition and platform != "gpu":
        prepared = prepare_source(partitions_as_replicas=True)
    loaded = _load_program(request, prepared, devices)
    free_bytes = _free_bytes(loaded.local)
    _check_memory(loaded, free_bytes, request.name)
    durations, made_inputs = _run(request, loaded)
    return messages.StepAnswer(
        durations_s=durations,
        compile_s=loaded.compile_s,
        devices=count,
        processes=import_module("jax").process_count(),
        platform=platform,
        device_kind=devices[0].device_kind,
        memory=loaded.memory,
        free_bytes=free_bytes,
        made_inputs=made_inputs,
        versions=_versions(devices[0]),
        notes=prepared.notes,
    )


# Devices.


def _devices(request: messages.StepRequest, count: int) -> tuple[Any, ...]:
    """Start JAX and return ``count`` devices.

    On the CPU they are virtual ones: as many as are needed.
    """
    processes = request.processes
    devices_of_process = -(-count // (processes.count or 1)) if processes is not None else count
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} {_HOST_DEVICES}={devices_of_process}".strip()
    if request.platform == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    elif request.platform:
        # JAX starts platforms by their maker's name (cuda, rocm): it finds out which is there.
        os.environ.pop("JAX_PLATFORMS", None)
    jax = import_module("jax")
    # JAX narrows 64-bit arguments otherwise.
    jax.config.update("jax_enable_x64", val=True)
    if processes is not None:
        _join(processes, request.name)
    try:
        available = tuple(jax.devices(request.platform or None))
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        raise _no_devices(request, str(error)) from error
    if len(available) < count:
        available_text = "is 1" if len(available) == 1 else f"are {len(available)}"
        raise DeviceCountError(
            f"the program runs on {count} devices, and there {available_text} here "
            f"({available[0].device_kind})",
            location=request.name,
            hint=f"give {option('devices')} or {option('mesh')} for {len(available)}, start it on "
            f"several hosts ({option('coordinator')}), or try {option('platform')} cpu",
        )
    process = jax.process_index()
    if all(device.process_index != process for device in available[:count]):
        raise DeviceCountError(
            f"the program runs on {count} devices, and process {process} has none of them",
            location=request.name,
            hint="start fewer processes",
        )
    return available[:count]


def _join(processes: messages.Processes, name: str) -> None:
    """Wait for the other processes."""
    jax = import_module("jax")
    # The library by which processes on the CPU communicate; other platforms don't read it.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            coordinator_address=processes.coordinator,
            num_processes=processes.count,
            process_id=processes.own,
            initialization_timeout=_START_S,
        )
    except (RuntimeError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        raise ToolError(
            f"the processes did not find each other: {_first_line(error)}",
            location=name,
            hint=f"start as many as {option('num_processes')} says, each with its own "
            f"{option('process_id')}, and the same {option('coordinator')}",
        ) from error


def _no_devices(request: messages.StepRequest, why: str) -> HardwareError:
    lacking = request.platform.upper() or "accelerator"
    first = why.strip().partition("\n")[0][:300]
    return HardwareError(
        f"there is no {lacking} here that JAX can use: {first}",
        location=request.name,
        hint="run it where one is, with JAX for it (pip install 'jax[cuda12]' or 'jax[tpu]'), or "
        f"give {option('platform')} cpu for virtual devices",
    )


def _versions(device: Any) -> dict[str, str]:
    """Return the versions of JAX and everything below it."""
    plugins = _PLUGINS.get(device.client.platform, ("jaxlib",))
    versions = installed_versions(("jax", *plugins))
    described = " ".join(str(device.client.platform_version).split())
    if described not in {"", device.platform}:
        versions["platform"] = described
    driver = Path("/proc/driver/nvidia/version")
    if device.platform == "gpu" and driver.exists():
        versions["driver"] = driver.read_text(errors="replace").partition("\n")[0].strip()
    return versions


# The program.


def _load_program(
    request: messages.StepRequest, prepared: Prepared, devices: tuple[Any, ...]
) -> _Loaded:
    errors = import_module("jax.errors")
    internals = import_module("jaxlib._jax")
    overrides = {
        name: _BOOLEANS.get(value.casefold(), value) for name, value in request.flags.items()
    }
    options = compile_options(prepared, devices, overrides=overrides)
    begin = perf_counter()
    try:
        executable = devices[0].client.compile_and_load(
            prepared.module.handle, internals.DeviceList(devices), options
        )
    except errors.JaxRuntimeError as error:
        sys.stderr.write(f"{error}\n")
        raise _status(str(error), request.name, devices[0]) from error
    compile_s = perf_counter() - begin
    module = executable.hlo_modules()[0].as_serialized_hlo_module_proto()
    shape = import_module("jaxlib.xla_client").XlaComputation(module).program_shape()
    return _Loaded(
        executable=executable,
        devices=devices,
        arguments=tuple(
            (tuple(parameter.dimensions()), parameter.numpy_dtype())
            for parameter in shape.parameter_shapes()
        ),
        aliases=_aliases(module),
        memory=memory_analysis(executable.get_compiled_memory_stats()),
        compile_s=compile_s,
    )


def _status(message: str, name: str, device: Any) -> HespasError:
    """Return the error for a compiler's message."""
    error = status_error(message, name)
    if _CUSTOM_CALL in message.casefold():
        error.marked_hint = _lacks_library(device)
    return error


def _run_error(first: str, name: str, device: Any) -> HespasError:
    """Return the error for a step that failed."""
    if first.startswith("RESOURCE_EXHAUSTED"):
        return HardwareError(
            f"the step does not fit into the memory of {device.device_kind}: {first}",
            location=name,
            hint="give more devices, or a smaller batch",
        )
    hint = _lacks_library(device) if _CUSTOM_CALL in first.casefold() else ""
    return ToolError(f"the step failed: {first}", location=name, hint=hint)


def _lacks_library(device: Any) -> str:
    return (
        f"the program calls a library that {device.device_kind} lacks: run it on the platform "
        "that it was written for, or export it without that library"
    )


def _aliases(module: bytes) -> dict[int, int]:
    """Return each argument's output in the same memory."""
    proto = message_class("xla.HloModuleProto").FromString(module)
    return {
        entry.parameter_number: entry.output_shape_index[0] if entry.output_shape_index else 0
        for entry in proto.input_output_alias.entries
    }


# Memory.


def _free_bytes(local: Sequence[Any]) -> int | None:
    """Return the free memory on each own device."""
    if local[0].platform == "cpu":
        free = _free_host_bytes()
        return None if free is None else free // len(local)
    reports = [device.memory_stats() or {} for device in local]
    if any("bytes_limit" not in report for report in reports):
        return None
    return min(report["bytes_limit"] - report.get("bytes_in_use", 0) for report in reports)


def _free_host_bytes() -> int | None:
    file = Path("/proc/meminfo")
    if not file.exists():
        return None
    rows = (line.partition(":") for line in file.read_text().splitlines())
    size = next((value.split()[0] for name, _, value in rows if name == "MemAvailable"), None)
    return None if size is None else int(size) * 1024


def _check_memory(loaded: _Loaded, free_bytes: int | None, name: str) -> None:
    needed = loaded.memory.total_bytes
    if free_bytes is None or needed <= free_bytes:
        return
    kind = loaded.devices[0].device_kind
    raise HardwareError(
        f"the step needs {format_bytes_binary(needed)} of a device's memory, and "
        f"{format_bytes_binary(free_bytes)} are free on each {kind}",
        location=name,
        hint="give more devices, or a smaller batch; hespas memory shows what needs how much",
    )


# Steps.


def _run(request: messages.StepRequest, loaded: _Loaded) -> tuple[tuple[float, ...], int]:
    """Return the timed steps' durations and remade inputs."""
    # Inputs are remade where a step took their memory and no output replaced it.
    errors = import_module("jax.errors")
    durations: list[float] = []
    remade = 0
    try:
        arguments = [loaded.new_input(index) for index in range(len(loaded.arguments))]
        for argument in arguments:
            argument.block_until_ready()
        for _ in range(request.warm_up + request.steps):
            step_s, outputs = _step(loaded, arguments)
            durations.append(step_s)
            remade = _renew(loaded, arguments, outputs)
    except errors.JaxRuntimeError as error:
        sys.stderr.write(f"{error}\n")
        raise _run_error(_first_line(error), request.name, loaded.devices[0]) from error
    return tuple(durations[request.warm_up :]), remade


def _step(loaded: _Loaded, arguments: Sequence[Any]) -> tuple[float, list[list[Any]]]:
    """Run one step to its end on own devices."""
    begin = perf_counter()
    results = loaded.executable.execute_sharded(list(arguments))
    outputs: list[list[Any]] = results.disassemble_into_single_device_arrays()
    for shards in outputs:
        for shard in shards:
            shard.block_until_ready()
    return perf_counter() - begin, outputs


def _renew(loaded: _Loaded, arguments: list[Any], outputs: list[list[Any]]) -> int:
    """Replace arguments whose memory the step took.

    Outputs or new arguments replace them. Returns the number of new ones.
    """
    remade = 0
    for index, argument in enumerate(arguments):
        if not argument.is_deleted():
            continue
        output = loaded.aliases.get(index)
        shape, kind = loaded.arguments[index]
        shards = None if output is None else outputs[output]
        if shards and (tuple(shards[0].shape), shards[0].dtype) == (shape, kind):
            arguments[index] = loaded.placed(shards)
        else:
            arguments[index] = loaded.new_input(index)
            arguments[index].block_until_ready()
            remade += 1
    return remade


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300] or type(error).__name__


if __name__ == "__main__":
    main()
