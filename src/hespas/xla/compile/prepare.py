"""Prepare a module for an accelerator's compiler.

Compilers accept less than jaxlib parses.
"""

from __future__ import annotations

import re
from importlib import import_module
from math import prod
from typing import Any

from hespas.base.frozen import frozen
from hespas.errors import DeviceCountError, ProgramError, UnsupportedError
from hespas.program.groups import ORDER_KEY, DeviceOrder, read_order
from hespas.xla.mlir.module import (
    OF_FUNCTIONS,
    MlirModule,
    drop_attributes,
    entries_of,
    erase_copies,
    listed,
    main_of,
    operations_in,
    parse_mlir,
)
from hespas.xla.mlir.text import read_mesh_axes

_ALIASES = "mhlo.input_output_alias"
_PARTITIONED = "mhlo.spmd_parameters_shardings"
# XLA writes these attributes when it turns a partitioned HLO module into StableHLO, and reads none
# of them.
_FRONTEND = "mhlo.frontend_attributes"
_UNREAD_ATTRIBUTES = (
    "mhlo.cross_program_prefetches",
    _ALIASES,
    "mhlo.is_dynamic",
    "mhlo.spmd_output_sharding",
    _PARTITIONED,
    "mhlo.use_auto_spmd_partitioning",
)
_SHARDINGS = ("mhlo.sharding", "sdy.sharding")
_MESH = "sdy.mesh"
_GROUPS = "replica_groups"
_PAIRS = "source_target_pairs"
_CHANNEL = "channel_handle"
_HANDLE = re.compile(r"handle = (-?\d+)")


@frozen
class Prepared:
    """A module and the way to compile it.

    ``partition`` is True if the compiler has to apply shardings, ``shardy`` if they are Shardy's.
    ``device_order`` has the devices of its partitions; None is the order of their numbers.
    """

    module: MlirModule
    replicas: int
    partitions: int
    partition: bool
    shardy: bool
    notes: tuple[str, ...]
    device_order: DeviceOrder | None = None


@frozen
class _Contents:
    """The parts of a module that need preparation."""

    copies: int
    collectives: list[Any]
    partition_ids: list[Any]
    has_shardings: bool
    has_shardy: bool


def prepare(
    source: bytes, *, name: str, devices: int | None, partitions_as_replicas: bool
) -> Prepared:
    """Parse a program and rewrite it for compilers.

    Its replicas and partitions are settled. Copies are erased (the compiler places its own),
    aliases of arguments and results are declared as compilers read them, meshes get the attribute
    they are looked up by, and collectives that share a channel, as JAX's shard_map writes them, get
    one each: XLA gives all arrays of a channel one layout, and refuses them if their ranks differ.
    With ``partitions_as_replicas``, the partitions of a program that is already partitioned become
    replicas: libtpu has no other way to compile it. Raises `ProgramError` for invalid programs,
    `DeviceCountError` if ``devices`` contradicts the program.
    """
    module = parse_mlir(source, name=name)
    ir = import_module("jaxlib.mlir.ir")
    with module.handle.context, ir.Location.unknown(module.handle.context):
        operation = module.handle.operation
        contents = _read_contents(operation)
        was_partitioned = _PARTITIONED in operation.attributes
        replicas, partitions = _device_counts(operation, contents, name=name, devices=devices)
        _separate_channels(contents.collectives, ir)
        _declare_aliases(module, ir)
        _declare_meshes(module, ir)
        for attribute in _UNREAD_ATTRIBUTES:
            if attribute in operation.attributes:
                del operation.attributes[attribute]
        if was_partitioned:
            # Compilers would apply the shardings again.
            drop_attributes(operation, _SHARDINGS)
        partition = contents.has_shardings and not was_partitioned and partitions > 1
        joined = partitions > 1 and not partition and partitions_as_replicas
        if joined:
            replicas, partitions = _make_replicas(contents, replicas, partitions, name=name)
    return Prepared(
        module=module,
        replicas=replicas,
        partitions=partitions,
        partition=partition,
        shardy=contents.has_shardy,
        notes=_notes(contents, partition=partition, joined=joined),
        device_order=_checked_order(operation, replicas * partitions, name=name),
    )


def _checked_order(operation: Any, count: int, *, name: str) -> DeviceOrder | None:
    """Return the module's device order.

    Raises `DeviceCountError` if its count is not ``count``.
    """
    if _FRONTEND not in operation.attributes:
        return None
    frontend = {entry.name: entry.attr for entry in operation.attributes[_FRONTEND]}
    order = read_order(frontend[ORDER_KEY].value) if ORDER_KEY in frontend else None
    if order is not None and order.count != count:
        raise DeviceCountError(
            f"the order of its devices, {order}, is of {order.count}, and it is made for {count}",
            location=name,
        )
    return order


def _notes(contents: _Contents, *, partition: bool, joined: bool) -> tuple[str, ...]:
    notes = ["its partitions were compiled as replicas"] if joined else []
    if contents.copies:
        notes.append(f"{contents.copies} mhlo.copy operations were erased before compiling")
    if partition:
        notes.append("the program was partitioned by the compiler")
    return tuple(notes)


def _read_contents(operation: Any) -> _Contents:
    collectives: list[Any] = []
    partition_ids: list[Any] = []
    shardings: set[str] = set()
    for op in operations_in(operation):
        name: str = op.name
        attributes = op.attributes
        if name == "stablehlo.partition_id":
            partition_ids.append(op)
        elif name.startswith("sdy.") and name != _MESH:
            shardings.add("sdy")
        if _GROUPS in attributes or _PAIRS in attributes:
            collectives.append(op)
        if _SHARDINGS[0] in attributes:
            shardings.add("mhlo")
        for kind in OF_FUNCTIONS if name == "func.func" else ():
            text = str(attributes[kind]) if kind in attributes else ""
            shardings.update(word for word in ("sdy", "mhlo") if f"{word}.sharding" in text)
    if _FRONTEND in operation.attributes:
        text = str(operation.attributes[_FRONTEND])
        shardings.update({"sdy"} if "xla.sdy" in text else set())
    return _Contents(
        copies=erase_copies(operation),
        collectives=collectives,
        partition_ids=partition_ids,
        has_shardings=bool(shardings),
        has_shardy="sdy" in shardings,
    )


def _device_counts(
    operation: Any, contents: _Contents, *, name: str, devices: int | None
) -> tuple[int, int]:
    """Return the numbers of replicas and partitions.

    They are the program's, else those of its groups, else ``devices``.
    """
    replicas = _count(operation, "mhlo.num_replicas")
    partitions = _count(operation, "mhlo.num_partitions")
    declared = replicas * partitions
    highest_count = max((_highest(op) + 1 for op in contents.collectives), default=0)
    stated_count = declared if declared > 1 else highest_count
    if stated_count and devices is not None and devices != stated_count:
        raise DeviceCountError(
            f"the program is made for {stated_count} devices, and {devices} are asked for",
            location=name,
            hint=f"drop the count, or give {stated_count}",
        )
    if declared > 1:
        return replicas, partitions
    count = stated_count or devices or 1
    if count < 1:
        raise DeviceCountError(f"{count} devices are asked for", hint="give 1 or more")
    channels = any(_CHANNEL in op.attributes for op in contents.collectives)
    return (1, count) if channels or contents.has_shardings else (count, 1)


def _make_replicas(
    contents: _Contents, replicas: int, partitions: int, *, name: str
) -> tuple[int, int]:
    """Turn partitions into replicas.

    Groups without channels are of replicas.
    """
    if replicas > 1:
        raise UnsupportedError(
            f"{replicas} replicas of {partitions} partitions have no form for this compiler",
            location=name,
            hint="give the program before it is partitioned",
        )
    ir = import_module("jaxlib.mlir.ir")
    for op in contents.collectives:
        for attribute in (_CHANNEL, "use_global_device_ids"):
            if attribute in op.attributes:
                del op.attributes[attribute]
    for op in contents.partition_ids:
        with ir.InsertionPoint(op):
            replica_id = ir.Operation.create("stablehlo.replica_id", results=[op.results[0].type])
        op.results[0].replace_all_uses_with(replica_id.results[0])
        op.erase()
    return partitions, 1


def _count(operation: Any, attribute: str) -> int:
    if attribute not in operation.attributes:
        return 1
    return int(operation.attributes[attribute].value)


def _highest(op: Any) -> int:
    """Return the highest device of a collective, or -1."""
    ir = import_module("jaxlib.mlir.ir")
    numpy = import_module("numpy")
    attributes = op.attributes
    listed_groups = attributes[_GROUPS if _GROUPS in attributes else _PAIRS]
    try:
        values = numpy.array(ir.DenseIntElementsAttr(listed_groups))
    except ValueError:
        return _mesh_size(listed_groups, op) - 1
    return int(values.max(initial=-1))


def _mesh_size(groups: Any, op: Any) -> int:
    """Return the number of devices of a group's mesh."""
    symbol = str(groups).partition("mesh = @")[2].partition(",")[0].strip('" >')
    root = op
    while root.parent is not None:
        root = root.parent
    for view in root.regions[0].blocks[0].operations:
        mesh = view.operation
        if mesh.name == _MESH and mesh.attributes["sym_name"].value == symbol:
            return prod(size for _, size in read_mesh_axes(str(mesh.attributes["mesh"])))
    raise ProgramError(f"mesh @{symbol} is not defined")


def _separate_channels(collectives: list[Any], ir: Any) -> None:
    """Give collectives that share a channel their own."""
    texts = [(op, str(op.attributes[_CHANNEL])) for op in collectives if _CHANNEL in op.attributes]
    numbered = [(op, text, int(_HANDLE.findall(text)[0])) for op, text in texts]
    free = max((handle for _, _, handle in numbered), default=0) + 1
    # Handle zero means no channel.
    used: set[int] = set()
    for op, text, handle in numbered:
        if handle in used:
            op.attributes[_CHANNEL] = ir.Attribute.parse(_HANDLE.sub(f"handle = {free}", text))
            free += 1
        elif handle > 0:
            used.add(handle)


def _declare_aliases(module: MlirModule, ir: Any) -> None:
    """Declare the module's aliases on its arguments."""
    attributes = module.handle.operation.attributes
    if _ALIASES not in attributes:
        return
    main = main_of(module)
    count = len(main.regions[0].blocks[0].arguments)
    arguments = main.attributes["arg_attrs"] if "arg_attrs" in main.attributes else [()] * count
    texts = entries_of(arguments)
    integer = ir.IntegerType.get_signless(32)
    for entry in attributes[_ALIASES]:
        alias = entry["alias"]
        output = list(entry["output_index"])
        if len(output) > 1 or list(alias["parameter_index"]):
            continue
        argument = int(alias["parameter_number"].value)
        position = int(output[0]) if output else 0
        texts[argument]["tf.aliasing_output"] = ir.IntegerAttr.get(integer, position)
    main.attributes["arg_attrs"] = listed(texts)


def _declare_meshes(module: MlirModule, ir: Any) -> None:
    """Give each mesh the attribute that collectives need."""
    for view in module.handle.body.operations:
        op = view.operation
        if op.name != _MESH or "stablehlo.mesh" in op.attributes:
            continue
        mesh = str(op.attributes["mesh"])
        axes = ", ".join(
            f'{{name = "{name}", size = {size} : i64}}' for name, size in read_mesh_axes(mesh)
        )
        ids = mesh.partition("device_ids")[2].partition("[")[2].partition("]")[0]
        count = len(ids.split(","))
        device_list = f", device_ids = dense<[{ids}]> : tensor<{count}xi64>" if ids else ""
        op.attributes["stablehlo.mesh"] = ir.Attribute.parse(f"{{axes = [{axes}]{device_list}}}")
