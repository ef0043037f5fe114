"""Partition one program, as the process ``python -m hespas.xla.partition.worker``.

XLA uses hundreds of megabytes and can abort, so it does not run in the process that asks.
`hespas.xla.partition.partition` names the files in the working directory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from hespas.base.question import PROGRAM_FILE, serve
from hespas.errors import ProgramError
from hespas.xla.mlir.module import (
    OF_FUNCTIONS,
    MlirModule,
    bytecode_of,
    declare_counts,
    entries_of,
    erase_copies,
    holds_locations,
    listed,
    main_of,
    operations_in,
    parse_mlir,
    printed,
)
from hespas.xla.partition.partition import (
    PARTITIONED_FILE,
    PartitionAnswer,
    Partitioner,
    PartitionRequest,
)

_SHARD_MAP = b"manual_computation"
_DONOR, _ALIAS = "jax.buffer_donor", "tf.aliasing_output"
_LISTED_ALIASES = "mhlo.input_output_alias"
_MEMORY_KIND = "mhlo.memory_kind"
_GSPMD, _RESULTS, _CALL = "mhlo.sharding", "res_attrs", "stablehlo.custom_call"
_PLACEMENT = b"annotate_device_placement"
_PLACED = {
    "device": "MoveToDevice",
    "pinned_host": "MoveToHost",
    "unpinned_host": "MoveToHost",
}

_PASSES: Mapping[str, list[str]] = json.loads(Path(__file__).with_name("passes.json").read_bytes())
"""Passes of the CPU compiler of jaxlib 0.10.2, which hespas pins.

XLA's GPU compiler simplifies a program before it partitions it, the CPU compiler afterwards. So a
program goes through the CPU compiler twice: first as a program of a single partition, whose
shardings are kept, without those that are ``not_simplification``; then with those alone that
``partition``: inlining, propagation, partitioning, and the cleanup after it.

Inlining, algebraic simplification, constant folding and their like are left on at first: the GPU
compiler's ``spmd-simplify`` pipeline has them too.
"""
_HIDDEN = {name: f"hespas.{name}" for name in _PLACED.values()}
"""Names of placements while the CPU compiler simplifies: it drops those that it knows."""


def _answer(request: PartitionRequest, home: Path) -> PartitionAnswer:
    source = (home / PROGRAM_FILE).read_bytes()
    (home / PARTITIONED_FILE).write_bytes(partition_source(source, request))
    return PartitionAnswer()


def partition_source(source: bytes, request: PartitionRequest) -> bytes:
    """Return the program that this process partitions.

    Raises `ProgramError` if XLA refuses the program.
    """
    declared = parse_mlir(source, name=request.name)
    module = parse_mlir(_partition_with_xla(declared, source, request), name=request.name)
    if _SHARD_MAP in source:
        erase_copies(module.handle.operation)  # They mark where shard_map began and ended.
    if any(name.encode() in source for name in (_DONOR, _ALIAS)):
        _declare_donations(module, declared)
    if _MEMORY_KIND.encode() in source:
        _declare_memory_kinds(module, declared)
    declare_counts(module.handle, replicas=request.replicas, partitions=request.partitions)
    if holds_locations(source):
        return bytecode_of(module.handle)
    return printed(module.handle, with_locations=False)


def _partition_with_xla(parsed: MlirModule, source: bytes, request: PartitionRequest) -> bytes:
    compiler = _Compiler(request)
    if _PLACEMENT in source:
        _name_placements(parsed.handle)
    module = bytecode_of(parsed.handle)
    # The content of shard_map is not read back from a simplified module.
    if _SHARD_MAP not in module or request.partitioner is Partitioner.XLA_GSPMD:
        simplified = compiler.run(
            _rename_targets(module, _HIDDEN, name=request.name),
            partitions=1,
            passes=("xla_disable_hlo_passes", ",".join(_PASSES["not_simplification"])),
        )
        shown = {hidden: placed for placed, hidden in _HIDDEN.items()}
        module = _rename_targets(_stablehlo(simplified), shown, name=request.name)
        if request.partitioner is Partitioner.XLA_SHARDY:
            module = _with_shardy_alone(module, name=request.name)
    partitioned = compiler.run(
        module,
        partitions=request.partitions,
        passes=("xla_enable_hlo_passes_only", ",".join(_PASSES["partition"])),
    )
    return _stablehlo(partitioned)


class _CapturedError(Exception):
    """Ends a compilation after the captured stage."""


_CAPTURED: list[bytes] = []
"""The module at the captured stage of a compilation."""
_IS_CAPTURING = Event()
"""Whether a partition compiles: other compilations of the process run to their end."""


def _capture(module: bytes) -> None:
    if _IS_CAPTURING.is_set():
        _CAPTURED.append(module)
        raise _CapturedError


_PRE_SCHEDULER = 0
"""The stage at which XLA calls `_capture`: a ``PipelineStage`` of ``jax.extend.xla``."""


@cache
def _register() -> None:
    """Register `_capture` with XLA's CPU compiler, once for a process."""
    # jax.extend.xla registers it the same way, but imports JAX, which takes as long as most
    # partitions.
    import_module("jaxlib._xla").register_xla_transform("hespas", _PRE_SCHEDULER, _capture)


class _Compiler:
    """XLA's CPU compiler, stopped before scheduling and code generation."""

    def __init__(self, request: PartitionRequest) -> None:
        self._request = request
        self._client = _client()
        _register()

    def run(self, module: bytes, *, partitions: int, passes: tuple[str, str]) -> bytes:
        """Run passes on bytecode; return the HLO module."""
        internals = import_module("jaxlib._jax")
        options = internals.CompileOptions()
        build = options.executable_build_options
        # Nothing runs, so that one device stands for all: XLA makes a thread for each device.
        build.device_assignment = internals.DeviceAssignment.create(
            np.zeros((self._request.replicas, partitions), np.int32)
        )
        build.num_replicas, build.num_partitions = self._request.replicas, partitions
        build.use_spmd_partitioning = True
        build.use_shardy_partitioner = self._request.partitioner is Partitioner.XLA_SHARDY
        # Groups of collectives listed are read faster than those named by mesh axes.
        options.env_option_overrides = [passes, ("xla_enable_rgv3_materialization", False)]
        _CAPTURED.clear()
        _IS_CAPTURING.set()
        try:
            self._client.compile_and_load(module, self._client.devices(), options)
        except internals.JaxRuntimeError as error:
            if not _CAPTURED:
                sys.stderr.write(f"{error}\n")
                first = str(error).strip().partition("\n")[0]
                refused = f"XLA's partitioner refuses it: {first}"
                raise ProgramError(refused, location=self._request.name) from error
        finally:
            _IS_CAPTURING.clear()
        return _CAPTURED[0]


@cache
def _client() -> Any:
    """Return a client with one device, whatever XLA_FLAGS says."""
    return import_module("jaxlib._jax").get_tfrt_cpu_client(asynchronous=True, num_devices=1)


def _rename_targets(module: bytes, names: Mapping[str, str], *, name: str) -> bytes:
    """Return a module with the targets of custom calls renamed."""
    if not any(target.encode() in module for target in names):
        return module
    ir = import_module("jaxlib.mlir.ir")
    handle = parse_mlir(module, name=name).handle
    with handle.context:
        for op in operations_in(handle.operation, {_CALL}):
            target = op.attributes["call_target_name"].value
            if target in names:
                op.attributes["call_target_name"] = ir.StringAttr.get(names[target])
    return bytecode_of(handle)


def _with_shardy_alone(module: bytes, *, name: str) -> bytes:
    """Return a module without GSPMD's shardings of results.

    Simplifying adds them. If one result has a sharding, all results have a GSPMD one in HLO. XLA
    then takes the module for one of GSPMD's, unless each result has a Shardy one as well.
    """
    if _GSPMD.encode() not in module:
        return module
    parsed = parse_mlir(module, name=name)
    attributes = main_of(parsed).attributes
    if _RESULTS in attributes:
        with parsed.handle.context:
            attributes[_RESULTS] = listed(
                {name: attr for name, attr in entry.items() if name != _GSPMD}
                for entry in entries_of(attributes[_RESULTS])
            )
    return bytecode_of(parsed.handle)


def _name_placements(module: Any) -> None:
    """Name placements as XLA does.

    It divides them like operands then.
    """
    ir = import_module("jaxlib.mlir.ir")
    with module.context:
        for op in operations_in(module.operation, {_CALL}):
            attributes = op.attributes
            frontend = attributes.get("mhlo.frontend_attributes")
            target = attributes["call_target_name"].value
            if target == _PLACEMENT.decode() and frontend is not None:
                name = _PLACED.get(frontend["_xla_buffer_placement"].value)
                if name is not None:
                    attributes["call_target_name"] = ir.StringAttr.get(name)
                    attributes["has_side_effect"] = ir.BoolAttr.get(False)


def _declare_donations(partitioned: MlirModule, source: MlirModule) -> None:
    """Declare donated arguments as in the source: XLA drops ``jax.buffer_donor``.

    An argument that is given to one result stays so where both are of the same type for one device
    too, and is donated to any result otherwise. The module lists the aliases that XLA kept.
    """
    ir = import_module("jaxlib.mlir.ir")
    main, declared = main_of(partitioned), main_of(source).attributes
    arguments, attributes = main.regions[0].blocks[0].arguments, main.attributes
    if "arg_attrs" not in declared or len(arguments) != len(declared["arg_attrs"]):
        return
    aliases = partitioned.handle.operation.attributes.get(_LISTED_ALIASES, ())
    aliased = {int(entry["alias"]["parameter_number"].value) for entry in aliases}
    results = ir.FunctionType(attributes["function_type"].value).results
    texts = _attributes_or_empty(attributes, "arg_attrs", len(arguments))
    with partitioned.handle.context:
        for number, donated in enumerate(declared["arg_attrs"]):
            if number in aliased:
                continue
            if _ALIAS in donated:
                result = ir.IntegerAttr(donated[_ALIAS]).value
                if results[result] == arguments[number].type:
                    texts[number][_ALIAS] = donated[_ALIAS]
                    continue
            if _ALIAS in donated or _DONOR in donated:
                texts[number][_DONOR] = ir.BoolAttr.get(True)
        attributes["arg_attrs"] = listed(texts)


def _declare_memory_kinds(partitioned: MlirModule, source: MlirModule) -> None:
    """Declare the memory kinds of arguments and results.

    XLA drops them.
    """
    ir = import_module("jaxlib.mlir.ir")
    attributes, declared = main_of(partitioned).attributes, main_of(source).attributes
    for kind in OF_FUNCTIONS:
        if kind not in declared:
            continue
        texts = _attributes_or_empty(attributes, kind, len(declared[kind]))
        if len(texts) != len(declared[kind]):
            continue
        with partitioned.handle.context:
            for entry, declared_attributes in zip(texts, declared[kind], strict=True):
                if _MEMORY_KIND in declared_attributes:
                    entry[_MEMORY_KIND] = ir.StringAttr.get(declared_attributes[_MEMORY_KIND].value)
            attributes[kind] = listed(texts)


def _attributes_or_empty(attributes: Any, kind: str, count: int) -> list[dict[str, Any]]:
    """Return the attributes of arguments or results."""
    return entries_of(attributes[kind] if kind in attributes else [()] * count)


def _stablehlo(module: bytes) -> bytes:
    return import_module("jaxlib._jax").mlir.hlo_to_stablehlo(module)


ANSWERS = (PartitionRequest, _answer)

if __name__ == "__main__":
    serve(*ANSWERS)
