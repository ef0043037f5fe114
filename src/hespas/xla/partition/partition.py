"""Turn a sharded program into the program of one device.

XLA partitions in a process of its own (`hespas.xla.partition.worker`); no accelerator is
needed.
"""

from __future__ import annotations

import re
from enum import StrEnum
from hashlib import sha256
from importlib import import_module
from math import prod
from pathlib import Path

import msgspec

from hespas.base.cache import ContentCache, code_digest, made_once
from hespas.base.figures import MOST_DEVICES
from hespas.base.frozen import frozen
from hespas.base.process import Limits, is_staying, scratch_directory
from hespas.base.progress import Stage, stage
from hespas.base.question import PROGRAM_FILE, ask
from hespas.base.version import __version__, installed_version
from hespas.errors import ProgramError
from hespas.xla.cpu import use_cpu
from hespas.xla.mlir.module import (
    BYTECODE_MAGIC,
    MlirModule,
    module_attributes,
    module_symbols,
    parse_mlir,
    printed,
)
from hespas.xla.mlir.text import read_mesh_axes

PARTITIONED_FILE = "partitioned.mlir"
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "1", "XLA_FLAGS": "", "MALLOC_ARENA_MAX": "1"}
"""The environment of XLA's process, and of exports, which one process answers with it."""


class Partitioner(StrEnum):
    """The partitioner that applies the program's shardings."""

    XLA_SHARDY = "XLA's partitioner, with Shardy's propagation"
    XLA_GSPMD = "XLA's partitioner, with GSPMD's propagation"


class PartitionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A program to partition; ``name`` stands in messages."""

    name: str
    replicas: int
    partitions: int
    partitioner: Partitioner


class PartitionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The program is partitioned, and stands in `PARTITIONED_FILE`."""


DEFAULT_LIMITS = Limits(time_s=1800)

_PARTITIONED_BY_XLA = "mhlo.spmd_"
_ANNOTATIONS = (b"sdy.sharding", b"mhlo.sharding", b"sdy.manual_computation", b"@Sharding")
_MARK = b"hespas partitioned 2\n"
_CODE_FOLDERS = ("xla/partition", "xla/mlir")
"""The folders whose code decides how a program is partitioned."""
_NUMBER = re.compile(r"\d+")


@frozen
class Partitioned:
    """The program of one device, and its partitioner.

    ``content`` is StableHLO: bytecode where the source had locations, which is read in a fraction
    of the time, else text, whose lines are locations.
    """

    content: bytes
    devices: int
    partitioner: Partitioner

    @property
    def text(self) -> bytes:
        """The program as text."""
        if not self.content.startswith(BYTECODE_MAGIC):
            return self.content
        return printed(parse_mlir(self.content, name="").handle, with_locations=True)

    @property
    def assumption(self) -> str:
        """How the program was partitioned, for its list of assumptions."""
        return (
            f"the program came sharded, not partitioned: {self.partitioner} divided it over "
            f"{self.devices} devices"
        )


def partition(source: bytes, *, name: str, limits: Limits = DEFAULT_LIMITS) -> Partitioned:
    """Partition a program with Shardy's or GSPMD's annotations.

    ``source`` is StableHLO as text, bytecode or a portable artifact; ``name`` stands in messages.
    Raises `ProgramError` if there is nothing to partition or XLA refuses the program, and
    `ToolError`, naming a log that is kept, if XLA's process fails.
    """
    return partition_module(parse_mlir(source, name=name), source, limits=limits)


def partition_cache(directory: Path) -> ContentCache:
    """Return the cache of partitioned programs in a directory."""
    return ContentCache(
        directory=directory, suffix=".partitioned", mark=_MARK, content_name="partitioned programs"
    )


def partition_module(
    module: MlirModule,
    source: bytes,
    *,
    limits: Limits = DEFAULT_LIMITS,
    cache: ContentCache | None = None,
) -> Partitioned:
    """Partition a parsed program as `partition` does.

    ``source`` is its bytes. ``cache`` keeps partitioned programs.
    """
    replicas, partitions, is_shardy = _sharded_over(module, source)
    devices = replicas * partitions
    if devices > MOST_DEVICES:
        message = f"the program is sharded over {devices} devices"
        hint = f"use at most {MOST_DEVICES}"
        raise ProgramError(message, location=module.source, hint=hint)
    partitioner = Partitioner.XLA_SHARDY if is_shardy else Partitioner.XLA_GSPMD
    request = PartitionRequest(
        name=module.source, replicas=replicas, partitions=partitions, partitioner=partitioner
    )

    def divided() -> bytes:
        scope = f"over {devices} devices"
        with stage(Stage.PARTITION, scope, kind=partitioner.name, size=len(source)):
            return _run_worker(source, request, limits)

    content = made_once(cache, _key(source, request), bytes, divided)
    return Partitioned(content=content, devices=devices, partitioner=partitioner)


def _key(source: bytes, request: PartitionRequest) -> str:
    """Return the cache key of a partitioned program."""
    versions = (__version__, installed_version("jaxlib"), code_digest(*_CODE_FOLDERS))
    parts = (sha256(source).digest(), msgspec.json.encode(request), versions)
    return sha256(msgspec.msgpack.encode(parts)).hexdigest()


def _sharded_over(module: MlirModule, source: bytes) -> tuple[int, int, bool]:
    """Return replicas, partitions, and whether Shardy annotated them.

    Raises `ProgramError` if the program is not sharded or does not say over how many devices.
    """
    attributes = module_attributes(module)
    # Other spellings than those of JAX are found in what MLIR prints.
    is_annotated = _is_annotated(source) or _is_annotated(str(module.handle).encode())
    if not is_annotated or any(name.startswith(_PARTITIONED_BY_XLA) for name in attributes):
        raise ProgramError(
            "there is nothing to partition: no sharding is left to apply", location=module.source
        )
    meshes = [
        prod(size for _, size in read_mesh_axes(symbol.attributes["mesh"]))
        for symbol in module_symbols(module).values()
        if symbol.op_name == "sdy.mesh"
    ]
    partitions = _count(attributes.get("mhlo.num_partitions")) or max(meshes, default=0)
    if not partitions:
        raise ProgramError(
            "the program doesn't say over how many devices it is sharded",
            location=module.source,
            hint="export it with a mesh, or with mhlo.num_partitions",
        )
    return _count(attributes.get("mhlo.num_replicas")) or 1, partitions, bool(meshes)


def _is_annotated(text: bytes) -> bool:
    return any(mark in text for mark in _ANNOTATIONS)


def _count(text: str | None) -> int:
    match = _NUMBER.match(text or "")
    return int(match[0]) if match else 0


def _run_worker(source: bytes, request: PartitionRequest, limits: Limits) -> bytes:
    """Return the partitioned program.

    The worker's directory is kept if it fails.
    """
    if is_staying():
        use_cpu()
        # XLA takes long to import.
        return import_module("hespas.xla.partition.worker").partition_source(source, request)
    with scratch_directory("partition") as directory:
        (directory / PROGRAM_FILE).write_bytes(source)
        ask(
            "hespas.xla.partition.worker",
            request,
            PartitionAnswer,
            name="the partitioner",
            directory=directory,
            limits=limits,
            environment=ENVIRONMENT,
            again=True,
        )
        return (directory / PARTITIONED_FILE).read_bytes()
