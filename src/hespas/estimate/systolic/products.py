"""Matrix products and convolutions of a program, cut into plain products for one array."""

from __future__ import annotations

from math import prod

from hespas.cost.rules.sizes import operand, result
from hespas.estimate.systolic.array import Product
from hespas.program.attrs import ConvolutionAttrs, DotAttrs
from hespas.program.program import Op


def products(op: Op) -> dict[Product, int]:
    """Return the products that an operation is, and how many there are of each.

    A batched product is one product for each element of the batch; a grouped convolution one for
    each group, over the patches of its input (im2col). Any other operation has none.
    """
    match op.attrs:
        case DotAttrs():
            return _of_dot(op, op.attrs)
        case ConvolutionAttrs():
            return _of_convolution(op, op.attrs)
        case _:
            return {}


def _of_dot(op: Op, attrs: DotAttrs) -> dict[Product, int]:
    lhs, rhs = operand(op, 0).shape, operand(op, 1).shape
    batch = prod(lhs[at] for at in attrs.lhs_batching)
    k = prod(lhs[at] for at in attrs.lhs_contracting)
    lhs_taken = {*attrs.lhs_batching, *attrs.lhs_contracting}
    rhs_taken = {*attrs.rhs_batching, *attrs.rhs_contracting}
    m = prod(size for at, size in enumerate(lhs) if at not in lhs_taken)
    n = prod(size for at, size in enumerate(rhs) if at not in rhs_taken)
    return _counted(Product(m=m, n=n, k=k), batch)


def _of_convolution(op: Op, attrs: ConvolutionAttrs) -> dict[Product, int]:
    kernel, output = operand(op, 1).shape, result(op).shape
    groups = attrs.feature_group_count * attrs.batch_group_count
    places = output[attrs.output_batch] * prod(output[at] for at in attrs.output_spatial)
    window = prod(kernel[at] for at in attrs.kernel_spatial)
    product = Product(
        m=places,
        n=output[attrs.output_feature] // groups,
        k=kernel[attrs.kernel_input_feature] * window,
    )
    return _counted(product, groups)


def _counted(product: Product, count: int) -> dict[Product, int]:
    return {product: count} if product.multiplications and count else {}
