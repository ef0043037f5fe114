"""Kernels of libraries, as frameworks without a compiler call them, in the place of XLA's.

Transformer Engine and Megatron-LM have kernels of their own for what stands between products,
attention and collectives: norms forward and backward with the sums of their weights' gradients,
biases with activations, rotary embeddings, and rounding to 8 bits with the transpose beside it.
Here such a stretch of operations is one kernel, which reads each array once, writes each once and
streams. Products, attention and collectives take arrays in the order in which they lie: Megatron-LM
keeps tokens in the order that collectives divide, and its kernels take strides.

Products of 8 bits take operands whose summed dimension is the fastest, on parts before Blackwell.
Source: NVIDIA, cuBLAS, section "cublasLtMatmul", FP8: the TN format on Ada and Hopper. Gradients of
weights sum over tokens, so that both of their operands are transposed. Weights are there in both
orders, as Transformer Engine keeps them for a step.
"""

from __future__ import annotations

from dataclasses import dataclass

from hespas.hardware.device import Device

WRITER = "library"
"""The `FusionAttrs.backend_kind` of such a kernel."""

ASSUMPTION = (
    "kernels are those of libraries, not a compiler's: between products, attention and "
    "collectives, one that reads and writes every array once"
)
_OF_BLACKWELL = "f4E2M1FN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Libraries:
    """What decides the kernels of libraries on a part.

    ``turns_8_bits``: products of 8 bits need their operands with the summed dimension fastest.
    """

    turns_8_bits: bool = True


def libraries_of(device: Device | None) -> Libraries:
    """Return what decides the kernels on a device: parts with products of 4 bits are Blackwell's.

    >>> from hespas.hardware.presets import load_device
    >>> [libraries_of(load_device(name)).turns_8_bits for name in ("H100_80GB", "B200_180GB")]
    [True, False]
    """
    return Libraries(turns_8_bits=device is None or not device.names(_OF_BLACKWELL))
