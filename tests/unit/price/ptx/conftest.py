"""Kernels and programs as the compiler writes them, cut down to what a test needs."""

from __future__ import annotations

import pytest

from hespas.price.ptx.reading import analysis_of, walk_middle
from hespas.price.ptx.terms import KernelAnalysis
from hespas.program.kernels import CompiledKernels, KernelLaunch

# One element a thread, four bytes in and out: what XLA's loops look like.
STREAM = """
.visible .entry stream(.param .u64 stream_param_0, .param .u64 stream_param_1)
.reqntid 128, 1, 1
{
    ld.param.b64 %rd1, [stream_param_0];
    ld.param.b64 %rd2, [stream_param_1];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    shl.b32 %r3, %r1, 7;
    or.b32 %r4, %r3, %r2;
    mul.wide.u32 %rd3, %r4, 4;
    add.s64 %rd4, %rd1, %rd3;
    ld.global.nc.b32 %r5, [%rd4];
    neg.f32 %r6, %r5;
    add.s64 %rd5, %rd2, %rd3;
    st.global.b32 [%rd5], %r6;
    ret;
}
"""
# Four neighbouring 2-byte elements a thread, row after row: what column reductions look like.
COLUMNS = """
.visible .entry columns(.param .u64 columns_param_0, .param .u64 columns_param_1)
.reqntid 1024, 1, 1
{
    ld.param.b64 %rd1, [columns_param_0];
    ld.param.b64 %rd2, [columns_param_1];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    and.b32 %r3, %r1, 31;
    shr.u32 %r4, %r1, 5;
    shl.b32 %r5, %r4, 12;
    shl.b32 %r6, %r3, 2;
    or.b32 %r7, %r5, %r6;
    shl.b32 %r8, %r2, 7;
    or.b32 %r9, %r7, %r8;
    mul.wide.u32 %rd3, %r9, 2;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    mov.b32 %r10, 0;
$L1:
    ld.global.nc.b16 %rs1, [%rd4];
    ld.global.nc.b16 %rs2, [%rd4+2];
    ld.global.nc.b16 %rs3, [%rd4+4];
    ld.global.nc.b16 %rs4, [%rd4+6];
    st.global.b16 [%rd5], %rs1;
    st.global.b16 [%rd5+2], %rs2;
    st.global.b16 [%rd5+4], %rs3;
    st.global.b16 [%rd5+6], %rs4;
    add.s64 %rd4, %rd4, 262144;
    add.s64 %rd5, %rd5, 262144;
    add.s32 %r10, %r10, 32;
    setp.lt.u32 %p1, %r10, 4096;
    @%p1 bra $L1;
    ret;
}
"""


def launch(kernel: str, *, blocks: int, threads: int, instruction: str = "") -> KernelLaunch:
    """Return a launch of a row of blocks."""
    return KernelLaunch(
        instruction=instruction or kernel,
        kernel=kernel,
        grid=(blocks, 1, 1),
        block=(threads, 1, 1),
        shared_memory_bytes=0,
    )


@pytest.fixture
def kernels() -> CompiledKernels:
    """Return a streaming kernel over 64 Mi elements, and a copy of columns."""
    return CompiledKernels(
        launches=(
            launch("stream", blocks=2**19, threads=128, instruction="fusion.1"),
            launch("columns", blocks=32, threads=1024, instruction="fusion.2"),
        ),
        ptx={"stream": STREAM, "columns": COLUMNS},
    )


def analyse(text: str, kernel_launch: KernelLaunch) -> KernelAnalysis:
    return analysis_of(walk_middle(text, kernel_launch), kernel_launch)
