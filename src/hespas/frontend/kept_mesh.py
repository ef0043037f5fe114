"""The mesh of a sharded program, written into what it was divided to.

Partitioned programs name no axes. An entry ``hespas.mesh = "fsdp=8,tp=4"`` among the module's
frontend attributes keeps them: other readers of StableHLO and HLO pass those on as they are, XLA
from the one to the other.
"""

from __future__ import annotations

import re

from hespas.xla.hlo.forms import is_hlo

KEY = "hespas.mesh"
FRONTEND = "mhlo.frontend_attributes"
MeshAxes = tuple[tuple[str, int], ...]

_NAME = re.compile(r"[\w./-]+")
_AXIS = re.compile(r"([\w./-]+)=(\d+)")
_ENTRY = re.compile(rf'{re.escape(KEY)} = "([^"]*)"')
_MODULE = re.compile(r"^(module(?: @(?:[\w.$-]+|\"[^\"]*\"))?)( attributes \{)?", re.MULTILINE)


def with_mesh(program: bytes, axes: MeshAxes) -> bytes:
    """Return a program that names the axes of its mesh: text of StableHLO, or HLO in any form.

    Bytecode, meshes without axes and axes whose names are not words are left as they are.

    >>> print(with_mesh(b"module @step {}", (("fsdp", 8), ("tp", 4))).decode())
    module @step attributes {mhlo.frontend_attributes = {hespas.mesh = "fsdp=8,tp=4"}} {}
    """
    if not axes or not all(_NAME.fullmatch(name) for name, _ in axes):
        return program
    text = ",".join(f"{name}={size}" for name, size in axes)
    if is_hlo(program):
        # Protobuf: not for StableHLO.
        from hespas.xla.hlo.attribute import with_attribute  # noqa: PLC0415

        return with_attribute(program, KEY, text)
    if program.startswith(b"ML\xefR"):
        return program
    return _in_module(program.decode(), text).encode()


def _in_module(program: str, text: str) -> str:
    found = _MODULE.search(program)
    if found is None:
        return program
    entry = f'{KEY} = "{text}"'
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
