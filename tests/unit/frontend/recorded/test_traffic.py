"""The bytes of PyTorch's own kernels."""

from __future__ import annotations

import pytest

from hespas.errors import UnsupportedError
from hespas.frontend.recorded.traffic import host_copy_of, kernels_of
from hespas.program.attrs import KernelAttrs
from hespas.program.recorded import Operation, RecordedTensor
from recorded_steps import rows


def tensor(storage: int, *shape: int, dtype: str = "float32") -> RecordedTensor:
    """Return a dense tensor of a storage."""
    return RecordedTensor(storage=storage, shape=shape, strides=rows(shape), dtype=dtype)


def kernels(
    name: str, inputs: tuple[RecordedTensor, ...], *outputs: RecordedTensor
) -> KernelAttrs | None:
    """Return the kernels of an operation."""
    return kernels_of(Operation(name=name, inputs=inputs, outputs=outputs))


def moved(
    name: str, inputs: tuple[RecordedTensor, ...], *outputs: RecordedTensor
) -> tuple[int, int, int]:
    """Return the bytes read and written, and the launches."""
    attrs = kernels(name, inputs, *outputs)
    assert attrs is not None
    assert attrs.is_known
    return attrs.bytes_read, attrs.bytes_written, attrs.launches


A, B, C = tensor(0, 1000), tensor(1, 1000), tensor(2, 1000)


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "expected"),
    [
        ("aten::add.Tensor", (A, B), (C,), (8000, 4000, 1)),
        ("aten::add_.Tensor", (A, B), (A,), (8000, 4000, 1)),
        ("aten::mul.Tensor", (A, A), (C,), (4000, 4000, 1)),
        ("aten::add.out", (A, B, C), (C,), (8000, 4000, 1)),
        ("aten::copy_.default", (A, B), (A,), (4000, 4000, 1)),
        ("aten::zero_.default", (A,), (A,), (0, 4000, 1)),
        ("aten::sum.default", (A,), (tensor(3),), (4000, 4, 1)),
        ("aten::_foreach_mul_.Scalar", (A, B), (), (8000, 8000, 1)),
        ("aten::_foreach_add_.List", (A, B, C, tensor(4, 1000)), (), (16000, 8000, 1)),
        ("aten::_foreach_addcdiv_.ScalarList", (A, B, C), (), (12000, 4000, 1)),
        ("aten::_foreach_copy_.default", (A, B), (), (4000, 4000, 1)),
        ("aten::_foreach_norm.Scalar", (A, B), (tensor(5), tensor(6)), (8000, 8, 1)),
        ("aten::_fused_adamw_.default", (A, B, C, tensor(4, 1000)), (), (16000, 12000, 2)),
    ],
)
def test_what_an_operation_moves(
    name: str,
    inputs: tuple[RecordedTensor, ...],
    outputs: tuple[RecordedTensor, ...],
    expected: tuple[int, int, int],
) -> None:
    assert moved(name, inputs, *outputs) == expected


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "moved"),
    [
        ("aten::_to_copy.default", (A,), (), A),
        ("aten::_to_copy.default", (), (B,), B),
        ("aten::copy_.default", (A,), (), A),
        ("aten::copy_.default", (B,), (B,), B),
        ("aten::_to_copy.default", (A,), (B,), None),
        ("aten::copy_.default", (A, B), (A,), None),
        ("aten::copy_.default", (A, A), (A,), None),
        ("aten::clone.default", (A,), (B,), None),
        ("aten::_to_copy.default", (), (tensor(7),), None),
    ],
)
def test_a_copy_with_one_side_on_the_device_goes_over_the_hosts_link(
    name: str,
    inputs: tuple[RecordedTensor, ...],
    outputs: tuple[RecordedTensor, ...],
    moved: RecordedTensor | None,
) -> None:
    assert host_copy_of(Operation(name=name, inputs=inputs, outputs=outputs)) == moved


def test_views_run_nothing() -> None:
    assert kernels("aten::_unsafe_view.default", (A,), tensor(0, 10, 100)) is None
    assert kernels("aten::empty.memory_format", (), A) is None


def test_what_a_tensor_repeats_is_read_once() -> None:
    repeated = RecordedTensor(storage=0, shape=(100, 10), strides=(0, 1), dtype="float32")
    assert moved("aten::mul.Tensor", (repeated, A), C) == (4040, 4000, 1)


def test_a_long_softmax_reads_its_rows_three_times_and_a_short_one_once() -> None:
    long, short = tensor(0, 4, 128256), tensor(0, 4, 512)
    assert moved("aten::_log_softmax.default", (long,), long)[0] == 3 * 4 * 4 * 128256
    assert moved("aten::_log_softmax.default", (short,), short)[0] == 4 * 4 * 512


def test_the_gradient_of_a_long_softmax_reads_gradients_twice() -> None:
    gradient, result = tensor(0, 4, 128256), tensor(1, 4, 128256)
    size = 4 * 4 * 128256
    name = "aten::_log_softmax_backward_data.default"
    assert moved(name, (gradient, result), tensor(2, 4, 128256)) == (3 * size, size, 1)
    name = "aten::_softmax_backward_data.default"
    assert moved(name, (gradient, result), tensor(2, 4, 128256)) == (4 * size, size, 1)


def test_an_embedding_reads_what_it_writes() -> None:
    table, ids = tensor(0, 128256, 64), tensor(1, 100, dtype="int64")
    result = tensor(2, 100, 64)
    assert moved("aten::embedding.default", (table, ids), result) == (25600 + 800, 25600, 1)


def test_the_gradient_of_an_embedding_is_cleared_and_added_to() -> None:
    gradient, ids = tensor(0, 100, 64), tensor(1, 100, dtype="int64")
    result = tensor(2, 1000, 64)
    attrs = moved("aten::embedding_dense_backward.default", (gradient, ids), result)
    assert attrs == (2 * 25600 + 800, 256000 + 25600, 2)


def test_bags_read_their_rows_alone() -> None:
    table, ids = tensor(0, 128256, 64), tensor(1, 100, dtype="int64")
    starts = tensor(2, 25, dtype="int64")
    result, gradient = tensor(3, 25, 64), tensor(4, 128256, 64)
    found = moved("aten::_embedding_bag.default", (table, ids, starts), result)
    assert found == (25600 + 800 + 200, 6400, 1)
    back = moved("aten::_embedding_bag_backward.default", (result, ids, starts), gradient)
    assert back == (2 * 25600 + 800 + 200, 128256 * 64 * 4 + 25600, 2)


def test_a_loss_reads_one_element_of_each_row() -> None:
    scores, targets = tensor(0, 100, 128256), tensor(1, 100, dtype="int64")
    read, _, _ = moved("aten::nll_loss_forward.default", (scores, targets), tensor(2))
    assert read == 800 + 100 * 32


def test_lists_of_many_tensors_are_several_launches() -> None:
    many = tuple(tensor(number, 10) for number in range(111))
    assert moved("aten::_foreach_mul_.Scalar", many)[2] == 2
    large = (tensor(0, 65536 * 640),)
    assert moved("aten::_foreach_mul_.Scalar", large)[2] == 2


def test_what_fsdp_copies_is_read_and_written_once() -> None:
    shard, buffer = tensor(0, 1000), tensor(1, 8000)
    place = RecordedTensor(storage=1, shape=(1000,), strides=(1,), dtype="float32", offset=2000)
    assert moved("fsdp::all_gather_copy_in.default", (shard, buffer), place, buffer)[:2] == (
        4000,
        4000,
    )
    assert moved("fsdp::split_with_sizes_copy.default", (buffer, A), A)[:2] == (32000, 32000)


def test_an_unknown_operation_says_so() -> None:
    attrs = kernels("mylib::op.default", (A,), B)
    assert attrs is not None
    assert not attrs.is_known
    assert (attrs.bytes_read, attrs.bytes_written) == (4000, 4000)


def test_factorisations_are_refused_with_their_line() -> None:
    matrix = tensor(0, 512, 512)
    call = Operation(
        name="aten::_linalg_eigh.default", inputs=(matrix,), outputs=(matrix,), place="soap.py:7"
    )
    with pytest.raises(UnsupportedError, match="no model") as error:
        kernels_of(call)
    assert error.value.location == "soap.py:7"
