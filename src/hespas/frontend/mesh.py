"""Preserve a sharded source's mesh and undivided inputs.

Partitioned programs name no axes. An entry ``hespas.mesh = "fsdp=8,tp=4"`` among the module's
frontend attributes preserves them: other readers of StableHLO and HLO pass those attributes on
unchanged, and XLA copies them from one format to the other. The same holds for
``hespas.device_order = "[2,4]T(1,0)"``, for a program whose partitions don't run on the devices of
their numbers: JAX reports this only beside a program. What exports a step says its inputs and model
FLOPs by ``hespas.step = "tokens=4096,sequences=2,model_flops=2.5e+15"``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hespas.base.cache import ContentCache, code_digest, made_once
from hespas.base.frozen import frozen
from hespas.base.version import __version__
from hespas.errors import ProgramError
from hespas.program.groups import (
    ORDER_KEY,
    DeviceOrder,
    ListedGroups,
    ReplicaGroups,
    folded_along,
    read_order,
)
from hespas.program.program import GlobalFacts
from hespas.xla.hlo.forms import is_hlo
from hespas.xla.mlir.module import MlirModule, module_attributes, module_symbols, parse_mlir
from hespas.xla.mlir.text import (
    read_dense_integers,
    read_fields,
    read_mesh_axes,
    read_symbols,
    read_type,
    split_list,
)

if TYPE_CHECKING:
    from hespas.xla.hlo.module import HloModule


@frozen
class Mesh:
    """Named axes, major first; ``device_ids`` is None for ascending numbers."""

    axes: tuple[tuple[str, int], ...]
    device_ids: tuple[int, ...] | None = None

    @property
    def device_count(self) -> int:
        """The product of the axis sizes."""
        return prod(size for _, size in self.axes)


_LISTED_IDS = re.compile(r"device_ids\s*=\s*\[([\d, ]+)\]")
_DENSE_IDS = re.compile(r"device_ids\s*=\s*(dense<.*?> : tensor<[^>]*>)")
_SUB_AXIS = re.compile(r"\((\d+)\)(\d+)")


def read_mesh(text: str) -> Mesh:
    """Read ``#sdy.mesh<...>`` or ``#stablehlo.mesh<...>``.

    >>> read_mesh('#sdy.mesh<["a"=4, "b"=2]>').axes
    (('a', 4), ('b', 2))
    """
    axes = read_mesh_axes(text)
    listed, dense = _LISTED_IDS.search(text), _DENSE_IDS.search(text)
    if listed is not None:
        return Mesh(axes=axes, device_ids=tuple(map(int, listed[1].split(","))))
    if dense is not None:
        return Mesh(axes=axes, device_ids=read_dense_integers(dense[1])[1])
    return Mesh(axes=axes)


@frozen
class AxisPart:
    """A part of a mesh axis; ``before`` is the product of more major parts."""

    name: str
    before: int
    size: int


def read_axis_groups(text: str, meshes: Mapping[str, Mesh]) -> ReplicaGroups:
    """Read ``#stablehlo.replica_group_mesh_axes<...>``.

    Each position on the other axes is one group.

    Raises `ProgramError` when the mesh or an axis is not defined.
    """
    fields = read_fields(text)
    mesh = _mesh_of(fields["mesh"], meshes)
    sizes = dict(mesh.axes)
    used: list[AxisPart] = []
    for reference in split_list(fields["axes"].strip("[]")):
        axis = read_fields(reference)
        name = axis["name"].strip('"')
        if name not in sizes:
            raise ProgramError(f"mesh axis {name!r} is not defined", hint=f"axes: {list(sizes)}")
        part = _SUB_AXIS.search(axis.get("sub_axis_info", ""))
        before, size = (int(part[1]), int(part[2])) if part else (1, sizes[name])
        used.append(AxisPart(name=name, before=before, size=size))
    return axis_groups(mesh, used)


def _mesh_of(text: str, meshes: Mapping[str, Mesh]) -> Mesh:
    if not text.startswith("@"):
        return read_mesh(text)
    name = read_symbols(text)[0]
    if name not in meshes:
        raise ProgramError(f"mesh @{name} is not defined")
    return meshes[name]


def axis_groups(mesh: Mesh, used: list[AxisPart]) -> ReplicaGroups:
    """Return one group for each position on the unused axes."""
    parts = [part for name, size in mesh.axes for part in _split(name, size, used)]
    folded = folded_along([part.size for part in parts], [parts.index(part) for part in used])
    ids = mesh.device_ids
    if ids is None:
        return folded
    return ListedGroups(
        groups=tuple(tuple(ids[number] for number in row) for row in folded.listed())
    )


def _split(name: str, size: int, used: list[AxisPart]) -> list[AxisPart]:
    """Split an axis at the borders of its used parts."""
    cuts = {1, size}
    for part in used:
        if part.name == name:
            cuts |= {part.before, part.before * part.size}
    ordered = sorted(cuts)
    if len(ordered) == 1:
        return [AxisPart(name=name, before=1, size=1)]
    pairs = pairwise(ordered)
    return [AxisPart(name=name, before=low, size=high // low) for low, high in pairs]


KEY = "hespas.mesh"
STEP_KEY = "hespas.step"
FRONTEND = "mhlo.frontend_attributes"
MeshAxes = tuple[tuple[str, int], ...]

_NAME = re.compile(r"[\w./-]+")
_AXIS = re.compile(r"([\w./-]+)=(\d+)")
_ENTRY = re.compile(rf'{re.escape(KEY)} = "([^"]*)"')
_ORDER_ENTRY = re.compile(rf'{re.escape(ORDER_KEY)} = "([^"]*)"')
_STEP_ENTRY = re.compile(rf'{re.escape(STEP_KEY)} = "([^"]*)"')
_NUMBER = re.compile(r"(\w+)=(\d+(?:\.\d+)?(?:e\+?\d+)?)(?=,|$)")
_MODULE = re.compile(r"^(module(?: @(?:[\w.$-]+|\"[^\"]*\"))?)( attributes \{)?", re.MULTILINE)


def with_mesh(program: bytes, axes: MeshAxes) -> bytes:
    """Return a program with its mesh axes as an attribute.

    It is StableHLO text, or HLO in any form.

    Bytecode, what has a mesh already, and meshes without axes or with axes whose names are not
    words are returned unchanged.

    >>> print(with_mesh(b"module @step {}", (("fsdp", 8), ("tp", 4))).decode())
    module @step attributes {mhlo.frontend_attributes = {hespas.mesh = "fsdp=8,tp=4"}} {}
    """
    if not axes or not all(_NAME.fullmatch(name) for name, _ in axes):
        return program
    return _with_entry(program, KEY, ",".join(f"{name}={size}" for name, size in axes))


def with_device_order(program: bytes, order: DeviceOrder | None) -> bytes:
    """Return a program with its device order as an attribute.

    A program that has one already, or an ascending order, is returned unchanged.

    >>> order = DeviceOrder(dimensions=(2, 4), permutation=(1, 0))
    >>> print(with_device_order(b"module {}", order).decode())
    module attributes {mhlo.frontend_attributes = {hespas.device_order = "[2,4]T(1,0)"}} {}
    """
    if order is None or order.is_ascending:
        return program
    return _with_entry(program, ORDER_KEY, str(order))


def with_step(program: bytes, facts: GlobalFacts) -> bytes:
    """Return a program with its step's inputs and model FLOPs.

    A program that states them, or a step of which nothing is known, is returned unchanged.

    >>> facts = GlobalFacts(tokens=4096, samples=2, sample_name="sequences")
    >>> print(with_step(b"module {}", facts).decode())
    module attributes {mhlo.frontend_attributes = {hespas.step = "tokens=4096,sequences=2"}} {}
    """
    text = _step_text(facts)
    return _with_entry(program, STEP_KEY, text) if text else program


def _step_text(facts: GlobalFacts) -> str:
    numbers = (
        ("tokens", facts.tokens),
        (facts.sample_name, facts.samples),
        ("model_flops", facts.model_flops),
    )
    return ",".join([f"{name}={number!r}" for name, number in numbers if number is not None])


def _with_stated(facts: GlobalFacts, text: str) -> GlobalFacts:
    """Return facts with a step's inputs and model FLOPs as text states them."""
    numbers = {name: float(number) for name, number in _NUMBER.findall(text)}
    tokens, flops = numbers.pop("tokens", None), numbers.pop("model_flops", None)
    name, samples = next(iter(numbers.items()), (facts.sample_name, None))
    return msgspec.structs.replace(
        facts,
        tokens=None if tokens is None else int(tokens),
        samples=None if samples is None else int(samples),
        sample_name=name,
        model_flops=flops,
    )


def _with_entry(program: bytes, key: str, text: str) -> bytes:
    if key.encode() in program:
        return program
    if is_hlo(program):
        # Protobuf: not for StableHLO.
        from hespas.xla.hlo.module import with_attribute  # noqa: PLC0415

        return with_attribute(program, key, text)
    if program.startswith(b"ML\xefR"):
        return program
    return _in_module(program.decode(), f'{key} = "{text}"').encode()


def _in_module(program: str, entry: str) -> str:
    header = _MODULE.search(program)
    if header is None:
        return program
    start, end = header.span()
    line = program[start : program.find("\n", start) + 1 or None]
    if header[2] and f"{FRONTEND} = {{" in line:
        changed = line.replace(f"{FRONTEND} = {{", f"{FRONTEND} = {{{entry}, ", 1)
        return program[:start] + changed + program[start + len(line) :]
    attribute = f"{FRONTEND} = {{{entry}}}"
    if header[2]:
        return f"{program[:end]}{attribute}, {program[end:]}"
    return f"{program[:end]} attributes {{{attribute}}}{program[end:]}"


def mesh_in_attributes(text: str) -> MeshAxes:
    """Return the mesh in a module's frontend attributes.

    >>> mesh_in_attributes('{hespas.mesh = "fsdp=8,tp=4"}')
    (('fsdp', 8), ('tp', 4))
    """
    match = _ENTRY.search(text)
    return () if match is None else read_axes(match[1])


def read_axes(text: str) -> MeshAxes:
    """Return a preserved mesh's axes; empty for other text.

    >>> read_axes("fsdp=8,tp=4"), read_axes("fsdp")
    ((('fsdp', 8), ('tp', 4)), ())
    """
    parts = [_AXIS.fullmatch(part) for part in text.split(",")]
    return tuple((part[1], int(part[2])) for part in parts if part) if all(parts) else ()


def order_in_attributes(text: str) -> DeviceOrder | None:
    """Return the device order in a module's frontend attributes.

    >>> print(order_in_attributes('{hespas.device_order = "[2,4]T(1,0)"}'))
    [2,4]T(1,0)
    """
    match = _ORDER_ENTRY.search(text)
    return None if match is None else read_order(match[1])


_PARTITIONED_BY_XLA = "mhlo.spmd_"
_MESHES = "xla.sdy.meshes"
_GENERATED_AXIS = re.compile(r"axis_\d+")
"""XLA's names for the axes of meshes that it makes of device lists."""
_MESH = re.compile(r"#?sdy\.mesh<.*?>")
_MARK = b"hespas whole 1\n"
_CODE_FOLDERS = ("frontend", "program", "xla/hlo", "xla/mlir")
"""The folders whose code decides what is read from a source."""


class _CachedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A `GlobalFacts` in the cache; types and its step are texts."""

    mesh: tuple[tuple[str, int], ...]
    inputs: tuple[str, ...]
    step: str
    device_order: DeviceOrder | None


def cached_global_facts(source: bytes, *, name: str, directory: Path | None) -> GlobalFacts:
    """Return `global_facts_of_source`, cached in a directory."""
    if directory is None:
        return global_facts_of_source(source, name=name)
    cache = ContentCache(
        directory=directory, suffix=".whole", mark=_MARK, content_name="sources' meshes"
    )
    key = sha256(sha256(source).digest() + f"{__version__} {code_digest(*_CODE_FOLDERS)}".encode())

    def read() -> _CachedFacts:
        facts = global_facts_of_source(source, name=name)
        texts = tuple([str(kind) for kind in facts.inputs])
        step, order = _step_text(facts), facts.device_order
        return _CachedFacts(mesh=facts.mesh, inputs=texts, step=step, device_order=order)

    cached = made_once(cache, key.hexdigest(), _CachedFacts, read)
    inputs = tuple([read_type(text) for text in cached.inputs])
    facts = GlobalFacts(mesh=cached.mesh, inputs=inputs, device_order=cached.device_order)
    return _with_stated(facts, cached.step)


def global_facts_of_source(source: bytes, *, name: str) -> GlobalFacts:
    """Return a source's facts about the undivided program.

    ``name`` appears in messages. Raises `ProgramError` for a source that is no program.
    """
    if not is_hlo(source):
        return global_facts_of(parse_mlir(source, name=name))
    from hespas.xla.hlo.module import read_hlo_module  # noqa: PLC0415 - protobuf: not for StableHLO

    return global_facts_of(read_hlo_module(source, name=name))


def global_facts_of(module: MlirModule | HloModule) -> GlobalFacts:
    """Return a parsed module's facts about the undivided program.

    The mesh is the one that hespas stored in it when it was partitioned, if any. Of several meshes
    it is the one with the most devices, then with the most axes; meshes whose devices are not
    numbered in order are left out. The inputs are set if the arguments have shardings that no
    partitioner has applied.
    """
    if not isinstance(module, MlirModule):
        entries = module.message.frontend_attributes.map
        mesh = read_axes(entries.get(KEY, "")) or _largest_mesh(_hlo_meshes(module.message))
        facts = GlobalFacts(mesh=mesh, device_order=read_order(entries.get(ORDER_KEY, "")))
        return _with_stated(facts, entries.get(STEP_KEY, ""))
    attributes, symbols = module_attributes(module), module_symbols(module)
    frontend = attributes.get(FRONTEND, "")
    order = order_in_attributes(frontend)
    meshes = [
        read_mesh(symbol.attributes["mesh"])
        for symbol in symbols.values()
        if symbol.op_name == "sdy.mesh"
    ]
    stated = _STEP_ENTRY.search(frontend)
    mesh = mesh_in_attributes(frontend) or _largest_mesh(meshes + _meshes_in_attribute(frontend))
    facts = _with_stated(
        GlobalFacts(mesh=mesh, device_order=order), "" if stated is None else stated[1]
    )
    main = symbols.get("main")
    shardings = "" if main is None else main.attributes.get("arg_attrs", "")
    is_divided = any(name.startswith(_PARTITIONED_BY_XLA) for name in attributes)
    if main is None or is_divided or "sharding" not in shardings:
        return facts
    handle: Any = main.handle
    arguments = handle.regions[0].blocks[0].arguments
    inputs = tuple([read_type(str(argument.type)) for argument in arguments])
    return msgspec.structs.replace(facts, inputs=inputs)


def _meshes_in_attribute(text: str) -> list[Mesh]:
    """Return the meshes in JAX's own module attribute.

    JAX uses it if Shardy's meshes have no form.
    """
    if _MESHES not in text:
        return []
    return [
        read_mesh(mesh) for mesh in _MESH.findall(text.replace("\\22", '"').replace('\\"', '"'))
    ]


def _hlo_meshes(message: Any) -> Iterator[Mesh]:
    yield from _meshes_in_attribute(f"{_MESHES} {message.frontend_attributes.map.get(_MESHES, '')}")
    for computation in message.computations:
        for instruction in computation.instructions:
            if instruction.HasField("mesh_axes_replica_group_list"):
                described = instruction.mesh_axes_replica_group_list.mesh
                axes = tuple((axis.name, axis.size) for axis in described.axes)
                is_generated = all(_GENERATED_AXIS.fullmatch(name) for name, _ in axes)
                is_ordered = not described.device_ids and not described.HasField("iota_transform")
                if is_ordered and not is_generated:
                    yield Mesh(axes=axes)


def _largest_mesh(meshes: Iterable[Mesh]) -> MeshAxes:
    def rank(mesh: Mesh) -> tuple[int, int, MeshAxes]:
        divided_axes = sum(size > 1 for _, size in mesh.axes)
        return mesh.device_count, divided_axes, mesh.axes

    in_order = [mesh for mesh in meshes if mesh.device_ids is None]
    return max(in_order, key=rank, default=Mesh(axes=())).axes
