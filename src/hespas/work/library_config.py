"""Decode XLA's JSON configurations of library calls and fusions."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeVar

import msgspec

from hespas.errors import CostError
from hespas.program.attrs import CustomCallAttrs, DotAttrs, FusionAttrs, dot_algorithm_text
from hespas.program.program import Op
from hespas.xla.mlir.text import unescaped

S = TypeVar("S", bound=msgspec.Struct)
Numbers = tuple[int, ...]


class _DotNumbers(msgspec.Struct, frozen=True):
    lhs_contracting_dimensions: Numbers = ()
    rhs_contracting_dimensions: Numbers = ()
    lhs_batch_dimensions: Numbers = ()
    rhs_batch_dimensions: Numbers = ()


class _Precision(msgspec.Struct, frozen=True):
    operand_precision: tuple[str, ...] = ()
    algorithm: str = ""


class GemmConfig(msgspec.Struct, frozen=True):
    """cuBLAS's configuration; ``beta`` scales the addend, 0 for none."""

    dot_dimension_numbers: _DotNumbers
    precision_config: _Precision = _Precision()
    epilogue: str = "DEFAULT"
    beta: float = 0.0

    @property
    def dot(self) -> DotAttrs:
        """The dimensions and the precision as a dot's attributes."""
        numbers, precision = self.dot_dimension_numbers, self.precision_config
        return DotAttrs(
            lhs_batching=numbers.lhs_batch_dimensions,
            rhs_batching=numbers.rhs_batch_dimensions,
            lhs_contracting=numbers.lhs_contracting_dimensions,
            rhs_contracting=numbers.rhs_contracting_dimensions,
            precision=precision.operand_precision,
            algorithm=dot_algorithm_text(precision.algorithm),
        )


class ConvolutionConfig(msgspec.Struct, frozen=True):
    """cuDNN's configuration of a convolution."""

    activation_mode: str = "kNone"
    side_input_scale: float = 0.0


class _Intermediate(msgspec.Struct, frozen=True):
    dimensions: Numbers


class AttentionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """cuDNN's configuration of fused attention; unknown fields are errors.

    The intermediate tensor holds one score for each batch, head, query and key. The fields from
    ``algorithm`` on choose the algorithm or scale numbers.
    """

    intermediate_tensor_shape: _Intermediate
    mask_type: str = "NO_MASK"
    dropout_rate: float = 0.0
    sliding_window_length: int = 0
    bmm2_dot_dimension_numbers: _DotNumbers | None = None
    bmm1_grad_gemm2_dot_dimension_numbers: _DotNumbers | None = None
    max_seg_per_batch: int = 1
    is_paged_attention: bool = False
    bmm1_dot_dimension_numbers: _DotNumbers | None = None
    bmm1_grad_gemm1_dot_dimension_numbers: _DotNumbers | None = None
    bmm2_grad_gemm1_dot_dimension_numbers: _DotNumbers | None = None
    bmm2_grad_gemm2_dot_dimension_numbers: _DotNumbers | None = None
    algorithm: object = None
    fmha_scale: float = 1.0
    seed: int = 0
    is_flash_attention: bool = True
    is_causal_mask: bool = False
    force_deterministic: bool = False

    @property
    def head_axis(self) -> int:
        """The dimension of keys and values that counts the heads."""
        numbers = self.bmm2_dot_dimension_numbers or self.bmm1_grad_gemm2_dot_dimension_numbers
        batched = () if numbers is None else numbers.rhs_batch_dimensions
        return batched[1] if len(batched) == 2 else 1


class FlashConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The mask and window of a FlashAttention call.

    ``window`` counts keys, 0 for all; ``attended`` is the share of all pairs that another mask
    leaves. ``kernel`` names the implementation if the call requires one, as in
    ``flash_attention_2``.
    """

    is_causal: bool
    window: int = 0
    attended: float = 1.0
    kernel: str = ""


class _Tile(msgspec.Struct, frozen=True):
    sizes: Numbers = ()


class BlockConfig(msgspec.Struct, frozen=True):
    """The tiles of a Triton fusion's results."""

    output_tiles: tuple[_Tile, ...] = ()
    num_warps: int = 0


class _FusionConfig(msgspec.Struct, frozen=True):
    kind: str = ""
    block_level_fusion_config: BlockConfig = BlockConfig()


class AuthorCost(msgspec.Struct, frozen=True):
    """The work that a kernel's author states (Pallas's ``CostEstimate``)."""

    flops: int = 0
    transcendentals: int = 0
    bytes_accessed: int = 0


class MosaicConfig(msgspec.Struct, frozen=True):
    """A TPU kernel: MLIR in base64, and stated work."""

    body: str = ""
    cost_estimate: AuthorCost | None = None


class _Configs(msgspec.Struct, frozen=True):
    custom_call_config: MosaicConfig | None = None
    gemm_backend_config: GemmConfig | None = None
    cudnn_conv_backend_config: ConvolutionConfig | None = None
    cudnn_fmha_backend_config: AttentionConfig | None = None
    flash_attention_config: FlashConfig | None = None
    fusion_backend_config: _FusionConfig | None = None


@lru_cache(maxsize=4096)
def _configs(text: str) -> _Configs:
    json = unescaped(text[1:-1]).decode(errors="replace") if text.startswith('"') else text
    # Protobuf writes 64-bit numbers as strings.
    return msgspec.json.decode(json, type=_Configs, strict=False) if json else _Configs()


def _configs_of(op: Op) -> _Configs:
    if not isinstance(op.attrs, CustomCallAttrs | FusionAttrs):
        raise CostError("it has no configuration", location=op.location)
    try:
        return _configs(op.attrs.backend_config)
    except msgspec.DecodeError as error:
        raise CostError(
            f"its backend_config cannot be read: {error}", location=op.location
        ) from error


def gemm_config(op: Op) -> GemmConfig:
    """Return cuBLAS's configuration; `CostError` if it is missing."""
    return _present(op, _configs_of(op).gemm_backend_config, "gemm_backend_config")


def convolution_config(op: Op) -> ConvolutionConfig:
    """Return cuDNN's configuration of a convolution, or the defaults."""
    return _configs_of(op).cudnn_conv_backend_config or ConvolutionConfig()


def attention_config(op: Op) -> AttentionConfig:
    """Return cuDNN's configuration of attention; `CostError` if missing."""
    return _present(op, _configs_of(op).cudnn_fmha_backend_config, "cudnn_fmha_backend_config")


def flash_config(op: Op) -> FlashConfig:
    """Return FlashAttention's configuration; `CostError` if it is missing."""
    return _present(op, _configs_of(op).flash_attention_config, "flash_attention_config")


def author_cost(op: Op) -> AuthorCost | None:
    """Return the work that a kernel's author states, or None."""
    attrs = op.attrs
    if not isinstance(attrs, CustomCallAttrs):
        return None
    try:
        config = _configs(attrs.backend_config).custom_call_config
    except msgspec.DecodeError:
        # A custom kernel's configuration is its author's choice and need not be JSON.
        return None
    return None if config is None else config.cost_estimate


def mosaic_config(op: Op) -> MosaicConfig:
    """Return the configuration of a TPU kernel; `CostError` if missing."""
    return _present(op, _configs_of(op).custom_call_config, "custom_call_config")


def block_config(op: Op) -> BlockConfig:
    """Return a fusion's result tiles, or an empty configuration."""
    fusion = _configs_of(op).fusion_backend_config
    return BlockConfig() if fusion is None else fusion.block_level_fusion_config


def _present(op: Op, config: S | None, name: str) -> S:
    if config is None:
        raise CostError(f"its backend_config holds no {name}", location=op.location)
    return config
