"""Read configurations of networks other than decoders, by class.

Source: the configuration and modelling files of transformers 5.24 and diffusers 0.42.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hespas.models.architecture import Activation
from hespas.models.decoder_parts import ACTIVATIONS, activation_named
from hespas.models.diffusion import Dit, Flux
from hespas.models.encoders import T5, Bert, Siglip, Tower, Vit, Whisper
from hespas.models.fields import Fields
from hespas.models.recommender import Dlrm
from hespas.models.resnet_layers import ResNet
from hespas.models.unet import Level, Unet

_ACTIVATIONS: dict[str, Activation] = {**ACTIVATIONS, "gelu-approximate": "gelu"}
_EPSILON = 1e-5
_activation = partial(activation_named, default="gelu", known=_ACTIVATIONS)


def _tower(fields: Fields, **changed: Any) -> Tower:
    embedding = fields.size("hidden_size")
    heads = fields.size("num_attention_heads")
    _divides(fields, "num_attention_heads", heads, "hidden_size", embedding)
    return Tower(
        embedding=embedding,
        layers=fields.layers("num_hidden_layers"),
        heads=heads,
        mlp=fields.size("intermediate_size"),
        activation=_activation(fields, "hidden_act"),
        epsilon=fields.number("layer_norm_eps", default=1e-12),
        **changed,
    )


def _divides(fields: Fields, name: str, size: int, whole_name: str, total: int) -> None:
    fields.refuse(
        total % size,
        f"{whole_name} = {total} is not divided by {name} = {size}",
        f"give a {name} that divides it",
    )


def _bert(fields: Fields, kind: str = "Bert", *, unused: int = 0) -> Bert:
    _class(fields, *(f"{kind}{head}" for head in ("ForMaskedLM", "ForPreTraining", "Model")))
    return Bert(
        tower=_tower(fields),
        vocabulary=fields.size("vocab_size"),
        positions=fields.size("max_position_embeddings", default=512),
        kinds=fields.size("type_vocab_size", default=2),
        unused=unused,
    )


def _class(fields: Fields, *known: str) -> str:
    names = fields.texts("architectures") or [known[0]]
    fields.refuse(names[0] not in known, f"a {names[0]} is not known", f"known: {', '.join(known)}")
    return names[0]


def _vit(fields: Fields) -> Vit:
    has_classes = _class(fields, "ViTForImageClassification", "ViTModel") != "ViTModel"
    tower, (image, patch) = _tower(fields), _patches(fields)
    fields.one_of("pooler_output_size", (tower.embedding,))
    names = fields.given("id2label") or ()
    labels = fields.size("num_labels", default=len(names) or 2)
    return Vit(
        tower=tower,
        image=image,
        patch=patch,
        channels=fields.size("num_channels", default=3),
        labels=labels if has_classes else 0,
        has_biases=fields.flag("qkv_bias", default=True),
    )


def _patches(fields: Fields) -> tuple[int, int]:
    image, patch = fields.size("image_size", default=224), fields.size("patch_size", default=16)
    fields.refuse(
        patch > image, f"patch_size = {patch} of image_size = {image}", "give smaller patches"
    )
    return image, patch


def _siglip(fields: Fields) -> Siglip:
    text, vision = fields.part("text_config"), fields.part("vision_config")
    image, patch = _patches(vision)
    towers = [_tower(part) for part in (text, vision)]
    vision.one_of("vision_use_head", (True,))
    text.one_of("projection_size", (towers[0].embedding,))
    fields.refuse(
        towers[0].embedding != towers[1].embedding,
        f"hidden_size of text and vision are {towers[0].embedding} and {towers[1].embedding}: "
        "rows of different lengths have no product",
    )
    network = Siglip(
        text=towers[0],
        vision=towers[1],
        vocabulary=text.size("vocab_size"),
        positions=text.size("max_position_embeddings", default=64),
        image=image,
        patch=patch,
        channels=vision.size("num_channels", default=3),
    )
    for part in (text, vision):
        part.ignore("model_type")
        part.check_read()
    return network


def _t5(fields: Fields) -> T5:
    kind = fields.text("feed_forward_proj", default="relu")
    gated, _, name = kind.rpartition("-")
    # T5's gated GELU is the one by a hyperbolic tangent.
    activation = "gelu" if kind == "gated-gelu" else _ACTIVATIONS.get(name, "")
    fields.refuse(
        not activation or gated not in {"", "gated"},
        f"feed_forward_proj is {kind!r}, which is not known",
    )
    fields.one_of("is_gated_act", (bool(gated),))
    layers = fields.layers("num_layers")
    towers = [
        Tower(
            embedding=fields.size("d_model"),
            layers=count,
            heads=fields.size("num_heads"),
            head_size=fields.size("d_kv"),
            mlp=fields.size("d_ff"),
            activation=activation,
            epsilon=fields.number("layer_norm_epsilon", default=1e-6),
            gated=bool(gated),
        )
        for count in (layers, fields.size("num_decoder_layers", default=layers))
    ]
    return T5(
        encoder=towers[0],
        decoder=towers[1],
        vocabulary=fields.size("vocab_size"),
        buckets=fields.size("relative_attention_num_buckets", default=32),
        distance=fields.size("relative_attention_max_distance", default=128),
        tied=fields.flag("tie_word_embeddings", default=True),
    )


def _whisper(fields: Fields) -> Whisper:
    embedding = fields.size("d_model")
    towers: list[Tower] = []
    for part in ("encoder", "decoder"):
        heads = fields.size(f"{part}_attention_heads")
        _divides(fields, f"{part}_attention_heads", heads, "d_model", embedding)
        towers.append(
            Tower(
                embedding=embedding,
                layers=fields.size(f"{part}_layers"),
                heads=heads,
                mlp=fields.size(f"{part}_ffn_dim"),
                activation=activation_named(
                    fields, "activation_function", default="gelu", known=_ACTIVATIONS
                ),
                epsilon=_EPSILON,
            )
        )
    return Whisper(
        encoder=towers[0],
        decoder=towers[1],
        vocabulary=fields.size("vocab_size"),
        bins=fields.size("num_mel_bins", default=80),
        rows=fields.size("max_source_positions", default=1500),
        positions=fields.size("max_target_positions", default=448),
        is_scaled=fields.flag("scale_embedding"),
    )


def _dit(fields: Fields) -> Dit:
    channels, side = fields.size("in_channels"), fields.size("sample_size")
    patch = fields.size("patch_size")
    _divides(fields, "patch_size", patch, "sample_size", side)
    return Dit(
        heads=fields.size("num_attention_heads"),
        head_size=fields.size("attention_head_dim"),
        layers=fields.layers("num_layers"),
        side=side,
        patch=patch,
        channels=channels,
        made=fields.size("out_channels", default=channels),
        classes=fields.size("num_embeds_ada_norm", default=1000),
        epsilon=fields.number("norm_eps", default=_EPSILON),
        has_biases=fields.flag("attention_bias", default=True),
    )


def _flux(fields: Fields) -> Flux:
    channels, size = fields.size("in_channels"), fields.size("attention_head_dim")
    fields.one_of("out_channels", (channels,))
    rotations = fields.numbers("axes_dims_rope") or [16, 56, 56]
    fields.refuse(
        sum(rotations) != size or len(rotations) != 3 or any(count % 2 for count in rotations),
        f"axes_dims_rope = {rotations}: three even numbers have the sum of attention_head_dim, "
        f"{size}",
    )
    return Flux(
        heads=fields.size("num_attention_heads"),
        head_size=size,
        layers=fields.layers("num_layers"),
        single_layers=fields.size("num_single_layers"),
        channels=channels,
        text=fields.size("joint_attention_dim"),
        pooled=fields.size("pooled_projection_dim"),
        is_guided=fields.flag("guidance_embeds"),
        rotations=tuple(rotations),
    )


def _halved(fields: Fields, name: str, times: int) -> int:
    """Return a size that is halved so often, whole each time."""
    size, least = fields.size(name), 2**times
    fields.refuse(
        size % least,
        f"{name} = {size} is halved {times} times, and would be no whole number",
        f"give a multiple of {least}",
    )
    return size


def _unet(fields: Fields) -> Unet:
    widths = fields.numbers("block_out_channels")
    count = len(widths)
    down, up = fields.texts("down_block_types"), fields.texts("up_block_types")
    attends = [name == "CrossAttnDownBlock2D" for name in down]
    expected = [
        "CrossAttnUpBlock2D" if has_attention else "UpBlock2D"
        for has_attention in reversed(attends)
    ]
    names = {"CrossAttnDownBlock2D", "DownBlock2D"}
    fields.refuse(
        not widths or len(down) != count or up != expected or not set(down) <= names,
        f"blocks {', '.join(down)} and {', '.join(up)} for {count} widths are not known",
        "known: DownBlock2D and CrossAttnDownBlock2D, and the same upwards",
    )
    # What this is called is the number of heads.
    heads = _for_each(fields, "attention_head_dim", count, 8)
    layers = _for_each(fields, "transformer_layers_per_block", count, 1)
    for width, number in zip(widths, heads, strict=True):
        _divides(fields, "attention_head_dim", number, "block_out_channels", width)
    groups, is_added = (
        fields.size("norm_num_groups", default=32),
        "addition_embed_type" in fields.values,
    )
    for width in widths:
        _divides(fields, "norm_num_groups", groups, "block_out_channels", width)
    waves = fields.size("addition_time_embed_dim") if is_added else 0
    all_added = (
        fields.size("projection_class_embeddings_input_dim", least=6 * waves + 1) if is_added else 0
    )
    return Unet(
        side=_halved(fields, "sample_size", count - 1),
        channels=fields.size("in_channels", default=4),
        made=fields.size("out_channels", default=4),
        text=fields.size("cross_attention_dim", default=1280),
        levels=tuple(
            Level(width=width, heads=number, layers=depth if has_attention else 0)
            for width, number, depth, has_attention in zip(
                widths, heads, layers, attends, strict=True
            )
        ),
        middle=Level(width=widths[-1], heads=heads[-1], layers=layers[-1]),
        blocks=fields.size("layers_per_block", default=2),
        groups=groups,
        epsilon=fields.number("norm_eps", default=_EPSILON),
        is_linear=fields.flag("use_linear_projection"),
        added=all_added - 6 * waves,
        added_waves=waves,
    )


def _for_each(fields: Fields, name: str, count: int, default: int) -> list[int]:
    """Return a number per level, from one or a list."""
    numbers = fields.numbers(name) or [default]
    numbers = numbers * count if len(numbers) == 1 else numbers
    fields.refuse(
        len(numbers) != count or min(numbers) < 1,
        f"{name} is {numbers}, and there are {count} levels",
    )
    return numbers


def _dlrm(fields: Fields) -> Dlrm:
    tables, bags = (
        fields.numbers(name) for name in ("num_embeddings_per_feature", "multi_hot_sizes")
    )
    below, above = (fields.numbers(f"{name}_arch_layer_sizes") for name in ("dense", "over"))
    embedding = fields.size("embedding_dim")
    fields.refuse(
        not tables or len(tables) != len(bags) or min(*tables, *bags) < 1,
        f"num_embeddings_per_feature has {len(tables)} tables, and multi_hot_sizes {len(bags)}",
        "give as many, of 1 or more each",
    )
    fields.refuse(
        below[-1:] != [embedding] or above[-1:] != [1],
        f"dense_arch_layer_sizes = {below} end with embedding_dim = {embedding}, and "
        f"over_arch_layer_sizes = {above} with 1",
    )
    return Dlrm(
        numbers=fields.size("dense_in_features"),
        embedding=embedding,
        tables=tuple(tables),
        bags=tuple(bags),
        below=tuple(below),
        above=tuple(above),
        crosses=fields.size("dcn_num_layers"),
        rank=fields.size("dcn_low_rank_dim"),
    )


_RESNET_BLOCKS = {"basic": 1, "bottleneck": 4}
"""By how much the last convolution of a block widens its rows."""


def _resnet(fields: Fields) -> ResNet:
    _class(fields, "ResNetForImageClassification")
    kind = fields.text("layer_type", default="bottleneck")
    depths, widths = fields.numbers("depths"), fields.numbers("hidden_sizes")
    expected = [64 * _RESNET_BLOCKS[kind] * 2**stage for stage in range(len(depths))]
    fields.refuse(
        widths != expected or not depths or min(depths) < 1,
        f"hidden_sizes = {widths} and depths = {depths}: stages of a ResNet are "
        f"{expected or [256]} wide, and have a layer or more",
    )
    names = fields.given("id2label") or ()
    return ResNet(
        stages="-".join(map(str, depths)),
        bottleneck=kind == "bottleneck",
        classes=fields.size("num_labels", default=len(names) or 2),
    )


NETWORKS: dict[str, Callable[[Fields], Any]] = {
    "bert": _bert,
    "camembert": lambda fields: _bert(fields, "Camembert", unused=2),
    "roberta": lambda fields: _bert(fields, "Roberta", unused=2),
    "xlm-roberta": lambda fields: _bert(fields, "XLMRoberta", unused=2),
    "vit": _vit,
    "siglip": _siglip,
    "t5": _t5,
    "whisper": _whisper,
    "resnet": _resnet,
    "dlrm_dcnv2": _dlrm,
    "DiTTransformer2DModel": _dit,
    "FluxTransformer2DModel": _flux,
    "UNet2DConditionModel": _unet,
}
"""What reads the configuration of each ``model_type`` or class."""
