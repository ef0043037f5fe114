"""What torch's dispatcher chooses on NVIDIA GPUs, unlike builds without CUDA.

A CPU build knows neither fused attention nor cuDNN's convolutions, and decomposes operations whose
CUDA kernels it lacks. The rules are those of ``ATen/native/transformers/cuda/sdp_utils.cpp`` and
``ATen/native/Convolution.cpp``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

_aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_MOST_HEAD = 256
_MOST_OTHER_HEAD = 128
"""The longest head of queries where that of values is shorter or longer, but for latent ones."""
_LATENT_HEADS = (192, 128)
"""Heads of queries and of values that cuDNN takes for multi-head latent attention."""
_ALIGNED_HEAD = 8
_KINDS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
"""By `torch.nn.attention.SDPBackend`."""
_DEFAULT_ORDER = torch._C._get_sdp_priority_order()
CUDNN_SINCE = (2, 6)
"""The first torch whose users have cuDNN's attention preferred on Hopper and later."""
_WITHOUT_CPU_KERNEL = ("silu_backward", "mish_backward", "_fused_rms_norm")
"""Operations that have a kernel for CUDA and none for CPUs: a CPU build decomposes them."""


def install_library_choices(*, torch_version: tuple[int, ...], capability: tuple[int, int]) -> Any:
    """Make torch choose the kernels of a CUDA build on that GPU.

    Returns what must be kept: torch forgets the choices with it.
    """
    library = torch.library.Library("aten", "IMPL")
    # TORCH_CUDNN_SDPA: compute capabilities 9.0 and 10.0.
    prefers_cudnn = torch_version >= CUDNN_SINCE and capability in {(9, 0), (10, 0)}

    def attention(  # noqa: PLR0917 - torch's signature
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        key, value = _as_many_heads(query, key, value, is_asked=enable_gqa)
        mask = _additive(attn_mask, query)
        kind = _kind(query, key, value, mask, prefers_cudnn=prefers_cudnn)
        options = {"scale": scale}
        match kind:
            case "cudnn":
                return _aten._scaled_dot_product_cudnn_attention(
                    query, key, value, mask, query.requires_grad, dropout_p, is_causal, **options
                )[0]
            case "flash":
                return _flash(query, key, value, dropout_p, is_causal=is_causal, scale=scale)
            case "efficient":
                if mask is not None:
                    mask = mask.expand(*query.shape[:-1], key.shape[-2])
                return _aten._scaled_dot_product_efficient_attention(
                    query, key, value, mask, query.requires_grad, dropout_p, is_causal, **options
                )[0]
            case _:
                return _aten._scaled_dot_product_attention_math(
                    query, key, value, mask, dropout_p, is_causal, **options
                )[0]

    for key_name in ("AutogradCUDA", "CUDA"):
        library.impl("scaled_dot_product_attention", attention, key_name)
    if not torch.backends.cuda.is_built():
        for name in _WITHOUT_CPU_KERNEL:
            library.impl(name, _only_fake, "CUDA")
    for name, shaped in _OF_CUDA_ALONE.items():
        library.impl(name, shaped, "Meta")
    _choose_convolutions()
    return library


def _statistics(operand: Any, *_others: Any) -> Any:
    """Return a mean and a deviation a channel, as of `torch.batch_norm_stats`."""
    is_half = operand.dtype in _HALF
    dtype = torch.float32 if is_half else operand.dtype
    mean = torch.empty(operand.shape[1], dtype=dtype, device=operand.device)
    return mean, torch.empty_like(mean)


def _gathered(_operand: Any, mean: Any, *_others: Any) -> Any:
    """Return what ranks' statistics are together."""
    return mean.new_empty(mean.shape[1:]), mean.new_empty(mean.shape[1:])


def _normalised(operand: Any, *_others: Any) -> Any:
    return torch.empty_like(operand)


def _summed(
    _gradient: Any,
    _operand: Any,
    mean: Any,
    _deviation: Any,
    weight: Any,
    *needed: bool,
) -> Any:
    """Return the sums of gradients a channel, of the ones that are needed."""
    sums = (mean, mean, weight, weight)
    is_needed = (needed[0], needed[0], *needed[1:])
    return tuple(
        torch.empty_like(mean if each is None else each) if is_made else None
        for each, is_made in zip(sums, is_needed, strict=True)
    )


def _gated(_of_input: Any, _of_hidden: Any, hidden: Any, *_biases: Any) -> Any:
    """Return the next state and what the backward pass needs of a gated recurrent unit."""
    rows, width = hidden.shape
    return torch.empty_like(hidden), hidden.new_empty(rows, 5 * width)


def _gated_gradients(gradient: Any, _workspace: Any, has_bias: bool) -> Any:
    """Return the gradients of gates, state and biases of a gated recurrent unit."""
    rows, width = gradient.shape
    of_gates = [gradient.new_empty(rows, 3 * width) for _ in range(2)]
    of_biases = [gradient.new_empty(3 * width) if has_bias else None for _ in range(2)]
    return (*of_gates, torch.empty_like(gradient), *of_biases)


_OF_CUDA_ALONE = {
    "batch_norm_stats": _statistics,
    "batch_norm_gather_stats_with_counts": _gathered,
    "batch_norm_elemt": _normalised,
    "batch_norm_backward_reduce": _summed,
    "batch_norm_backward_elemt": _normalised,
    "_thnn_fused_gru_cell": _gated,
    "_thnn_fused_gru_cell_backward": _gated_gradients,
}
"""Shapes of operations of `torch.nn.SyncBatchNorm` and `GRU`, which torch has for CUDA alone."""


def _kind(query: Any, key: Any, value: Any, mask: Any, *, prefers_cudnn: bool) -> str:
    """Return the first allowed attention kernel, in torch's order, that accepts the operands."""
    enabled = torch.backends.cuda
    head, value_head = query.shape[-1], value.shape[-1]
    is_half = query.dtype in _HALF and query.dim() == 4 and key.shape[-1] == head <= _MOST_HEAD
    is_filled = 0 not in (*query.shape, *key.shape)
    is_square = value_head == head
    has_learnt_bias = mask is not None and mask.requires_grad
    is_aligned = head % _ALIGNED_HEAD == 0 and value_head % _ALIGNED_HEAD == 0
    has_cudnns_heads = is_square or (head, value_head) == _LATENT_HEADS or head <= _MOST_OTHER_HEAD
    accepts = {
        "cudnn": enabled.cudnn_sdp_enabled()
        and (is_half and is_filled and is_aligned)
        and (has_cudnns_heads and not has_learnt_bias),
        "flash": enabled.flash_sdp_enabled()
        and (is_half and is_filled and is_square and mask is None),
        "efficient": enabled.mem_efficient_sdp_enabled() and query.dim() == 4 and is_filled,
        "math": enabled.math_sdp_enabled(),
    }
    order = torch._C._get_sdp_priority_order()
    kinds = [_KINDS[each] for each in order if each in _KINDS]
    if prefers_cudnn and order == _DEFAULT_ORDER:
        kinds.insert(0, "cudnn")
    return next((kind for kind in kinds if accepts[kind]), "math")


def _as_many_heads(query: Any, key: Any, value: Any, *, is_asked: bool) -> tuple[Any, Any]:
    """Return key and value, repeated for kernels that want the queries' heads."""
    if not is_asked or query.shape[-3] == key.shape[-3]:
        return key, value
    if query.dtype in _HALF and query.shape[-1] <= _MOST_HEAD:
        return key, value
    count = query.shape[-3] // key.shape[-3]
    return key.repeat_interleave(count, -3), value.repeat_interleave(count, -3)


def _additive(mask: Any, query: Any) -> Any:
    """Return a mask that is added to the scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    zero = torch.zeros((), dtype=query.dtype, device=query.device)
    return torch.where(mask, zero, float("-inf"))


def _flash(
    query: Any, key: Any, value: Any, dropout: float, *, is_causal: bool, scale: float | None
) -> Any:
    """Call FlashAttention, with heads padded to a multiple of 8."""
    head = query.shape[-1]
    missing = -head % _ALIGNED_HEAD
    if missing:
        query, key, value = (functional.pad(each, (0, missing)) for each in (query, key, value))
    of_head = head**-0.5 if scale is None else scale
    output = _aten._scaled_dot_product_flash_attention(
        query, key, value, dropout, is_causal, False, scale=of_head
    )[0]
    return output[..., :head] if missing else output


def _only_fake(*_arguments: Any, **_options: Any) -> Any:
    raise RuntimeError("this kernel of CUDA is not in this build of torch")


def _choose_convolutions() -> None:
    """Let convolutions be cuDNN's, which keep channels last."""
    cudnn = torch._C._ConvBackend.Cudnn
    original_backend = torch._C._select_conv_backend
    original_format = torch._C._conv_determine_backend_memory_format

    def backend(operand: Any, *arguments: Any, **options: Any) -> Any:
        if operand.device.type == "cuda":
            return cudnn
        return original_backend(operand, *arguments, **options)

    def memory_format(operand: Any, weight: Any, chosen: Any) -> Any:
        if chosen != cudnn or operand.dim() not in {4, 5}:
            return original_format(operand, weight, chosen)
        last = torch.channels_last if operand.dim() == 4 else torch.channels_last_3d
        is_last = any(
            each.is_contiguous(memory_format=last) and not each.is_contiguous()
            for each in (operand, weight)
        )
        return last if is_last else torch.contiguous_format

    torch._C._select_conv_backend = backend
    torch._C._conv_determine_backend_memory_format = memory_format
