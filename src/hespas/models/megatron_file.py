"""Files of Megatron-LM's arguments, and those that change nothing.

A file has arguments as a shell has them (``--hidden-size 4096 ..``, with comments, variables and
arrays), or is YAML with the names of Megatron-Bridge, whose sections may be left out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from hespas.base.decode import read_text, read_yaml
from hespas.errors import ConfigError

IGNORED = re.compile(
    # Where things are, what is written, and how often.
    r".*_path|.*_dir|.*_cache.*|load|save|.*_interval|.*_iters|.*_file|.*_name|data_.*|dataset.*|"
    r"tokenizer.*|vocab_file|merge_file|split|train_samples|eval_.*|exit_.*|log_.*|logging.*|"
    r"logger.*|tensorboard.*|wandb.*|timing_.*|profile.*|use_pytorch_profiler|nsys.*|record_.*|"
    r"ckpt_.*|checkpoint.*|async_save|no_load_.*|no_save_.*|use_checkpoint_args|finetune|"
    r"dist_ckpt_.*|use_dist_ckpt|auto_detect_ckpt_format|experiment.*|run_name|"
    # How weights begin, and how the learning rate goes.
    r"init_method.*|seed|lr|decoupled_.*|lr_.*|min_lr|max_lr|weight_decay.*|.*weight_decay|adam_.*|clip_grad|"
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
DEFAULTS: Mapping[str, object] = {
    "async_tensor_model_parallel_allreduce": True,
    "batch_p2p_sync": True,
    "clone_scatter_output_in_embedding": True,
    "cpu_offloading_activations": True,
    "cuda_graph_impl": "none",
    "cuda_graph_scope": "full",
    "cuda_graph_warmup_steps": 3,
    "gradient_reduce_div_fusion": True,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "mamba_head_dim": 64,
    "mamba_num_groups": 8,
    "mamba_state_dim": 128,
    "mlp_chunks_for_prefill": 1,
    "moe_hybridep_num_sms": 16,
    "num_distributed_optimizer_instances": 1,
    "num_layers_at_end_in_bf16": 1,
    "num_layers_at_start_in_bf16": 1,
    "outer_dp_sharding_strategy": "no_shard",
    "perform_initialization": True,
    "preserve_fp32_weights": True,
    "qk_clip_alpha": 0.5,
    "qk_clip_threshold": 100,
    "softmax_type": "vanilla",
    "store_param_remainders": True,
    "use_gloo_process_groups": True,
}
"""Arguments that are not read here, with the value that Megatron-Core gives them, and which changes
nothing; another is refused. Source: NVIDIA, Megatron-Core 0.16.1, ``TransformerConfig``,
``ModelParallelConfig``, ``DistributedDataParallelConfig`` and ``OptimizerConfig``."""


def arguments_of(path: Path) -> dict[str, Any]:
    """Return the values of a file's arguments by name.

    Raises `ConfigError`, with the file, for one that can't be read.
    """
    return dict(_flat(read_yaml(path), str(path)) if is_yaml(path) else _shell(path))


def spelled(name: str, path: Path) -> str:
    """Return an argument as the file writes it."""
    return name if is_yaml(path) else f"--{name.replace('_', '-')}"


def is_yaml(path: Path) -> bool:
    """Return whether a file is YAML, by its name."""
    return path.suffix in {".yml", ".yaml"}


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


_ADAPTERS = "peft"
"""The section of adapters, whose fields have names of their own here: ``lora_dim``."""
_SECTIONS = {
    _ADAPTERS,
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
            if name == _ADAPTERS:
                yield from ((f"lora_{each}", leaf) for each, leaf in _flat(value, location))
                continue
            if name not in _SECTIONS:
                raise ConfigError(f"there is no section {name}", location=location,
                                  hint=f"known: {', '.join(sorted(_SECTIONS))}")  # fmt: skip
            yield from _flat(value, location)
        else:
            seen[str(name).replace("-", "_")] = value
    yield from seen.items()
