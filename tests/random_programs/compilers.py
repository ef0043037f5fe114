"""XLA's compilers in this process: that of this machine's CPU, and that of GPUs if it is installed.

Programs are many and small, so that a process for each would take most of the time. What both
compilers need of the environment is set before JAX starts: see `environment`.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from hespas.compile.options import DEFAULT_OPTIONS, gpu_flags
from hespas.compile.targets import GpuTarget, find_target
from hespas.xla.compile.messages import GpuHosts, MemoryAnalysis
from hespas.xla.compile.prepare import prepare
from hespas.xla.compile.topology import Topology, open_topology
from hespas.xla.compile.worker import compile_options, memory_analysis
from random_programs.grammar import Drawn
from xla_execute import compile_module

NODE = "H100_80GB"
DEVICES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compiled program, and what its compiler says of its memory."""

    proto: bytes
    memory: MemoryAnalysis


def has_gpu_compiler() -> bool:
    return find_spec("jax_plugins") is not None


def environment() -> dict[str, str]:
    """Return the variables to start Python with."""
    flags = {"xla_force_host_platform_device_count": str(DEVICES)}
    if has_gpu_compiler():
        flags |= gpu_flags(DEFAULT_OPTIONS)
    listed = " ".join(f"--{name}={value}" for name, value in flags.items())
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": listed, "TF_CPP_MIN_LOG_LEVEL": "3"}


def compiled_for_cpu(drawn: Drawn) -> Compiled:
    """Compile for this machine."""
    handle = compile_module(drawn.text, partitions=drawn.devices).handle
    return _compiled(handle)


def compiled_for_gpus(drawn: Drawn) -> Compiled | None:
    """Compile for GPUs that are not there; None where the compiler fails."""
    prepared = prepare(
        drawn.text.encode(), name="drawn", devices=drawn.devices, partitions_as_replicas=False
    )
    topology = _topology(drawn.devices)
    options = compile_options(prepared, topology.devices, overrides={})
    devices = import_module("jaxlib._jax").DeviceList(topology.devices)
    try:
        executable = topology.client.compile(prepared.module.handle, devices, options)
    except import_module("jax.errors").JaxRuntimeError:
        return None
    return _compiled(executable)


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
