"""Constraints over named fields: a small language, read with Python's parser and nothing else.

``memory.fits and mesh.tp <= 8`` has fields, numbers, texts, comparisons, ``and``, ``or``, ``not``,
``in`` with a list, and the four operations. What a field is may not be known yet: then the answer
may not be known either, and is None.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hespas.base.suggest import suggestion
from hespas.errors import ConfigError

Value: TypeAlias = "str | int | float | bool | tuple[Value, ...] | None"
_LONGEST = 2000
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
_ARITHMETIC: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: lambda left, right: left % right,
}
_SIGNS = (ast.And, ast.Or, ast.Not, ast.USub, ast.Load, *_COMPARISONS, *_ARITHMETIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """An expression that a candidate has to satisfy; an empty one is satisfied by all."""

    text: str
    tree: ast.expr | None = field(default=None, compare=False, repr=False)

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that it names, each once."""
        return () if self.tree is None else tuple(dict.fromkeys(_fields(self.tree)))

    def check(self, known: Mapping[str, object], *, location: str = "") -> None:
        """Raise `ConfigError` for a field that is not among ``known``."""
        for name in self.fields:
            if name not in known:
                raise ConfigError(
                    f"where names {name!r}, which is no field",
                    location=location,
                    hint=suggestion(name, known),
                )

    def holds(self, values: Mapping[str, Value]) -> bool | None:
        """Return whether it holds for fields' values; None where that is not known yet.

        A field that ``values`` lack, or have None for, is not known. Raises `ConfigError` where
        values can't be compared.

        >>> read_constraint("memory.fits and mesh.tp <= 8").holds({"mesh.tp": 16})
        False
        >>> read_constraint("memory.fits and mesh.tp <= 8").holds({"mesh.tp": 4}) is None
        True
        """
        if self.tree is None:
            return True
        try:
            found = _value(self.tree, values)
        except (TypeError, ArithmeticError) as error:
            raise ConfigError(f"where: {self.text}: {error}") from error
        return None if found is None else bool(found)


EVERYTHING = Constraint(text="")


def read_constraint(text: str, *, location: str = "") -> Constraint:
    """Read an expression; `ConfigError` for one that is malformed or has other parts.

    >>> read_constraint("remat in ['full', 'none']").fields
    ('remat',)
    >>> read_constraint("open('file')")
    Traceback (most recent call last):
        ...
    hespas.errors.ConfigError: where: open('file') is more than a comparison of fields; \
use fields, numbers, texts, and, or, not, in, comparisons and + - * /
    """
    if len(text) > _LONGEST:
        raise ConfigError(
            f"where has {len(text)} characters", location=location, hint=f"use at most {_LONGEST}"
        )
    if not text.strip():
        return EVERYTHING
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(
            f"where: {text} is no expression",
            location=location,
            hint="write it as in memory.fits and mesh.tp <= 8",
        ) from error
    for node in ast.walk(tree):
        is_plain = not isinstance(node, ast.Constant) or isinstance(node.value, str | int | float)
        if not isinstance(node, (*_READERS, *_SIGNS)) or not is_plain or _is_odd(node):
            part = ast.unparse(node) if isinstance(node, ast.expr) else text
            raise ConfigError(
                f"where: {part} is more than a comparison of fields",
                location=location,
                hint="use fields, numbers, texts, and, or, not, in, comparisons and + - * /",
            )
    return Constraint(text=text, tree=tree)


def _is_odd(node: ast.AST) -> bool:
    """Return whether an attribute is one of something else than a name."""
    return isinstance(node, ast.Attribute) and not isinstance(node.value, ast.Name | ast.Attribute)


def _fields(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name | ast.Attribute):
        yield ast.unparse(node)
        return
    for child in ast.iter_child_nodes(node):
        yield from _fields(child)


_Values = Mapping[str, Value]


def _value(node: ast.expr, values: _Values) -> Value:
    return _READERS[type(node)](node, values)


def _constant(node: ast.Constant, values: _Values) -> Value:  # noqa: ARG001 - as all readers
    return node.value if isinstance(node.value, str | int | float) else None


def _field(node: ast.expr, values: _Values) -> Value:
    return values.get(ast.unparse(node))


def _listed(node: ast.List | ast.Tuple, values: _Values) -> Value:
    return tuple(_value(each, values) for each in node.elts)


def _joined(node: ast.BoolOp, values: _Values) -> Value:
    parts = [_value(part, values) for part in node.values]
    if isinstance(node.op, ast.And):
        return _all(parts)
    return _not(_all([_not(part) for part in parts]))


def _negated(node: ast.UnaryOp, values: _Values) -> Value:
    value = _value(node.operand, values)
    if isinstance(node.op, ast.Not):
        return _not(value)
    number = _number(value)
    return None if number is None else -number


def _calculated(node: ast.BinOp, values: _Values) -> Value:
    first, second = (_number(_value(each, values)) for each in (node.left, node.right))
    if first is None or second is None:
        return None
    return _ARITHMETIC[type(node.op)](first, second)


def _compared(node: ast.Compare, values: _Values) -> bool | None:
    operands = [_value(each, values) for each in (node.left, *node.comparators)]
    results: list[Value] = []
    for kind, left, right in zip(node.ops, operands, operands[1:], strict=False):
        is_known = left is not None and right is not None
        if isinstance(kind, _ORDERED) and (isinstance(left, bool) or isinstance(right, bool)):
            raise TypeError("what is true or false is neither more nor less than something")
        results.append(bool(_COMPARISONS[type(kind)](left, right)) if is_known else None)
    return _all(results)


def _all(parts: list[Value]) -> bool | None:
    """Return whether all parts hold: one that doesn't decides, even where others are not known."""
    if any(part is not None and not part for part in parts):
        return False
    return None if any(part is None for part in parts) else True


def _not(value: Value) -> bool | None:
    return None if value is None else not value


def _number(value: Value) -> float | None:
    if isinstance(value, str | tuple):
        raise TypeError(f"{value!r} is no number")
    return value


_ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)

_READERS: Mapping[type[ast.expr], Callable[[Any, _Values], Value]] = {
    ast.Constant: _constant,
    ast.Name: _field,
    ast.Attribute: _field,
    ast.List: _listed,
    ast.Tuple: _listed,
    ast.BoolOp: _joined,
    ast.UnaryOp: _negated,
    ast.BinOp: _calculated,
    ast.Compare: _compared,
}
