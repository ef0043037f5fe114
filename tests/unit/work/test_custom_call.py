from __future__ import annotations

from collections.abc import Callable

import pytest

from hespas.errors import CostError
from hespas.program.work import Work
from hespas.work.expand import assumptions, expand, total
from hlo_programs import entry_op

WorkOf = Callable[[str], Work]


def test_the_author_of_a_kernel_says_what_it_does() -> None:
    said = '"cost_estimate":{"flops":1000,"transcendentals":10,"bytes_accessed":100}'
    op = entry_op(
        "a = bf16[16] parameter(0)\n"
        'ROOT c = bf16[16] custom-call(a), custom_call_target="tpu_custom_call", '
        f'backend_config={{"custom_call_config":{{"body":"TUxJUg==",{said}}}}}'
    )
    costs = expand(op)
    assert total(costs) == Work(
        flops=(("bf16", 1000),), transcendentals=10, bytes_read=68, bytes_written=32
    )
    (assumed,) = assumptions(costs)
    assert assumed.startswith("custom call tpu_custom_call: work as its author states it, for")
    assert assumed.endswith("its kernel is not MLIR")


def test_a_kernel_that_nobody_knows_is_an_error() -> None:
    op = entry_op(
        "a = bf16[16] parameter(0)\n"
        'ROOT c = bf16[16] custom-call(a), custom_call_target="tpu_custom_call", '
        'backend_config={"custom_call_config":{"body":"TUxJUg=="}}'
    )
    with pytest.raises(CostError, match="'tpu_custom_call' is not known"):
        expand(op)


_TYPES = ": (tensor<8x4xbf16>, tensor<4x16xbf16>) -> tensor<8x16xbf16>"


def test_cublas_is_understood_in_stablehlo_too(work_of: WorkOf) -> None:
    numbers = r"\22lhs_contracting_dimensions\22:[1],\22rhs_contracting_dimensions\22:[0]"
    config = rf"{{\22gemm_backend_config\22:{{\22dot_dimension_numbers\22:{{{numbers}}}}}}}"
    work = work_of(
        f'"stablehlo.custom_call"(%0, %1) {{call_target_name = "__cublas$gemm", '
        f'backend_config = "{config}"}} {_TYPES}'
    )
    assert work.flops == (("bf16", 2 * 8 * 16 * 4),)


def test_a_configuration_of_another_kind_is_no_error_of_its_own(work_of: WorkOf) -> None:
    with pytest.raises(CostError, match="work of custom call 'mine' is not known"):
        work_of(
            '"stablehlo.custom_call"(%0, %1) {call_target_name = "mine", api_version = 4 : i32, '
            f"backend_config = {{debug = false}}}} {_TYPES}"
        )
