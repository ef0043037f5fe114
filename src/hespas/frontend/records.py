"""What the attribute readers share: how to get at one attribute of an operation."""

from __future__ import annotations

from collections.abc import Callable

from hespas.errors import ProgramError
from hespas.program.attrs import Attrs
from hespas.program.types import TensorType
from hespas.xla.mlir_functions import OpRecord
from hespas.xla.mlir_text import read_integer, read_integers

Reader = Callable[[OpRecord], Attrs]


def required(record: OpRecord, name: str) -> str:
    """Return the text of an attribute; `ProgramError` where it is missing."""
    text = record.attributes.get(name)
    if text is None:
        raise ProgramError(f"attribute {name} is missing")
    return text


def integer(record: OpRecord, name: str, default: int) -> int:
    """Return an integer attribute, or the default."""
    text = record.attributes.get(name)
    return default if text is None else read_integer(text)


def integers(record: OpRecord, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Return a list of integers, or the default."""
    text = record.attributes.get(name)
    return default if text is None else read_integers(text)


def tensor(record: OpRecord, operand: int) -> TensorType:
    """Return the type of an operand that must be a tensor; `ProgramError` where it isn't."""
    kind = record.operands[operand].type
    if not isinstance(kind, TensorType):
        raise ProgramError(f"operand {operand} is {kind}, not a tensor")
    return kind
