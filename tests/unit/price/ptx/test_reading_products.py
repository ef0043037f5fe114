import pytest

from hespas.price.ptx.parser import read_kernel
from hespas.price.ptx.reading import products_of
from hespas.price.ptx.terms import Product


def kernel_of(body: str) -> str:
    return f".visible .entry k(.param .u64 k_param_0)\n{{\n{body}\n    ret;\n}}"


def found(body: str, *, warps: int = 4) -> tuple[Product, ...]:
    kernel = read_kernel(kernel_of(body))
    return products_of(kernel, [float(warps)] * len(kernel.instructions), warps=warps)


@pytest.mark.parametrize(
    ("opcode", "datatype", "flops"),
    [
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "bf16", 16 * 8 * 16),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "tf32", 16 * 8 * 8),
        ("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", "i8", 16 * 8 * 32),
    ],
)
def test_each_warp_computes_a_product_of_its_own(opcode: str, datatype: str, flops: int) -> None:
    text = f"{opcode} {{%r1,%r2}}, {{%r3,%r4}}, {{%r5}}, {{%r6,%r7}};"
    assert found(text) == (Product(datatype=datatype, flops=4 * 2.0 * flops, is_of_warp=True),)


def test_four_warps_compute_a_product_of_hopper_together() -> None:
    text = "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {%r1}, %rd1, %rd2, 1, 1, 1, 0, 0;"
    assert found(text, warps=8) == (
        Product(datatype="bf16", flops=2 * 2.0 * 64 * 256 * 16, is_of_warp=False),
    )


def test_the_descriptor_has_the_shape_of_a_product_of_blackwell() -> None:
    """138511504 stands for 128 rows and 256 columns, in what Triton writes."""
    text = """
    mov.b32 %r439, 138511504;
    @%p34 tcgen05.mma.cta_group::1.kind::f16 [ %r1093 + 0 ], %rd133, %rd134, %r439, %p33;
    """
    assert found(text) == (Product(datatype="bf16", flops=2.0 * 128 * 256 * 16, is_of_warp=False),)


def test_products_of_blackwell_with_unknown_shapes_are_left_out() -> None:
    text = "tcgen05.mma.cta_group::1.kind::f16 [ %r1 + 0 ], %rd1, %rd2, %r4, %p3;"
    assert found(text) == ()


def test_other_instructions_of_tensor_memory_compute_nothing() -> None:
    assert found("tcgen05.wait::ld.sync.aligned;") == ()
