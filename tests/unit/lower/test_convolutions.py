from __future__ import annotations

from hespas.frontend.load import load_source
from hespas.lower.convolutions import WRITTEN_IMAGES
from hespas.program.program import Op
from hespas.work.expand import Leaf, expand
from programs import main_function
from rewriting import rewritten

IMAGE, OUT = "tensor<2x8x8x16xf32>", "tensor<2x16x16x32xf32>"


def convolution(
    kernel: str,
    *,
    before: str = "",
    groups: int = 1,
    name: str = "%k",
    padding: str = "[2, 2], [2, 2]",
) -> list[Op]:
    """Return the operations of one that doubles an image of 8 x 8."""
    text = main_function(
        f"""{before}
    %r = stablehlo.convolution(%x, {name}) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {{pad = [{padding}], lhs_dilate = [2, 2]}}
      {{batch_group_count = 1 : i64, feature_group_count = {groups} : i64}}
      : ({IMAGE}, {kernel}) -> {OUT}
    return %r : {OUT}""",
        arguments=f"%x: {IMAGE}, %k: {kernel}",
        results=OUT,
    )
    return list(load_source(text.encode(), name="test.mlir").main.body.operations[:-1])


def flops(operations: list[Op]) -> int:
    leaves = [leaf for leaf in expand(operations) if isinstance(leaf, Leaf)]
    return sum(count for leaf in leaves for _, count in leaf.work.flops)


KERNEL = "tensor<4x4x16x32xf32>"


def test_a_transposed_convolution_multiplies_its_gaps() -> None:
    given = convolution(KERNEL)
    written = rewritten(given, WRITTEN_IMAGES)
    assert [op.kind for op in written] == ["pad", "convolution"]
    assert str(written[0].results[0].type) == "tensor<2x19x19x16xf32>"
    assert written[-1].results == given[-1].results
    # Each element of the result sums over all of the window: gaps and padding are multiplied.
    assert flops(written) == 2 * (2 * 16 * 16 * 32) * (4 * 4 * 16) > 4 * flops(given)


def test_a_gradient_of_one_with_strides_is_the_librarys() -> None:
    before = f"%y = stablehlo.reverse %k, dims = [0, 1] : {KERNEL}"
    given = convolution(KERNEL, before=before, name="%y")
    assert rewritten(given, WRITTEN_IMAGES) == given


def test_a_reversal_of_features_makes_no_gradient() -> None:
    before = f"%y = stablehlo.reverse %k, dims = [2] : {KERNEL}"
    given = convolution(KERNEL, before=before, name="%y")
    assert [op.kind for op in rewritten(given, WRITTEN_IMAGES)] == ["reverse", "pad", "convolution"]


def test_groups_of_features_have_no_kernel_for_gradients() -> None:
    grouped = "tensor<4x4x1x32xf32>"
    before = f"%y = stablehlo.reverse %k, dims = [0, 1] : {grouped}"
    given = convolution(grouped, before=before, name="%y", groups=16)
    assert [op.kind for op in rewritten(given, WRITTEN_IMAGES)] == ["reverse", "pad", "convolution"]


def strided(padding: str) -> list[Op]:
    """Return the operations of one that halves an image of 8 x 8 by 3 x 3."""
    made = "tensor<2x4x4x32xf32>"
    text = main_function(
        f"""%r = stablehlo.convolution(%x, %k)
      dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
      window = {{stride = [2, 2], pad = [{padding}]}}
      {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
      : ({IMAGE}, tensor<3x3x16x32xf32>) -> {made}
    return %r : {made}""",
        arguments=f"%x: {IMAGE}, %k: tensor<3x3x16x32xf32>",
        results=made,
    )
    return list(load_source(text.encode(), name="test.mlir").main.body.operations[:-1])


def test_an_image_that_is_padded_at_one_end_is_written_with_its_padding() -> None:
    written = rewritten(strided("[0, 1], [0, 1]"), WRITTEN_IMAGES)
    assert [op.kind for op in written] == ["pad", "convolution"]
    assert str(written[0].results[0].type) == "tensor<2x9x9x16xf32>"
    even = strided("[1, 1], [1, 0]")
    assert [op.kind for op in rewritten(even, WRITTEN_IMAGES)] == ["pad", "convolution"]


def test_an_image_that_is_padded_at_both_ends_is_taken_as_it_is() -> None:
    text = [op.kind for op in rewritten(strided("[1, 1], [1, 1]"), WRITTEN_IMAGES)]
    assert text == ["convolution"]


def test_the_gradient_of_an_image_that_was_padded_at_one_end_is_sliced() -> None:
    kernel = "tensor<3x3x16x32xf32>"
    before = f"%y = stablehlo.reverse %k, dims = [0, 1] : {kernel}"
    even = convolution(kernel, before=before, name="%y", padding="[1, 2], [1, 2]")
    assert rewritten(even, WRITTEN_IMAGES) == even
    uneven = convolution(kernel, before=before, name="%y", padding="[2, 1], [2, 1]")
    assert [op.kind for op in rewritten(uneven, WRITTEN_IMAGES)] == [
        "reverse",
        "convolution",
        "slice",
    ]


def test_a_kernel_that_is_larger_than_its_image_changes_places_with_it() -> None:
    large = "tensor<16x16x16x32xf32>"
    given = convolution(large, padding="[8, 8], [8, 8]")
    written = rewritten(given, WRITTEN_IMAGES)
    assert [op.kind for op in written] == ["reverse", "convolution"]
    assert str(written[-1].operands[1].type) == IMAGE
    assert flops(written) == flops(given)
