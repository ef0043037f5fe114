"""Read the arguments of Megatron-LM or Megatron-Bridge: model and layout.

``megatron:FILE`` names a file of arguments as a shell has them (``--hidden-size 4096 ..``, with
comments, variables and arrays), or YAML with the names of Megatron-Bridge, whose sections may be
left out. An argument that is neither read here nor in `IGNORED`, those that change nothing, is an
error that names it.

Source: NVIDIA, Megatron-LM (core 0.15), ``megatron/training/arguments.py``; NeMo Megatron-Bridge,
``TransformerConfig`` and the sections of its recipes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from hespas.base.files import change_of
from hespas.base.frozen import frozen
from hespas.base.suggest import nearest
from hespas.errors import ConfigError
from hespas.models.architecture import (
    Activation,
    Latent,
    LayerKind,
    Routing,
    RoutingStyle,
    Sizes,
    Style,
)
from hespas.models.fields import Fields
from hespas.models.language import LanguageModel
from hespas.models.megatron_file import (
    DEFAULTS,
    IGNORED,
    arguments_of,
    check_arguments,
    is_yaml,
    spelled,
)
from hespas.models.megatron_layout import Layout, layout_of
from hespas.models.model import LORA_MODULES, MeshAxes
from hespas.models.runs import Training

_UNFUSED = ("no_rope_fusion", "no_masked_softmax_fusion", "no_bias_gelu_fusion",
            "no_bias_swiglu_fusion", "no_bias_dropout_fusion", "no_persist_layer_norm")  # fmt: skip
"""Arguments that divide kernels which are one here: they are taken, and said."""
_DEFAULT_DROPOUT = 0.1


@frozen
class Arguments:
    """An arguments file's content; ``notes`` list assumptions and omissions."""

    path: Path
    model: LanguageModel
    layout: Layout
    notes: tuple[str, ...]


def read_arguments(path: Path) -> Arguments:
    """Read a file of arguments.

    Raises `ConfigError`, with the file, for one that can't be read, arguments that are not known,
    and values that are none or that change what is computed in a way that is not understood.
    """
    return _read_arguments(path, change_of(path))


@cache
def _read_arguments(path: Path, change: tuple[int, int]) -> Arguments:  # noqa: ARG001 - of the key
    fields = Fields(values=arguments_of(path), location=str(path), ignored=IGNORED)
    fields.check_family("megatron")
    check_arguments(fields, path)
    notes = list(_notes(fields, path))
    model = _model(fields)
    layout = layout_of(fields, model)
    _check_read(fields, path)
    return Arguments(path=path, model=model, layout=layout, notes=tuple(notes))


def _check_read(fields: Fields, path: Path) -> None:
    """Name all arguments at once that are not known."""
    unknown = [
        name
        for name, value in fields.values.items()
        if name not in fields.read
        and value not in (None, False, DEFAULTS.get(name))
        and not IGNORED.fullmatch(name)
    ]
    if not unknown:
        return
    names = ", ".join(spelled(name, path) for name in unknown)
    subject = "argument is" if len(unknown) == 1 else f"{len(unknown)} arguments are"
    close = nearest(unknown[0], sorted(fields.read))
    meant = f"did you mean {spelled(close[0], path)}? Otherwise " if close else ""
    raise ConfigError(
        f"{subject} not known, and may change what is computed: {names}",
        location=str(path),
        hint=f"{meant}take out what changes nothing",
    )


# What the arguments mean.


def _notes(fields: Fields, path: Path) -> Iterator[str]:
    unfused = [name for name in _UNFUSED if fields.flag(name)]
    if unfused:
        names = ", ".join(spelled(name, path) for name in unfused)
        yield f"kernels are fused all the same, without regard to {names}"
    dropouts = [
        fields.number(f"{name}_dropout", default=_DEFAULT_DROPOUT)
        for name in ("attention", "hidden")
    ]
    if any((*dropouts, fields.number("lora_dropout", default=0.0))):
        yield "dropout is left out"
    if fields.size("mtp_num_layers", default=0, least=0):
        yield "heads that predict further tokens are left out"
    recipe = fields.text("fp8_recipe", default="delayed")
    if recipe != "delayed":
        yield f"products of 8 bits have delayed scales, without regard to fp8_recipe {recipe}"
    has_experts = fields.given("num_experts", "num_moe_experts") is not None
    if has_experts and not fields.flag("moe_grouped_gemm", default=is_yaml(path)):
        grouped = spelled("moe_grouped_gemm", path)
        yield f"products of experts are grouped, as with {grouped}, which is not given"
    if fields.flag("fp8_param_gather"):
        gathered = spelled("fp8_param_gather", path)
        yield f"weights are gathered in 16 bits, without regard to {gathered}"
    is_ring = fields.text("cp_comm_type", default="p2p") == "p2p"
    if is_ring and fields.size("context_parallel_size", default=1) > 1:
        yield (
            "keys and values of divided sequences are gathered, where cp_comm_type p2p sends them "
            "round a ring, which is slower here (--set context_attention=ring)"
        )


def _model(fields: Fields) -> LanguageModel:
    sizes = _sizes(fields)
    routing = _routing(fields, sizes)
    latent = _latent(fields)
    if latent is not None:
        head = fields.size("qk_head_dim", default=128)
        sizes = replace(sizes, kv_heads=sizes.heads, head_size=head)
    kinds, window = _kinds(fields, sizes.layers, routing is not None), _window(fields)
    if window:
        kinds = tuple(replace(kind, window=window) for kind in kinds or (LayerKind(),))
    rank, modules = _adapters(fields)
    return LanguageModel(
        sizes_of_layers=sizes,
        style=_style(fields, sizes, is_latent=latent is not None),
        run=Training(mesh=MeshAxes(axes=(("fsdp", 1),)), lora_rank=rank, lora_modules=modules),
        routing=routing,
        latent=latent,
        pattern=kinds,
    )


_ADAPTED_BY_DEFAULT = 32
"""The rank of Megatron-Bridge's adapters. Source: 0.6.2, ``dim`` of peft/lora.py."""


def _adapters(fields: Fields) -> tuple[int, str]:
    is_adapted = any(name.startswith("lora_") for name in fields.values)
    default = _ADAPTED_BY_DEFAULT if is_adapted else 0
    rank = fields.size("lora_dim", "lora_rank", default=default)
    modules = fields.texts("lora_target_modules")
    for module in modules:
        fields.refuse(
            module not in LORA_MODULES,
            f"adapters stand beside {module}",
            f"name some of {', '.join(LORA_MODULES)}",
        )
    return rank, "+".join(sorted(set(modules))) or "all"


def _sizes(fields: Fields) -> Sizes:
    embedding, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    # Megatron-LM's own default is one group; Megatron-Bridge has no flag beside the number.
    is_grouped = fields.flag("group_query_attention", default="num_query_groups" in fields.values)
    is_line = not is_yaml(Path(fields.location))
    groups = fields.size("num_query_groups", default=1 if is_line else heads)
    if not is_grouped:
        groups = heads
    gated = _is_gated(fields)
    # Megatron-LM's own default of a gated layer keeps its weights: two thirds, in multiples of 64.
    width = int(4 * embedding * 2 / 3 / 64) * 64 if gated else 4 * embedding
    kind = fields.text("position_embedding_type", default="learned_absolute")
    is_rotary = kind == "rope" or fields.flag("use_rotary_position_embeddings")
    vocabulary = fields.given("padded_vocab_size", "vocab_size")
    fields.refuse(
        vocabulary is None,
        "the size of the vocabulary is not said: the tokenizer has it",
        "add --vocab-size, as in --vocab-size 128256",
    )
    return Sizes(
        embedding=embedding,
        heads=heads,
        kv_heads=groups,
        layers=fields.size("num_layers"),
        mlp=fields.size("ffn_hidden_size", default=width),
        vocabulary=_padded(fields),
        head_size=fields.size("kv_channels", default=embedding // heads),
        rope_theta=int(fields.number("rotary_base", default=10000)) if is_rotary else 0,
    )


def _padded(fields: Fields) -> int:
    """Return the vocabulary's tokens, padded as by Megatron-LM."""
    padded = fields.size("padded_vocab_size", default=0)
    if padded or not fields.flag("should_pad_vocab", default=True):
        return padded or fields.size("vocab_size")
    size, tensor = fields.size("vocab_size"), fields.size("tensor_model_parallel_size", default=1)
    multiple = tensor * fields.size("make_vocab_size_divisible_by", default=128)
    return -(-size // multiple) * multiple


def _has_biases(fields: Fields) -> bool:
    return fields.flag("add_bias_linear", default=not fields.flag("disable_bias_linear"))


def _is_gated(fields: Fields) -> bool:
    return fields.flag("swiglu") or fields.flag("gated_linear_unit")


def _style(fields: Fields, sizes: Sizes, *, is_latent: bool) -> Style:
    norm = fields.text("normalization", default="LayerNorm")
    kind = fields.text("position_embedding_type", default="learned_absolute")
    is_without = fields.flag("no_position_embedding") or kind != "learned_absolute"
    learned = not is_without and not sizes.rope_theta
    biases = _has_biases(fields)
    inputs = fields.flag("add_qkv_bias")
    activation = "silu" if _is_gated(fields) else "gelu"
    activations: dict[str, Activation] = {
        "silu": "silu",
        "gelu": "gelu",
        "squared_relu": "relu_squared",
    }
    activation = activations[fields.text("activation_func", default=activation)]
    if fields.flag("squared_relu"):
        activation = "relu_squared"
    tied = not fields.flag("untie_embeddings_and_output_weights")
    rotary = fields.number("rotary_percent", default=1.0)
    return Style(
        norm="rms" if norm == "RMSNorm" else "layer",
        epsilon=fields.number("norm_epsilon", "layernorm_epsilon", default=1e-5),
        norms_of_heads=fields.flag("qk_layernorm") and not is_latent,
        activation=activation,
        gated=_is_gated(fields),
        attention_biases="all" if biases else "inputs" if inputs else "none",
        mlp_biases=biases,
        tied=fields.flag("share_embeddings_and_output_weights", default=tied),
        learned_positions=fields.size("seq_length", default=4096) if learned else 0,
        rotary_size=0 if rotary == 1.0 else int(rotary * sizes.head_size),
    )


def _window(fields: Fields) -> int:
    """Return the tokens that a layer sees, 0 for all."""
    text = fields.given("window_size")
    if text is None:
        return 0
    numbers = re.findall(r"-?\d+", str(text))
    fields.refuse(not numbers, f"window_size is {text!r}", "write it as in 4096,0")
    return int(numbers[0]) + 1


def _routing(fields: Fields, sizes: Sizes) -> Routing | None:
    experts = fields.given("num_experts", "num_moe_experts")
    if experts is None:
        return None
    fields.one_of("moe_token_dispatcher_type", ("alltoall", "flex", "alltoall_seq"))
    fields.ignore("moe_enable_deepep", "moe_flex_dispatcher_backend", "moe_deepep_num_sms")
    sends = fields.size("expert_model_parallel_size", default=1) > 1
    sorts = sends and fields.text("moe_token_dispatcher_type", default="flex") != "flex"
    # A negative factor drops no token, as none does.
    capacity = fields.number("moe_expert_capacity_factor", default=1.0)
    capacity = 1.0 if capacity < 0 else capacity
    fields.refuse(not capacity, "moe_expert_capacity_factor is 0", "give a number above 0")
    fields.ignore("moe_pad_expert_input_to_capacity", "moe_token_drop_policy")
    score = fields.text("moe_router_score_function", default="softmax")
    fields.one_of("moe_router_score_function", ("softmax", "sigmoid"))
    fields.ignore("moe_router_num_groups", "moe_router_group_topk", "moe_router_norm_topk_prob")
    return Routing(
        experts=fields.size("num_experts", "num_moe_experts"),
        chosen=fields.size("moe_router_topk", default=2),
        expert_mlp=fields.size("moe_ffn_hidden_size", default=sizes.mlp),
        shared_mlp=fields.size("moe_shared_expert_intermediate_size", default=0, least=0),
        capacity_percent=round(100 * capacity),
        gate="sigmoid" if score == "sigmoid" else "softmax",
        dispatcher="alltoall" if sorts else "fused",
        style=RoutingStyle(
            corrected=fields.flag("moe_router_enable_expert_bias"),
            scale=fields.number("moe_router_topk_scaling_factor", default=1.0),
            shared_gate=fields.flag("moe_shared_expert_gate"),
            biases=_has_biases(fields),
        ),
    )


def _latent(fields: Fields) -> Latent | None:
    if not fields.flag("multi_latent_attention"):
        return None
    return Latent(
        query_rank=fields.size("q_lora_rank", default=0, least=0),
        kv_rank=fields.size("kv_lora_rank", default=32),
        rope_size=fields.size("qk_pos_emb_head_dim", default=64),
        value_size=fields.size("v_head_dim", default=128),
    )


_REPEATED = re.compile(r"\(?\[([01, ]+)\](?:\*(\d+))?\)?")


def _kinds(fields: Fields, layers: int, has_experts: bool) -> tuple[LayerKind, ...]:
    """Return which layers have experts, by ``moe_layer_freq``."""
    frequency = fields.given("moe_layer_freq")
    if not has_experts:
        return ()
    if frequency is None or isinstance(frequency, int):
        every = frequency or 1
        routed = [index % every == 0 for index in range(layers)]
    else:
        texts = frequency if isinstance(frequency, str) else f"[{','.join(map(str, frequency))}]"
        terms = [_REPEATED.fullmatch(term.strip(" ()")) for term in texts.strip("()").split("+")]
        fields.refuse(
            not all(terms),
            f"moe_layer_freq is {frequency!r}",
            "write a number, or which layers have experts, as in ([0]*3+[1]*58)",
        )
        routed = [
            digit.strip() == "1"
            for term in terms
            if term
            for digit in term[1].split(",") * int(term[2] or 1)
        ]
    fields.refuse(
        len(routed) != layers,
        f"moe_layer_freq names {len(routed)} layers, and num_layers is {layers}",
        f"name {layers}",
    )
    return tuple(LayerKind(is_routed=is_routed) for is_routed in routed)
