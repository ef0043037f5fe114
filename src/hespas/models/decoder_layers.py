"""Read the kinds of a decoder's layers from its configuration.

Source: the configuration and modelling files of transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hespas.models.architecture import LayerKind, Sizes
from hespas.models.fields import Fields

Kinds = tuple[LayerKind, ...]
Layers = Callable[[Fields, Sizes], Kinds]
"""A reader of the kind of each layer."""
_FULL, _WINDOWED, _LINEAR = "full_attention", "sliding_attention", "linear_attention"


def alike(_: Fields, sizes: Sizes, **kind: Any) -> Kinds:
    """Return layers that are all of one kind."""
    return (LayerKind(**kind),) * sizes.layers


ROUTED = partial(alike, is_routed=True)
"""Layers that all have experts."""


def routed(layers: Layers) -> Layers:
    """Return a reader that gives experts to these layers."""
    return lambda fields, sizes: tuple(
        replace(kind, is_routed=True) for kind in layers(fields, sizes)
    )


def check_types(fields: Fields, types: Sequence[str], known_types: Sequence[str]) -> None:
    """Raise `ConfigError` for an unknown type of layer."""
    for layer_type in types:
        fields.refuse(
            layer_type not in known_types,
            f"a layer of the type {layer_type!r} is not known",
            f"known: {', '.join(known_types)}",
        )


def _check_length(fields: Fields, name: str, listed: Sequence[object], sizes: Sizes) -> None:
    fields.refuse(
        len(listed) != sizes.layers,
        f"{name} has {len(listed)} layers, and num_hidden_layers is {sizes.layers}",
    )


def _by_type(
    fields: Fields, sizes: Sizes, kinds: Mapping[str, LayerKind], default: Callable[[int], str]
) -> Kinds:
    listed = fields.texts("layer_types", "layers_block_type")
    types = listed or [default(index) for index in range(sizes.layers)]
    _check_length(fields, "layer_types", types, sizes)
    check_types(fields, types, tuple(kinds))
    return tuple(kinds[layer_type] for layer_type in types)


def windowed(fields: Fields, sizes: Sizes, *, every: int = 0, full: int = 0) -> Kinds:
    """Return layers with windows, or as the file lists them.

    Where it lists none, the first ``full`` layers and each ``every``-th one have no window.
    """
    window = fields.size("sliding_window", default=0, least=0)

    def default(index: int) -> str:
        is_full = index < full or (every and (index + 1) % every == 0)
        return _FULL if is_full else _WINDOWED

    kinds = {_FULL: LayerKind(), _WINDOWED: LayerKind(window=window)}
    return _by_type(fields, sizes, kinds, default)


def behind_dense(fields: Fields, sizes: Sizes, layers: Layers = alike) -> Kinds:
    """Return layers with experts, listed or after dense ones."""
    fields.one_of("moe_layer_freq", (1,))
    dense = fields.size("first_k_dense_replace", default=0, least=0)
    types, kinds = fields.texts("mlp_layer_types"), layers(fields, sizes)
    if types:
        _check_length(fields, "mlp_layer_types", types, sizes)
    return tuple(
        replace(kind, is_routed=types[index] == "sparse" if types else index >= dense)
        for index, kind in enumerate(kinds)
    )


def rotating(fields: Fields, sizes: Sizes) -> list[bool]:
    """Return which layers have rotary positions.

    Where the file lists none, each fourth layer has none, or another interval.
    """
    every = fields.size("no_rope_layer_interval", default=4)
    listed = fields.numbers("no_rope_layers")
    if listed:
        _check_length(fields, "no_rope_layers", listed, sizes)
        return [bool(number) for number in listed]
    return [(index + 1) % every != 0 for index in range(sizes.layers)]


def unrotated_where_full(fields: Fields, sizes: Sizes) -> Kinds:
    """Drop the positions of full layers beside windowed ones."""
    # Some say it as letters, and list the types of layers besides.
    every = fields.given("sliding_window_pattern", "layer_switch")
    kinds = windowed(fields, sizes, every=every if isinstance(every, int) else 0)
    has_windows = any(kind.window for kind in kinds)
    return tuple(replace(kind, rotates=bool(kind.window) or not has_windows) for kind in kinds)


def smollm_layers(fields: Fields, sizes: Sizes) -> Kinds:
    """Return SmolLM's layers, some without positions or with windows."""
    has_windows = fields.flag("use_sliding_window")
    if not has_windows:
        fields.ignore("sliding_window", "layer_types")
    kinds = windowed(fields, sizes) if has_windows else alike(fields, sizes)
    rotates = rotating(fields, sizes)
    return tuple(replace(kind, rotates=rotates[index]) for index, kind in enumerate(kinds))


def qwen_layers(fields: Fields, sizes: Sizes) -> Kinds:
    """Return Qwen's layers: full ones first, then windowed ones."""
    if not fields.flag("use_sliding_window"):
        check_types(fields, fields.texts("layer_types"), (_FULL, _WINDOWED))
        fields.ignore("sliding_window", "max_window_layers")
        return alike(fields, sizes)
    full = fields.size("max_window_layers", default=sizes.layers, least=0)
    return windowed(fields, sizes, full=full)


def qwen_delta_layers(fields: Fields, sizes: Sizes) -> Kinds:
    """Return gated delta rules, with attention at an interval."""
    every = fields.size("full_attention_interval", default=4)
    kinds = {_FULL: LayerKind(), _LINEAR: LayerKind(mixer="delta")}
    return _by_type(fields, sizes, kinds, lambda index: _LINEAR if (index + 1) % every else _FULL)


def qwen_sparse(fields: Fields, sizes: Sizes, *, layers: Layers) -> Kinds:
    """Give experts to every n-th layer not listed dense."""
    every = fields.size("decoder_sparse_step", default=1)
    dense = fields.numbers("mlp_only_layers")
    return tuple(
        replace(kind, is_routed=(index + 1) % every == 0 and index not in dense)
        for index, kind in enumerate(layers(fields, sizes))
    )


def ernie_layers(fields: Fields, sizes: Sizes) -> Kinds:
    """Return Ernie's layers, with experts at an interval."""
    first = fields.size("moe_layer_start_index", default=1, least=0)
    last = fields.number("moe_layer_end_index", default=-1)
    every = fields.size("moe_layer_interval", default=1)
    end = sizes.layers - 1 if last < 0 else int(last)
    return tuple(
        LayerKind(is_routed=(index + 1) % every == 0 and first <= index <= end)
        for index in range(sizes.layers)
    )


def _hybrid(attention: LayerKind) -> dict[str, LayerKind]:
    states = replace(attention, mixer="state_space")
    return {"mamba": states, _LINEAR: states, "attention": attention, _FULL: attention}


def bamba_layers(fields: Fields, sizes: Sizes) -> Kinds:
    """Return Bamba's layers: states, and attention where it is listed."""
    attending = fields.numbers("attn_layer_indices")
    return _by_type(
        fields, sizes, _hybrid(LayerKind()), lambda index: _FULL if index in attending else "mamba"
    )


def granite_layers(fields: Fields, sizes: Sizes) -> Kinds:
    """Return Granite's layers of attention and of states."""
    attention = LayerKind(
        is_routed=fields.size("num_local_experts", default=0, least=0) > 0,
        rotates=fields.text("position_embedding_type", default="nope") == "rope",
    )
    return _by_type(fields, sizes, _hybrid(attention), lambda _: "mamba")


def minimax_layers(fields: Fields, sizes: Sizes) -> Kinds:
    """Return MiniMax M2's layers, which all have attention and experts."""
    fields.one_of("attn_type_list", ([1] * sizes.layers,))
    return ROUTED(fields, sizes)
