"""Convolutions from the tables of matrix products: a model of their own.

A library's convolution multiplies what a matrix product with the unfolded image would, but reads
the image once: its window finds neighbours in the cache. So it is taken to reach the same part
of its own roofline as that product reaches of its,

    time = table(product) x roofline(convolution) / roofline(product)

where both rooflines have the same arithmetic, and the bytes are those of image, kernel and result,
or of the three matrices. A product that is limited by its arithmetic is not scaled at all.
"""

from __future__ import annotations

from hespas.estimate.driver import Timing
from hespas.estimate.tables.gemm import GemmModel, Product
from hespas.hardware.device import Device
from hespas.program.types import ELEMENT_TYPES

CONVOLUTIONS = (
    "convolutions reach the part of their roofline that matrix products of their sizes were "
    "measured to reach of theirs"
)


def convolution_time(gemm: GemmModel, product: Product, bytes_moved: float) -> Timing:
    """Return how long a convolution takes that is ``product`` but moves ``bytes_moved``.

    >>> from hespas.estimate.tables.gemm import gemm_model
    >>> from hespas.hardware.presets import load_device
    >>> gemm = gemm_model(load_device("A100_SXM_40GB"))
    >>> unfolded = Product(type_name="f16", m=802816, n=64, k=576)
    >>> image_and_result = 2 * 2 * 802816 * 64
    >>> alone, convolved = gemm.price(unfolded), convolution_time(gemm, unfolded, image_and_result)
    >>> convolved.time_s < alone.time_s / 2
    True
    """
    timed = gemm.price(product)
    size = ELEMENT_TYPES[product.type_name].bits / 8 if product.type_name != "tf32" else 4.0
    whole_s = _roofline_s(gemm.device, product, product.elements * size)
    own_s = _roofline_s(gemm.device, product, bytes_moved)
    part = min(1.0, own_s / whole_s) if whole_s else 1.0
    return Timing(time_s=timed.time_s * part, notes=(*timed.notes, CONVOLUTIONS))


def _roofline_s(device: Device, product: Product, bytes_moved: float) -> float:
    rate = device.rate(product.type_name)
    return max(product.flops / rate, bytes_moved / device.memory_bandwidth_bytes_per_s)
