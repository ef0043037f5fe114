"""Compile and run a StableHLO module on this machine's CPU, through XLA and PJRT.

JAX reads the number of devices when it starts: set
``XLA_FLAGS=--xla_force_host_platform_device_count=4`` in the environment for four virtual ones.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from hespas.errors import ProgramError, UnsupportedError

Array = Any
"""A numpy array; numpy isn't imported before something runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Executable:
    """A compiled module; the handle and the devices belong to JAX."""

    handle: Any
    devices: tuple[Any, ...]
    source: str


def compile_module(
    text: str, *, replicas: int = 1, partitions: int = 1, name: str = "module"
) -> Executable:
    """Compile StableHLO text for ``replicas * partitions`` CPU devices.

    Raises `ProgramError` where XLA refuses the module, and `UnsupportedError` where JAX is
    missing or was started with fewer devices.
    """
    backend, options = _client(replicas, partitions)
    count = replicas * partitions
    available = tuple(backend.local_devices())
    if len(available) < count:
        raise UnsupportedError(
            f"{count} devices are needed, but JAX was started with {len(available)}",
            location=name,
            hint=f"set XLA_FLAGS=--xla_force_host_platform_device_count={count} before it starts",
        )
    chosen = available[:count]
    try:
        handle = backend.compile_and_load(text, list(chosen), options)
    except (RuntimeError, ValueError) as error:
        first = str(error).strip().partition("\n")[0]
        raise ProgramError(f"XLA cannot compile it: {first}", location=name) from error
    return Executable(handle=handle, devices=chosen, source=name)


def _client(replicas: int, partitions: int) -> tuple[Any, Any]:
    try:
        jax = import_module("jax")
        backends = import_module("jax.extend.backend")
    except ModuleNotFoundError as error:
        raise UnsupportedError("running a module needs JAX", hint="pip install jax") from error
    # 64-bit arguments are narrowed otherwise.
    jax.config.update("jax_enable_x64", val=True)
    numpy = import_module("numpy")
    options = backends.get_compile_options(
        num_replicas=replicas,
        num_partitions=partitions,
        device_assignment=numpy.arange(replicas * partitions).reshape(replicas, partitions),
    )
    return backends.get_backend("cpu"), options


def run_module(executable: Executable, arguments: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """Run once and return, for each result, its array on each device.

    ``arguments`` holds, for each argument, one array per device.
    """
    results = executable.handle.execute_sharded(_placed(executable, arguments))
    outputs = results.disassemble_into_single_device_arrays()
    numpy = import_module("numpy")
    return [[numpy.asarray(array) for array in result] for result in outputs]


def _placed(executable: Executable, arguments: Sequence[Sequence[Array]]) -> list[Any]:
    """Put every argument on the devices, as PJRT wants it: one sharded array each."""
    jax = import_module("jax")
    sharding = import_module("jax.sharding")
    numpy = import_module("numpy")
    mesh = sharding.Mesh(numpy.array(executable.devices), ("device",))
    whole = sharding.NamedSharding(mesh, sharding.PartitionSpec())
    return [
        jax.make_array_from_single_device_arrays(
            numpy.shape(shards[0]),
            whole,
            [
                jax.device_put(shard, device)
                for shard, device in zip(shards, executable.devices, strict=True)
            ],
        )
        for shards in arguments
    ]
