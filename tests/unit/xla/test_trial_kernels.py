from __future__ import annotations

import io
from importlib import import_module

import pytest

from hespas.errors import ProgramError
from hespas.xla.mlir.kernels import TRITON, kernel_context, parse_kernel
from hespas.xla.trial import check_kernel

TEXT = b"""
module {
  tt.func public @kernel(%x: !tt.ptr<f32>) attributes {test.hint = 1 : i32} {
    %v = tt.load %x : !tt.ptr<f32>
    tt.store %x, %v : !tt.ptr<f32>
    tt.return
  }
}
"""


def bytecode() -> bytes:
    ir = import_module("jaxlib.mlir.ir")
    written = io.BytesIO()
    with kernel_context(TRITON), ir.Location.unknown():
        parse_kernel(TEXT, TRITON).operation.write_bytecode(written)
    return written.getvalue()


def test_a_kernel_that_ends_its_reader_is_an_error_and_the_next_is_read() -> None:
    good = bytecode()
    ends = 0
    for position in range(4, 64):
        damaged = bytearray(good)
        damaged[position] ^= 0xFF
        try:
            check_kernel(bytes(damaged), "triton")
        except ProgramError:
            ends += 1
    check_kernel(good, "triton")
    assert ends < 60


def test_names_that_are_no_text_are_an_error() -> None:
    damaged = bytecode().replace(b"test.hint", b"test.hin\xff")
    with pytest.raises(ProgramError, match="damaged"):
        check_kernel(damaged, "triton")


def test_what_is_no_bytecode_is_left_to_the_reader() -> None:
    check_kernel(b"module {", "mosaic")
