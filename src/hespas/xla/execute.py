"""Compile and run a StableHLO module on this machine's CPU, through XLA and PJRT.

JAX must be installed, and must be told of the devices before it starts: set
``XLA_FLAGS=--xla_force_host_platform_device_count=4`` in the environment for four virtual ones.
The times of a CPU say nothing about an accelerator, the numbers that it computes do.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from time import perf_counter
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
    outputs = _outputs(executable, _placed(executable, arguments))
    numpy = import_module("numpy")
    return [[numpy.asarray(array) for array in result] for result in outputs]


def time_module(
    executable: Executable, arguments: Sequence[Sequence[Array]], *, runs: int
) -> tuple[float, ...]:
    """Run ``runs`` times, after one run that isn't counted, and return each duration in seconds."""
    placed = _placed(executable, arguments)
    durations: list[float] = []
    _wait(_outputs(executable, placed))
    for _ in range(runs):
        begin = perf_counter()
        _wait(_outputs(executable, placed))
        durations.append(perf_counter() - begin)
    return tuple(durations)


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


def _outputs(executable: Executable, placed: list[Any]) -> list[list[Any]]:
    results = executable.handle.execute_sharded(placed)
    return results.disassemble_into_single_device_arrays()


def _wait(outputs: list[list[Any]]) -> None:
    for result in outputs:
        for array in result:
            array.block_until_ready()
