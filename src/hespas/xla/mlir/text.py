"""Read the text of MLIR types and attributes."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from functools import lru_cache
from math import prod
from sys import byteorder

from hespas.errors import ProgramError, UnsupportedError
from hespas.program.types import (
    ELEMENT_TYPES,
    AsyncType,
    TensorType,
    TokenType,
    TupleType,
    Type,
)

_TENSOR = re.compile(r"tensor<((?:\d+x)*)([A-Za-z][A-Za-z0-9]*(?:<[a-z0-9]+>)?)>")
_INTEGER = re.compile(r"-?\d+")
_DENSE = re.compile(r"dense<(.*)> : tensor<((?:\d+x)*)[a-z0-9]+>", re.DOTALL)


@lru_cache(maxsize=4096)
def read_type(text: str) -> Type:
    """Read a type as MLIR prints it.

    Raises `UnsupportedError` for dynamic shapes and for types that hespas has no model of.

    >>> str(read_type("tuple<tensor<2x3xbf16>, !stablehlo.token>"))
    'tuple<tensor<2x3xbf16>, !stablehlo.token>'
    """
    match = _TENSOR.fullmatch(text)
    if match is not None and match[2] in ELEMENT_TYPES:
        shape = tuple(map(int, match[1].split("x")[:-1]))
        return TensorType(element=ELEMENT_TYPES[match[2]], shape=shape)
    if text.startswith("tensor<"):
        raise _bad_tensor(text)
    if text in ("!stablehlo.token", "!mhlo.token"):
        return TokenType()
    if text.startswith("tuple<"):
        return TupleType(members=tuple(map(read_type, split_list(text[len("tuple<") : -1]))))
    if text.startswith(("!mhlo.async_bundle<", "!stablehlo.future<")):
        inner = text[text.index("<") + 1 : -1]
        return AsyncType(spelling=text, members=tuple(map(read_type, split_list(inner))))
    raise UnsupportedError(f"type {text} is not supported")


def _bad_tensor(text: str) -> UnsupportedError:
    if "?" in text or "bounds" in text or "tensor<*" in text:
        return UnsupportedError(
            f"dynamic shape {text}",
            hint="export the program with static shapes",
        )
    return UnsupportedError(f"tensor type {text} is not supported")


def split_list(text: str) -> list[str]:
    """Split text at the commas outside every bracket and string.

    MLIR escapes the quotes inside a string by their code: each ``"`` opens or closes a string.

    >>> split_list("tensor<2xf32>, tuple<a, b>")
    ['tensor<2xf32>', 'tuple<a, b>']
    """
    parts: list[str] = []
    depth = start = 0
    quoted = False
    for position, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif character in "<[({":
            depth += 1
        elif character in ">])}" and text[position - 1] != "-":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def read_integer(text: str) -> int:
    """Read ``5 : i64``.

    >>> read_integer("5 : i64")
    5
    """
    match = _INTEGER.match(text)
    if match is None:
        raise ProgramError(f"{text!r} is not an integer attribute")
    return int(match[0])


def read_integers(text: str) -> tuple[int, ...]:
    """Read an array, a list or a dense list.

    The forms are ``array<i64: 1, 2>``, ``[1, 2]``, and a one-dimensional ``dense``.

    >>> read_integers("array<i64: 1, -2>"), read_integers("array<i64>")
    ((1, -2), ())
    """
    if text.startswith("dense"):
        return read_dense_integers(text)[1]
    body = text.partition(":")[2] if text.startswith("array<") else text
    return tuple(map(int, _INTEGER.findall(body)))


@lru_cache(maxsize=512)
def read_dense_integers(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Read a dense integer attribute's shape and elements.

    Elements have 64 bits and stand in row-major order. Lists, one number for all (a splat) and the
    hexadecimal form of long lists are read.

    >>> read_dense_integers('dense<"0x00000000000000000100000000000000"> : tensor<1x2xi64>')
    ((1, 2), (0, 1))
    >>> read_dense_integers("dense<0> : tensor<1x1xi64>")
    ((1, 1), (0,))
    """
    match = _DENSE.fullmatch(text)
    if match is None:
        raise ProgramError(f"{text[:60]!r} is not a dense list of integers")
    shape = tuple(map(int, match[2].split("x")[:-1]))
    numbers = _elements(match[1], "q", prod(shape))
    if len(numbers) != prod(shape):
        raise ProgramError(f"{text[:60]!r} has {len(numbers)} elements, not {prod(shape)}")
    return shape, numbers


def _elements(body: str, code: str, count: int) -> tuple[int, ...]:
    """Read the inside of ``dense<>``.

    ``code`` is the elements' type in `array`.
    """
    if body.startswith('"0x'):
        elements = array(code, bytes.fromhex(body[3:-1]))
        if byteorder == "big":
            elements.byteswap()
        numbers = tuple(elements)
    else:
        numbers = tuple(map(int, _INTEGER.findall(body)))
    return numbers * count if len(numbers) == 1 else numbers


_TABLE = re.compile(r"dense<(.*)> : tensor<((?:\d+x)*)([us]?)i(\d+)>", re.DOTALL)
_CODES = {8: "b", 16: "h", 32: "i", 64: "q"}


def read_dense_numbers(text: str) -> tuple[int, ...]:
    """Read a dense attribute's integers, of any width.

    They stand in row-major order.

    >>> read_dense_numbers('dense<"0x00FF"> : tensor<2xi8>')
    (0, -1)
    >>> read_dense_numbers("dense<[[1, 2]]> : tensor<1x2xi32>")
    (1, 2)
    """
    match = _TABLE.fullmatch(text)
    if match is None or int(match[4]) not in _CODES:
        raise ProgramError(f"{text[:60]!r} is not a dense list of integers")
    code = _CODES[int(match[4])]
    count = prod(map(int, match[2].split("x")[:-1]))
    return _elements(match[1], code.upper() if match[3] == "u" else code, count)


def read_rows(text: str) -> tuple[tuple[int, ...], ...]:
    """Read a two-dimensional dense integer attribute as its rows.

    >>> read_rows("dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>")
    ((0, 1), (2, 3))
    """
    shape, numbers = read_dense_integers(text)
    if len(shape) != 2:
        raise ProgramError(f"{text[:60]!r} is not a list of lists")
    rows, columns = shape
    return tuple(numbers[row * columns : (row + 1) * columns] for row in range(rows))


def read_fields(text: str) -> dict[str, str]:
    """Read the ``name = value`` fields of a structured attribute.

    >>> read_fields("#stablehlo.channel_handle<handle = 24, type = 0>")
    {'handle': '24', 'type': '0'}
    """
    return read_pairs(text[text.index("<") + 1 : text.rindex(">")])


def read_pairs(text: str) -> dict[str, str]:
    """Read ``name = value`` pairs.

    A name alone has an empty value.

    >>> read_pairs("a = [1, 2], b")
    {'a': '[1, 2]', 'b': ''}
    """
    pairs = [part.partition("=") for part in split_list(text)]
    return {name.strip(): value.strip() for name, _, value in pairs}


_ESCAPED = re.compile(rb'\\(?:([0-9A-Fa-f]{2})|(["\\nt]))')
_LITERAL = {b"n": b"\n", b"t": b"\t"}


def unescaped(text: str) -> bytes:
    r"""Return the bytes of a string as MLIR prints it.

    >>> unescaped(r"ML\EFR\22\\")
    b'ML\xefR"\\'
    """

    def replaced(match: re.Match[bytes]) -> bytes:
        if match[1]:
            return bytes([int(match[1], 16)])
        return _LITERAL.get(match[2], match[2])

    return _ESCAPED.sub(replaced, text.encode())


def read_symbols(text: str) -> tuple[str, ...]:
    """Read ``[@a, @"b c"]`` or ``@a``.

    >>> read_symbols('[@a, @"b.c"]')
    ('a', 'b.c')
    """
    matches = re.findall(r'@(?:"((?:[^"\\]|\\.)*)"|([\w$.\-]+))', text)
    return tuple(quoted or plain for quoted, plain in matches)


_SDY_AXIS = re.compile(r'"([^"]+)"\s*=\s*(\d+)')
_STABLEHLO_AXIS = re.compile(r'name = "([^"]+)", size = (\d+)')


def read_mesh_axes(text: str) -> tuple[tuple[str, int], ...]:
    """Read axis names and sizes of ``#sdy.mesh<...>`` or ``#stablehlo.mesh<...>``.

    >>> read_mesh_axes('#sdy.mesh<["a"=4, "b"=2]>')
    (('a', 4), ('b', 2))
    """
    axes = _SDY_AXIS.findall(text) or _STABLEHLO_AXIS.findall(text)
    return tuple((name, int(size)) for name, size in axes)


Layout = tuple[int, ...] | None
"""Dimensions from the fastest-varying to the slowest; None is the default order."""

_SHAPE = re.compile(r"[a-z][a-z0-9]*\[[\d,]*\](?:\{([\d,]*)[^}]*\})?")


def read_layouts(attributes: Mapping[str, str]) -> tuple[Layout, ...]:
    """Read the layout of each result from ``xla_shape`` or ``result_layout``.

    Compilers' StableHLO carries them beside the types; empty if neither can be read.

    >>> read_layouts({"xla_shape": '"(bf16[4,8]{0,1:T(8,128)}, f32[8]{0})"'})
    ((0, 1), None)
    >>> read_layouts({"result_layout": "dense<[0, 2, 1]> : tensor<3xindex>"})
    ((0, 2, 1),)
    """
    shape = attributes.get("xla_shape")
    if shape is not None:
        orders = [match[1] or "" for match in _SHAPE.finditer(shape)]
        return tuple([_layout(tuple(map(int, filter(None, part.split(","))))) for part in orders])
    text = attributes.get("result_layout", "")
    if not text.startswith("dense<"):
        return ()
    return (_layout(read_dense_integers(text)[1]),)


def _layout(order: tuple[int, ...]) -> Layout:
    return None if order in ((), tuple(range(len(order)))[::-1]) else order
