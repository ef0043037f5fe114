"""Check that settings of a language model fit each other."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from hespas.errors import refuse
from hespas.models.fields import MOST_LAYERS
from hespas.models.kernels import FUSED
from hespas.models.model import check_division
from hespas.models.runs import Decode, Inference, Prefill, Training, has_embedding

if TYPE_CHECKING:
    from hespas.models.architecture import Routing
    from hespas.models.language import LanguageModel

SELECTING = 128
"""Queries whose tokens are chosen at a time in long sequences: their scores fit in memory."""
_MOST_MTP_LAYERS = 17
_MOST_TOKENS = 2**24


def check(model: LanguageModel) -> None:
    """Raise `ConfigError` for settings that do not fit each other."""
    run = model.run
    refuse(model.layers > MOST_LAYERS, f"layers = {model.layers}", f"give {MOST_LAYERS} or less")
    if model.routing is not None:
        _check_experts(model, model.routing)
    if isinstance(run, Training):
        _check_recomputed(model, run)
    _check_sizes(model)
    _check_tokens(model)
    check_division(model.mesh, model.sizes, model.axes)
    why = why_not(model, run.attention) if run.attention in FUSED else ""
    refuse(bool(why), why, "give attention unfused")
    match run:
        case Training():
            _check_training(model, run)
        case Prefill():
            _check_inference(model, run)
            _check_pages(run.page_size, run.sequence, "sequence")
        case Decode():
            _check_inference(model, run)
            _check_pages(run.page_size, run.context, "context")
            refuse(
                run.new_tokens > run.context,
                f"new_tokens = {run.new_tokens} of a context of {run.context}",
                "context counts the new tokens too; give more",
            )


def _refuse_unused(
    settings: Routing | Training | Inference, name: str, why: str, hint: str = "drop it"
) -> None:
    """Raise `ConfigError` for a setting that is not its default, which has no effect."""
    value = getattr(settings, name)
    default = next(own.default for own in fields(settings) if own.name == name)
    refuse(value != default, f"{name} = {value} has no effect: {why}", hint)


def _check_experts(model: LanguageModel, routing: Routing) -> None:
    run, devices = model.run, model.mesh.size(*routing.axes)
    is_training = isinstance(run, Training)
    is_divided = is_training and run.sequence_parallel
    is_shared = routing.axes == ("tp",) and not is_training
    refuse(
        len(routing.axes) > 1 and "expert" not in model.mesh.names,
        f"expert_axes = {routing.expert_axes} of a mesh without an axis expert",
        "add expert=1 where no other devices have parts of the experts",
    )
    refuse(
        "tp" in routing.axes and not (is_divided or is_shared),
        f"expert_axes = {routing.expert_axes} has experts on the devices of tp, which share the "
        "tokens with sequence_parallel in training alone",
        "give sequence_parallel=true in training, or expert_axes=tp in inference",
    )
    refuse(
        "tp" in routing.axes and model.mesh.size("tp") == 1,
        f"expert_axes = {routing.expert_axes} of a mesh without an axis tp",
        "give the mesh an axis tp, or drop expert_axes",
    )
    refuse(
        routing.dropless and devices > 1 and is_training,
        "dropless products do not send tokens to experts of other devices in training",
        "drop the axis expert, or dropless: at capacity_percent 100 the work is that of tokens "
        "spread evenly",
    )
    refuse(
        routing.chosen > routing.experts,
        f"chosen = {routing.chosen} of experts = {routing.experts}",
        "choose fewer",
    )
    if routing.dropless:
        why = "dropless products sort rows themselves"
        _refuse_unused(routing, "dispatcher", why, "drop it, or give dropless=false")
    if devices == 1 or is_shared:
        for name in ("exchange_dtype", "dispatcher"):
            why = "tokens go to no other devices"
            _refuse_unused(routing, name, why, "drop it, or give the mesh an axis expert")
    is_loop = isinstance(run, Training) and run.scan
    refuse(
        is_loop and routing.dense_layers >= model.layers,
        f"dense_layers = {routing.dense_layers} of layers = {model.layers}: no layer has experts, "
        "and scan is a loop over those that have",
        "give more layers, fewer dense_layers, or scan=false",
    )
    _check_groups(routing, devices)


def _check_groups(routing: Routing, devices: int) -> None:
    groups, chosen = routing.expert_groups, routing.chosen_groups
    refuse(chosen > groups, f"chosen_groups = {chosen} of expert_groups = {groups}", "choose fewer")
    if groups == 1:
        return
    refuse(routing.dropless, "dropless products know no groups of experts", "drop one")
    for noun, number in (("experts", routing.experts), ("devices along expert", devices)):
        refuse(
            number % groups != 0 and number > 1,
            f"{number} {noun} are not divided by expert_groups = {groups}",
            "give a number that divides them",
        )
    refuse(
        routing.chosen % chosen != 0,
        f"chosen = {routing.chosen} is not divided by chosen_groups = {chosen}",
        "give a number that divides it",
    )
    chosen_of_group, experts_of_group = routing.chosen // chosen, routing.experts // groups
    refuse(
        chosen_of_group > experts_of_group,
        f"{chosen_of_group} experts are chosen in each group, which has {experts_of_group}",
        "give fewer expert_groups, or more chosen_groups",
    )


def _check_sizes(model: LanguageModel) -> None:
    refuse(
        model.latent is not None and model.style.attention_biases != "none",
        "latent attention has no biases here",
        "leave them out: attention_bias false, or Megatron's add_bias_linear false",
    )
    for kind in set(model.kinds):
        turning, head = model.rotation(kind)[0], kind.head_size or model.head_sizes[0]
        refuse(
            turning % 2 != 0 or turning > head,
            f"{turning} of the {head} numbers of a head turn with their position, in pairs",
            "give an even number, and no more than a head has",
        )
    heads, kv_heads = model.sizes_of_layers.heads, model.sizes_of_layers.kv_heads
    refuse(
        model.latent is not None and kv_heads not in {0, heads},
        f"kv_heads = {kv_heads} of heads = {heads}: latent attention makes keys and values for "
        "each head",
        f"give kv_heads = {heads}",
    )
    refuse(
        heads % (kv_heads or heads),
        f"heads = {heads} cannot be divided by kv_heads = {kv_heads}: as many heads of queries "
        "share each head of keys and values",
        f"choose kv_heads that divides {heads}",
    )
    refuse(
        model.batch % model.accumulation != 0,
        f"a batch of {model.batch} is not divided by accumulation = {model.accumulation}",
        f"choose a divisor of {model.batch}",
    )
    learned = model.style.learned_positions
    for name, tokens in (("sequence", model.sequence), ("context", model.context)):
        refuse(
            tokens > _MOST_TOKENS,
            f"{name} = {tokens}: positions are computed in f32, which counts exactly up to "
            f"{_MOST_TOKENS}",
            f"give {_MOST_TOKENS} or less",
        )
    refuse(
        0 < learned < model.context,
        f"there are {model.context} tokens, and {learned} positions are learned",
        f"give at most {learned} tokens",
    )
    refuse(
        model.has_states and model.mesh.size("context", "sequence") > 1,
        "layers without attention carry states along a sequence, which the axes context and "
        f"sequence of the mesh {model.mesh} divide",
        "take them out of the mesh",
    )


def _check_tokens(model: LanguageModel) -> None:
    """Raise `ConfigError` for sequences that attention cannot divide."""
    if isinstance(model.run, Decode):
        return
    sequence, devices = model.sequence, model.mesh.size("context", "sequence")
    if model.selects_tokens:
        refuse(
            devices > 1,
            "attention among the tokens that an index chooses is not divided along a sequence, as "
            f"context and sequence of the mesh {model.mesh} ask for",
            "take them out of the mesh",
        )
        refuse(
            model.run.attention != "flashmla" and sequence % SELECTING != 0,
            f"sequence = {sequence}: the tokens that each query sees are chosen for {SELECTING} "
            "queries at a time",
            f"give a multiple of {SELECTING}",
        )
    for chunk in {kind.chunk for kind in model.kinds} - {0}:
        refuse(
            sequence > chunk and (sequence % chunk != 0 or devices > 1),
            f"sequence = {sequence} is not divided into chunks of {chunk} tokens that lie on one "
            "device",
            f"give a multiple of {chunk}, and a mesh without context",
        )


def _check_inference(model: LanguageModel, run: Inference) -> None:
    if model.routing is None:
        _refuse_unused(run, "expert_dtype", "there are no experts")
    precision = model.precision
    refuse(
        run.activation_dtype == "nvfp4"
        and "nvfp4" not in {precision.attention, precision.dense, precision.experts},
        "activation_dtype = nvfp4 has no effect: no weights are in nvfp4",
        "drop it, or give weight_dtype nvfp4",
    )
    refuse(
        has_embedding(run) and run.first_layer > 0,
        f"first_layer = {run.first_layer} of what begins with the model's first layer",
        "give stage middle or last",
    )
    needs_others = model.style.layer_input or any(kind.keys != "own" for kind in model.kinds)
    refuse(
        run.stage != "whole" and bool(needs_others),
        "layers that have inputs or keys of other layers are not cut into a pipeline",
        "drop stage",
    )


def _check_pages(page_size: int, tokens: int, name: str) -> None:
    refuse(
        page_size > 0 and tokens % page_size != 0,
        f"{name} = {tokens} is not divided into pages of {page_size}",
        f"choose a {name} that is a multiple of page_size = {page_size}",
    )


def _check_recomputed(model: LanguageModel, run: Training) -> None:
    has = {
        "moe": model.routing is not None,
        "moe_act": model.routing is not None,
        "mlp": model.routing is None or not all(kind.is_routed for kind in model.kinds),
        "mla_up_proj": model.latent is not None,
    }
    for module in sorted(run.recomputed):
        part = {"mlp": "dense layers", "mla_up_proj": "latent attention"}.get(module, "experts")
        refuse(
            not has.get(module, True),
            f"remat = {run.remat} of a model without {part}",
            f"drop {module}",
        )


def _check_documents(model: LanguageModel, run: Training) -> None:
    """Raise `ConfigError` for documents that attention cannot keep apart."""
    if not run.document_length:
        return
    refuse(
        run.document_length > run.sequence,
        f"document_length = {run.document_length} of sequences of {run.sequence} tokens",
        "give shorter documents, or longer sequences",
    )
    refuse(
        not any(kind.mixer == "attention" for kind in model.kinds),
        "document_length has no effect: no layer has attention",
        "drop it",
    )
    refuse(
        model.latent is not None and model.latent.indexed_tokens > 0,
        "attention among the tokens that an index chooses is not kept within documents",
        "drop document_length",
    )


def _check_adapters(model: LanguageModel, run: Training) -> None:
    """Raise `ConfigError` for adapters or options without effect."""
    refuse(
        not run.lora_rank and run.lora_modules != "all",
        f"lora_modules = {run.lora_modules} has no effect without adapters",
        "give lora_rank, too, or drop it",
    )
    if not run.lora_rank:
        return
    missing = [
        module
        for module in model.lora_modules
        if run.lora_modules != "all" and not model.has_adapters(module)
    ]
    refuse(
        bool(missing) or not any(map(model.has_adapters, model.lora_modules)),
        f"no layer has {' or '.join(missing or model.lora_modules)}, beside which adapters stand",
        "drop lora_rank" if not missing else f"drop {' and '.join(missing)}",
    )
    refuse(
        run.zero in {1, 2},
        f"zero = {run.zero} divides states and gradients of adapters alone, which are small",
        "drop zero, or give 3, which divides frozen weights, too",
    )
    refuse(run.mtp_layers > 0, "layers that predict further tokens have no adapters", "drop one")


def _check_training(model: LanguageModel, run: Training) -> None:
    _check_mtp(model, run)
    _check_adapters(model, run)
    _check_documents(model, run)
    if model.routing is None:
        _refuse_unused(run, "expert_product_dtype", "the model has no experts")
    if not model.has_slow_experts:
        why = "experts have no biases, and activations are not cut off"
        _refuse_unused(run, "expert_kernels", why)
    if not model.rotates_heads:
        hint = "drop it: latent attention has a kernel of its own"
        _refuse_unused(run, "rotary_kernels", "heads are not rotated", hint)
    refuse(run.zero not in range(4), f"zero is {run.zero}", "give 0, 1, 2 or 3")
    refuse(
        run.zero > 0 and run.mesh.size("data") == 1,
        f"zero = {run.zero} divides over the axis data, which the mesh {run.mesh} has not",
        "drop it, or give the mesh an axis data",
    )
    data, embedding = run.mesh.size("data", "fsdp"), model.sizes_of_layers.embedding
    refuse(
        run.zero > 0 and embedding % data != 0,
        f"embedding = {embedding} cannot be divided by the {data} devices of data and fsdp, as "
        f"zero = {run.zero} asks for",
        "choose a mesh whose data x fsdp divides it, or zero 0",
    )
    devices, rotates = run.mesh.size("context"), run.context_attention == "ring"
    if devices == 1:
        return
    refuse(
        (run.attention in FUSED or rotates) and run.sequence % (2 * devices) != 0,
        f"sequence = {run.sequence} cannot be divided by twice context={devices} of the mesh: "
        "each device has a block from the front of a sequence and one from its end",
        f"choose a sequence that {2 * devices} divides",
    )
    refuse(
        rotates and (model.is_windowed or model.style.score_cap > 0),
        "attention in a ring has neither a window nor a cap of scores",
        "give attention unfused and context_attention gather",
    )


def _check_mtp(model: LanguageModel, run: Training) -> None:
    refuse(
        not 0 <= run.mtp_layers < min(run.sequence, _MOST_MTP_LAYERS),
        f"mtp_layers = {run.mtp_layers}",
        f"give 0 to {_MOST_MTP_LAYERS - 1}",
    )
    if not run.mtp_layers:
        return
    last = model.kinds[-1]
    refuse(
        last.mixer == "none" or not last.feeds_forward,
        f"mtp_layers = {run.mtp_layers}: they are like the last layer, which has a mixer or a "
        "feed-forward alone",
        "drop mtp_layers",
    )
    refuse(
        model.style.layer_input > 0 or last.keys != "own",
        f"mtp_layers = {run.mtp_layers}: the last layer takes inputs or keys of others",
        "drop mtp_layers",
    )


def why_not(model: LanguageModel, kernels: str) -> str:
    """Return why kernels of `FUSED` cannot compute attention, or ""."""
    style, run = model.style, model.run
    match kernels:
        case "flash" | "flash2" | "flash_triton":
            lacks = _lacks_of_flash(model)
        case "flashmla":
            lacks = _lacks_of_flash_mla(model)
        case "splash":
            lacks = [(isinstance(run, Decode), "has no kernel over a cache")]
        case _:
            lacks = [(bool(style.score_cap), "has no cap of scores")]
            if isinstance(run, Decode):
                lacks += _lacks_over_cache(model, run)
    kernel_type, devices = FUSED[kernels], model.mesh.size("context")
    if devices > 1:
        lacks += [
            (
                model.is_windowed or bool(style.score_cap),
                "has neither a window nor a cap of scores in divided sequences",
            ),
            (style.sinks, "has no sinks in divided sequences"),
        ]
    return next((f"{kernel_type.title} {lack}" for is_so, lack in lacks if is_so), "") or (
        kernel_type.why_not(dtype=run.dtype, sequence=model.sequence, devices=devices)
    )


def _lacks_of_flash(model: LanguageModel) -> list[tuple[bool, str]]:
    """Return what FlashAttention lacks, and whether the model needs it.

    It takes scores with a cap, but how long it takes then is not known. Source:
    Dao-AILab/flash-attention, ``mha_fwd`` of ``csrc/flash_attn/flash_api.cpp``: heads up to
    256, in multiples of 8, values as long as keys.
    """
    query, value = model.head_sizes
    return [
        (bool(model.style.score_cap), "with a cap of scores has no price"),
        (isinstance(model.run, Decode), "over a cache has no model here; give attention cudnn"),
        (query != value, f"has values as long as keys, and these are {value} and {query}"),
        (query > 256 or query % 8 != 0, f"has no heads of {query}"),
    ]


def _lacks_of_flash_mla(model: LanguageModel) -> list[tuple[bool, str]]:
    run, latent = model.run, model.latent
    if model.is_longer_than_index and isinstance(run, Prefill):
        return []
    if not isinstance(run, Decode) or latent is None:
        purpose = (
            "new tokens over a cache of latent vectors, and longer prompts than an index chooses"
        )
        return [(True, f"is for {purpose}")]
    return [
        (run.new_tokens > 1, f"was measured for one new token, not {run.new_tokens}"),
        (
            run.cache_dtype not in {run.dtype, "f8"},
            f"has no price for a cache in {run.cache_dtype} here",
        ),
        (bool(run.page_size), "has no price over pages here"),
    ]


def _lacks_over_cache(model: LanguageModel, run: Decode) -> list[tuple[bool, str]]:
    latent = 0 if model.latent is None else model.latent.kv_rank + model.latent.rope_size
    is_small = run.cache_dtype == "f8"
    return [
        (run.new_tokens > 1, f"has no mask for {run.new_tokens} new tokens behind others"),
        (bool(latent), f"has no heads of {latent}, as latent vectors are"),
        (
            not is_small and run.cache_dtype != run.dtype,
            f"computes in the cache's type, {run.cache_dtype}, and dtype is {run.dtype}",
        ),
        (bool(run.page_size) and model.is_windowed, "has no window over pages"),
        (model.style.sinks and is_small, "has no sinks over a cache in 8 bits"),
        (model.style.sinks and bool(run.page_size), "has no sinks over pages"),
        (model.style.alibi, "has no slopes of scores over a cache"),
    ]
