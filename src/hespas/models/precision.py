"""The types of stored weights, by part of the model.

Weights of few bits have scales, one for a group of them. Where a step is predicted, those of 8 bits
have one scale each, whatever groups they are published with: that changes 0.02 % of their bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from hespas.base.frozen import frozen

ModelPart = Literal["attention", "dense", "experts", "other"]
PARTS: tuple[ModelPart, ...] = ("attention", "dense", "experts", "other")
"""Mixers with or without attention; dense layers and shared experts; experts that tokens choose;
embeddings, head, norms, biases and routers."""


@frozen
class Format:
    """How weights are stored: bits, and a scale per group."""

    bits: int
    group: int = 0
    scale_bits: int = 0

    @property
    def bits_of_weight(self) -> float:
        """The bits of a weight, with its share of scale."""
        return self.bits + (self.scale_bits / self.group if self.group else 0)


FORMATS: Mapping[str, Format] = {
    "f32": Format(bits=32),
    "bf16": Format(bits=16),
    "f16": Format(bits=16),
    "f8": Format(bits=8, group=128 * 128, scale_bits=32),
    "mxfp4": Format(bits=4, group=32, scale_bits=8),
    "nvfp4": Format(bits=4, group=16, scale_bits=8),
    "int4": Format(bits=4, group=128, scale_bits=16),
    "int4_32": Format(bits=4, group=32, scale_bits=16),
}
"""Sources: DeepSeek-AI, DeepSeek-V3 Technical Report, 2024, section 3.3.2 (blocks of 128 x 128);
Open Compute Project, Microscaling Formats Specification 1.0, 2023, table 1; NVIDIA, cuDNN, "Block
Scaling" (NVFP4: 16 numbers with a scale of E4M3); J. Lin et al., AWQ, 2023, section 5.1 (128); the
config.json of Kimi-K2.5 (32)."""
SCALED = tuple(name for name, format_ in FORMATS.items() if format_.group)


@frozen
class Precision:
    """The formats of a model's parts and cache."""

    attention: str = "bf16"
    dense: str = "bf16"
    experts: str = "bf16"
    other: str = "bf16"
    cache: str = "bf16"

    def of(self, part: ModelPart | Literal["cache"]) -> Format:
        """Return the format of a part, or of the cache."""
        return FORMATS[getattr(self, part)]


UNQUANTISED = Precision()
