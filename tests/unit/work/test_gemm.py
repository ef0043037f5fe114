from __future__ import annotations

import pytest

from hespas.errors import CostError
from hespas.program.program import Op
from hespas.program.work import Work
from hespas.work.convolution import convolutions
from hespas.work.expand import expand, total
from hespas.work.gemm import Gemm, GemmWriter, gemms
from hlo_programs import entry_op, entry_ops, module, read_hlo


def _work(op: Op) -> Work:
    return total(expand(op))


def _one(op: Op) -> Gemm:
    (gemm,) = gemms(op)
    return gemm


_DOT = "lhs_contracting_dims={2}, rhs_contracting_dims={1}, lhs_batch_dims={0}, rhs_batch_dims={0}"


def _dot(lhs: str = "{2,1,0}", rhs: str = "{2,1,0}", made: str = "{2,1,0}") -> Op:
    return entry_op(
        f"a = bf16[2,8,4]{lhs} parameter(0)\nb = bf16[2,4,16]{rhs} parameter(1)\n"
        f"ROOT d = f32[2,8,16]{made} dot(a, b), {_DOT}"
    )


def test_a_dot_is_a_product_of_its_sizes() -> None:
    gemm = _one(_dot())
    assert (gemm.batch, gemm.m, gemm.n, gemm.k) == (2, 8, 16, 4)
    assert (gemm.multiplied, gemm.writer) == ("bf16", GemmWriter.DOT)
    assert gemm.flops == 2 * 2 * 8 * 16 * 4 == _work(_dot()).total_flops


def _cublas(
    operands: str = "a, b", config: str = "", target: str = "__cublas$lt$matmul", n: int = 16
) -> Op:
    numbers = '"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]'
    ops = entry_ops(
        f"""
        a = bf16[8,4] parameter(0)
        b = bf16[4,16] parameter(1)
        bias = bf16[16] parameter(2)
        c = bf16[8,16] parameter(3)
        g = (bf16[8,{n}], s8[4194304]) custom-call({operands}), custom_call_target="{target}",
          backend_config={{"gemm_backend_config":{{"dot_dimension_numbers":{{{numbers}}}{config}}}}}
        ROOT r = bf16[8,{n}] get-tuple-element(g), index=0
        """
    )
    return ops[0]


@pytest.mark.parametrize(
    ("target", "writer"),
    [
        ("__cublas$gemm", GemmWriter.CUBLAS),
        ("__cublas$lt$matmul", GemmWriter.CUBLAS_LT),
        ("__cublas$lt$matmul$f8", GemmWriter.CUBLAS_LT),
    ],
)
def test_cublas_is_reported_its_dimensions(target: str, writer: GemmWriter) -> None:
    op = _cublas(target=target)
    gemm = _one(op)
    assert (gemm.m, gemm.n, gemm.k, gemm.writer, gemm.epilogue) == (8, 16, 4, writer, "")
    # The workspace of 4 MiB is no traffic.
    assert _work(op) == Work(
        flops=(("bf16", 2 * 8 * 16 * 4),),
        bytes_read=2 * (8 * 4 + 4 * 16),
        bytes_written=2 * 8 * 16,
    )


def test_a_batch_that_meets_one_matrix() -> None:
    numbers = (
        '"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["1"],'
        '"lhs_batch_dimensions":[],"rhs_batch_dimensions":["0"]'
    )
    op = entry_op(
        f"""
        a = bf16[8,4] parameter(0)
        b = bf16[7,4,64] parameter(1)
        ROOT g = f32[7,8,64] custom-call(a, b), custom_call_target="__cublas$lt$matmul",
          backend_config={{"gemm_backend_config":{{"dot_dimension_numbers":{{{numbers}}}}}}}
        """
    )
    gemm = _one(op)
    assert (gemm.batch, gemm.m, gemm.n, gemm.k) == (7, 8, 64, 4)
    assert gemm.flops == 2 * 7 * 8 * 64 * 4 == _work(op).total_flops


@pytest.mark.parametrize(
    ("operands", "config", "following", "functions"),
    [
        ("a, b, bias", ',"epilogue":"BIAS"', 1, 0),
        ("a, b", ',"epilogue":"RELU"', 1, 0),
        ("a, b, bias", ',"epilogue":"BIAS_GELU"', 9, 1),
        ("a, b, c", ',"beta":1', 1, 0),
        ("a, b, c, bias", ',"beta":0.5,"epilogue":"BIAS_RELU"', 3, 0),
    ],
)
def test_what_follows_the_product(
    operands: str, config: str, following: int, functions: int
) -> None:
    work = _work(_cublas(operands, config))
    assert work.total_flops == 2 * 8 * 16 * 4 + following * 8 * 16
    assert work.transcendentals == functions * 8 * 16


def test_a_result_of_the_wrong_size_is_an_error() -> None:
    with pytest.raises(CostError, match="should hold 1 x 8 x 16 elements"):
        gemms(_cublas(n=17))


@pytest.mark.parametrize("config", ["", '{"gemm_backend_config":{"dot_dimension_numbers":3}}'])
def test_cublas_without_dimensions_is_an_error(config: str) -> None:
    shown = f", backend_config={config}" if config else ""
    op = entry_op(
        "a = bf16[8,4] parameter(0)\nb = bf16[4,16] parameter(1)\n"
        f'ROOT g = bf16[8,16] custom-call(a, b), custom_call_target="__cublas$gemm"{shown}'
    )
    with pytest.raises(CostError, match=r"\(%g\): its backend_config"):
        gemms(op)


def test_a_triton_fusion_has_its_products_and_its_tile() -> None:
    body = """
    product {
      a = bf16[8,4] parameter(0)
      b = bf16[4,16] parameter(1)
      c = f32[8,16] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
      ROOT r = bf16[8,16] convert(c)
    }
    """
    config = (
        '{"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion",'
        '"block_level_fusion_config":{"output_tiles":[{"sizes":["4","8"]}],"num_warps":"2"}}}'
    )
    op = entry_op(
        "a = bf16[8,4] parameter(0)\nb = bf16[4,16] parameter(1)\n"
        f"ROOT f = bf16[8,16] fusion(a, b), kind=kCustom, calls=product, backend_config={config}",
        computations=body,
    )
    gemm = _one(op)
    assert (gemm.writer, gemm.tile) == (GemmWriter.TRITON, (4, 8))
    assert (gemm.m, gemm.n, gemm.k) == (8, 16, 4)


def test_a_point_convolution_of_a_tpu_is_a_product() -> None:
    op = entry_op(
        "a = bf16[128,1024] parameter(0)\nb = bf16[1024,4096] parameter(1)\n"
        "ROOT c = bf16[128,4096] convolution(a, b), dim_labels=bf_io->bf"
    )
    gemm = _one(op)
    assert (gemm.batch, gemm.m, gemm.n, gemm.k) == (1, 128, 4096, 1024)
    assert gemm.flops == _work(op).total_flops


def test_a_batch_written_as_a_window_is_a_batch() -> None:
    op = entry_op(
        "a = bf16[8,512,64] parameter(0)\nb = bf16[8,256,64] parameter(1)\n"
        "ROOT c = bf16[8,512,256] convolution(a, b), window={size=8 stride=7 lhs_dilate=8},"
        " dim_labels=0bf_0oi->0bf"
    )
    gemm = _one(op)
    assert (gemm.batch, gemm.m, gemm.n, gemm.k) == (8, 512, 256, 64)
    assert gemm.flops == _work(op).total_flops


def test_a_real_window_is_no_product() -> None:
    op = entry_op(
        "a = f32[2,8,8,4] parameter(0)\nb = f32[3,3,4,16] parameter(1)\n"
        "ROOT c = f32[2,6,6,16] convolution(a, b), window={size=3x3}, dim_labels=b01f_01io->b01f"
    )
    assert gemms(op) == ()
    (convolution,) = convolutions(op)
    assert convolution.flops == 2 * (2 * 6 * 6 * 16) * (3 * 3 * 4)


def test_values_on_the_chip_are_no_traffic() -> None:
    op = entry_op(
        "a = f32[8,128]{1,0:T(8,128)S(1)} parameter(0)\nb = f32[8,128]{1,0:T(8,128)} parameter(1)\n"
        "ROOT c = f32[8,128]{1,0:T(8,128)S(1)} add(a, b)"
    )
    assert _work(op) == Work(flops=(("f32", 1024),), bytes_read=4096)


def test_a_ragged_dot_meets_one_matrix_for_each_row() -> None:
    op = entry_op(
        """
        a = bf16[64,8] parameter(0)
        b = bf16[4,8,16] parameter(1)
        sizes = s32[4] parameter(2)
        ROOT r = bf16[64,16] ragged-dot(a, b, sizes), lhs_contracting_dims={1},
          rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}
        """
    )
    assert _work(op).total_flops == 2 * 64 * 8 * 16
    assert gemms(op) == ()


def test_what_starts_beside_the_stream_is_looked_into() -> None:
    program = read_hlo(
        module(
            """
            a = bf16[8,4] parameter(0)
            b = bf16[4,16] parameter(1)
            s = ((bf16[8,4], bf16[4,16]), bf16[8,16], s32[]) async-start(a, b), calls=product
            ROOT d = bf16[8,16] async-done(s)
            """,
            computations="product {\n  a = bf16[8,4] parameter(0)\n  b = bf16[4,16] parameter(1)\n"
            "  ROOT c = bf16[8,16] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
            "\n}\n",
        )
    )
    start = program.main.body.operations[0]
    assert _one(start).flops == 2 * 8 * 16 * 4


def test_types_that_contradict_each_other_are_an_error() -> None:
    op = entry_op(
        "a = f32[2,8,8,4] parameter(0)\nb = f32[4,16] parameter(1)\n"
        "ROOT c = f32[2,16] dot(a, b), lhs_contracting_dims={9}, rhs_contracting_dims={0}"
    )
    with pytest.raises(CostError, match=r"\(%c\): its types do not fit together"):
        expand(op)
