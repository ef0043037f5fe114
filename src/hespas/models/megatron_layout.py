"""Read how Megatron-LM's arguments divide and schedule a run.

Source: NVIDIA, Megatron-LM (core 0.15), ``megatron/training/arguments.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

from hespas.base.frozen import frozen
from hespas.errors import ConfigError, option, refuse
from hespas.models.fields import Fields
from hespas.models.language import LanguageModel
from hespas.models.model import MODULES


@frozen
class Layout:
    """How a run is divided and scheduled, by Megatron-LM's names.

    Fields are None where the file doesn't say. ``experts`` is the size of the axis ``expert``,
    beside those of ``expert_axes``.
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
    sequence: int | None
    remat: str
    attention: str | None
    dtype: str
    gradient_dtype: str
    sequence_parallel: bool
    product_dtype: str
    overlap: Mapping[str, bool]


def layout_of(fields: Fields, model: LanguageModel) -> Layout:
    """Read how arguments divide and schedule a run.

    Raises `ConfigError` for what contradicts itself, or is not modelled.
    """
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
    stage_layers = _listed_layers(fields)
    if stage_layers is None:
        chunks = _chunks(fields, model.layers, stages)
        stage_layers = _stage_layers(fields, model.layers, stages, chunks)
    else:
        chunks = _listed_chunks(fields, stage_layers, stages)
    return Layout(
        tensor=tensor,
        stages=stages,
        context=context,
        experts=axis,
        expert_axes=expert_axes,
        divides_states=fields.flag("use_distributed_optimizer"),
        chunks=chunks,
        stage_layers=stage_layers,
        global_batch=fields.size("global_batch_size", default=0) or None,
        micro_batch=fields.size("micro_batch_size", default=0) or None,
        sequence=fields.size("seq_length", "seq_len", default=0) or None,
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
    """Return the size of axis ``expert``, and the experts' axes.

    Megatron-Core numbers the devices of ``experts`` parts first along tensor parallelism, where
    experts have none of their own, then along context parallelism, then along data parallelism.
    Raises `ConfigError` for experts on a part of such a group. Source: NVIDIA, Megatron-Core 0.15,
    ``parallel_state.initialize_model_parallel``, whose order is tp-cp-ep-dp-pp.

    >>> expert_layout(64, tensor=2, context=1, expert_tensor=1)
    (32, 'expert+tp')
    """
    refuse(
        expert_tensor != tensor and (expert_tensor != 1 or experts == 1),
        f"experts are divided by {expert_tensor} and all else by {tensor} tensor-parallel devices",
        "leave out expert_tensor_parallel_size, or give 1 beside an "
        f"expert_model_parallel_size that {tensor} divides",
    )
    shared = {"tp": tensor if expert_tensor == 1 else 1, "context": context}
    remaining, axes = experts, list[str]()
    for axis, size in shared.items():
        if size == 1 or remaining == 1:
            continue
        if remaining % size:
            raise ConfigError(
                f"expert_model_parallel_size = {experts} divides the {size} devices of {axis}, "
                "which hold one sequence",
                hint=f"give a multiple of {experts // remaining * size}",
            )
        remaining //= size
        axes.append(axis)
    return remaining, "+".join(["expert", *sorted(axes)])


_REPEATED_PARTS = re.compile(r"\(([^()]{1,64})\)\*(\d{1,6})")
_REPEATED_LAYER = re.compile(r"([EtmL|])\*(\d{1,6})")


def _listed_layers(fields: Fields) -> tuple[int, ...] | None:
    """Return the layers of each listed part of a pipeline.

    Returns None without a ``pipeline_model_parallel_layout``. In a text ``t`` is a layer, ``|``
    ends a part, ``E``, ``m`` and ``L`` are the embedding, layers that predict further tokens and
    the loss, and ``*`` repeats what is before it. Source: NVIDIA, Megatron-Core 0.16,
    ``PipelineParallelLayerLayout``.
    """
    layout = fields.given("pipeline_model_parallel_layout")
    if layout is None:
        return None
    written = str(cast("object", layout))
    if isinstance(layout, list):
        parts = cast("list[object]", layout)
        listed = [cast("list[object]", part) for part in parts if isinstance(part, list)]
        if len(listed) == len(parts):
            return tuple(part.count("decoder") for part in listed)
    text = re.sub(r"[,\s]", "", written)
    for repetition in (_REPEATED_PARTS, _REPEATED_LAYER):
        text = repetition.sub(lambda match: match[1] * min(int(match[2]), _MOST_LISTED), text)
    if set(text) - set("EtmL|") or len(text) > _MOST_LISTED:
        raise ConfigError(
            f"pipeline_model_parallel_layout is {written[:60]!r}",
            location=fields.location,
            hint="write it as in Et*3|(tt|)*29t|mL",
        )
    return tuple(part.count("t") for part in text.split("|"))


_MOST_LISTED = 4096


def _listed_chunks(fields: Fields, stage_layers: tuple[int, ...], stages: int) -> int:
    chunks, remainder = divmod(len(stage_layers), stages)
    declared = fields.size(
        "num_virtual_stages_per_pipeline_rank",
        "virtual_pipeline_model_parallel_size",
        default=chunks or 1,
    )
    if remainder or declared != chunks or 0 in stage_layers:
        raise ConfigError(
            f"pipeline_model_parallel_layout lists {len(stage_layers)} parts for {stages} stages, "
            f"{stage_layers.count(0)} of them without a layer",
            location=fields.location,
            hint="list as many parts as stages, or a multiple, each with a layer",
        )
    return chunks


def _chunks(fields: Fields, layers: int, stages: int) -> int:
    chunk = fields.size("num_layers_per_virtual_pipeline_stage", default=0)
    chunks = fields.size(
        "num_virtual_stages_per_pipeline_rank", "virtual_pipeline_model_parallel_size", default=0
    )
    fields.refuse(
        chunk and chunks,
        "chunks of a stage are given as a number and by their layers",
        "keep one of num_layers_per_virtual_pipeline_stage and "
        "num_virtual_stages_per_pipeline_rank",
    )
    layers += sum(_outer(fields))
    uneven = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
    fields.refuse(
        chunk and any(fields.given(name) for name in uneven),
        "chunks are given by their layers, and stages have different numbers of them",
        "give num_virtual_stages_per_pipeline_rank",
    )
    if chunk and layers % (stages * chunk):
        raise ConfigError(
            f"num_layers = {layers} is not divided into {stages} stages of chunks of {chunk} "
            "layers",
            location=fields.location,
            hint=f"choose a divisor of {layers // stages}",
        )
    return layers // (stages * chunk) if chunk else chunks or 1


def _outer(fields: Fields) -> tuple[int, int]:
    """Return whether embedding and loss count as layers."""
    first, last = (
        int(fields.flag(f"account_for_{name}_in_pipeline_split")) for name in ("embedding", "loss")
    )
    return first, last


def _stage_layers(fields: Fields, layers: int, stages: int, chunks: int) -> tuple[int, ...] | None:
    """Return each part's layers, or None for equal parts.

    The chunks of a stage have as many each, but for the embedding and the loss where they count.
    Source: NVIDIA, Megatron-Core 0.15, ``get_num_layers_to_build``.
    """
    first = fields.size("decoder_first_pipeline_num_layers", "num_layers_in_first_pipeline_stage",
                        default=0)  # fmt: skip
    last = fields.size("decoder_last_pipeline_num_layers", "num_layers_in_last_pipeline_stage",
                       default=0)  # fmt: skip
    outer = _outer(fields)
    if not (first or last or any(outer)):
        return None
    fields.refuse(
        (first or last) and any(outer),
        "layers of the first or last stage are given, and the embedding or the loss counts as one",
        "keep one of both",
    )
    inner = stages - bool(first) - bool(last)
    size, remainder = divmod(layers + sum(outer) - first - last, inner or layers + 1)
    of_stages = [first or size, *[size] * (stages - 2), last or size][:stages]
    fields.refuse(
        remainder or (inner and size < 1) or any(of_stage % chunks for of_stage in of_stages),
        f"{layers} layers, {first or 'as many'} in the first stage and {last or 'as many'} in the "
        f"last, are not divided by {stages} stages of {chunks} chunks"
        if first or last
        else f"{layers} layers, with the embedding or the loss as one, are not divided by {stages} "
        f"stages of {chunks} chunks",
        f"give {option('stage_layers')}",
    )
    parts = [of_stage // chunks for _ in range(chunks) for of_stage in of_stages]
    parts[0] -= outer[0]
    parts[-1] -= outer[1]
    fields.refuse(min(parts) < 1, "a part of the pipeline has no layer", "give it fewer chunks")
    return tuple(parts)


def _remat(fields: Fields, layers: int) -> str:
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
        fields.refuse(
            (method == "block" and number < layers) or (method == "uniform" and number > 1),
            f"recompute_method {method} with recompute_num_layers {number}: here all layers "
            "are computed again, each from its own input",
            "give recompute_method uniform and recompute_num_layers 1",
        )
        return "whole"
    module_names = [modules] if isinstance(modules, str) else modules or ["core_attn"]
    if list(module_names) == ["core_attn"]:
        return "core_attention"
    if set(module_names) <= set(MODULES):
        return "+".join(sorted(set(module_names)))
    raise ConfigError(
        f"recompute_modules is {' '.join(map(str, module_names))}, which is not modelled",
        location=fields.location,
        hint=f"give some of {', '.join(MODULES)}",
    )


def _attention(fields: Fields) -> str | None:
    backend = fields.text("attention_backend", default="auto")
    if fields.flag("use_flash_attn"):
        backend = "flash"
    return {"flash": "flash", "unfused": "unfused", "local": "unfused"}.get(backend)


def _dtype(fields: Fields) -> str:
    mixed = fields.text("mixed_precision", "precision_config").casefold()
    is_bf16, is_fp16 = fields.flag("bf16"), fields.flag("fp16")
    written = "f16" if is_fp16 or "fp16" in mixed else "f32"
    dtype = "bf16" if is_bf16 or "bf16" in mixed else written
    named = fields.text("params_dtype", default=dtype).rpartition(".")[2]
    fields.refuse(
        _DTYPES.get(named, named) != dtype,
        f"params_dtype is {named}, and the run's type is {dtype}",
        "give bf16 or fp16, or take params_dtype out",
    )
    return dtype


_DTYPES = {"bfloat16": "bf16", "float16": "f16", "half": "f16", "float32": "f32", "float": "f32"}


def _gradient_dtype(fields: Fields) -> str:
    in_f32 = fields.given("accumulate_allreduce_grads_in_fp32", "grad_reduce_in_fp32")
    # By default Megatron-LM sums gradients of bf16 weights in f32, and those of f16 weights in f16.
    is_f16 = fields.flag("fp16") and in_f32 is None
    is_narrow = in_f32 is False or fields.flag("grad_reduce_in_bf16") or is_f16
    return _dtype(fields) if is_narrow else "same"


def _product_dtype(fields: Fields) -> str:
    mixed = fields.text("mixed_precision", "precision_config").casefold()
    if "fp4" in mixed or fields.given("fp4_format", "fp4") is not None:
        return "f4"
    is_small = fields.given("fp8_format", "fp8") is not None or "fp8" in mixed
    return "f8" if is_small else "same"


def _overlap(fields: Fields, chunks: int) -> dict[str, bool]:
    """Return what communication is hidden, by the names of `Overlap`."""
    messages = not fields.flag("no_overlap_p2p_communication") and chunks > 1
    messages = fields.flag("overlap_p2p_communication", "overlap_p2p_comm", default=messages)
    overlap = {
        "tp": fields.flag("tp_comm_overlap"),
        "gradients": fields.flag("overlap_grad_reduce"),
        "parameters": fields.flag("overlap_param_gather"),
        "messages": messages,
        "accumulation": fields.flag(
            "gradient_accumulation_fusion",
            default=not fields.flag("no_gradient_accumulation_fusion"),
        ),
        "experts": fields.flag("moe_shared_expert_overlap"),
        "exchanges": fields.flag("overlap_moe_expert_parallel_comm"),
    }
    return {name: is_on for name, is_on in overlap.items() if is_on or name not in _LATER}


_LATER = ("experts", "exchanges")
"""What is hidden where that is asked for, and can be asked of models with experts alone."""
