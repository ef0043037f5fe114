"""Partition one program: a process of its own, ``python -m hespas.xla.partition_worker``.

XLA must be told of its devices before it starts, takes hundreds of megabytes, and can abort:
none of this befalls the process that asked. `hespas.xla.partition_wire` names the files in the
working directory.
"""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from hespas.errors import ProgramError
from hespas.xla import partition_wire as wire
from hespas.xla.mlir import parse_mlir
from hespas.xla.partition_passes import PARTITION_ONLY, SIMPLIFY_WITHOUT
from hespas.xla.partition_shardy import partition_with_shardy

_FIELD_PARTITIONS, _FIELD_REPLICAS = "mhlo.num_partitions", "mhlo.num_replicas"


def main() -> None:
    """Read the request in the working directory, partition, and write the program."""
    home = Path.cwd()
    request = msgspec.json.decode(
        (home / wire.REQUEST_FILE).read_bytes(), type=wire.PartitionRequest
    )
    source = (home / wire.PROGRAM_FILE).read_bytes()
    try:
        if request.partitioner is wire.Partitioner.SHARDY:
            partitioned = partition_with_shardy(source, request)
        else:
            partitioned = _partition_with_xla(source, request)
        (home / wire.PARTITIONED_FILE).write_bytes(partitioned)
        answer = wire.PartitionAnswer()
    except ProgramError as error:
        answer = wire.PartitionAnswer(refused=error.message, mend=error.mend)
    (home / wire.ANSWER_FILE).write_bytes(msgspec.json.encode(answer))


def _partition_with_xla(source: bytes, request: wire.PartitionRequest) -> bytes:
    compiler = _Compiler(request)
    simplified = compiler.run(
        parse_mlir(source, name=request.name).handle,
        partitions=1,
        passes=("xla_disable_hlo_passes", ",".join(SIMPLIFY_WITHOUT)),
    )
    partitioned = compiler.run(
        parse_mlir(_stablehlo(simplified), name=request.name).handle,
        partitions=request.partitions,
        passes=("xla_enable_hlo_passes_only", ",".join(PARTITION_ONLY)),
    )
    return _text(_stablehlo(partitioned), request)


class _CapturedError(Exception):
    """Ends a compilation that has come far enough."""


class _Compiler:
    """XLA's CPU compiler, stopped before it schedules: no code is made, and nothing runs."""

    def __init__(self, request: wire.PartitionRequest) -> None:
        self._request = request
        self._captured: list[bytes] = []
        transformations = import_module("jax.extend.xla")
        transformations.register_hlo_module_transformation(
            self._capture,
            name="hespas",
            stage=transformations.PipelineStage.PRE_SCHEDULER,
            platforms=("cpu",),
        )

    def _capture(self, module: bytes) -> NoReturn:
        self._captured.append(module)
        raise _CapturedError

    def run(self, module: Any, *, partitions: int, passes: tuple[str, str]) -> bytes:
        """Return the serialized HLO module that the passes make."""
        backends = import_module("jax.extend.backend")
        errors = import_module("jax.errors")
        backend = backends.get_backend("cpu")
        count = self._request.replicas * partitions
        options = backends.get_compile_options(
            num_replicas=self._request.replicas, num_partitions=partitions
        )
        build = options.executable_build_options
        build.use_spmd_partitioning = True
        build.use_shardy_partitioner = self._request.partitioner is wire.Partitioner.XLA_SHARDY
        # The groups of collectives are listed, or strided, not named by mesh axes.
        options.env_option_overrides = [passes, ("xla_enable_rgv3_materialization", False)]
        self._captured.clear()
        try:
            backend.compile_and_load(str(module), list(backend.local_devices()[:count]), options)
        except errors.JaxRuntimeError as error:
            if not self._captured:
                sys.stderr.write(f"{error}\n")
                first = str(error).strip().partition("\n")[0]
                raise ProgramError(f"XLA's partitioner refuses it: {first}") from error
        return self._captured[0]


def _stablehlo(module: bytes) -> bytes:
    return import_module("jaxlib._jax").mlir.hlo_to_stablehlo(module)


def _text(module: bytes, request: wire.PartitionRequest) -> bytes:
    """Return a module as text that tells its number of devices."""
    ir = import_module("jaxlib.mlir.ir")
    handle = parse_mlir(module, name=request.name).handle
    with handle.context:
        number = ir.IntegerType.get_signless(32)
        attributes = handle.operation.attributes
        attributes[_FIELD_PARTITIONS] = ir.IntegerAttr.get(number, request.partitions)
        attributes[_FIELD_REPLICAS] = ir.IntegerAttr.get(number, request.replicas)
        return str(handle).encode()


if __name__ == "__main__":
    main()
