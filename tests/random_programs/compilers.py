"""XLA's compilers in this process: that of this machine's CPU, and that of GPUs if it is installed.

Programs are many and small, so that a process for each would take most of the time. What both
compilers need of the environment is set before JAX starts: see `environment`.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from hespas.compile.options import DEFAULT_OPTIONS, gpu_flags
from hespas.compile.targets import GpuTarget, find_target
from hespas.errors import ProgramError
from hespas.xla.compile.messages import GpuHosts, MemoryAnalysis
from hespas.xla.compile.prepare import prepare
from hespas.xla.compile.topology import Topology, open_topology
from hespas.xla.compile.worker import compile_options, memory_analysis
from hespas.xla.partition.partition import partition
from random_programs.grammar import Drawn
from xla_execute import compile_module

NODE = "H100_80GB"
_SHARDING = re.compile(r', mhlo\.sharding = "[^"]*"|mhlo\.sharding = "[^"]*"(?:, )?')
"""What the partitioner leaves on arguments, to say how they were divided."""
DEVICES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compiled program, and what its compiler says of its memory."""

    proto: bytes
    memory: MemoryAnalysis


class RefusedError(Exception):
    """XLA itself can't partition or compile a program, which breaks no law of ours."""


def has_gpu_compiler() -> bool:
    return find_spec("jax_plugins") is not None


def environment() -> dict[str, str]:
    """Return the variables to start Python with."""
    flags = {"xla_force_host_platform_device_count": str(DEVICES)}
    if has_gpu_compiler():
        flags |= gpu_flags(DEFAULT_OPTIONS)
    listed = " ".join(f"--{name}={value}" for name, value in flags.items())
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": listed, "TF_CPP_MIN_LOG_LEVEL": "3"}


@lru_cache(maxsize=4)
def per_device(drawn: Drawn) -> str:
    """Return what each device runs; `RefusedError` where XLA's partitioner fails."""
    if not drawn.is_sharded:
        return drawn.text
    try:
        text = partition(drawn.text.encode(), name="drawn").text.decode()
    except ProgramError as error:
        if "XLA's partitioner refuses" in str(error):
            raise RefusedError(str(error)) from error
        raise
    return _SHARDING.sub("", text)


def compiled_for_cpu(drawn: Drawn) -> Compiled:
    """Compile for this machine."""
    if not drawn.is_sharded:
        return _compiled(compile_module(drawn.text, partitions=drawn.devices).handle)
    backend = import_module("jax.extend.backend").get_backend("cpu")
    devices = tuple(backend.local_devices()[: drawn.devices])
    return _compile(drawn, devices, backend.compile_and_load)


def _compile(drawn: Drawn, devices: tuple[Any, ...], compile_it: Callable[..., Any]) -> Compiled:
    """Compile as hespas does; `RefusedError` where the compiler fails."""
    prepared = prepare(
        drawn.text.encode(), name="drawn", devices=drawn.devices, partitions_as_replicas=False
    )
    options = compile_options(prepared, devices, overrides={})
    listed = import_module("jaxlib._jax").DeviceList(devices)
    try:
        return _compiled(compile_it(prepared.module.handle, listed, options))
    except import_module("jax.errors").JaxRuntimeError as error:
        raise RefusedError(str(error).partition("\n")[0]) from error


def compiled_for_gpus(drawn: Drawn) -> Compiled:
    """Compile for GPUs that are not there; `RefusedError` where the compiler fails."""
    topology = _topology(drawn.devices)
    return _compile(drawn, topology.devices, topology.client.compile)


@lru_cache(maxsize=2)
def _topology(devices: int) -> Topology:
    target = find_target(NODE)
    assert isinstance(target, GpuTarget)
    hosts = GpuHosts(description=target.description, devices_per_host=DEVICES)
    return open_topology(hosts, count=devices)


def _compiled(executable: Any) -> Compiled:
    module = executable.hlo_modules()[0]
    return Compiled(
        proto=module.as_serialized_hlo_module_proto(),
        memory=memory_analysis(executable.get_compiled_memory_stats()),
    )
