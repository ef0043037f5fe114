from __future__ import annotations

import pytest

from hespas.errors import ProgramError
from hespas.program.kernels import TritonType
from hespas.xla.mlir.kernels import read_triton, read_triton_type

LOOP = b"""
module {
  tt.func public @kernel(%x: !tt.ptr<f32>, %n: i32) {
    %one = arith.constant 1 : i32
    %two = arith.constant 2 : i32
    %ten = arith.addi %two, %two : i32
    %p = tt.splat %x : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
    scf.for %i = %one to %ten step %two : i32 {
      %v = tt.load %p : tensor<16x!tt.ptr<f32>>
      tt.store %p, %v : tensor<16x!tt.ptr<f32>>
    }
    scf.for %i = %one to %n step %one : i32 {
      %unused = tt.load %p : tensor<16x!tt.ptr<f32>>
      %w = tt.load %p : tensor<16x!tt.ptr<f32>>
      tt.store %p, %w : tensor<16x!tt.ptr<f32>>
    }
    tt.return
  }
}
"""


def test_loops_are_opened_and_loads_that_nothing_uses_left_out() -> None:
    kernel = read_triton(LOOP)
    loads = [op for op in kernel.operations if op.name == "tt.load"]
    assert [op.count for op in loads] == [2, 1]
    assert loads[0].results == (TritonType(element="f32", shape=(16,)),)
    assert kernel.name == "kernel"
    assert kernel.notes == ("a loop whose length depends on data is taken to run once",)


def test_what_is_no_kernel_is_an_error() -> None:
    with pytest.raises(ProgramError, match="cannot be read"):
        read_triton(b"nothing")
    with pytest.raises(ProgramError, match="has 0 functions"):
        read_triton(b"module {}")


def test_types_are_read() -> None:
    assert read_triton_type("!tt.ptr<f16, 1>") == TritonType(element="f16")
    assert read_triton_type("i32") == TritonType(element="i32")
