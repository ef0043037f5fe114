"""Damage files: numbers, names, lines, fields, bytes and ends of them, drawn from a seed."""

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from collections.abc import Callable
from enum import Enum
from random import Random
from typing import Any, cast

from fuzz.wire import BYTES, VARINT, Field, read_fields, read_varint, varint, write_fields


class Form(Enum):
    """What a file is made of: what can be changed in it and leave the rest readable."""

    TEXT = "text"
    PROGRAM = "text of a program, which is to stay one"
    JSON = "JSON"
    BINARY = "binary"
    PROTO = "proto"
    DELIMITED_PROTOS = "protos with their lengths"
    ZIPPED_JSON = "JSON in gzip"
    KERNEL = "text with bytecode of a kernel"


INTEGERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    127,
    255,
    2**31 - 1,
    2**31,
    2**32,
    2**53 + 1,
    2**63 - 1,
    2**64,
    -(2**63),
)
EXTREMES = (
    *map(str, INTEGERS),
    "1e308",
    "-1e308",
    "1e-308",
    "1e999",
    "nan",
    "inf",
    "-inf",
    "0.5",
    "1e9",
    "9" * 40,
    "9" * 5000,
    "0x10",
    "1_000",
    "",
)
VALUES: tuple[Any, ...] = (
    *INTEGERS,
    0.5,
    -0.5,
    1e308,
    1e-308,
    float("nan"),
    float("inf"),
    None,
    True,
    False,
    "",
    "x",
    "\x00",
    "\ud800",
    "<script>",
    "../../x",
    "a" * 3000,
    [],
    {},
    [[]],
    [0],
    [None],
    {"": 0},
    "1e999",
    "-1",
)
_NUMBER = re.compile(rb"(?<![A-Za-z_])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORD = re.compile(rb"[A-Za-z_][A-Za-z_0-9]{2,}")
_DEPTH = 1500


def cut(rng: Random, content: bytes) -> bytes:
    """Return the beginning of a file."""
    return content[: rng.randrange(len(content))] if content else content


def mutate(rng: Random, content: bytes, form: Form) -> bytes:
    """Return a file with one to four things changed in it."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
        content = _changed(rng, content, form)
    return content


def _changed(rng: Random, content: bytes, form: Form) -> bytes:
    if not content:
        return rng.randbytes(3)
    if rng.random() < 0.1:
        return rng.choice(_OF_BYTES)(rng, content)
    return _CHANGES[form](rng, content)


Change = Callable[[Random, bytes], bytes]


def _replaced(
    rng: Random, content: bytes, pattern: re.Pattern[bytes], new: Callable[[bytes], bytes]
) -> bytes:
    found = list(pattern.finditer(content))
    if not found:
        return content
    one = rng.choice(found)
    return content[: one.start()] + new(one[0]) + content[one.end() :]


def _number(rng: Random, content: bytes) -> bytes:
    return _replaced(rng, content, _NUMBER, lambda _: rng.choice(EXTREMES).encode())


def _misspelled(rng: Random, content: bytes) -> bytes:
    def changed(word: bytes) -> bytes:
        at = rng.randrange(len(word))
        return rng.choice(
            (
                word[:at] + word[at + 1 :],
                word[:at] + word[at : at + 1] * 2 + word[at + 1 :],
                word.swapcase(),
                word + b"x",
                b"",
            )
        )

    return _replaced(rng, content, _WORD, changed)


def _other_word(rng: Random, content: bytes) -> bytes:
    words = _WORD.findall(content) or [b"x"]
    return _replaced(rng, content, _WORD, lambda _: rng.choice(words))


def _lines(rng: Random, content: bytes) -> bytes:
    return _rearranged(rng, content, b"\n")


def _fields(rng: Random, content: bytes) -> bytes:
    return _rearranged(
        rng,
        content,
        rng.choice((b",", b" ", b";", b"=", b":", b"(", b")", b"{", b"}", b'"', b"\t")),
    )


def _rearranged(rng: Random, content: bytes, between: bytes) -> bytes:
    parts = content.split(between)
    at, other = rng.randrange(len(parts)), rng.randrange(len(parts))
    match rng.randrange(4):
        case 0:
            del parts[at]
        case 1:
            parts.insert(at, parts[other])
        case 2:
            parts[at], parts[other] = parts[other], parts[at]
        case _:
            parts[at] = parts[other]
    return between.join(parts)


def _deep(rng: Random, content: bytes) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + rng.choice((b"(", b"[", b"{", b"[{", b"<")) * _DEPTH + content[at:]


def _flipped(rng: Random, content: bytes) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


def _overwritten(rng: Random, content: bytes) -> bytes:
    at, size = rng.randrange(len(content)), rng.choice((1, 1, 2, 4, 8))
    new = rng.choice((bytes(size), b"\xff" * size, b"\x7f" * size, rng.randbytes(size)))
    return content[:at] + new + content[at + size :]


def _piece_deleted(rng: Random, content: bytes) -> bytes:
    at, size = rng.randrange(len(content)), rng.choice((1, 2, 8, 64))
    return content[:at] + content[at + size :]


def _piece_doubled(rng: Random, content: bytes) -> bytes:
    at, size = rng.randrange(len(content)), rng.choice((1, 2, 8, 64, 1024))
    return content[: at + size] + content[at:]


_OF_BYTES: tuple[Change, ...] = (_flipped, _flipped, _overwritten, _piece_deleted, _piece_doubled)
_OF_TEXT: tuple[Change, ...] = (
    _number,
    _number,
    _number,
    _misspelled,
    _misspelled,
    _other_word,
    _other_word,
    _lines,
    _lines,
    _fields,
    _fields,
    _flipped,
    _deep,
)


_SIZE = re.compile(rb"(?<=[<x])\d+(?=x)")
_SIZES = (0, 1, 2, 3, 5, 7, 8, 24, 100, 257, 4096, 65_537, 2**20, 2**31, 2**40)
_ELEMENTS = (b"f32", b"bf16", b"f16", b"f64", b"f8E4M3FN", b"i32", b"i64", b"i8", b"i4", b"i1")
_ALIKE = (
    (b"add", b"subtract", b"multiply", b"divide", b"maximum", b"minimum", b"power", b"remainder"),
    (b"exponential", b"tanh", b"log", b"logistic", b"negate", b"sqrt", b"rsqrt", b"abs", b"cosine"),
    (b"all_reduce", b"all_gather", b"reduce_scatter", b"all_to_all"),
    (b"0.000000e+00", b"1.000000e+00", b"0xFF80", b"0xFF800000"),
)
_NAMED = re.compile(rb"(?<=stablehlo\.)\w+|(?<=dense<)[^\[<>]+(?=>)")


def _program(rng: Random, content: bytes) -> bytes:
    """Change a size or an element type everywhere, or an operation to one like it; or the text."""
    changed = rng.choice((_resized, _resized, _retyped, _renamed, _renamed, _text))(rng, content)
    return _text(rng, content) if changed == content else changed


def _resized(rng: Random, content: bytes) -> bytes:
    sizes = sorted(set(_SIZE.findall(content)))
    old, new = rng.choice(sizes or [b"1"]), str(rng.choice(_SIZES)).encode()
    return re.sub(rb"(?<=[<x])" + old + rb"(?=x)", new, content)


def _retyped(rng: Random, content: bytes) -> bytes:
    old, new = rng.sample(_ELEMENTS, 2)
    return re.sub(rb"(?<=[<x])" + old + rb"(?=>)", new, content)


def _renamed(rng: Random, content: bytes) -> bytes:
    found = [
        (each, alike) for each in _NAMED.finditer(content) for alike in _ALIKE if each[0] in alike
    ]
    if not found:
        return content
    one, alike = rng.choice(found)
    return content[: one.start()] + rng.choice(alike) + content[one.end() :]


def _json(rng: Random, content: bytes) -> bytes:
    """Change a value or key of a JSON file; its text if it is none any more, and now and then."""
    if rng.random() < 0.2:
        return rng.choice(_OF_TEXT)(rng, content)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return rng.choice(_OF_TEXT)(rng, content)
    places = list(_places(value))
    if not places:
        return json.dumps(rng.choice(VALUES)).encode()
    holder, key = rng.choice(places)
    _change_at(rng, holder, key)
    return json.dumps(value, indent=1).encode()


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        for key in _keys(one):
            found.append((one, key))
            waiting.append(one[key])
    return found


def _keys(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(cast("dict[Any, Any]", value))
    return list(range(len(cast("list[Any]", value)))) if isinstance(value, list) else []


def _change_at(rng: Random, holder: Any, key: Any) -> None:
    old = holder[key]
    match rng.randrange(6):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            cast("list[Any]", holder).append(old)
        case 1:
            holder[rng.choice((f"{key}x", f"{key}"[:-1], "", rng.choice(_keys(holder))))] = old
        case 2 if isinstance(old, str):
            changed = rng.choice(_OF_TEXT)(rng, old.encode("utf-8", "replace") or b"x")
            holder[key] = changed.decode("utf-8", "replace")
        case 3 if isinstance(old, int | float):
            holder[key] = rng.choice(INTEGERS)
        case _:
            holder[key] = rng.choice(VALUES)


def _message(rng: Random, content: bytes) -> bytes:
    """Change a field of a proto or of a message in it."""
    fields = read_fields(content)
    if not fields:
        return rng.choice(_OF_BYTES)(rng, content) if content else b"\x00"
    at = rng.randrange(len(fields))
    one = fields[at]
    if isinstance(one.value, bytes) and one.kind == BYTES and rng.random() < 0.8:
        value = _message(rng, one.value)
        fields[at] = Field(number=one.number, kind=one.kind, value=value)
        return write_fields(fields)
    match rng.randrange(4):
        case 0:
            del fields[at]
        case 1:
            fields.insert(rng.randrange(len(fields)), one)
        case 2:
            fields[at] = Field(number=rng.choice(fields).number, kind=one.kind, value=one.value)
        case _ if one.kind == VARINT:
            fields[at] = Field(number=one.number, kind=VARINT, value=rng.choice(INTEGERS))
        case _:
            value = b"" if isinstance(one.value, int) else rng.randbytes(len(one.value))
            fields[at] = Field(number=one.number, kind=one.kind, value=value)
    return write_fields(fields)


def _delimited(rng: Random, content: bytes) -> bytes:
    """Change a message of a stream of them: Chakra traces."""
    messages: list[bytes] = []
    at = 0
    while at < len(content):
        size = read_varint(content, at)
        if size is None:
            return rng.choice(_OF_BYTES)(rng, content)
        messages.append(content[size[1] : size[1] + size[0]])
        at = size[1] + size[0]
    which = rng.randrange(len(messages))
    match rng.randrange(8):
        case 0:
            del messages[which]
        case 1:
            messages.insert(which, rng.choice(messages))
        case 2:
            other = rng.randrange(len(messages))
            messages[which], messages[other] = messages[other], messages[which]
        case _:
            messages[which] = _message(rng, messages[which])
    return b"".join(varint(len(message)) + message for message in messages)


def _zipped(rng: Random, content: bytes) -> bytes:
    try:
        return gzip.compress(_json(rng, gzip.decompress(content)), mtime=0)
    except (OSError, EOFError, ValueError, zlib.error):
        return _bytes(rng, content)


_BASE64 = re.compile(rb"[A-Za-z0-9+/]{64,}={0,2}")
_ESCAPED = re.compile(rb'\bir = "((?:[^"\\]|\\.)*)"', re.DOTALL)


def _kernel(rng: Random, content: bytes) -> bytes:
    """Change the bytecode that a text holds, in base64 or escaped."""
    found = _BASE64.search(content)
    if found is not None:
        whole = found[0].rstrip(b"=")
        inside = base64.b64decode(whole[: len(whole) // 4 * 4])
        return (
            content[: found.start()]
            + base64.b64encode(_bytes(rng, inside))
            + content[found.end() :]
        )
    found = _ESCAPED.search(content)
    if found is None:
        return _bytes(rng, content)
    inside = re.sub(rb"\\([0-9A-Fa-f]{2})", lambda one: bytes([int(one[1], 16)]), found[1])
    changed = b"".join(b"\\%02X" % each for each in _bytes(rng, inside))
    return content[: found.start(1)] + changed + content[found.end(1) :]


def _text(rng: Random, content: bytes) -> bytes:
    return rng.choice(_OF_TEXT)(rng, content)


def _bytes(rng: Random, content: bytes) -> bytes:
    return rng.choice(_OF_BYTES)(rng, content)


_CHANGES: dict[Form, Change] = {
    Form.PROGRAM: _program,
    Form.TEXT: _text,
    Form.JSON: _json,
    Form.BINARY: _bytes,
    Form.PROTO: _message,
    Form.DELIMITED_PROTOS: _delimited,
    Form.ZIPPED_JSON: _zipped,
    Form.KERNEL: _kernel,
}
