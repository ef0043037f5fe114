"""Recorded steps are read back as written; other files are recognised."""

import msgspec
import pytest

from hespas.program.recorded import (
    CollectiveCall,
    HostWait,
    KernelCall,
    KernelConfiguration,
    Operation,
    RecordedKernel,
    RecordedStep,
    RecordedTensor,
    RecordEvent,
    Storage,
    WaitEvent,
    decode_recorded,
    encode_recorded,
    is_recorded,
)

TENSOR = RecordedTensor(storage=0, shape=(4, 8), strides=(8, 1), dtype="bfloat16")
STEP = RecordedStep(
    name="train.py:step",
    target="sm_90a",
    world_size=8,
    mesh=(("fsdp", 8),),
    calls=(
        Operation(
            name="aten::mm.default",
            inputs=(TENSOR, TENSOR),
            outputs=(TENSOR,),
            arguments={"alpha": 1.0, "size": (4, 8)},
            scope="layers.0.wq",
            phase="forward",
        ),
        KernelCall(kernel="triton_0", reads=(TENSOR,), writes=(TENSOR,), grids=((8, 1, 1),)),
        RecordEvent(stream=0, event=1),
        WaitEvent(stream=1, event=1),
        CollectiveCall(
            kind="all_gather", ranks=tuple(range(8)), inputs=(TENSOR,), outputs=(), stream=1
        ),
        HostWait(reason="item"),
    ),
    storages=(Storage(size_bytes=512, role="parameter", name="layers.0.wq.weight"),),
    kernels=(
        RecordedKernel(
            name="triton_0", configurations=(KernelConfiguration(ptx=".version 8.4", threads=128),)
        ),
    ),
)


def test_a_step_is_read_back_as_it_was_written() -> None:
    content = encode_recorded(STEP)
    assert decode_recorded(content) == STEP
    assert is_recorded(content)


@pytest.mark.parametrize("content", [b"", b"module {}", b"{}", b'{"format":"another"}'])
def test_other_files_are_told_apart(content: bytes) -> None:
    assert not is_recorded(content)


def test_a_call_of_an_unknown_form_is_refused() -> None:
    content = encode_recorded(STEP).replace(b'"type":"host_wait"', b'"type":"dance"')
    with pytest.raises(msgspec.DecodeError):
        decode_recorded(content)
