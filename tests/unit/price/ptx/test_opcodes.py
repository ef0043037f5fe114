from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.price.ptx.opcodes import bits_of, evaluate, narrowed

WORDS = st.integers(-(2**31), 2**31 - 1)
TWO = st.lists(WORDS, min_size=2, max_size=2)


def signed(value: int, bits: int) -> int:
    return (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


# PTX's definition of each on whole numbers.
def meaning(name: str, left: int, right: int) -> int:
    u, v = left % 2**32, right % 2**32
    by = v % 32
    return {
        "add.s32": left + right,
        "sub.s32": left - right,
        "mul.lo.s32": left * right,
        "mul.hi.u32": (u * v) >> 32,
        "mul.hi.s32": (left * right) >> 32,
        "mul.wide.u32": u * v,
        "mul.wide.s32": left * right,
        "and.b32": u & v,
        "or.b32": u | v,
        "xor.b32": u ^ v,
        "min.u32": min(u, v),
        "max.s32": max(left, right),
        "shl.b32": u << by,
        "shr.u32": u >> by,
        "shr.s32": left >> by,
        "setp.lt.u32": int(u < v),
        "setp.ge.s32": int(left >= right),
        "setp.hi.b32": int(u > v),
        "div.u32": u // v if v else 0,
        "rem.u32": u % v if v else 0,
    }[name]


NAMES = [
    *("add.s32", "sub.s32", "mul.lo.s32", "mul.hi.u32", "mul.hi.s32", "mul.wide.u32"),
    *("mul.wide.s32", "and.b32", "or.b32", "xor.b32", "min.u32", "max.s32", "shl.b32"),
    *("shr.u32", "shr.s32", "setp.lt.u32", "setp.ge.s32", "setp.hi.b32", "div.u32", "rem.u32"),
]


@pytest.mark.parametrize("name", NAMES)
@given(lanes=st.lists(TWO, min_size=1, max_size=4), shared=WORDS)
def test_every_thread_computes_what_the_manual_says(
    name: str, lanes: Sequence[Sequence[int]], shared: int
) -> None:
    parts = tuple(name.split("."))
    bits = bits_of(parts)
    amount = shared % 32 if parts[0] in {"shl", "shr"} else shared
    if parts[0] in {"div", "rem"}:
        amount = abs(amount) or 1
    left = np.array([pair[0] for pair in lanes], dtype=np.int32)
    found = evaluate(parts, (left, amount))
    assert found is not None
    each = np.broadcast_to(np.asarray(narrowed(found, bits)), left.shape)
    expected = [signed(meaning(name, pair[0], amount), bits) for pair in lanes]
    assert [int(value) for value in each] == expected
    for pair, value in zip(lanes, expected, strict=True):
        alone = evaluate(parts, (pair[0], amount))
        assert alone is not None
        assert narrowed(alone, bits) == value


def test_a_float_has_no_value_here() -> None:
    assert evaluate(("fma", "rn", "f32"), (1, 2, 3)) is None
