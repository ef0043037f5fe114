"""The mesh of a sharded program, and the order of its devices, written into what it is divided to.

Partitioned programs name no axes. An entry ``hespas.mesh = "fsdp=8,tp=4"`` among the module's
frontend attributes keeps them: other readers of StableHLO and HLO pass those on as they are, XLA
from the one to the other. So does ``hespas.device_order = "[2,4]T(1,0)"``, of a program whose
partitions run on other devices than those of their numbers: JAX says this beside a program only.
"""

from __future__ import annotations

import re

from hespas.program.device_order import ORDER_KEY, DeviceOrder, read_order
from hespas.xla.hlo.forms import is_hlo

KEY = "hespas.mesh"
FRONTEND = "mhlo.frontend_attributes"
MeshAxes = tuple[tuple[str, int], ...]

_NAME = re.compile(r"[\w./-]+")
_AXIS = re.compile(r"([\w./-]+)=(\d+)")
_ENTRY = re.compile(rf'{re.escape(KEY)} = "([^"]*)"')
_ORDER_ENTRY = re.compile(rf'{re.escape(ORDER_KEY)} = "([^"]*)"')
_MODULE = re.compile(r"^(module(?: @(?:[\w.$-]+|\"[^\"]*\"))?)( attributes \{)?", re.MULTILINE)


def with_mesh(program: bytes, axes: MeshAxes) -> bytes:
    """Return a program that names the axes of its mesh: text of StableHLO, or HLO in any form.

    Bytecode, meshes without axes and axes whose names are not words are left as they are.

    >>> print(with_mesh(b"module @step {}", (("fsdp", 8), ("tp", 4))).decode())
    module @step attributes {mhlo.frontend_attributes = {hespas.mesh = "fsdp=8,tp=4"}} {}
    """
    if not axes or not all(_NAME.fullmatch(name) for name, _ in axes):
        return program
    return _with_entry(program, KEY, ",".join(f"{name}={size}" for name, size in axes))


def with_device_order(program: bytes, order: DeviceOrder | None) -> bytes:
    """Return a program, as of `with_mesh`, that says which device runs each of its partitions.

    One that says so already, and one in the order of its devices' numbers, is left as it is.

    >>> order = DeviceOrder(dimensions=(2, 4), permutation=(1, 0))
    >>> print(with_device_order(b"module {}", order).decode())
    module attributes {mhlo.frontend_attributes = {hespas.device_order = "[2,4]T(1,0)"}} {}
    """
    if order is None or order.is_ascending or ORDER_KEY.encode() in program:
        return program
    return _with_entry(program, ORDER_KEY, str(order))


def _with_entry(program: bytes, key: str, text: str) -> bytes:
    if is_hlo(program):
        # Protobuf: not for StableHLO.
        from hespas.xla.hlo.attribute import with_attribute  # noqa: PLC0415

        return with_attribute(program, key, text)
    if program.startswith(b"ML\xefR"):
        return program
    return _in_module(program.decode(), f'{key} = "{text}"').encode()


def _in_module(program: str, entry: str) -> str:
    found = _MODULE.search(program)
    if found is None:
        return program
    start, end = found.span()
    line = program[start : program.find("\n", start) + 1 or None]
    if found[2] and f"{FRONTEND} = {{" in line:
        changed = line.replace(f"{FRONTEND} = {{", f"{FRONTEND} = {{{entry}, ", 1)
        return program[:start] + changed + program[start + len(line) :]
    attribute = f"{FRONTEND} = {{{entry}}}"
    if found[2]:
        return f"{program[:end]}{attribute}, {program[end:]}"
    return f"{program[:end]} attributes {{{attribute}}}{program[end:]}"


def mesh_in_attributes(text: str) -> MeshAxes:
    """Return the mesh that a module's frontend attributes keep, as text; empty for none.

    >>> mesh_in_attributes('{hespas.mesh = "fsdp=8,tp=4"}')
    (('fsdp', 8), ('tp', 4))
    """
    found = _ENTRY.search(text)
    return () if found is None else read_axes(found[1])


def read_axes(text: str) -> MeshAxes:
    """Return the axes of a kept mesh; empty for what is none.

    >>> read_axes("fsdp=8,tp=4"), read_axes("fsdp")
    ((('fsdp', 8), ('tp', 4)), ())
    """
    parts = [_AXIS.fullmatch(part) for part in text.split(",")]
    return tuple((part[1], int(part[2])) for part in parts if part) if all(parts) else ()


def order_in_attributes(text: str) -> DeviceOrder | None:
    """Return the order of devices that a module's frontend attributes keep, None for none.

    >>> print(order_in_attributes('{hespas.device_order = "[2,4]T(1,0)"}'))
    [2,4]T(1,0)
    """
    found = _ORDER_ENTRY.search(text)
    return None if found is None else read_order(found[1])
