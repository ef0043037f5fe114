"""Keep results of a forward pass, or compute them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from hespas.models.model import MODULES

_SAVED = (
    "query_projection",
    "key_projection",
    "value_projection",
    "context",
    "output_projection",
    "mlp_gate",
    "mlp_up",
    "mlp_down",
)
_ALTERNATE = ("query_projection", "value_projection", "context", "mlp_gate", "mlp_down")
"""What torchtitan's selective checkpointing keeps: attention and every second product, in order.

Source: pytorch/torchtitan, ``_apply_ac_to_transformer_block``: the products of a layer are those of
queries, keys, values, output, gate, up and down."""

_CHEAP = frozenset(
    {
        *("add", "add_any", "and", "broadcast_in_dim", "clamp", "concatenate"),
        *("convert_element_type", "copy", "cos", "div", "eq", "erf", "exp", "expand_dims"),
        *("ge", "gt", "integer_pow", "iota", "le", "log", "logistic", "lt", "max", "min"),
        *("mul", "ne", "neg", "not", "or", "pow", "reduce_max", "reduce_sum", "reshape"),
        *("rsqrt", "select_n", "sharding_constraint", "sign", "sin", "slice", "sqrt", "square"),
        *("squeeze", "stop_gradient", "sub", "tanh", "transpose"),
    }
)
"""Primitives that kernels of libraries compute again as they go over what they read.

PyTorch and Transformer Engine keep what goes into products, attention and norms."""
_KEPT_NAMES = frozenset({*_SAVED, "norm", "mlp_inner", "experts_inner"})
_OF_MODULE = {
    "layernorm": ("norm",),
    "moe_act": ("experts_inner",),
    "mla_up_proj": ("query_projection", "key_projection", "value_projection"),
}
"""What a module makes that Megatron-LM discards and computes again for the backward pass.

Modules that it runs again whole do so where they stand (`run_again`)."""


def rematerialised(layer: Any, remat: str, *, is_loop: bool) -> Any:
    """Return a layer that keeps what ``remat`` says."""
    policies = jax.checkpoint_policies
    keeping: dict[str, Any] = {
        "minimal_with_context": policies.save_only_these_names(*_SAVED),
        "offload": policies.save_and_offload_only_these_names(
            names_which_can_be_saved=(),
            names_which_can_be_offloaded=_SAVED,
            offload_src="device",
            offload_dst="pinned_host",
        ),
        "full": policies.nothing_saveable,
        "elementwise": _keeps_without(frozenset()),
        "alternate_products": policies.save_only_these_names(*_ALTERNATE),
    }
    if remat == "whole":
        return run_again(layer)
    modules = frozenset(remat.split("+"))
    if modules.issubset(MODULES):
        keeping[remat] = _keeps_without(modules)
    if remat not in keeping:
        return layer
    return jax.checkpoint(layer, prevent_cse=not is_loop, policy=keeping[remat])


def run_again(layer: Any) -> Any:
    """Return a layer that the backward pass runs again.

    Nothing reads what that makes. Source: pytorch/pytorch, torch/utils/checkpoint.py before 2.1,
    and its reentrant form since; NVIDIA/Megatron-LM, ``CheckpointFunction``.
    """

    @jax.custom_vjp
    def run(*operands: Any) -> Any:
        return layer(*operands)

    def forward(*operands: Any) -> tuple[Any, Any]:
        return layer(*operands), operands

    def backward(operands: Any, gradient: Any) -> Any:
        output, gradients = jax.vjp(layer, *jax.lax.optimization_barrier(operands))
        _, gradient = jax.lax.optimization_barrier((output, gradient))
        return gradients(gradient)

    run.defvjp(forward, backward)
    return run


def _keeps_without(modules: frozenset[str]) -> Callable[..., bool]:
    """Return a policy that drops cheap results and modules'.

    The activation of experts may run in several kernels, of whose results none is kept either.
    """
    kept_names = _KEPT_NAMES.difference(*(_OF_MODULE.get(module, ()) for module in modules))
    discarded = _CHEAP | ({"optimization_barrier"} if "moe_act" in modules else frozenset[str]())

    def keeps(primitive: Any, *operands: Any, **parameters: Any) -> bool:
        if primitive.name == "name":
            return parameters["name"] in kept_names
        if "mla_up_proj" in modules and _makes_heads(primitive, operands, parameters):
            return False
        return primitive.name not in discarded

    return keeps


_ROWS_BY_WEIGHT = (((2,), (0,)), ((), ()))
"""What (batch, sequence, rank) and (rank, heads, size) are multiplied along."""


def _makes_heads(primitive: Any, operands: tuple[Any, ...], parameters: Any) -> bool:
    """Return whether an operation makes heads of latent vectors.

    No other product of such a layer has a weight of three dimensions and sums over the first.
    """
    if primitive.name != "dot_general" or parameters["dimension_numbers"] != _ROWS_BY_WEIGHT:
        return False
    return operands[1].ndim == len(("rank", "heads", "size"))
