"""Compile one program for an accelerator that isn't attached.

The module runs as a process of its own: it answers a question (`hespas.base.question`), and leaves
the compiled module in its directory too. The compilers use gigabytes and can abort, so they do not
run in the process that asks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Any

from hespas.base.frozen import frozen
from hespas.base.question import PROGRAM_FILE, serve
from hespas.errors import (
    ConfigError,
    HardwareError,
    HespasError,
    ToolError,
    UnsupportedError,
    option,
)
from hespas.xla.compile import messages
from hespas.xla.compile.prepare import Prepared, prepare
from hespas.xla.compile.topology import Topology, open_topology
from hespas.xla.hlo.schema import message_class

_NO_KERNEL = re.compile(
    r"Unsupported instruction opcode: [\w-]+|Error loading CUDA libraries"
    r"|No registered implementation for custom call to __flash_\S+"
)
_ALLOCATION = re.compile(r"^allocation \d+: size (\d+), (.*?):?$", re.MULTILINE)
_HOST = "color 5"
_MODULE = "*_gpu_after_optimizations.txt"
_BUFFERS = "*_gpu_after_optimizations-buffer-assignment.txt"


@frozen
class Recovered:
    """The dumped module, and why it is no executable."""

    text: str
    memory: messages.MemoryAnalysis
    note: str


def recover(dump: Path, message: str) -> Recovered | None:
    """Return the dumped module if only the executable failed.

    ``message`` is the compiler's. That happens if passes are left out (a collective that stays
    synchronous has no kernel), or if a target needs a kernel of CUDA's own libraries. Returns None
    for other failures.
    """
    why = _NO_KERNEL.search(message)
    modules, buffers = sorted(dump.glob(_MODULE)), sorted(dump.glob(_BUFFERS))
    if why is None or len(modules) != 1 or len(buffers) != 1:
        return None
    return Recovered(
        text=modules[0].read_text(),
        memory=read_memory(buffers[0].read_text()),
        note=f"optimised and scheduled, but the compiler can't write it as kernels: {why[0]}",
    )


def read_memory(text: str) -> messages.MemoryAnalysis:
    r"""Add up XLA's buffer assignment.

    >>> read_memory("allocation 0: size 8, parameter 0, shape |f32[2]| at ShapeIndex {}:\n"
    ...             "allocation 1: size 4, output shape is |f32[]|, maybe-live-out:\n"
    ...             "allocation 2: size 16, preallocated-temp:").temporary_bytes
    16
    """
    arguments = outputs = aliases = temporary = host = 0
    for allocation in _ALLOCATION.finditer(text):
        size, kind = int(allocation[1]), allocation[2]
        if _HOST in kind:
            host += size
            continue
        is_argument, is_output = "parameter " in kind, "maybe-live-out" in kind
        arguments += size if is_argument else 0
        outputs += size if is_output else 0
        aliases += size if is_argument and is_output else 0
        temporary += size if "preallocated-temp" in kind else 0
    return messages.MemoryAnalysis(
        argument_bytes=arguments,
        output_bytes=outputs,
        alias_bytes=aliases,
        temporary_bytes=temporary,
        generated_code_bytes=0,
        host_bytes=host,
    )


_VERSION = re.compile(r"Failed to serialize StableHLO to plugin version ([\d.]+)")
NO_FLAG = re.compile(r"No such compile option: '(\w+)'")
"""How a compiler says that it has no such flag."""

BAD_VALUE = re.compile(r"Failed to parse '(.*)' into flag (\w+)")
_SCOPED = re.compile(
    r"CompileTimeScopedVmemOom.*?size (?P<size>[\d.]+)(?P<unit>[KMG]?).*?"
    r"limit (?P<limit>[\d.]+[KMG]?)",
    re.DOTALL,
)
_SCOPED_FLAG = "xla_tpu_scoped_vmem_limit_kib"
_KIB = {"": 1 / 1024, "K": 1, "M": 1024, "G": 1024**2}
_REFUSALS = ("UNIMPLEMENTED", "INVALID_ARGUMENT", "NOT_FOUND")
_MEMORY = "RESOURCE_EXHAUSTED"
_DEVICE_MEMORY = re.compile(r"Ran out of memory .*\bhbm\b.*", re.IGNORECASE)


def _compile_request(request: messages.CompileRequest, home: Path) -> messages.Compiled:
    source = (home / PROGRAM_FILE).read_bytes()
    prepared = prepare(
        source,
        name=request.name,
        devices=request.devices,
        partitions_as_replicas=isinstance(request.accelerator, messages.TpuSlice),
    )
    _check_order(prepared, request)
    errors = import_module("jax.errors")
    count = prepared.replicas * prepared.partitions
    topology = _topology(request, count)
    try:
        options = compile_options(prepared, topology.devices, overrides=request.overrides)
        devices = import_module("jaxlib._jax").DeviceList(topology.devices)
        executable = topology.client.compile(prepared.module.handle, devices, options)
    except errors.JaxRuntimeError as error:
        sys.stderr.write(f"{error}\n")
        recovered = recover(home / messages.DUMP_DIRECTORY, str(error))
        if recovered is None:
            raise status_error(str(error), request.name) from error
        module = import_module("jaxlib._hlo").hlo_module_from_text(recovered.text)
        memory, notes = recovered.memory, (*prepared.notes, recovered.note)
    else:
        module = executable.hlo_modules()[0]
        memory, notes = memory_analysis(executable.get_compiled_memory_stats()), prepared.notes
    _write_module(module, request.accelerator, home)
    return messages.Compiled(
        replicas=prepared.replicas,
        partitions=prepared.partitions,
        topology=topology.name,
        memory=memory,
        notes=notes,
    )


def _check_order(prepared: Prepared, request: messages.CompileRequest) -> None:
    """Refuse a device order across slices.

    The program of one slice cannot state it.
    """
    accelerator, order = request.accelerator, prepared.device_order
    has_slices = isinstance(accelerator, messages.TpuSlice) and accelerator.slices > 1
    if has_slices and order is not None and not order.is_ascending:
        raise UnsupportedError(
            f"the mesh takes the devices of several slices in the order {order}",
            location=request.name,
            hint="let axes between slices stand before those inside them",
        )


def _write_module(module: Any, accelerator: messages.Accelerator, home: Path) -> None:
    """Write the module as a proto and as text."""
    message = message_class("xla.HloModuleProto").FromString(
        module.as_serialized_hlo_module_proto()
    )
    attributes = message.frontend_attributes.map
    attributes[messages.TARGET_ATTRIBUTE] = messages.part_name(accelerator)
    if isinstance(accelerator, messages.TpuSlice) and accelerator.slices > 1:
        attributes[messages.SLICES_ATTRIBUTE] = str(accelerator.slices)
    proto = message.SerializeToString(deterministic=True)
    (home / messages.PROTO_FILE).write_bytes(proto)
    hlo = import_module("jaxlib._hlo")
    marked = hlo.HloModule.from_serialized_hlo_module_proto(proto)
    options = hlo.HloPrintOptions()
    # Kernels of Pallas read tables that the program holds as constants.
    options.print_large_constants = b"tpu_custom_call" in proto
    (home / messages.TEXT_FILE).write_text(marked.to_string(options))


def _topology(request: messages.CompileRequest, count: int) -> Topology:
    errors = import_module("jax.errors")
    try:
        return open_topology(request.accelerator, count=count)
    except errors.JaxRuntimeError as error:
        sys.stderr.write(f"{error}\n")
        raise status_error(str(error), request.name) from error


def compile_options(
    prepared: Prepared, devices: tuple[Any, ...], *, overrides: Mapping[str, Any]
) -> Any:
    """Return jaxlib's options for compiling a program for devices.

    Partitions go to devices in the devices' order, or in that which the program states.
    ``overrides`` are flags of XLA by name.
    """
    client = import_module("jaxlib.xla_client")
    numpy = import_module("numpy")
    options = client.CompileOptions()
    options.num_replicas = prepared.replicas
    options.num_partitions = prepared.partitions
    build = options.executable_build_options
    build.num_replicas = prepared.replicas
    build.num_partitions = prepared.partitions
    build.use_spmd_partitioning = prepared.partition
    build.use_shardy_partitioner = prepared.partition and prepared.shardy
    order = prepared.device_order
    ordered_devices = devices if order is None else [devices[index] for index in order.devices()]
    ids = numpy.array([device.id for device in ordered_devices])
    build.device_assignment = client.DeviceAssignment.create(
        ids.reshape(prepared.replicas, prepared.partitions)
    )
    options.env_option_overrides = list(overrides.items())
    return options


def memory_analysis(stats: Any) -> messages.MemoryAnalysis:
    """Return the compiler's memory analysis of one device."""
    return messages.MemoryAnalysis(
        argument_bytes=stats.argument_size_in_bytes,
        output_bytes=stats.output_size_in_bytes,
        alias_bytes=stats.alias_size_in_bytes,
        temporary_bytes=stats.temp_size_in_bytes,
        generated_code_bytes=stats.generated_code_size_in_bytes,
        host_bytes=stats.host_argument_size_in_bytes
        + stats.host_output_size_in_bytes
        - stats.host_alias_size_in_bytes
        + stats.host_temp_size_in_bytes,
    )


def status_error(message: str, name: str) -> HespasError:
    """Return the error for a compiler's status message."""
    first = message.strip().partition("\n")[0][:400]
    version = _VERSION.search(message)
    if version is not None:
        why = message.partition("error: ")[2].partition("\n")[0]
        return UnsupportedError(
            f"the compiler reads StableHLO {version[1]}, and the program holds what that has "
            f"not: {why}",
            location=name,
            hint="export it with the versions that hespas names",
        )
    settable = _flag_error(message, name)
    if settable is not None:
        return settable
    status = first.partition(":")[0]
    device = _DEVICE_MEMORY.search(first)
    if device is not None:
        return HardwareError(
            f"the program does not fit into the memory of the device: {device[0].rstrip('.')}",
            location=name,
            hint="give more devices, or a device with more memory",
        )
    if status == _MEMORY:
        return ToolError(f"the compiler ran out of memory: {first}", location=name)
    if status in _REFUSALS:
        return UnsupportedError(f"the compiler refuses it: {first}", location=name)
    return ToolError(f"the compiler failed: {first}", location=name)


def _flag_error(message: str, name: str) -> HespasError | None:
    """Return the error that a flag causes or avoids."""
    flag, bad = NO_FLAG.search(message), BAD_VALUE.search(message)
    if flag is not None:
        return ConfigError(f"the compiler has no flag {flag[1]}")
    if bad is not None:
        return ConfigError(f"{bad[1]!r} is no value of the compiler's flag {bad[2]}")
    scoped = _SCOPED.search(message)
    return None if scoped is None else _scoped_memory(scoped, name)


def _scoped_memory(match: re.Match[str], name: str) -> HespasError:
    """Return the error for too much vector memory."""
    needed_kib = ceil(float(match["size"]) * _KIB[match["unit"]])
    return UnsupportedError(
        f"a kernel needs {match['size']}{match['unit']}iB of the TPU's vector memory at once, and "
        f"may have {match['limit']}iB",
        location=name,
        hint=f"give {option('xla_flag')} {_SCOPED_FLAG}={needed_kib} or more, as recipes do",
    )


if __name__ == "__main__":
    serve(messages.CompileRequest, _compile_request)
