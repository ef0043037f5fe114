"""What is kept of a layer's forward pass, and what is computed again."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from functools import partial
from typing import Any

import jax

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
_KEPT_NAMES = frozenset({*_SAVED, "norm", "mlp_inner"})


def rematerialised(layer: Any, remat: str, *, is_loop: bool) -> Any:
    """Return a layer that keeps what ``remat`` says."""
    policies = jax.checkpoint_policies
    checkpoint = partial(jax.checkpoint, layer, prevent_cse=not is_loop)
    match remat:
        case "minimal_with_context":
            return checkpoint(policy=policies.save_only_these_names(*_SAVED))
        case "offload":
            policy = policies.save_and_offload_only_these_names(
                names_which_can_be_saved=(),
                names_which_can_be_offloaded=_SAVED,
                offload_src="device",
                offload_dst="pinned_host",
            )
            return checkpoint(policy=policy)
        case "full":
            return checkpoint(policy=policies.nothing_saveable)
        case "elementwise":
            return checkpoint(policy=_keeps_all_but_elementwise)
        case "alternate_products":
            return checkpoint(policy=policies.save_only_these_names(*_ALTERNATE))
        case _:
            return layer


def _keeps_all_but_elementwise(primitive: Any, *_: Any, **parameters: Any) -> bool:
    """Return whether what a primitive makes is kept for the backward pass."""
    if primitive.name == "name":
        return parameters["name"] in _KEPT_NAMES
    return primitive.name not in _CHEAP
