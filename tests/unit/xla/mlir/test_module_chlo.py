from __future__ import annotations

from hespas.xla.mlir.module import legalise_chlo, parse_mlir, printed

TEXT = """
func.func @main(%x: tensor<64x8xbf16>, %w: tensor<4x8x16xbf16>, %g: tensor<4xi32>)
    -> tensor<64x16xbf16> {
  %y = chlo.tan %x : tensor<64x8xbf16> -> tensor<64x8xbf16>
  %r = "chlo.ragged_dot"(%y, %w, %g) <{precision_config = [], ragged_dot_dimension_numbers =
    #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1],
    lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}>
    : (tensor<64x8xbf16>, tensor<4x8x16xbf16>, tensor<4xi32>) -> tensor<64x16xbf16>
  %c = stablehlo.custom_call @other(%r) : (tensor<64x16xbf16>) -> tensor<64x16xbf16>
  return %c : tensor<64x16xbf16>
}
"""


def test_a_product_of_groups_stays_and_all_else_is_replaced() -> None:
    module = parse_mlir(TEXT.encode(), name="p.mlir")
    before = printed(module.handle, with_locations=True)
    assert b"chlo.tan" in before
    legalise_chlo(module, TEXT.encode())
    after = printed(module.handle, with_locations=True).decode()
    assert "chlo.tan" not in after
    assert after.count("chlo.") == 2
    (line,) = [line for line in after.splitlines() if '"chlo.ragged_dot"' in line]
    same = next(line for line in before.decode().splitlines() if '"chlo.ragged_dot"' in line)
    assert line.partition("<{")[2] == same.partition("<{")[2]
    assert "stablehlo.custom_call @other" in after
