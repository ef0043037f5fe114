"""Turn a sharded program into the program of one device, with its collectives.

Nothing is compiled to the end, and no device need be there.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hespas.errors import ProgramError, ToolError
from hespas.tools.process import LOG_NAME, Limits, last_words, run_program
from hespas.tools.scratch import scratch_directory
from hespas.xla import partition_wire as wire
from hespas.xla.mlir import MlirModule, parse_mlir
from hespas.xla.partition_input import Sharded, sharded_program

DEFAULT_LIMITS = Limits(time_s=1800)
MOST_XLA_DEVICES = 16384
"""How many virtual devices XLA's CPU client is given: the time to make them grows as their square
(20 s of CPU time for these)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitioned:
    """The program of one device, as StableHLO text, and what made it."""

    text: bytes
    devices: int
    partitioner: wire.Partitioner

    @property
    def assumption(self) -> str:
        """Tell what was done, for the list of assumptions."""
        return (
            f"the program came sharded, not partitioned: {self.partitioner} divided it over "
            f"{self.devices} devices"
        )


def partition(source: bytes, *, name: str, limits: Limits = DEFAULT_LIMITS) -> Partitioned:
    """Partition a program with Shardy's or GSPMD's annotations.

    ``source`` is StableHLO as text, bytecode or a portable artifact; ``name`` stands in
    messages. XLA partitions for up to 16,384 devices, Shardy alone for more. Raises
    `ProgramError` where there is nothing to partition or XLA refuses the program, and
    `ToolError`, naming a log that is kept, where the partitioner's process fails.
    """
    return partition_module(parse_mlir(source, name=name), source, limits=limits)


def partition_module(
    module: MlirModule, source: bytes, *, limits: Limits = DEFAULT_LIMITS
) -> Partitioned:
    """Partition a program that is parsed already, as `partition` does; ``source`` is its bytes."""
    sharded = sharded_program(module)
    partitioner = _partitioner(sharded, module.source)
    request = wire.PartitionRequest(
        name=module.source,
        replicas=sharded.replicas,
        partitions=sharded.partitions,
        partitioner=partitioner,
    )
    text = _partitioned(source, request, limits)
    return Partitioned(text=text, devices=sharded.devices, partitioner=partitioner)


def _partitioner(sharded: Sharded, name: str) -> wire.Partitioner:
    if sharded.devices <= MOST_XLA_DEVICES:
        return wire.Partitioner.XLA_SHARDY if sharded.shardy else wire.Partitioner.XLA_GSPMD
    if not sharded.shardy:
        raise ProgramError(
            f"shardings of GSPMD are partitioned for at most {MOST_XLA_DEVICES} devices, and "
            f"these are {sharded.devices}",
            location=name,
            hint="export it with Shardy (jax_use_shardy_partitioner)",
        )
    return wire.Partitioner.SHARDY


def _partitioned(source: bytes, request: wire.PartitionRequest, limits: Limits) -> bytes:
    """Run the partitioner; its directory stays where it fails."""
    virtual = request.replicas * request.partitions
    if request.partitioner is wire.Partitioner.SHARDY:
        virtual = 1
    with scratch_directory("partition") as home:
        (home / wire.PROGRAM_FILE).write_bytes(source)
        (home / wire.REQUEST_FILE).write_bytes(msgspec.json.encode(request))
        run_program(
            [sys.executable, "-m", "hespas.xla.partition_worker"],
            name="the partitioner",
            directory=home,
            limits=limits,
            environment={
                "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": f"--xla_force_host_platform_device_count={virtual}",
            },
        )
        answer = _answer(home)
        if answer.refused:
            raise ProgramError(
                answer.refused, location=request.name, hint=answer.hint or f"see {home / LOG_NAME}"
            )
        return (home / wire.PARTITIONED_FILE).read_bytes()


def _answer(home: Path) -> wire.PartitionAnswer:
    try:
        return msgspec.json.decode(
            (home / wire.ANSWER_FILE).read_bytes(), type=wire.PartitionAnswer
        )
    except (OSError, msgspec.DecodeError) as error:
        words = last_words(home / LOG_NAME)
        raise ToolError(
            f"the partitioner left no answer: {words}", location=str(home / LOG_NAME)
        ) from error
