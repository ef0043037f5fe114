"""Read families of decoders that need functions of their own.

Source: the configuration and modelling files of transformers 5.24; of chatglm, hunyuan and
bailing_moe the files that come with the weights.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

from hespas.models.architecture import (
    LayerKind,
    Routing,
    RoutingStyle,
    Sizes,
)
from hespas.models.decoder_experts import (
    LLAMA4_EXPERTS,
    deepseek_experts,
    latent_of,
    states_of,
    where_given,
)
from hespas.models.decoder_layers import (
    alike,
    behind_dense,
    check_types,
    rotating,
    windowed,
)
from hespas.models.decoder_parts import (
    TIED,
    Reader,
    activation,
    all_biases_if,
    amplitude_of,
    described,
    family,
    flag,
    number,
    rope_of,
    sizes_of,
)
from hespas.models.fields import Fields
from hespas.models.language import LanguageModel

_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")


def latent_family(gate: Literal["softmax", "sigmoid"], *, indexed: bool = False) -> Reader:
    """Return the reader of a family with latent attention."""
    return family(
        sizes=latent_sizes,
        layers=_latent_layers,
        latent=partial(latent_of, indexed=indexed),
        experts=where_given(_EXPERTS, deepseek_experts(gate)),
        rotary_size=0,
        query_scale=_latent_scale,
    )


def latent_sizes(fields: Fields) -> Sizes:
    """Return sizes whose heads leave out rotary numbers."""
    return sizes_of(fields, kv_heads=0, head_size=fields.size("qk_nope_head_dim"))


def _latent_layers(fields: Fields, sizes: Sizes) -> tuple[LayerKind, ...]:
    check_types(fields, fields.texts("layer_types"), ("full_attention", "indexed_attention"))
    check_types(fields, fields.texts("indexer_types"), ("full",))
    return (behind_dense if fields.given(*_EXPERTS) else alike)(fields, sizes)


def _latent_scale(fields: Fields) -> float:
    """Return the scale of queries with YaRN's amplitude, or 0."""
    scaling = rope_of(fields).scaling
    parts = (fields.part(name) for name in ("rope_scaling", "rope_parameters"))
    mscale = sum(part.number("mscale_all_dim", default=0.0) for part in parts)
    if scaling is None or not mscale:
        return 0.0
    size = fields.size("qk_nope_head_dim") + fields.size("qk_rope_head_dim")
    amplitude = amplitude_of(scaling.factor, mscale)
    return size**-0.5 * amplitude * amplitude


def embedding_root(fields: Fields) -> float:
    """Return the root of Gemma's width, which scales embeddings."""
    return sizes_of(fields).embedding ** 0.5


def _query_scale(fields: Fields) -> float:
    default = sizes_of(fields).head_size
    return fields.positive("query_pre_attn_scalar", default=default) ** -0.5


_GEMMA: dict[str, Any] = {
    "activation": "gelu",
    "tied": TIED,
    "norms_after": True,
    "embedding_scale": embedding_root,
    "logit_cap": number("final_logit_softcapping", default=0.0),
}
_CAPPED: dict[str, Any] = {
    **_GEMMA,
    "score_cap": number("attn_logit_softcapping", default=0.0),
    "query_scale": _query_scale,
}
gemma2 = family(layers=partial(windowed, every=2), **_CAPPED)


def gemma3(fields: Fields) -> LanguageModel:
    """Read Gemma 3, with other periods in windowed layers."""
    if fields.given("rope_theta") is None and fields.given("rope_parameters") is None:
        fields = fields.with_values(rope_theta=1000000.0)
    sizes = sizes_of(fields, rope_theta=rope_of(fields, "full_attention").theta)
    near = 10000
    if fields.given("rope_parameters") is not None:
        near = rope_of(fields, "sliding_attention").theta
    local = round(fields.number("rope_local_base_freq", default=near))
    every = fields.size("sliding_window_pattern", default=6)
    kinds = (
        replace(kind, rope_theta=local if kind.window else 0)
        for kind in windowed(fields, sizes, every=every)
    )
    return described(fields, sizes=sizes, kinds=tuple(kinds), norms_of_heads=True, **_CAPPED)


def gemma4(fields: Fields) -> LanguageModel:
    """Read Gemma 4.

    Its full layers have their own heads and their own share of rotated positions.
    """
    wide_rope, local = rope_of(fields, "full_attention"), rope_of(fields, "sliding_attention").theta
    sizes = sizes_of(fields, rope_theta=wide_rope.theta)
    layer_input = fields.size("hidden_size_per_layer_input", default=0, least=0)
    vocabulary = fields.size("vocab_size_per_layer_input", default=sizes.vocabulary)
    is_shared = fields.flag("attention_k_eq_v")
    wide = fields.size("global_head_dim", default=512)
    kv_heads = fields.size("num_global_key_value_heads", default=0, least=0) if is_shared else 0
    has_experts = fields.flag("enable_moe_block")
    full = LayerKind(
        is_routed=has_experts,
        # The whole head sets the periods, and a share of it turns.
        rope_theta=wide_rope.theta**wide_rope.share,
        rotary_size=int(wide * wide_rope.share),
        head_size=wide,
        kv_heads=kv_heads,
        value_is_key=is_shared,
    )
    kinds = tuple(
        replace(kind, is_routed=has_experts, rope_theta=local) if kind.window else full
        for kind in windowed(fields, sizes, every=6)
    )
    parts: dict[str, Any] = {}
    if has_experts:
        parts["routing"] = Routing(
            experts=fields.size("num_experts"),
            chosen=fields.size("top_k_experts"),
            expert_mlp=fields.size("moe_intermediate_size", "expert_intermediate_size"),
            style=RoutingStyle(beside_dense=True),
        )
    return described(
        fields,
        sizes=sizes,
        kinds=_sharing_keys(fields, sizes, kinds),
        parts=parts,
        norms_of_heads=True,
        norms_of_values=True,
        scales_layers=True,
        query_scale=1.0,
        layer_input=layer_input,
        input_vocabulary=vocabulary if layer_input else 0,
        **_GEMMA,
    )


def _sharing_keys(
    fields: Fields, sizes: Sizes, kinds: tuple[LayerKind, ...]
) -> tuple[LayerKind, ...]:
    """Let the last layers share keys of earlier ones."""
    count = fields.size("num_kv_shared_layers", default=0, least=0)
    mlp = 2 * sizes.mlp if fields.flag("use_double_wide_mlp") else 0
    own, shared = kinds[: len(kinds) - count], kinds[len(kinds) - count :]
    windows = [kind.window for kind in own]
    fields.refuse(
        not {kind.window for kind in shared} <= set(windows),
        f"num_kv_shared_layers is {count}: no layer before these has keys for them to share",
        "give fewer",
    )
    last = {window: index for index, window in enumerate(windows)} if shared else {}
    owners = (
        replace(kind, keys="kept" if last.get(kind.window) == index else "own")
        for index, kind in enumerate(own)
    )
    return (*owners, *(replace(kind, keys="shared", mlp=mlp) for kind in shared))


_NEMOTRON_LAYERS = {
    "M": LayerKind(mixer="state_space", feeds_forward=False),
    "*": LayerKind(feeds_forward=False, rotates=False),
    "-": LayerKind(mixer="none"),
    "E": LayerKind(mixer="none", is_routed=True),
}
_NEMOTRON_NAMES = {
    "mamba": "M",
    "linear_attention": "M",
    "attention": "*",
    "full_attention": "*",
    "mlp": "-",
    "moe": "E",
}


def nemotron_h(fields: Fields) -> LanguageModel:
    """Read Nemotron-H; a layer has a mixer or a feed-forward."""
    pattern = fields.text("hybrid_override_pattern")
    types = fields.texts("layers_block_type", "layer_types")
    check_types(fields, types, tuple(_NEMOTRON_NAMES))
    letters = [_NEMOTRON_NAMES[layer_type] for layer_type in types] or list(pattern)
    check_types(fields, letters, tuple(_NEMOTRON_LAYERS))
    kinds = tuple(_NEMOTRON_LAYERS[letter] for letter in letters)
    layers = fields.size("num_hidden_layers", default=len(kinds))
    fields.refuse(
        layers != len(kinds),
        f"num_hidden_layers is {layers}, and {len(kinds)} layers are described",
    )
    sizes = sizes_of(fields.with_values(num_hidden_layers=layers))
    heads, head = fields.size("mamba_num_heads"), fields.size("mamba_head_dim")
    parts: dict[str, Any] = {"state_space": states_of(fields, heads, head, chunk=128)}
    if any(kind.is_routed for kind in kinds):
        parts["routing"] = replace(
            deepseek_experts()(fields, sizes),
            shared_mlp=fields.size("moe_shared_expert_intermediate_size"),
            latent_size=fields.size("moe_latent_size", default=0, least=0),
        )
    facts: dict[str, Any] = {"activation": "relu_squared", "gated": False, "rotary_size": 0}
    return described(fields, sizes=sizes, kinds=kinds, parts=parts, **facts)


def llama4(fields: Fields) -> LanguageModel:
    """Read Llama 4; its rotated layers attend to chunks."""
    sizes = sizes_of(fields)
    every = fields.size("interleave_moe_layer_step", default=1)
    chunk = fields.size("attention_chunk_size", default=0, least=0)
    rotates = rotating(fields, sizes)
    with_experts = fields.numbers("moe_layers") or range(every - 1, sizes.layers, every)
    width = fields.size("intermediate_size_mlp")
    check_types(fields, fields.texts("layer_types"), ("full_attention", "chunked_attention"))
    kinds = tuple(
        LayerKind(
            rotates=rotates[index],
            chunk=chunk if rotates[index] else 0,
            is_routed=index in with_experts,
        )
        for index in range(sizes.layers)
    )
    return described(
        fields,
        sizes=replace(sizes, mlp=width),
        kinds=kinds,
        parts={"routing": LLAMA4_EXPERTS(fields, sizes)},
        norms_after_rotation=flag("use_qk_norm", default=True),
    )


def mpt(fields: Fields) -> LanguageModel:
    """Read MPT, whose file has a part for attention."""
    attention = fields.part("attn_config")
    alibi = attention.flag("alibi")
    attention.one_of("attn_type", ("multihead_attention",))
    attention.ignore(
        "attn_impl", "attn_pdrop", "attn_uses_sequence_id", "prefix_lm", "alibi_bias_max"
    )
    attention.check_read()
    learned = fields.flag("learned_pos_emb", default=True) and not alibi
    sizes = sizes_of(fields, rope_theta=0)
    sizes = replace(sizes, mlp=sizes.embedding * fields.size("expansion_ratio", default=4))
    return described(
        fields,
        sizes=sizes,
        kinds=alike(fields, sizes),
        norm="layer",
        norm_biases=False,
        activation="exact_gelu",
        gated=False,
        tied=True,
        alibi=alibi,
        learned_positions=fields.size("max_seq_len", default=2048) if learned else 0,
    )


def falcon(fields: Fields) -> LanguageModel:
    """Read Falcon, an older and a newer architecture."""
    is_new = fields.flag("new_decoder_architecture")
    is_beside = fields.flag("parallel_attn", default=True) or is_new
    norms = fields.size("num_ln_in_parallel_attn", default=2 if is_new else 1)
    heads = fields.size("num_attention_heads")
    kv_heads = fields.size("num_kv_heads", default=heads)
    is_shared = fields.flag("multi_query", default=True)
    if not is_new:
        kv_heads = 1 if is_shared else heads
    mlp = fields.size("ffn_hidden_size", default=4 * fields.size("hidden_size"))
    sizes = sizes_of(fields, kv_heads=kv_heads, mlp=mlp)
    before = "own_norm" if norms == 2 else "same_norm"
    return described(
        fields,
        sizes=sizes,
        kinds=alike(fields, sizes),
        norm="layer",
        before_mlp=before if is_beside else "yes",
        activation=activation("activation", default="gelu"),
        gated=False,
        alibi=flag("alibi"),
        tied=TIED,
        **all_biases_if("bias"),
    )


def dbrx(fields: Fields) -> LanguageModel:
    """Read DBRX, whose file has parts for attention and experts."""
    attention, experts = fields.part("attn_config"), fields.part("ffn_config")
    heads = fields.size("n_heads")
    sizes = sizes_of(
        fields,
        kv_heads=attention.size("kv_n_heads", default=heads),
        rope_theta=round(attention.number("rope_theta", default=10000.0)),
        mlp=experts.size("ffn_hidden_size"),
    )
    experts.one_of("moe_normalize_expert_weights", (1, 1.0))
    experts.part("ffn_act_fn").one_of("name", ("silu",))
    experts.ignore("hidden_size", "moe_jitter_eps", "moe_loss_weight", "uniform_expert_assignment")
    routing = Routing(
        experts=experts.size("moe_num_experts"),
        chosen=experts.size("moe_top_k"),
        expert_mlp=sizes.mlp,
    )
    clip = attention.number("clip_qkv", default=0.0)
    for part in (attention, experts):
        part.ignore("model_type")
        part.check_read()
    kinds = alike(fields, sizes, is_routed=True)
    facts: dict[str, Any] = {"norm": "layer", "norm_biases": False, "clip": clip}
    return described(fields, sizes=sizes, kinds=kinds, parts={"routing": routing}, **facts)


def chatglm_sizes(fields: Fields) -> Sizes:
    """Return the sizes of ChatGLM, by its own names."""
    heads = fields.size("num_attention_heads")
    groups = fields.size("multi_query_group_num", default=1)
    return sizes_of(
        fields.with_values(vocab_size=fields.size("padded_vocab_size")),
        head_size=fields.size("kv_channels"),
        kv_heads=groups if fields.flag("multi_query_attention") else heads,
        mlp=fields.size("ffn_hidden_size"),
        rope_theta=round(10000 * fields.number("rope_ratio", default=1.0)),
    )


def _for_all_layers(fields: Fields, name: str, default: int) -> int:
    """Return a size from one number or equal ones."""
    numbers = set(fields.numbers(name) or [default])
    fields.refuse(
        len(numbers) > 1,
        f"{name} differs from layer to layer, which is not known",
        "export your own function",
    )
    return numbers.pop()


def hunyuan(fields: Fields) -> LanguageModel:
    """Read Hunyuan 1; its sizes may be lists by layer."""
    sizes = sizes_of(fields)
    routing = Routing(
        experts=_for_all_layers(fields, "num_experts", 1),
        chosen=_for_all_layers(fields, "moe_topk", 1),
        expert_mlp=_for_all_layers(fields, "moe_intermediate_size", sizes.mlp),
        shared_experts=_for_all_layers(fields, "num_shared_expert", 1),
    )
    has_experts = routing.experts > 1
    is_normed = fields.flag("use_qk_norm", "qk_norm", default=True)
    return described(
        fields,
        sizes=sizes,
        kinds=alike(fields, sizes, is_routed=has_experts),
        parts={"routing": routing} if has_experts else {},
        norms_of_heads=is_normed,
        norms_after_rotation=is_normed,
    )


def mamba2(fields: Fields) -> LanguageModel:
    """Read Mamba-2; its heads are those of states."""
    heads, head = fields.size("num_heads"), fields.size("head_dim")
    space = states_of(fields, heads, head, chunk=256)
    embedding = fields.size("hidden_size")
    sizes = Sizes(
        embedding=embedding,
        heads=heads,
        kv_heads=heads,
        layers=fields.layers("num_hidden_layers"),
        mlp=embedding,
        vocabulary=fields.size("vocab_size"),
        head_size=head,
        rope_theta=0,
    )
    kinds = alike(fields, sizes, mixer="state_space", feeds_forward=False)
    headed = fields.with_values(num_attention_heads=heads)
    return described(headed, sizes=sizes, kinds=kinds, parts={"state_space": space})
