"""Convolutions from the tables of matrix products: a model of their own.

A library's convolution multiplies what a matrix product with the unfolded image would, but reads
the image once: its window finds neighbours in the cache. So it is taken to reach the same part
of its own roofline as that product reaches of its,

    time = table(product) x roofline(convolution) / roofline(product)

where both rooflines have the same arithmetic, and the bytes are those of image, kernel and result,
or of the three matrices. A product that is limited by its arithmetic is not scaled at all.
"""

from __future__ import annotations

from math import ceil, prod

from hespas.hardware.device import Device
from hespas.price.driver import Timing
from hespas.price.tables.gemm import GemmModel, Product
from hespas.program.types import PRODUCT_TYPES
from hespas.work.convolution import Convolution, Direction

_VECTOR_BITS = 128
CONVOLUTIONS = (
    "convolutions reach the part of their roofline that matrix products of their sizes were "
    "measured to reach of theirs"
)


def convolution_time(gemm: GemmModel, product: Product, bytes_moved: float) -> Timing:
    """Return how long a convolution takes that is ``product`` but moves ``bytes_moved``.

    >>> from hespas.price.tables.gemm import gemm_model
    >>> from hespas.hardware.presets import load_device
    >>> gemm = gemm_model(load_device("A100_SXM_40GB"))
    >>> unfolded = Product(type_name="f16", m=802816, n=64, k=576)
    >>> image_and_result = 2 * 2 * 802816 * 64
    >>> alone, convolved = gemm.price(unfolded), convolution_time(gemm, unfolded, image_and_result)
    >>> convolved.time_s < alone.time_s / 2
    True
    """
    timed = gemm.price(product)
    size = PRODUCT_TYPES[product.type_name].bits / 8
    whole_s = _roofline_s(gemm.device, product, product.elements * size)
    own_s = _roofline_s(gemm.device, product, bytes_moved)
    part = min(1.0, own_s / whole_s) if whole_s else 1.0
    return timed * part + Timing(time_s=0.0, notes=(CONVOLUTIONS,))


def _roofline_s(device: Device, product: Product, bytes_moved: float) -> float:
    rate = device.rate(product.type_name)
    return max(product.flops / rate, bytes_moved / device.memory_bandwidth_bytes_per_s)


def as_product(convolution: Convolution) -> Product:
    """Return the matrix product that a convolution is, its image unfolded.

    Forward: places of the result x output features x (window x input features). A backward one
    exchanges what is summed over. Groups are a batch. Products with padding count, for a tile of
    the product has places at the rim beside others; those with the holes of a dilated image
    don't. Kernels for tensor cores read 16 bytes of input features at a time, so that fewer
    count as so many, but in grouped convolutions, which have kernels of their own.
    """
    attrs = convolution.attrs
    groups = attrs.feature_group_count * attrs.batch_group_count
    made, image, kernel = convolution.result, convolution.image, convolution.kernel
    places = made.element_count // made.shape[attrs.output_feature]
    features_out = ceil(made.shape[attrs.output_feature] / groups)
    features_in = ceil(image.shape[attrs.input_feature] / groups)
    vector = 1 if groups > 1 else _vector_length(convolution.multiplied)
    padding = ceil(features_in / vector) * vector / features_in
    window = prod(kernel.shape[at] for at in attrs.kernel_spatial)
    match convolution.direction:
        case Direction.FORWARD:
            rows, columns = places, features_out
        case Direction.BACKWARD_INPUT:
            rows, columns = image.element_count // image.shape[attrs.input_feature], features_in
        case Direction.BACKWARD_FILTER:
            rows, columns = window * features_in, features_out
    multiplied = places * window * features_in * features_out
    if any(step > 1 for step in attrs.lhs_dilation):
        multiplied = convolution.products // groups
    summed = max(1, round(multiplied / (rows * columns)))
    match convolution.direction:
        case Direction.FORWARD:
            summed = round(summed * padding)
        case Direction.BACKWARD_INPUT:
            columns = round(columns * padding)
        case Direction.BACKWARD_FILTER:
            rows = round(rows * padding)
    return Product(type_name=convolution.multiplied, m=rows, n=columns, k=summed, batch=groups)


def _vector_length(type_name: str) -> int:
    """Return how many elements a tensor core's kernel reads at a time."""
    return max(1, _VECTOR_BITS // PRODUCT_TYPES[type_name].bits)
