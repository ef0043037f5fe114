"""Read from a sharded source what is gone once it is divided: its mesh, and its inputs' types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hespas.base.cache import ContentCache, code_digest
from hespas.base.version import __version__
from hespas.frontend.kept_mesh import (
    FRONTEND,
    KEY,
    mesh_in_attributes,
    order_in_attributes,
    read_axes,
)
from hespas.frontend.meshes import Mesh, read_mesh
from hespas.program.device_order import ORDER_KEY, DeviceOrder, read_order
from hespas.program.whole import Whole
from hespas.xla.hlo.forms import is_hlo
from hespas.xla.mlir.module import MlirModule, module_attributes, module_symbols, parse_mlir
from hespas.xla.mlir.text import read_type

if TYPE_CHECKING:
    from hespas.program.types import Type
    from hespas.xla.hlo.module import HloModule

_PARTITIONED_BY_XLA = "mhlo.spmd_"
_MESHES = "xla.sdy.meshes"
_MADE_UP = re.compile(r"axis_\d+")
"""How XLA names the axes of meshes that it makes of lists of devices."""
_MESH = re.compile(r"#?sdy\.mesh<.*?>")
_MARK = b"hespas whole 1\n"
_MAKERS = ("frontend", "program", "xla/hlo", "xla/mlir")
"""The folders whose code decides what a source says."""


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a `Whole`; types are texts."""

    mesh: tuple[tuple[str, int], ...]
    inputs: tuple[str, ...]
    device_order: DeviceOrder | None


def whole_cache(directory: Path) -> ContentCache:
    """Return the cache of what sources say, in a directory."""
    return ContentCache(directory=directory, suffix=".whole", mark=_MARK, what="sources' meshes")


def kept_whole(source: bytes, *, name: str, kept: ContentCache | None) -> Whole:
    """Return what a source says, as `whole_of_source` does; one that is ``kept`` isn't parsed."""
    if kept is None:
        return whole_of_source(source, name=name)
    key = sha256(sha256(source).digest() + f"{__version__} {code_digest(*_MAKERS)}".encode())
    content = kept.read(key.hexdigest())
    if content is not None:
        known = msgspec.msgpack.decode(content, type=_Kept)
        inputs = tuple([read_type(text) for text in known.inputs])
        return Whole(mesh=known.mesh, inputs=inputs, device_order=known.device_order)
    whole = whole_of_source(source, name=name)
    texts = tuple([str(each) for each in whole.inputs])
    made = _Kept(mesh=whole.mesh, inputs=texts, device_order=whole.device_order)
    kept.write(key.hexdigest(), msgspec.msgpack.encode(made))
    return whole


def whole_of_source(source: bytes, *, name: str) -> Whole:
    """Return what a source says of the program of all devices; ``name`` stands in messages.

    Raises `ProgramError` for a source that is no program.
    """
    if not is_hlo(source):
        return whole_of(parse_mlir(source, name=name))
    from hespas.xla.hlo.module import read_hlo_module  # noqa: PLC0415 - protobuf: not for StableHLO

    return whole_of(read_hlo_module(source, name=name))


def whole_of(module: MlirModule | HloModule) -> Whole:
    """Return what a parsed module says of the program of all devices.

    The mesh is the one that hespas kept in it when it was divided, if there is one.
    Of several meshes it is the one of most devices, and of these the one of most axes; meshes whose
    devices are not numbered in order are left out. The arguments are those of all devices where
    they have shardings that no partitioner has applied.
    """
    if not isinstance(module, MlirModule):
        said = module.message.frontend_attributes.map
        kept, order = read_axes(said.get(KEY, "")), read_order(said.get(ORDER_KEY, ""))
        return Whole(mesh=kept or _chosen(_hlo_meshes(module.message)), device_order=order)
    attributes, symbols = module_attributes(module), module_symbols(module)
    kept = mesh_in_attributes(attributes.get(FRONTEND, ""))
    order = order_in_attributes(attributes.get(FRONTEND, ""))
    meshes = [
        read_mesh(symbol.attributes["mesh"])
        for symbol in symbols.values()
        if symbol.op_name == "sdy.mesh"
    ]
    meshes += _listed(attributes.get(FRONTEND, ""))
    mesh = kept or _chosen(meshes)
    main = symbols.get("main")
    shardings = "" if main is None else main.attributes.get("arg_attrs", "")
    is_divided = any(name.startswith(_PARTITIONED_BY_XLA) for name in attributes)
    if main is None or is_divided or "sharding" not in shardings:
        return Whole(mesh=mesh, device_order=order)
    inputs = tuple(_argument_types(main.handle))
    return Whole(mesh=mesh, inputs=inputs, device_order=order)


def _argument_types(function: Any) -> Iterator[Type]:
    known: dict[str, Type] = {}
    for argument in function.regions[0].blocks[0].arguments:
        text = str(argument.type)
        if text not in known:
            known[text] = read_type(text)
        yield known[text]


def _listed(text: str) -> list[Mesh]:
    """Return the meshes in the attribute in which JAX keeps them where Shardy's have no form."""
    if _MESHES not in text:
        return []
    return [
        read_mesh(found) for found in _MESH.findall(text.replace("\\22", '"').replace('\\"', '"'))
    ]


def _hlo_meshes(message: Any) -> Iterator[Mesh]:
    yield from _listed(f"{_MESHES} {message.frontend_attributes.map.get(_MESHES, '')}")
    for computation in message.computations:
        for instruction in computation.instructions:
            if instruction.HasField("mesh_axes_replica_group_list"):
                described = instruction.mesh_axes_replica_group_list.mesh
                axes = tuple((axis.name, axis.size) for axis in described.axes)
                is_own = all(_MADE_UP.fullmatch(name) for name, _ in axes)
                is_ordered = not described.device_ids and not described.HasField("iota_transform")
                if is_ordered and not is_own:
                    yield Mesh(axes=axes)


def _chosen(meshes: Iterable[Mesh]) -> tuple[tuple[str, int], ...]:
    in_order = [mesh for mesh in meshes if mesh.device_ids is None]
    best = max(
        in_order, key=lambda mesh: (mesh.device_count, _divided_axes(mesh), mesh.axes), default=None
    )
    return () if best is None else best.axes


def _divided_axes(mesh: Mesh) -> int:
    return sum(size > 1 for _, size in mesh.axes)
