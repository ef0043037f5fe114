"""Read a program in any supported format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hespas.errors import ConfigError, ProgramError, option
from hespas.frontend.mesh import global_facts_of
from hespas.frontend.overrides import NO_OPTIONS, Loaded, LoadOptions, Unpartitioned
from hespas.frontend.stablehlo.load import read_stablehlo
from hespas.program.attrs import MOSAIC
from hespas.program.program import Program
from hespas.program.recorded import is_recorded
from hespas.xla.hlo.forms import is_hlo
from hespas.xla.mlir.heads import cut_head
from hespas.xla.mlir.module import MlirModule, operation_names, parse_mlir
from hespas.xla.trial import check_bytecode

if TYPE_CHECKING:
    from hespas.frontend.stablehlo.tail import Tail
    from hespas.xla.hlo.module import HloModule
    from hespas.xla.partition.partition import Partitioned

# StableHLO for one device, the usual case, needs neither protobuf nor the partitioner: functions
# import them when they need them.


PARTITIONED = " (partitioned)"
"""The suffix of a program's name in messages about its partitioned text."""
_ELIDED_CONSTANT = b"constant({...})"


def read_source(path: Path) -> bytes:
    """Return a file's content; `ProgramError` if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable_error(path, error) from error


def check_source(path: Path) -> None:
    """Raise `ProgramError` for a file that cannot be opened."""
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise _unreadable_error(path, error) from error


def _unreadable_error(path: Path, error: OSError) -> ProgramError:
    if isinstance(error, FileNotFoundError):
        return ProgramError("no such file", location=str(path), hint="check the path")
    return ProgramError(f"cannot be read: {error.strerror}", location=str(path))


def load_program(path: Path, *, options: LoadOptions = NO_OPTIONS) -> Program:
    """Return the program of one device from a file.

    Raises what `load_per_device` raises, and `ProgramError` for an unreadable file.
    """
    return load_per_device(read_source(path), name=str(path), options=options).program


def load_per_device(
    source: bytes,
    *,
    name: str,
    options: LoadOptions = NO_OPTIONS,
    cache_dir: Path | None = None,
) -> Loaded:
    """Return one device's program, and the options that affected it.

    The content decides the format: StableHLO text, MLIR bytecode or a portable artifact, HLO text,
    a serialized HloProto or HloModuleProto, or a recorded step of PyTorch. ``name`` appears in
    messages. A sharded program that is not partitioned yet is partitioned; its assumptions say so,
    ``options`` name lines of the partitioned text, and ``cache_dir`` caches it. Raises
    `ProgramError` for a source that is no program or that the partitioner refuses,
    `UnsupportedError` for an operation without a model, `ConfigError` for options that name a
    missing loop or branch, and `ToolError` if the partitioner fails.
    """
    if is_recorded(source):
        from hespas.frontend.recorded.load import read_recorded  # noqa: PLC0415 - few are

        return read_recorded(source, name=name)
    parsed = _parse(source, name)
    global_facts = global_facts_of(parsed)
    loaded = _read(parsed, source, name, options)
    if isinstance(loaded, Unpartitioned) and loaded.divided is not None:
        loaded = loaded.divided
    if isinstance(loaded, Loaded):
        return replace(
            loaded, program=msgspec.structs.replace(loaded.program, global_facts=global_facts)
        )
    tail = loaded.tail if options.divides_end else None
    head = None if tail is None else _head(parsed, source, tail, name)
    if head is not None:
        parsed, source = head
    partitioned = _partition(parsed, source, name, cache_dir)
    name = f"{name}{PARTITIONED}"
    content = partitioned.content
    local = _read(parse_mlir(content, name=name), content, name, options)
    if isinstance(local, Unpartitioned):
        raise local.error()
    assumptions = (partitioned.assumption, *local.program.assumptions)
    divided = tail.joined(local.program) if tail and head else local.program
    program = msgspec.structs.replace(divided, assumptions=assumptions, global_facts=global_facts)
    return replace(local, program=program, undivided=loaded.undivided)


def _head(
    parsed: MlirModule | HloModule, source: bytes, tail: Tail, name: str
) -> tuple[MlirModule, bytes] | None:
    """Return what a partitioner has to divide of a program, None if that is all of it."""
    if not isinstance(parsed, MlirModule):
        return None
    # What was read has no operations of CHLO any more, which the partitioner knows.
    module = parse_mlir(source, name=name) if b"chlo" in source else parsed
    content = cut_head(module, tail.count, tail.head_results)
    return None if content is None else (module, content)


def load_undivided(source: bytes, *, name: str) -> Program | None:
    """Return the undivided program of sharded StableHLO, or None."""
    loaded = _read(_parse(source, name), source, name, NO_OPTIONS)
    return loaded.undivided


def is_false_first(source: bytes, *, name: str) -> bool:
    """Return whether StableHLO's branches on a predicate put false first.

    `jax.lax.cond` is exported as a ``case`` on a predicate converted to a number. XLA compiles such
    a ``case`` and an ``if`` to the same ``conditional``, whose first branch is for true. A ``case``
    has the branch for false first, an ``if`` the one for true. Raises `ConfigError` for a program
    with both.
    """
    branch_kinds = operation_names(parse_mlir(source, name=name), {_CASE, _IF})
    if branch_kinds == {_CASE, _IF}:
        raise ConfigError(
            f"{option('branch_weights')} can't be told apart in the compiled program: it has both "
            f"{_CASE}, with false first, and {_IF}, with true first",
            location=name,
            hint="run hespas compile, and weigh the branches of its output by their names",
        )
    return _CASE in branch_kinds


_CASE, _IF = "stablehlo.case", "stablehlo.if"


def load_source(source: bytes, *, name: str, options: LoadOptions = NO_OPTIONS) -> Program:
    """Return the program of a partitioned source.

    Raises `UnpartitionedError` for a sharded program, and otherwise what `load_per_device` raises.
    """
    loaded = _read(_parse(source, name), source, name, options)
    if isinstance(loaded, Unpartitioned):
        raise loaded.error()
    return loaded.program


def _parse(source: bytes, name: str) -> MlirModule | HloModule:
    if is_hlo(source):
        from hespas.xla.hlo.module import read_hlo_module  # noqa: PLC0415

        return read_hlo_module(source, name=name)
    if not source.strip():
        raise ProgramError("the file is empty", location=name)
    check_bytecode(source, name=name)
    return parse_mlir(source, name=name)


def _read(
    parsed: MlirModule | HloModule, source: bytes, name: str, options: LoadOptions
) -> Loaded | Unpartitioned:
    if isinstance(parsed, MlirModule):
        loaded = read_stablehlo(parsed, source, options=options)
        is_whole = True
    else:
        from hespas.frontend.hlo.load import read_hlo  # noqa: PLC0415

        loaded = read_hlo(parsed, name=name, options=options)
        # XLA's parser replaces numbers that the text leaves out by others.
        is_whole = _ELIDED_CONSTANT not in source
    if isinstance(loaded, Unpartitioned) or not is_whole or MOSAIC.encode() not in source:
        return loaded
    from hespas.frontend.tables import with_tables  # noqa: PLC0415 - few have Mosaic's kernels

    return replace(loaded, program=with_tables(loaded.program))


def _partition(
    parsed: MlirModule | HloModule, source: bytes, name: str, cache_dir: Path | None
) -> Partitioned:
    from hespas.xla.hlo.module import stablehlo_of_module  # noqa: PLC0415
    from hespas.xla.partition.partition import (  # noqa: PLC0415
        partition,
        partition_cache,
        partition_module,
    )

    if not isinstance(parsed, MlirModule):
        return partition(stablehlo_of_module(parsed, name=name), name=name)
    cache = None if cache_dir is None else partition_cache(cache_dir)
    return partition_module(parsed, source, cache=cache)
