from __future__ import annotations

from pathlib import Path

import pytest

from hespas.errors import ConfigError, HardwareError, HespasError, ToolError, UnsupportedError
from hespas.xla.compile.worker import read_memory, recover, status_error

NEWER = """INVALID_ARGUMENT: Failed to serialize StableHLO to plugin version 1.13.7;

Detailed error from MLIR: -:3:11: error: failed to legalize operation 'vhlo.new_thing_v9'
-:635:11: note: see current operation
"""
NEWER_TOLD = (
    "a.mlir: the compiler reads StableHLO 1.13.7, and the program holds what that has not: "
    "failed to legalize operation 'vhlo.new_thing_v9'; "
    "export it with the versions that hespas names"
)
SCOPED = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space vmem "
    "while allocating on stack: CompileTimeScopedVmemOom: allocation with size 35.96M and limit "
    "32.00M exceeded scoped vmem limit"
)
SCOPED_TOLD = (
    "a.mlir: a kernel needs 35.96MiB of the TPU's vector memory at once, and may have 32.00MiB; "
    "give xla_flag xla_tpu_scoped_vmem_limit_kib=36824 or more, as recipes do"
)
TOO_LARGE = (
    "a.mlir: the program does not fit into the memory of the device: Ran out of memory on HBM, "
    "9G exceeds available HBM (8G); give more devices, or a device with more memory"
)


@pytest.mark.parametrize(
    ("message", "kind", "text"),
    [
        (
            NEWER,
            UnsupportedError,
            NEWER_TOLD,
        ),
        (
            "UNIMPLEMENTED: no custom call f for CUDA\nmore",
            UnsupportedError,
            "a.mlir: the compiler refuses it: UNIMPLEMENTED: no custom call f for CUDA",
        ),
        (
            "RESOURCE_EXHAUSTED: 9 GB",
            ToolError,
            "a.mlir: the compiler ran out of memory: RESOURCE_EXHAUSTED: 9 GB",
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, 9G exceeds available HBM (8G).",
            HardwareError,
            TOO_LARGE,
        ),
        (SCOPED, UnsupportedError, SCOPED_TOLD),
        ("INTERNAL: odd", ToolError, "a.mlir: the compiler failed: INTERNAL: odd"),
        (
            "INVALID_ARGUMENT: No such compile option: 'xla_foo'",
            ConfigError,
            "the compiler has no flag xla_foo",
        ),
        (
            "INVALID_ARGUMENT: Failed to parse 'abc' into flag xla_foo: ",
            ConfigError,
            "'abc' is no value of the compiler's flag xla_foo",
        ),
    ],
)
def test_what_a_compiler_says_becomes_an_error(
    message: str, kind: type[HespasError], text: str
) -> None:
    error = status_error(message, "a.mlir")
    assert type(error) is kind
    assert str(error) == text


def test_calls_that_no_library_has_leave_their_module(tmp_path: Path) -> None:
    (tmp_path / "a_gpu_after_optimizations.txt").write_text("HloModule a")
    buffers = tmp_path / "a_gpu_after_optimizations-buffer-assignment.txt"
    buffers.write_text("allocation 0: size 7, preallocated-temp:\n")
    missing = "NOT_FOUND: No registered implementation for custom call to {} for platform CUDA"
    recovered = recover(tmp_path, missing.format("__flash_attention$forward"))
    assert recovered is not None
    assert (recovered.text, recovered.memory.temporary_bytes) == ("HloModule a", 7)
    assert "__flash_attention$forward" in recovered.note
    assert recover(tmp_path, missing.format("mine")) is None


def test_memory_is_added_up_from_buffers() -> None:
    memory = read_memory(
        "BufferAssignment:\n"
        "allocation 0: size 100, parameter 0, shape |f32[25]| at ShapeIndex {}, maybe-live-out:\n"
        " value: <5 a @0> (size=100,offset=0): f32[25]{0}\n"
        "allocation 1: size 20, parameter 1, shape |f32[5]| at ShapeIndex {}:\n"
        "allocation 2: size 3, output shape is |pred[3]|, maybe-live-out:\n"
        "allocation 3: size 4, thread-local:\n"
        "allocation 4: size 5, constant:\n"
        "allocation 5: size 600, preallocated-temp:\n"
    )
    assert memory.argument_bytes == 120
    assert memory.output_bytes == 103
    assert memory.alias_bytes == 100
    assert memory.temporary_bytes == 600
