"""Recognise the forms of HLO by their first bytes."""

from __future__ import annotations

import re

_HLO_TEXT = re.compile(rb"(?:\s|//[^\n]*\n|/\*.*?\*/)*HloModule\b", re.DOTALL)
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_FIRST_FIELD = b"\n"
_BEGINNING = 4096


def is_hlo(source: bytes) -> bool:
    """Return whether the bytes are HLO text or protos."""
    return is_hlo_text(source) or is_hlo_proto(source)


def is_hlo_text(source: bytes) -> bool:
    """Return whether the bytes are HLO text.

    >>> is_hlo_text(b"HloModule jit_step, is_scheduled=true"), is_hlo_text(b"module {}")
    (True, False)
    """
    return _HLO_TEXT.match(source[:_BEGINNING]) is not None


def is_hlo_proto(source: bytes) -> bool:
    """Return whether the bytes may be an HLO proto.

    HloProto and HloModuleProto begin with field 1. Text may begin with the same byte, a line feed,
    but holds no control characters.
    """
    return source.startswith(_FIRST_FIELD) and _CONTROL.search(source[:_BEGINNING]) is not None
