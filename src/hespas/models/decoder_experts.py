"""Read a decoder's experts, latent vectors and states.

Source: the configuration and modelling files of transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from hespas.models.architecture import Delta, Latent, Routing, RoutingStyle, Sizes, StateSpace
from hespas.models.decoder_parts import Part, flag, number, read_facts, size
from hespas.models.fields import Fields

_COUNT = size("num_local_experts", "num_experts")
_CHOSEN = size("num_experts_per_tok", "experts_per_token")
_WIDTH = size("moe_intermediate_size")
_size_or_0 = partial(size, default=0, least=0)


def experts(*, ignore: Sequence[str] = (), style: Any = None, **facts: Any) -> Part:
    """Return the reader of a family's experts.

    ``facts`` and ``style`` are fields of `Routing` and `RoutingStyle`, or readers of these.
    Experts are as wide as dense layers unless ``expert_mlp`` is one of them. ``ignore`` are fields
    that change no cost.
    """

    def read(fields: Fields, sizes: Sizes) -> Routing:
        fields.ignore(*ignore)
        own: dict[str, Any] = {"experts": _COUNT, "chosen": _CHOSEN, "expert_mlp": sizes.mlp}
        return Routing(
            **read_facts(fields, own | facts),
            style=RoutingStyle(**read_facts(fields, style or {})),
        )

    return read


def deepseek_experts(gate: Literal["softmax", "sigmoid"] = "sigmoid", **style: Any) -> Part:
    """Return the reader of experts as DeepSeek's models have them.

    A token's choice of groups first changes which experts it takes, and not how many.
    """
    is_sigmoid = gate == "sigmoid"
    own = {
        "corrected": is_sigmoid,
        "normalised": flag("norm_topk_prob", default=is_sigmoid),
        "scale": number("routed_scaling_factor"),
    }
    read = experts(
        ignore=("topk_method", "enable_moe_fp32_combine"),
        experts=size("n_routed_experts", "num_local_experts", "num_experts"),
        expert_mlp=_WIDTH,
        shared_experts=_size_or_0("n_shared_experts", "num_shared_experts"),
        gate=gate,
        style=own | style,
    )

    def checked(fields: Fields, sizes: Sizes) -> Routing:
        routing: Routing = read(fields, sizes)
        _check_groups(fields, routing)
        return routing

    return checked


def _check_groups(fields: Fields, routing: Routing) -> None:
    """Raise `ConfigError` for groups that have too few experts."""
    groups = fields.size("n_group", default=1)
    chosen = fields.size("topk_group", default=groups)
    among = chosen * routing.experts // groups
    fields.refuse(
        routing.experts % groups or chosen > groups or routing.chosen > among,
        f"{routing.chosen} of {routing.experts} experts are chosen in {chosen} of {groups} "
        "groups (topk_group of n_group), which cannot be",
        "give groups that divide the experts, and as many chosen groups as hold the chosen experts",
    )


def where_given(names: Sequence[str], part: Part) -> Part:
    """Return a reader of a part that some files lack."""
    return lambda fields, sizes: part(fields, sizes) if fields.given(*names) else None


_QWEN_SHARED = _size_or_0("shared_expert_intermediate_size")


def _has_shared(fields: Fields) -> bool:
    return _QWEN_SHARED(fields) > 0


QWEN_EXPERTS = experts(
    experts=size("num_experts", "num_local_experts"),
    expert_mlp=_WIDTH,
    shared_mlp=_QWEN_SHARED,
    style={
        "normalised": flag("norm_topk_prob"),
        "shared_gate": _has_shared,
    },
)
"""A gate, the row's product with a vector, multiplies the shared experts."""
OLMO_EXPERTS = experts(
    experts=size("num_experts", default=64),
    chosen=size("num_experts_per_tok", default=8),
    style={"normalised": flag("norm_topk_prob")},
)
ERNIE_EXPERTS = experts(
    experts=size("moe_num_experts"),
    chosen=size("moe_k"),
    expert_mlp=_WIDTH,
    shared_experts=_size_or_0("moe_num_shared_experts"),
    style={"corrected": True},
)
GRANITE_EXPERTS = experts(shared_mlp=_size_or_0("shared_intermediate_size"))
MINIMAX_EXPERTS = experts(
    gate="sigmoid", style={"corrected": flag("use_routing_bias", default=True)}
)
LLAMA4_EXPERTS = experts(
    shared_experts=1, gate="sigmoid", style={"normalised": False, "scales_inputs": True}
)
GPT_OSS_EXPERTS = experts(style={"logit_biases": True, "biases": True})


def bailing_experts(fields: Fields, sizes: Sizes) -> Routing:
    """Return the experts of Bailing, whose scores say which."""
    score = fields.text("score_function", default="softmax")
    fields.refuse(score not in {"sigmoid", "softmax"}, f"score_function is {score!r}")
    read = deepseek_experts(
        "sigmoid" if score == "sigmoid" else "softmax",
        corrected=flag("moe_router_enable_expert_bias"),
        normalised=flag("norm_topk_prob", default=True),
    )
    routing: Routing = read(fields, sizes)
    shared = fields.size("moe_shared_expert_intermediate_size", default=0, least=0)
    return replace(routing, shared_mlp=shared * routing.shared_experts)


def latent_of(fields: Fields, _: Sizes, *, indexed: bool = False) -> Latent:
    """Return the latent vectors of DeepSeek's keys and values."""
    embedding, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    return Latent(
        query_rank=fields.size("q_lora_rank", default=0, least=0),
        kv_rank=fields.size("kv_lora_rank"),
        rope_size=fields.size("qk_rope_head_dim"),
        value_size=fields.size("v_head_dim", default=embedding // heads),
        indexed_tokens=fields.size("index_topk") if indexed else 0,
        index_heads=fields.size("index_n_heads") if indexed else 0,
        index_size=fields.size("index_head_dim") if indexed else 0,
    )


def mamba_of(fields: Fields, sizes: Sizes) -> StateSpace:
    """Return Mamba-2's states, by the names of Granite and Bamba."""
    heads = fields.size("mamba_n_heads", default=128)
    inner = fields.size("mamba_expand", default=2) * sizes.embedding
    head = inner // heads
    if fields.given("mamba_d_head") not in (None, "auto"):
        head = fields.size("mamba_d_head")
    return states_of(fields, heads, head, state=256, groups=1, chunk=256)


def states_of(
    fields: Fields, heads: int, head_size: int, *, state: int = 128, groups: int = 8, chunk: int
) -> StateSpace:
    """Return Mamba-2's states; ``state``, ``groups`` and ``chunk`` are defaults."""
    return StateSpace(
        state_heads=heads,
        state_head_size=head_size,
        state_size=fields.size("state_size", "ssm_state_size", "mamba_d_state", default=state),
        state_groups=fields.size("n_groups", "mamba_n_groups", default=groups),
        convolution=fields.size("conv_kernel", "mamba_d_conv", default=4),
        chunk=fields.size("chunk_size", "mamba_chunk_size", default=chunk),
        convolution_biases=fields.flag("use_conv_bias", "mamba_conv_bias", default=True),
    )


def qwen_delta(fields: Fields, _: Sizes) -> Delta:
    """Return the gated delta rules of Qwen's models."""
    return Delta(
        delta_key_heads=fields.size("linear_num_key_heads"),
        delta_heads=fields.size("linear_num_value_heads"),
        delta_key_size=fields.size("linear_key_head_dim"),
        delta_value_size=fields.size("linear_value_head_dim"),
        convolution=fields.size("linear_conv_kernel_dim", default=4),
    )
