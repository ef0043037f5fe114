"""Read the arguments of Megatron-LM, or the fields of Megatron-Bridge: a model and its layout.

``megatron:FILE`` names a file of arguments as a shell has them (``--hidden-size 4096 ..``, with
comments, variables and arrays), or YAML with the names of Megatron-Bridge, whose sections may be
left out. An argument that is neither read here nor in `IGNORED`, those that change nothing, is an
error that names it.

Source: NVIDIA, Megatron-LM (core 0.15), ``megatron/training/arguments.py``; NeMo Megatron-Bridge,
``TransformerConfig`` and the sections of its recipes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from hespas.base.decode import read_text, read_yaml
from hespas.base.suggest import nearest
from hespas.errors import ConfigError, option
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
from hespas.models.model import MeshAxes
from hespas.models.runs import Training

IGNORED = re.compile(
    # Where things are, what is written, and how often.
    r".*_path|.*_dir|.*_cache.*|load|save|.*_interval|.*_iters|.*_file|.*_name|data_.*|dataset.*|"
    r"tokenizer.*|vocab_file|merge_file|split|train_samples|eval_.*|exit_.*|log_.*|logging.*|"
    r"logger.*|tensorboard.*|wandb.*|timing_.*|profile.*|use_pytorch_profiler|nsys.*|record_.*|"
    r"ckpt_.*|checkpoint.*|async_save|no_load_.*|no_save_.*|use_checkpoint_args|finetune|"
    r"dist_ckpt_.*|use_dist_ckpt|auto_detect_ckpt_format|experiment.*|run_name|"
    # How weights begin, and how the learning rate goes.
    r"init_method.*|seed|lr|lr_.*|min_lr|max_lr|weight_decay.*|.*weight_decay|adam_.*|clip_grad|"
    r"start_weight_decay|use_cpu_initialization|override_opt_param_scheduler|"
    r"use_checkpoint_opt_param_scheduler|scheduler.*|loss_scale.*|initial_loss_scale|"
    r"min_loss_scale|hysteresis|calculate_per_token_loss|check_for_nan.*|"
    # How processes are started and meet.
    r"distributed_.*|nproc_per_node|nnodes|node_rank|master_.*|rdzv_.*|local_rank|num_workers|"
    r"use_tp_pp_dp_mapping|nccl_.*|disable_.*_nan_check|manual_gc.*|align_.*|empty_unused_.*|"
    r"high_priority_stream_groups|ddp_(num_)?bucket.*|.*average_in_collective|"
    # Losses beside the main one, of a few numbers a token, and how Python is set up.
    r"moe_aux_loss_coeff|moe_z_loss_coeff|moe_router_load_balancing_type|"
    r"moe_router_bias_update_rate|moe_router_dtype|moe_per_layer_logging|"
    r"moe_router_force_load_balancing|moe_router_padding_for_fp8|moe_router_pre_softmax|"
    r"moe_grouped_gemm|moe_permute_fusion|moe_router_fusion|moe_use_legacy_grouped_gemm|"
    r"use_mcore_models|use_legacy_models|no_create_attention_mask_in_dataloader|"
    r"create_attention_mask_in_dataloader|no_mmap_bin_files|mock_data|reset_.*|eod_mask_loss|"
    r"fp8_(margin|amax_.*|param_gather)|te_rng_tracker|deterministic_mode|"
    r"tp_comm_(overlap_.*|bootstrap_backend|bulk_.*|split_.*|atomic_.*)|delay_wgrad_compute|"
    r"attention_softmax_in_fp32|apply_query_key_layer_scaling|max_position_embeddings|"
    r"original_max_position_embeddings|beta_(fast|slow)|mscale.*|"
    r"use_rotary_position_embeddings|apply_rope_fusion|masked_softmax_fusion|bias_.*_fusion|"
    r"cross_entropy_(loss_fusion|fusion_impl)|persist_layer_norm|gradient_accumulation_fusion|"
    r"distribute_saved_activations|transformer_impl|use_transformer_engine_op_fuser|"
    r"barrier_with_.*|inference_.*|make_vocab_size_divisible_by"
)
"""Arguments that change nothing of a step, or what the kernels of libraries do in any case."""
_UNFUSED = ("no_rope_fusion", "no_masked_softmax_fusion", "no_bias_gelu_fusion",
            "no_bias_swiglu_fusion", "no_bias_dropout_fusion", "no_persist_layer_norm")  # fmt: skip
"""Arguments that divide kernels which are one here: they are taken, and said."""
_REFUSED = {
    "first_last_layers_bf16": "layers are all of one precision here",
    "use_torch_fsdp2": f"weights are divided by {option('mesh')} fsdp=N of a model of the zoo",
    "use_megatron_fsdp": f"weights are divided by {option('mesh')} fsdp=N of a model of the zoo",
    "use_custom_fsdp": f"weights are divided by {option('mesh')} fsdp=N of a model of the zoo",
    "pipeline_model_parallel_layout": f"give {option('stage_layers')} in its place",
    "hybrid_override_pattern": "layers without attention are read from a config.json alone",
    "cp_comm_type": "",
    "lora_rank": "adapters have no model here",
}
_DEFAULT_DROPOUT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a run is divided and scheduled, by Megatron-LM's names; None where it is not said.

    ``experts`` is the size of the axis ``expert``, beside those of ``expert_axes``.
    """

    tensor: int
    stages: int
    context: int
    experts: int
    expert_axes: str
    divides_states: bool
    chunks: int
    stage_layers: tuple[int, ...] | None
    global_batch: int | None
    micro_batch: int | None
    sequence: int
    remat: str
    attention: str | None
    dtype: str
    gradient_dtype: str
    sequence_parallel: bool
    product_dtype: str
    overlap: Mapping[str, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What a file of arguments describes; ``notes`` say what was assumed or left out."""

    path: Path
    model: LanguageModel
    layout: Layout
    notes: tuple[str, ...]


def read_arguments(path: Path) -> Arguments:
    """Read a file of arguments.

    Raises `ConfigError`, with the file, for one that can't be read, arguments that are not known,
    and values that are none or that change what is computed in a way that is not understood.
    """
    try:
        state = path.stat()
    except OSError:
        return _read_arguments(path, 0, 0)
    # A process that stays reads a file again where it was changed.
    return _read_arguments(path, state.st_mtime_ns, state.st_size)


@cache
def _read_arguments(path: Path, changed_ns: int, size: int) -> Arguments:  # noqa: ARG001 - of the key
    is_yaml = path.suffix in {".yml", ".yaml"}
    values = dict(_flat(read_yaml(path), str(path)) if is_yaml else _shell(path))
    fields = Fields(values=values, location=str(path), ignored=IGNORED)
    for name, why in _REFUSED.items():
        if why and fields.given(name) not in {None, False}:
            raise ConfigError(f"{_spelled(name, path)}: {why}", location=str(path), hint="drop it")
    notes = list(_notes(fields, path))
    model = _model(fields)
    layout = _layout(fields, model)
    _check_read(fields, path)
    return Arguments(path=path, model=model, layout=layout, notes=tuple(notes))


def _spelled(name: str, path: Path) -> str:
    return name if path.suffix in {".yml", ".yaml"} else f"--{name.replace('_', '-')}"


def _check_read(fields: Fields, path: Path) -> None:
    """Name all arguments at once that are not known."""
    unknown = [
        name
        for name, value in fields.values.items()
        if name not in fields.read and value not in (None, False) and not IGNORED.fullmatch(name)
    ]
    if not unknown:
        return
    names = ", ".join(_spelled(name, path) for name in unknown)
    what = "argument is" if len(unknown) == 1 else f"{len(unknown)} arguments are"
    close = nearest(unknown[0], sorted(fields.read))
    meant = f"did you mean {_spelled(close[0], path)}? Otherwise " if close else ""
    raise ConfigError(
        f"{what} not known, and may change what is computed: {names}",
        location=str(path),
        hint=f"{meant}take out what changes nothing",
    )


# How the file is written.

_NAME = re.compile(r"--([A-Za-z][\w-]*)(?:=(.*))?", re.DOTALL)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
_ARRAY = re.compile(r"\"?\$\{\w+\[[@*]\]\}\"?")
_ENDS = {")", "(", ";", "\\", "&&", "|", ">", "2>&1", "&"}


def _shell(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of arguments as a shell script has them."""
    text = read_text(path).replace("\\\n", " ")
    variables: dict[str, str] = {}
    name, given, seen = "", list[str](), dict[str, Any]()
    for token in [*_words(text, path), "--end"]:
        argument = _NAME.fullmatch(token)
        assigned = _ASSIGNED.fullmatch(token)
        if argument or assigned or token in _ENDS or _ARRAY.fullmatch(token):
            if name:
                _keep(seen, name, given, path)
            name, given = "", []
        if argument:
            name = argument[1].replace("-", "_")
            given = [] if argument[2] is None else [_resolved(argument[2], variables, name, path)]
        elif assigned and assigned[2] != "(":
            variables[assigned[1]] = _resolved(assigned[2], variables, "", path)
        elif name and token not in _ENDS and not _ARRAY.fullmatch(token):
            given.append(_resolved(token, variables, name, path))
    if not seen:
        raise ConfigError(
            "there are no arguments", location=str(path), hint="write them as --hidden-size 4096"
        )
    yield from seen.items()


def _words(text: str, path: Path) -> list[str]:
    words: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            words += [
                *shlex.split(line.rstrip(";"), comments=True),
                ";" if line[:1].strip() else "",
            ]
        except ValueError as error:
            raise ConfigError(
                f"this is no line of a shell: {error}", location=f"{path}:{number}",
                hint="close the quotes",
            ) from None  # fmt: skip
    # An argument's values may stand on the next line, unless something else begins there.
    return [word for word in words if word not in {"", ";"}]


def _keep(seen: dict[str, Any], name: str, given: list[str], path: Path) -> None:
    value: Any = True if not given else _typed(given[0]) if len(given) == 1 else given
    if name in seen and seen[name] != value and not IGNORED.fullmatch(name):
        raise ConfigError(
            f"--{name.replace('_', '-')} is given twice, as {seen[name]} and {value}",
            location=str(path),
            hint="keep one",
        )
    seen[name] = value


def _typed(text: str) -> Any:
    """Return a number where a text is one, and as it is otherwise."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _resolved(text: str, variables: Mapping[str, str], name: str, path: Path) -> str:
    """Return a text with the file's own variables in it."""

    def value(match: re.Match[str]) -> str:
        variable = match[1] or match[3]
        if variable in variables:
            return variables[variable]
        if match[2] is not None:
            return match[2]
        if not name or IGNORED.fullmatch(name):
            return match[0]
        raise ConfigError(
            f"--{name.replace('_', '-')} is {match[0]}, which the file does not set",
            location=str(path),
            hint=f"write {variable}=... before it",
        )

    return _VARIABLE.sub(value, text)


_SECTIONS = {
    *("model", "train", "optimizer", "ddp", "dataset", "comm_overlap", "mixed_precision"),
    *("scheduler", "logger", "checkpoint", "tokenizer", "dist", "rng", "trainer", "model_parallel"),
}


def _flat(values: Any, location: str) -> Iterator[tuple[str, Any]]:
    """Yield the fields of all sections; those of ignored ones are not looked at."""
    if not isinstance(values, dict):
        raise ConfigError(
            "this is no mapping of fields", location=location, hint="write hidden_size: 4096"
        )
    seen: dict[str, Any] = {}
    for name, value in cast("dict[str, Any]", values).items():
        if isinstance(value, dict):
            if IGNORED.fullmatch(name) or name in {"scheduler", "checkpoint", "dist", "rng"}:
                continue
            if name not in _SECTIONS:
                raise ConfigError(f"there is no section {name}", location=location,
                                  hint=f"known: {', '.join(sorted(_SECTIONS))}")  # fmt: skip
            yield from _flat(value, location)
        else:
            seen[str(name).replace("-", "_")] = value
    yield from seen.items()


# What the arguments mean.


def _notes(fields: Fields, path: Path) -> Iterator[str]:
    given = [name for name in _UNFUSED if fields.flag(name)]
    if given:
        names = ", ".join(_spelled(name, path) for name in given)
        yield f"kernels are fused all the same, without regard to {names}"
    dropouts = [
        fields.number(f"{name}_dropout", default=_DEFAULT_DROPOUT)
        for name in ("attention", "hidden")
    ]
    if any(dropouts):
        yield "dropout is left out"
    if fields.size("mtp_num_layers", default=0, least=0):
        yield "heads that predict further tokens are left out"
    fields.known("mtp_loss_scaling_factor")


def _model(fields: Fields) -> LanguageModel:
    sizes = _sizes(fields)
    routing = _routing(fields, sizes)
    latent = _latent(fields)
    if latent is not None:
        head = fields.size("qk_head_dim", default=128)
        sizes = _with_heads(sizes, head)
    fields.one_of("optimizer", ("adam", "adamw", "distributed_fused_adam"))
    for name in ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):
        fields.one_of(name, ("fp32",))
    fields.known("use_precision_aware_optimizer")
    kinds = _kinds(fields, sizes.layers, routing is not None)
    return LanguageModel(
        sizes_of_layers=sizes,
        style=_style(fields, sizes, is_latent=latent is not None),
        run=Training(mesh=MeshAxes(axes=(("fsdp", 1),))),
        routing=routing,
        latent=latent,
        pattern=kinds,
    )


def _with_heads(sizes: Sizes, head: int) -> Sizes:
    return Sizes(
        embedding=sizes.embedding,
        heads=sizes.heads,
        kv_heads=sizes.heads,
        layers=sizes.layers,
        mlp=sizes.mlp,
        vocabulary=sizes.vocabulary,
        head_size=head,
        rope_theta=sizes.rope_theta,
    )


def _sizes(fields: Fields) -> Sizes:
    embedding, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    groups = fields.size("num_query_groups", default=heads)
    if not fields.flag("group_query_attention", default="num_query_groups" in fields.values):
        groups = heads
    gated = _is_gated(fields)
    # Megatron-LM's own default of a gated layer keeps its weights: two thirds, in multiples of 64.
    width = int(4 * embedding * 2 / 3 / 64) * 64 if gated else 4 * embedding
    kind = fields.text("position_embedding_type", default="learned_absolute")
    is_rotary = kind == "rope" or fields.flag("use_rotary_position_embeddings")
    vocabulary = fields.given("padded_vocab_size", "vocab_size")
    if vocabulary is None:
        raise ConfigError(
            "the size of the vocabulary is not said: the tokenizer has it",
            location=fields.location,
            hint="add --vocab-size, as in --vocab-size 128256",
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
    """Return the tokens of the vocabulary, padded as Megatron-LM does it."""
    whole = fields.size("padded_vocab_size", default=0)
    if whole:
        return whole
    size, tensor = fields.size("vocab_size"), fields.size("tensor_model_parallel_size", default=1)
    multiple = tensor * fields.size("make_vocab_size_divisible_by", default=128)
    return -(-size // multiple) * multiple


def _is_gated(fields: Fields) -> bool:
    return fields.flag("swiglu") or fields.flag("gated_linear_unit")


def _style(fields: Fields, sizes: Sizes, *, is_latent: bool) -> Style:
    fields.one_of("normalization", ("LayerNorm", "RMSNorm"))
    fields.one_of("position_embedding_type", ("learned_absolute", "rope", "none"))
    fields.one_of("activation_func", ("silu", "gelu", "squared_relu"))
    for name in ("apply_residual_connection_post_layernorm", "openai_gelu", "quick_geglu"):
        fields.one_of(name, (False,))
    norm = fields.text("normalization", default="LayerNorm")
    kind = fields.text("position_embedding_type", default="learned_absolute")
    learned = kind == "learned_absolute" and not sizes.rope_theta
    biases = fields.flag("add_bias_linear", default=not fields.flag("disable_bias_linear"))
    inputs = fields.flag("add_qkv_bias")
    activation = "silu" if _is_gated(fields) else "gelu"
    named: dict[str, Activation] = {"silu": "silu", "gelu": "gelu", "squared_relu": "relu_squared"}
    activation = named[fields.text("activation_func", default=activation)]
    if fields.flag("squared_relu"):
        activation = "relu_squared"
    tied = not fields.flag("untie_embeddings_and_output_weights")
    rotary = fields.number("rotary_percent", default=1.0)
    window = fields.given("window_size")
    fields.known("rotary_scaling_factor", "rotary_seq_len_interpolation_factor", "rope_type")
    fields.known("use_rope_scaling", "rope_scaling_factor", "apply_layernorm_1p")
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
        window=_window(window, fields),
    )


def _window(given: Any, fields: Fields) -> int:
    """Return the tokens that a layer sees; 0 for all of them."""
    if given is None:
        return 0
    numbers = re.findall(r"-?\d+", str(given))
    if not numbers:
        raise ConfigError(
            f"window_size is {given!r}", location=fields.location, hint="write it as in 4096,0"
        )
    return int(numbers[0]) + 1


def _routing(fields: Fields, sizes: Sizes) -> Routing | None:
    experts = fields.given("num_experts", "num_moe_experts")
    if experts is None:
        return None
    fields.one_of("moe_token_dispatcher_type", ("alltoall", "flex", "alltoall_seq"))
    fields.known("moe_enable_deepep", "moe_flex_dispatcher_backend", "moe_deepep_num_sms")
    capacity = fields.number("moe_expert_capacity_factor", default=1.0)
    fields.known("moe_pad_expert_input_to_capacity", "moe_token_drop_policy")
    score = fields.text("moe_router_score_function", default="softmax")
    fields.one_of("moe_router_score_function", ("softmax", "sigmoid"))
    fields.known("moe_router_num_groups", "moe_router_group_topk", "moe_router_norm_topk_prob")
    return Routing(
        experts=fields.size("num_experts", "num_moe_experts"),
        chosen=fields.size("moe_router_topk", default=2),
        expert_mlp=fields.size("moe_ffn_hidden_size", default=sizes.mlp),
        shared_mlp=fields.size("moe_shared_expert_intermediate_size", default=0, least=0),
        capacity_percent=round(100 * capacity),
        gate="sigmoid" if score == "sigmoid" else "softmax",
        style=RoutingStyle(
            corrected=fields.flag("moe_router_enable_expert_bias"),
            scale=fields.number("moe_router_topk_scaling_factor", default=1.0),
            shared_gate=fields.flag("moe_shared_expert_gate"),
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
    """Return the kinds of layers: which have experts, as ``moe_layer_freq`` says."""
    given = fields.given("moe_layer_freq")
    if not has_experts:
        return ()
    if given is None or isinstance(given, int):
        every = given or 1
        routed = [index % every == 0 for index in range(layers)]
    else:
        texts = given if isinstance(given, str) else f"[{','.join(map(str, given))}]"
        terms = [_REPEATED.fullmatch(term.strip(" ()")) for term in texts.strip("()").split("+")]
        if not all(terms):
            raise ConfigError(
                f"moe_layer_freq is {given!r}",
                location=fields.location,
                hint="write a number, or which layers have experts, as in ([0]*3+[1]*58)",
            )
        routed = [
            each.strip() == "1"
            for term in terms
            if term
            for each in term[1].split(",") * int(term[2] or 1)
        ]
    if len(routed) != layers:
        raise ConfigError(
            f"moe_layer_freq names {len(routed)} layers, and num_layers is {layers}",
            location=fields.location,
            hint=f"name {layers}",
        )
    return tuple(LayerKind(is_routed=is_routed) for is_routed in routed)


def _layout(fields: Fields, model: LanguageModel) -> Layout:
    tensor = fields.size("tensor_model_parallel_size", default=1)
    stages = fields.size("pipeline_model_parallel_size", default=1)
    experts = fields.size("expert_model_parallel_size", default=1)
    context = fields.size("context_parallel_size", default=1)
    of_experts = fields.size("expert_tensor_parallel_size", default=tensor)
    axis, expert_axes = 1, "expert"
    if model.routing is not None:
        axis, expert_axes = expert_layout(
            experts, tensor=tensor, context=context, expert_tensor=of_experts
        )
    chunks = _chunks(fields, model.layers, stages)
    return Layout(
        tensor=tensor,
        stages=stages,
        context=context,
        experts=axis,
        expert_axes=expert_axes,
        divides_states=fields.flag("use_distributed_optimizer"),
        chunks=chunks,
        stage_layers=_stage_layers(fields, model.layers, stages * chunks),
        global_batch=fields.size("global_batch_size", default=0) or None,
        micro_batch=fields.size("micro_batch_size", default=0) or None,
        sequence=fields.size("seq_length", "seq_len", default=4096),
        remat=_remat(fields, model.layers // (stages * chunks)),
        attention=_attention(fields),
        dtype=_dtype(fields),
        gradient_dtype=_gradient_dtype(fields),
        sequence_parallel=fields.flag("sequence_parallel") and tensor > 1,
        product_dtype=_product_dtype(fields),
        overlap=_overlap(fields, chunks),
    )


def expert_layout(
    experts: int, *, tensor: int, context: int, expert_tensor: int
) -> tuple[int, str]:
    """Return the size of the axis ``expert``, and the axes of the mesh that divide the experts.

    Megatron-Core numbers the devices of ``experts`` parts first along tensor parallelism, where
    experts have none of their own, then along context parallelism, then along data parallelism.
    Raises `ConfigError` for experts on a part of such a group. Source: NVIDIA, Megatron-Core 0.15,
    ``parallel_state.initialize_model_parallel``, whose order is tp-cp-ep-dp-pp.

    >>> expert_layout(64, tensor=2, context=1, expert_tensor=1)
    (32, 'expert+tp')
    """
    if expert_tensor != tensor and (expert_tensor != 1 or experts == 1):
        raise ConfigError(
            f"experts are divided by {expert_tensor} and all else by {tensor} tensor-parallel "
            "devices",
            hint="leave out expert_tensor_parallel_size, or give 1 beside an "
            f"expert_model_parallel_size that {tensor} divides",
        )
    shared = {"tp": tensor if expert_tensor == 1 else 1, "context": context}
    rest, axes = experts, list[str]()
    for axis, size in shared.items():
        if size == 1 or rest == 1:
            continue
        if rest % size:
            raise ConfigError(
                f"expert_model_parallel_size = {experts} divides the {size} devices of {axis}, "
                "which hold one sequence",
                hint=f"give a multiple of {experts // rest * size}",
            )
        rest //= size
        axes.append(axis)
    return rest, "+".join(["expert", *sorted(axes)])


def _chunks(fields: Fields, layers: int, stages: int) -> int:
    each = fields.size("num_layers_per_virtual_pipeline_stage", default=0)
    chunks = fields.size(
        "num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size", default=0
    )
    if each and chunks:
        raise ConfigError(
            "chunks of a stage are given as a number and by their layers",
            location=fields.location,
            hint="keep one of num_layers_per_virtual_pipeline_stage and "
            "num_virtual_stages_per_pipeline_rank",
        )
    layers += sum(_outer(fields))
    if each and layers % (stages * each):
        raise ConfigError(
            f"num_layers = {layers} is not divided into {stages} stages of chunks of {each} layers",
            location=fields.location,
            hint=f"choose a divisor of {layers // stages}",
        )
    return layers // (stages * each) if each else chunks or 1


def _outer(fields: Fields) -> tuple[int, int]:
    """Return whether the embedding, and the loss, count as a layer of the first and last part."""
    first, last = (
        int(fields.flag(f"account_for_{name}_in_pipeline_split")) for name in ("embedding", "loss")
    )
    return first, last


def _stage_layers(fields: Fields, layers: int, parts: int) -> tuple[int, ...] | None:
    """Return the layers of each part where the first or the last has fewer; None for equal ones."""
    first = fields.size("decoder_first_pipeline_num_layers", "num_layers_in_first_pipeline_stage",
                        default=0)  # fmt: skip
    last = fields.size("decoder_last_pipeline_num_layers", "num_layers_in_last_pipeline_stage",
                       default=0)  # fmt: skip
    outer = _outer(fields)
    if any(outer):
        size, rest = divmod(layers + sum(outer), parts)
        first, last = (size - less if less else 0 for less in outer)
        if rest or min(size - max(outer), size) < 1:
            raise ConfigError(
                f"{layers} layers, with the embedding or the loss as one, are not divided by "
                f"{parts} parts",
                location=fields.location,
                hint=f"give {option('stage_layers')}",
            )
    if not (first or last):
        return None
    others = parts - bool(first) - bool(last)
    size, rest = divmod(layers - first - last, others) if others else (0, 1)
    if rest or size < 1:
        raise ConfigError(
            f"{layers} layers, {first or 'as many'} in the first part and {last or 'as many'} in "
            f"the last, are not divided by {parts} parts",
            location=fields.location,
            hint=f"give {option('stage_layers')}",
        )
    return (first or size, *[size] * (parts - 2), last or size)


def _remat(fields: Fields, layers: int) -> str:
    """Return what the backward pass computes again."""
    fields.one_of("recompute_granularity", ("full", "selective"))
    granularity = fields.text("recompute_granularity")
    method = fields.text("recompute_method", default="uniform")
    number = fields.size("recompute_num_layers", default=1)
    modules = fields.given("recompute_modules")
    if fields.flag("recompute_activations"):
        granularity = granularity or "selective"
    if not granularity:
        return "elementwise"
    if granularity == "full":
        fields.one_of("recompute_method", ("uniform", "block"))
        if (method == "block" and number < layers) or (method == "uniform" and number > 1):
            raise ConfigError(
                f"recompute_method {method} with recompute_num_layers {number}: here all layers "
                "are computed again, each from its own input",
                location=fields.location,
                hint="give recompute_method uniform and recompute_num_layers 1",
            )
        return "whole"
    named = [modules] if isinstance(modules, str) else modules or ["core_attn"]
    if list(named) != ["core_attn"]:
        raise ConfigError(
            f"recompute_modules is {' '.join(map(str, named))}, and core_attn is what is modelled",
            location=fields.location,
            hint="give recompute_modules core_attn",
        )
    return "core_attention"


def _attention(fields: Fields) -> str | None:
    fields.one_of("attention_backend", ("auto", "fused", "flash", "unfused", "local"))
    backend = fields.text("attention_backend", default="auto")
    if fields.flag("use_flash_attn"):
        backend = "flash"
    return {"flash": "flash", "unfused": "unfused", "local": "unfused"}.get(backend)


def _dtype(fields: Fields) -> str:
    mixed = fields.text("mixed_precision", "precision_config").casefold()
    if fields.flag("bf16") or "bf16" in mixed:
        return "bf16"
    return "f16" if fields.flag("fp16") or "fp16" in mixed else "f32"


def _gradient_dtype(fields: Fields) -> str:
    """Return the type in which gradients are summed: f32, or that of weights where it is said."""
    given = fields.given("accumulate_allreduce_grads_in_fp32", "grad_reduce_in_fp32")
    is_narrow = given is False or fields.flag("grad_reduce_in_bf16")
    return _dtype(fields) if is_narrow else "same"


def _product_dtype(fields: Fields) -> str:
    fields.one_of("fp8_recipe", ("delayed", "tensorwise", "blockwise", "mxfp8"))
    fields.one_of("fp4_recipe", ("nvfp4",))
    fields.one_of("fp4_format", ("e2m1",))
    fields.one_of("fp8_format", ("hybrid", "e4m3"))
    fields.known("fp8_recipe", "fp8_wgrad", "fp8_dot_product_attention", "fp8_multi_head_attention")
    for name in ("fp8_dot_product_attention", "fp8_multi_head_attention"):
        fields.one_of(name, (False,))
    mixed = fields.text("mixed_precision", "precision_config").casefold()
    if "fp4" in mixed or fields.given("fp4_format", "fp4") is not None:
        return "f4"
    is_small = fields.given("fp8_format", "fp8") is not None or "fp8" in mixed
    return "f8" if is_small else "same"


def _overlap(fields: Fields, chunks: int) -> dict[str, bool]:
    """Return what communication is hidden, by the names of `Overlap`."""
    messages = chunks > 1 and not fields.flag("no_overlap_p2p_communication")
    messages = fields.flag("overlap_p2p_communication", "overlap_p2p_comm", default=messages)
    fields.known(
        "overlap_p2p_communication_warmup_flush", "batch_p2p_comm", "defer_embedding_wgrad_compute"
    )
    overlap = {
        "tp": fields.flag("tp_comm_overlap"),
        "gradients": fields.flag("overlap_grad_reduce"),
        "parameters": fields.flag("overlap_param_gather"),
        "messages": messages,
        "accumulation": not fields.flag("no_gradient_accumulation_fusion"),
        "experts": fields.flag("moe_shared_expert_overlap"),
        "exchanges": fields.flag("overlap_moe_expert_parallel_comm"),
    }
    return {name: is_on for name, is_on in overlap.items() if is_on or name not in _LATER}


_LATER = ("experts", "exchanges")
"""What is hidden where that is asked for, and can be asked of models with experts alone."""
