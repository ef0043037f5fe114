"""Readers of Gemma 2, 3 and 4: windows, norms before and after.

Source: the configuration and modelling files of transformers 5.24, by ``model_type``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hespas.errors import ConfigError
from hespas.models.architecture import LayerKind, Routing, RoutingStyle, Sizes, Style
from hespas.models.decoder_parts import Description, rope_of, sizes_of, style_of, windowed
from hespas.models.fields import Fields


def _gemma(fields: Fields, sizes: Sizes, **facts: Any) -> Style:
    return style_of(
        fields,
        tied=fields.flag("tie_word_embeddings", default=True),
        norms_after=True,
        embedding_scale=sizes.embedding**0.5,
        **facts,
    )


def _capped(fields: Fields, sizes: Sizes, *, norms_of_heads: bool) -> Style:
    return _gemma(
        fields,
        sizes,
        activation="gelu",
        norms_of_heads=norms_of_heads,
        score_cap=fields.number("attn_logit_softcapping", default=0.0),
        logit_cap=fields.number("final_logit_softcapping", default=0.0),
        query_scale=fields.number("query_pre_attn_scalar", default=sizes.head_size) ** -0.5,
    )


def _gemma2(fields: Fields) -> Description:
    sizes = sizes_of(fields)
    style = _capped(fields, sizes, norms_of_heads=False)
    return Description(sizes=sizes, style=style, kinds=windowed(fields, sizes, every=2))


def _gemma3(fields: Fields) -> Description:
    if fields.given("rope_theta") is None and fields.given("rope_parameters") is None:
        fields = fields.with_values(rope_theta=1000000.0)
    fields.one_of("use_bidirectional_attention", (False,))
    sizes = sizes_of(fields)
    style = _capped(fields, sizes, norms_of_heads=True)
    sizes = replace(sizes, rope_theta=rope_of(fields, "full_attention").theta)
    every = fields.size("sliding_window_pattern", default=6)
    near = 10000
    if fields.given("rope_parameters") is not None:
        near = rope_of(fields, "sliding_attention").theta
    local = fields.number("rope_local_base_freq", default=near)
    kinds = tuple(
        replace(kind, rope_theta=round(local) if kind.window else 0)
        for kind in windowed(fields, sizes, every=every)
    )
    return Description(sizes=sizes, style=style, kinds=kinds)


def _gemma4(fields: Fields) -> Description:
    wide_rope, local = rope_of(fields, "full_attention"), rope_of(fields, "sliding_attention").theta
    sizes = sizes_of(fields, rope_theta=wide_rope.theta)
    fields.one_of("use_bidirectional_attention", ("vision",))
    layer_input = fields.size("hidden_size_per_layer_input", default=0, least=0)
    vocabulary = fields.size("vocab_size_per_layer_input", default=sizes.vocabulary)
    is_shared = fields.flag("attention_k_eq_v")
    style = _gemma(
        fields,
        sizes,
        activation="gelu",
        norms_of_heads=True,
        norms_of_values=True,
        scales_layers=True,
        query_scale=1.0,
        logit_cap=fields.number("final_logit_softcapping", default=0.0),
        layer_input=layer_input,
        input_vocabulary=vocabulary if layer_input else 0,
    )
    wide = fields.size("global_head_dim", default=512)
    kv_heads = fields.size("num_global_key_value_heads", default=0, least=0) if is_shared else 0
    routed = fields.flag("enable_moe_block")
    kinds = tuple(
        replace(kind, is_routed=routed, rope_theta=local)
        if kind.window
        else replace(
            kind,
            is_routed=routed,
            # The whole head sets the periods, and a share of it turns.
            rope_theta=wide_rope.theta**wide_rope.share,
            rotary_size=int(wide * wide_rope.share),
            head_size=wide,
            kv_heads=kv_heads,
            value_is_key=is_shared,
        )
        for kind in windowed(fields, sizes, every=6)
    )
    routing = None
    experts = ("num_experts", "top_k_experts", "moe_intermediate_size")
    if routed:
        routing = Routing(
            experts=fields.size("num_experts"),
            chosen=fields.size("top_k_experts"),
            expert_mlp=fields.size("moe_intermediate_size", "expert_intermediate_size"),
            style=RoutingStyle(beside_dense=True),
        )
    fields.known(*experts, "expert_intermediate_size")
    kinds = _sharing_keys(fields, sizes, kinds)
    return Description(sizes=sizes, style=style, kinds=kinds, routing=routing)


def _sharing_keys(
    fields: Fields, sizes: Sizes, kinds: tuple[LayerKind, ...]
) -> tuple[LayerKind, ...]:
    """Return the kinds of layers; the last ones share earlier layers' keys."""
    count = fields.size("num_kv_shared_layers", default=0, least=0)
    mlp = 2 * sizes.mlp if fields.flag("use_double_wide_mlp") else 0
    own, shared = kinds[: len(kinds) - count], kinds[len(kinds) - count :]
    windows = [kind.window for kind in own]
    if not {kind.window for kind in shared} <= set(windows):
        raise ConfigError(
            f"num_kv_shared_layers is {count}: no layer before these has keys for them to share",
            location=fields.location,
            hint="give fewer",
        )
    last = {window: index for index, window in enumerate(windows)} if shared else {}
    kept = (
        replace(kind, keys="kept" if last.get(kind.window) == index else "own")
        for index, kind in enumerate(own)
    )
    return (*kept, *(replace(kind, keys="shared", mlp=mlp) for kind in shared))


GEMMA: dict[str, Callable[[Fields], Description]] = {
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
}
"""What reads the configuration of each ``model_type``."""
