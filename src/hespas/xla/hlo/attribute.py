"""An attribute put into HLO: what frameworks say of a module, which XLA passes on as it is."""

from __future__ import annotations

import re

from google.protobuf.message import DecodeError

from hespas.xla.hlo.forms import is_hlo_text
from hespas.xla.hlo.schema import message_class

_HEADER = re.compile(r"^HloModule [^\n]*", re.MULTILINE)
_ATTRIBUTES = ", frontend_attributes={"


def with_attribute(program: bytes, key: str, value: str) -> bytes:
    """Return HLO, text or a proto, with a frontend attribute; neither needs quoting.

    >>> print(with_attribute(b"HloModule step, is_scheduled=true", "mesh", "x=4").decode())
    HloModule step, is_scheduled=true, frontend_attributes={mesh="x=4"}
    """
    if is_hlo_text(program):
        text = program.decode()
        return _HEADER.sub(lambda found: _in_header(found[0], key, value), text, count=1).encode()
    # Readers of a proto merge it with what stands behind it.
    module = message_class("xla.HloModuleProto")()
    module.frontend_attributes.map[key] = value
    added = module
    if _is_whole(program):
        added = message_class("xla.HloProto")()
        added.hlo_module.CopyFrom(module)
    return program + added.SerializeToString(deterministic=True)


def _in_header(header: str, key: str, value: str) -> str:
    entry = f'{key}="{value}"'
    if _ATTRIBUTES in header:
        return header.replace(_ATTRIBUTES, f"{_ATTRIBUTES}{entry},", 1)
    return f"{header}{_ATTRIBUTES}{entry}}}"


def _is_whole(program: bytes) -> bool:
    """Return whether a proto is an HloProto, which holds a module, rather than a module."""
    try:
        return bool(message_class("xla.HloProto").FromString(program).hlo_module.computations)
    except DecodeError:
        return False
