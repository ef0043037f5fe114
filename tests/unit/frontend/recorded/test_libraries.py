"""Products, attention and convolutions of recorded steps are calls of libraries."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest
from msgspec.structs import replace

from hespas.errors import UnsupportedError
from hespas.frontend.load import load_per_device
from hespas.program.program import Op
from hespas.program.recorded import (
    KernelCall,
    Operation,
    RecordedStep,
    RecordedTensor,
    Scalar,
    encode_recorded,
)
from hespas.work.attention import attentions
from hespas.work.convolution import Direction, convolutions
from hespas.work.gemm import gemms, grouped_gemms
from recorded_steps import Recorder, rows

CAUSAL = {"is_causal": True}


def tensor(storage: int, *shape: int, dtype: str = "bfloat16") -> RecordedTensor:
    """Return a dense tensor of a storage."""
    return RecordedTensor(storage=storage, shape=shape, strides=rows(shape), dtype=dtype)


def operations(
    name: str,
    inputs: tuple[RecordedTensor, ...],
    *outputs: RecordedTensor,
    settings: Mapping[str, Scalar] = MappingProxyType({}),
    arguments: Mapping[str, Scalar | tuple[Scalar, ...]] = MappingProxyType({}),
) -> tuple[Op, ...]:
    """Return the operations of a call of one."""
    call = Operation(
        name=name, inputs=inputs, outputs=outputs, arguments=dict(arguments), place="a.py:3"
    )
    step = RecordedStep(
        name="step",
        target="sm_90a",
        world_size=1,
        calls=(call,),
        storages=(),
        settings=dict(settings),
    )
    program = load_per_device(encode_recorded(step), name="step.json").program
    return program.main.body.operations[:-1]


def test_products_have_their_sizes_and_addends() -> None:
    left, right, result = tensor(0, 64, 32), tensor(1, 32, 48), tensor(2, 64, 48)
    (op,) = operations("aten::mm.default", (left, right), result)
    (product,) = gemms(op)
    assert (product.m, product.k, product.n, product.multiplied) == (64, 32, 48, "bf16")
    (op,) = operations("aten::addmm.default", (tensor(3, 48), left, right), result)
    assert gemms(op)[0].epilogue == "BIAS"
    (op,) = operations("aten::addmm.default", (result, left, right), result)
    assert gemms(op)[0].has_addend
    batched = (tensor(0, 5, 64, 32), tensor(1, 5, 32, 48))
    (op,) = operations("aten::bmm.default", batched, tensor(2, 5, 64, 48))
    assert gemms(op)[0].batch == 5


def test_products_of_f32_are_exact_unless_torch_may_use_tf32() -> None:
    both = (tensor(0, 64, 32, dtype="float32"), tensor(1, 32, 48, dtype="float32"))
    result = tensor(2, 64, 48, dtype="float32")
    (op,) = operations("aten::mm.default", both, result)
    assert gemms(op)[0].multiplied == "f32_highest"
    (op,) = operations("aten::mm.default", both, result, settings={"matmul_allow_tf32": True})
    assert gemms(op)[0].multiplied == "tf32"


def test_scaled_products_multiply_8_bits() -> None:
    left = tensor(0, 64, 32, dtype="float8_e4m3fn")
    right = RecordedTensor(storage=1, shape=(32, 48), strides=(1, 32), dtype="float8_e4m3fn")
    scale = tensor(2, dtype="float32")
    (op,) = operations("aten::_scaled_mm.default", (left, right, scale, scale), tensor(3, 64, 48))
    assert gemms(op)[0].multiplied == "f8E4M3FN"


@pytest.mark.parametrize(
    ("left", "right", "made", "expected"),
    [
        ((640, 32), (4, 32, 48), (640, 48), (48, 32, False)),
        ((32, 640), (640, 48), (4, 32, 48), (48, 32, True)),
        ((4, 48, 32), (32, 640), (48, 640), (48, 32, False)),
    ],
)
def test_grouped_products(
    left: tuple[int, ...],
    right: tuple[int, ...],
    made: tuple[int, ...],
    expected: tuple[int, int, bool],
) -> None:
    inputs = (tensor(0, *left), tensor(1, *right), tensor(2, 4, dtype="int32"))
    (op,) = operations("aten::_grouped_mm.default", inputs, tensor(3, *made))
    (grouped,) = grouped_gemms(op)
    assert (grouped.n, grouped.k, grouped.is_divided) == expected
    assert sum(grouped.group_rows) == 640
    assert grouped.groups == 4


@pytest.mark.parametrize(
    ("kind", "kernel"),
    [
        ("flash_attention", "flash_attention_2"),
        ("efficient_attention", "memory_efficient"),
        ("cudnn_attention", ""),
    ],
)
def test_attention_forward_and_backward(kind: str, kernel: str) -> None:
    query, key = tensor(0, 2, 32, 8192, 128), tensor(1, 2, 8, 8192, 128)
    statistics = tensor(4, 2, 32, 8192, dtype="float32")
    name = f"aten::_scaled_dot_product_{kind}"
    (op,) = operations(f"{name}.default", (query, key, key), query, statistics, arguments=CAUSAL)
    (forward,) = attentions(op)
    assert (forward.batch, forward.heads, forward.key_heads) == (2, 32, 8)
    assert (forward.query_length, forward.key_length, forward.head_size) == (8192, 8192, 128)
    assert forward.is_causal
    assert not forward.is_backward
    assert forward.kernel == kernel
    inputs = (query, query, key, key, query, statistics)
    (op,) = operations(f"{name}_backward.default", inputs, query, key, key, arguments=CAUSAL)
    (backward,) = attentions(op)
    assert backward.is_backward
    assert backward.flops == pytest.approx(2.5 * forward.flops)


def test_packed_sequences_are_refused_by_name() -> None:
    packed = tensor(0, 16384, 32, 128)
    with pytest.raises(UnsupportedError, match="packed sequences") as error:
        operations("aten::_flash_attention_forward.default", (packed, packed, packed), packed)
    assert error.value.location == "a.py:3"


def test_packed_sequences_have_the_length_of_the_longest() -> None:
    packed = tensor(0, 1, 7096, 16, 64)
    statistics = tensor(1, 1, 16, 7096, dtype="float32")
    settings = {"longest": 4096, "attended": 0.75, "kernel": "flash_attention_3", **CAUSAL}
    for name, given in (("", ()), ("_backward", (packed, statistics))):
        inputs = (*given[:1], packed, packed, packed, *given)
        (op,) = operations(
            f"hespas::flash_attention{name}.default", inputs, packed, statistics, arguments=settings
        )
        (attention,) = attentions(op)
        assert (attention.batch, attention.query_length, attention.key_length) == (2, 4096, 4096)
        assert (attention.kernel, attention.is_causal) == ("flash_attention_3", True)
        assert attention.attended == 0.75
        assert attention.is_backward == bool(name)


def test_convolutions_of_all_directions_do_the_same_products() -> None:
    image, kernel = tensor(0, 8, 64, 56, 56), tensor(1, 128, 64, 3, 3)
    result = tensor(2, 8, 128, 28, 28)
    window: dict[str, Scalar | tuple[Scalar, ...]] = {"stride": (2, 2), "padding": (1, 1)}
    (op,) = operations("aten::convolution.default", (image, kernel), result, arguments=window)
    (forward,) = convolutions(op)
    both = operations(
        "aten::convolution_backward.default",
        (result, image, kernel),
        image,
        kernel,
        arguments=window,
    )
    described = [convolutions(each)[0] for each in both]
    assert [each.direction for each in described] == [
        Direction.BACKWARD_INPUT,
        Direction.BACKWARD_FILTER,
    ]
    assert {each.products for each in described} == {forward.products}


@pytest.mark.parametrize(("size", "padding"), [(2, 0), (4, 1)])
def test_transposed_convolutions_do_the_products_of_what_they_transpose(
    size: int, padding: int
) -> None:
    image, kernel = tensor(0, 8, 64, 28, 28), tensor(1, 64, 128, size, size)
    result = tensor(2, 8, 128, 56, 56)
    arguments: dict[str, Scalar | tuple[Scalar, ...]] = {
        "transposed": True,
        "stride": (2, 2),
        "padding": (padding, padding),
    }
    (op,) = operations("aten::convolution.default", (image, kernel), result, arguments=arguments)
    both = operations(
        "aten::convolution_backward.default",
        (result, image, kernel),
        image,
        kernel,
        arguments=arguments,
    )
    usual = operations(
        "aten::convolution.default",
        (result, kernel),
        image,
        arguments={"stride": (2, 2), "padding": (padding, padding)},
    )
    described = [convolutions(each)[0] for each in (op, *both)]
    assert [each.direction for each in described] == [
        Direction.BACKWARD_INPUT,
        Direction.FORWARD,
        Direction.BACKWARD_FILTER,
    ]
    assert {each.products for each in described} == {convolutions(usual[0])[0].products}


def test_tensors_that_do_not_fit_their_operation_are_an_error() -> None:
    step = Recorder()
    step.operation("aten::mm.default", (step.tensor(8, 8),))
    with pytest.raises(UnsupportedError, match="other tensors than its schema"):
        load_per_device(encode_recorded(step.step()), name="step.json")


def test_a_mask_of_all_heads_is_a_bias_of_attention() -> None:
    query, mask = tensor(0, 2, 16, 4096, 128), tensor(1, 2, 1, 4096, 4096)
    name = "aten::_scaled_dot_product_cudnn_attention.default"
    (op,) = operations(name, (query, query, query, mask), query)
    (attention,) = attentions(op)
    assert attention.has_bias
    assert not attention.is_causal


def flex(
    *,
    blocks: int,
    backward: bool = False,
    name: str = "flex_attention",
    attended: float | None = None,
    flat: int | None = None,
) -> RecordedStep:
    """Return a step that launches FlexAttention's kernel, whose masks have ``blocks`` in a row.

    Of query, key and value, ``flat`` has the shape of the product that makes it.
    """
    arrays = [tensor(number, 2, heads, 512, 64) for number, heads in enumerate((16, 8, 8))]
    if flat is not None:
        arrays[flat] = tensor(flat, 2 * 512, arrays[flat].shape[1] * 64)
    scales = [tensor(number, 2, 16, 512, dtype="float32") for number in (10, 11)]
    gradients = [tensor(4, 2, 16, 512, 64), tensor(5, 2, 16, 512, 64), tensor(6, 2, 8, 512, 64)]
    indices = tensor(12, 1, 1, blocks, blocks, dtype="int32")
    suffix = "_backward" if backward else ""
    call = KernelCall(
        kernel=f"triton_tem_fused_{name}{suffix}_0",
        reads=(*arrays, *scales, *(gradients if backward else ()), indices),
        writes=(tensor(7, 2, 8 if backward else 16, 512, 64),),
        grids=((4, 2, 16),),
        attended=attended,
        place="a.py:3",
    )
    return RecordedStep(name="step", target="sm_90a", world_size=1, calls=(call,), storages=())


@pytest.mark.parametrize("backward", [False, True])
def test_flex_attention_without_a_mask_computes_all_pairs(*, backward: bool) -> None:
    program = load_per_device(
        encode_recorded(flex(blocks=1, backward=backward)), name="step.json"
    ).program
    (op,) = program.main.body.operations[:-1]
    (attention,) = attentions(op)
    assert (attention.query_length, attention.key_length, attention.is_causal) == (512, 512, False)
    assert attention.is_backward is backward
    assert any("FlexAttention" in text for text in program.assumptions)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("flat", [0, 1, 2])
def test_flex_attention_reads_what_a_product_has_written(flat: int, *, backward: bool) -> None:
    shaped, read = (
        load_per_device(
            encode_recorded(flex(blocks=1, backward=backward, flat=each)), name="step.json"
        ).program.main.body.operations[0]
        for each in (None, flat)
    )
    assert attentions(read) == attentions(shaped)


@pytest.mark.parametrize("backward", [False, True])
def test_flex_attention_computes_the_blocks_that_a_mask_leaves(*, backward: bool) -> None:
    step = flex(blocks=4, backward=backward, attended=0.25)
    program = load_per_device(encode_recorded(step), name="step.json").program
    (op,) = program.main.body.operations[:-1]
    (attention,) = attentions(op)
    assert attention.scores == 2 * 16 * 512 * 512 // 4


@pytest.mark.parametrize(
    ("blocks", "name", "refusal"),
    [
        (4, "flex_attention", "depends on tensors that have no data"),
        (1, "mm", "how often its loops"),
    ],
)
def test_templates_whose_loops_are_not_known_are_refused(
    blocks: int, name: str, refusal: str
) -> None:
    with pytest.raises(UnsupportedError, match=refusal):
        load_per_device(encode_recorded(flex(blocks=blocks, name=name)), name="step.json")


def test_a_mask_that_its_kernel_itself_makes_is_refused_as_one_without_data() -> None:
    step = flex(blocks=4)
    (call,) = step.calls
    assert isinstance(call, KernelCall)
    reads = tuple(each for each in call.reads if each.dtype != "int32")
    step = replace(step, calls=(replace(call, reads=reads),))
    with pytest.raises(UnsupportedError, match="depends on tensors that have no data"):
        load_per_device(encode_recorded(step), name="step.json")
