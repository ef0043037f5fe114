"""Steps of models of Hugging Face's ``transformers``, built from their configuration alone."""

# pyright: reportFunctionMemberAccess=false

from __future__ import annotations

import inspect
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from hespas.errors import ConfigError, DeviceCountError, ProgramError, option


def train(
    *,
    config: str,
    batch: int = 1,
    sequence: int | None = None,
    layers: int | None = None,
    recompute: bool | None = None,
    compiled: bool = True,
    attention: str | None = None,
) -> Callable[[], None]:
    """Return a step of training: FSDP2 over all ranks, bf16 with f32 weights, AdamW.

    ``config`` is the file of the model's configuration, ``batch`` counts sequences (images) of a
    rank, and ``sequence`` the tokens of each, by default 4,096 or as many as have positions. With
    ``recompute``, the default where the model can, each layer is computed again in the backward
    pass. ``attention`` is a name of transformers for its implementation, by default the one that
    transformers takes.
    """
    ranks = int(os.environ["WORLD_SIZE"])
    described = _configuration(config, layers)
    with torch.device("meta"):
        model = _model(described, torch.float32, attention)
    length = _length(model, sequence)
    inputs = _inputs(model, described, batch, length)
    model.train()
    if model.supports_gradient_checkpointing if recompute is None else recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    for block in _blocks(model):
        if compiled:
            block.compile()
    mesh = init_device_mesh("cuda", (ranks,), mesh_dim_names=("dp_shard",))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in (*_blocks(model), model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        model(**inputs()).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    if model.main_input_name == _TEXT:
        step.tokens = ranks * batch * length
    return step


def prefill(
    *,
    config: str,
    batch: int = 1,
    sequence: int = 4096,
    layers: int | None = None,
    compiled: bool = True,
    attention: str | None = None,
) -> Callable[[], None]:
    """Return a step that prefills ``sequence`` tokens in bf16 on one GPU."""
    model, cache = _for_inference(config, layers, sequence, attention, compiled=compiled)
    ids = torch.zeros(batch, sequence, dtype=torch.long, device="cuda")
    positions = torch.arange(sequence, device="cuda")

    def step() -> None:
        with torch.no_grad():
            model(
                input_ids=ids,
                position_ids=positions[None],
                cache_position=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits.argmax(-1)

    step.tokens = batch * sequence
    return step


def decode(
    *,
    config: str,
    batch: int = 1,
    sequence: int = 4096,
    layers: int | None = None,
    compiled: bool = True,
    attention: str | None = None,
) -> Callable[[], None]:
    """Return a decode step of sequences with ``sequence`` cached tokens."""
    model, cache = _for_inference(config, layers, sequence, attention, compiled=compiled)
    ids = torch.zeros(batch, 1, dtype=torch.long, device="cuda")
    position = torch.full((1,), sequence - 1, device="cuda")

    def step() -> None:
        with torch.no_grad():
            model(
                input_ids=ids,
                position_ids=position.expand(batch, 1),
                cache_position=position,
                past_key_values=cache,
                use_cache=True,
            ).logits[:, -1].argmax(-1)

    step.tokens = batch
    return step


def _for_inference(
    config: str, layers: int | None, sequence: int, attention: str | None, *, compiled: bool
) -> tuple[Any, Any]:
    """Return a model in bf16, and a cache for ``sequence`` tokens."""
    ranks = int(os.environ["WORLD_SIZE"])
    if ranks > 1:
        raise DeviceCountError(
            f"inference of torch:hf models is of one GPU, and there are {ranks}",
            hint=f"give {option('cluster')} 1xPART, or write a script that divides the model",
        )
    described = _configuration(config, layers)
    with torch.device("cuda"):
        model = _model(described, torch.bfloat16, attention)
    model.eval()
    if compiled:
        model.forward = torch.compile(model.forward)
    return model, transformers.StaticCache(config=described, max_cache_len=sequence)


def _configuration(file: str, layers: int | None) -> Any:
    """Read a ``config.json``; `ProgramError` for a model that transformers does not know."""
    values = json.loads(Path(file).read_text(encoding="utf-8"))
    kind, named = values.get("model_type", ""), next(iter(values.get("architectures") or ()), "")
    described_by = _configuration_class(kind, named)
    if described_by is None:
        raise ProgramError(
            f"transformers {transformers.__version__} has no model_type {kind!r}", location=file
        )
    described = described_by.from_dict(values)
    text = described.get_text_config()
    if layers is not None:
        text.num_hidden_layers = layers
        if getattr(text, "layer_types", None):
            text.layer_types = text.layer_types[:layers]
    for token in ("pad_token_id", "decoder_start_token_id") if text.is_encoder_decoder else ():
        setattr(text, token, getattr(text, token, None) or 0)
    return text


def _configuration_class(kind: str, architecture: str) -> Any:
    """Return a type's class, or that of the architecture, by which a model of its own type runs."""
    known = cast("dict[str, Any]", transformers.CONFIG_MAPPING)
    if kind in known:
        return known[kind]
    return getattr(getattr(transformers, architecture, None), "config_class", None)


def _model(described: Any, dtype: torch.dtype, attention: str | None) -> Any:
    """Return the model that the file names, and the causal decoder where it names none."""
    named = next(iter(described.architectures or ()), "")
    kind = getattr(transformers, named, transformers.AutoModelForCausalLM)
    build = getattr(kind, "from_config", None) or kind._from_config
    return build(described, dtype=dtype, attn_implementation=attention)


_TEXT = "input_ids"
_IMAGES = "pixel_values"
_AUDIO = "input_features"
_FRAMES_OF_POSITION = 2
"""How many frames of sound the encoder of Whisper joins."""


def _inputs(model: Any, described: Any, batch: int, length: int) -> Callable[[], dict[str, Any]]:
    """Return what makes a batch of a model, with labels; `ProgramError` for other inputs."""

    def text() -> dict[str, Any]:
        ids = torch.randint(0, described.vocab_size, (batch, length), device="cuda")
        cached = {"use_cache": False} if hasattr(described, "use_cache") else {}
        return {_TEXT: ids, "labels": ids, **cached}

    def images() -> dict[str, Any]:
        side = getattr(described, "image_size", _IMAGE_SIDE)
        pixels = torch.zeros(batch, described.num_channels, side, side, device="cuda")
        labels = torch.randint(0, described.num_labels, (batch,), device="cuda")
        return {_IMAGES: pixels, "labels": labels}

    def audio() -> dict[str, Any]:
        frames = _FRAMES_OF_POSITION * described.max_source_positions
        features = torch.zeros(batch, described.num_mel_bins, frames, device="cuda")
        return {_AUDIO: features, "labels": text()["labels"]}

    inputs = {_TEXT: text, _IMAGES: images, _AUDIO: audio}.get(model.main_input_name)
    if inputs is None or "labels" not in inspect.signature(model.forward).parameters:
        raise ProgramError(
            f"{type(model).__name__} has no loss of {', '.join((_TEXT, _IMAGES, _AUDIO))} alone",
            hint="write a script with its inputs: torch:FILE.py",
        )
    return inputs


def _length(model: Any, sequence: int | None) -> int:
    """Return the tokens of a sequence, by default as many as have learned positions.

    Raises `ConfigError` for more, and for those of an image.
    """
    if model.main_input_name == _IMAGES and sequence is not None:
        raise ConfigError(
            f"{option('sequence')} has no effect: {type(model).__name__} takes images",
            hint="drop it",
        )
    tables = [
        module.num_embeddings
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding) and "position" in name and "encoder" not in name
    ]
    longest = min(tables, default=None)
    if sequence is not None and longest is not None and sequence > longest:
        raise ConfigError(
            f"{option('sequence')} is {sequence}, and {type(model).__name__} has {longest} "
            "positions",
            hint=f"give {longest} or fewer",
        )
    return sequence or min(_LENGTH, longest or _LENGTH)


_LENGTH = 4096
"""Of a sequence."""
_IMAGE_SIDE = 224
"""Of images of models that take any."""


def _blocks(model: Any) -> Iterator[Any]:
    """Yield the layers: what transformers itself keeps on one device, without shared weights."""
    names: set[str] = set(model._no_split_modules or ())
    uses = Counter(id(weight) for _, weight in model.named_parameters(remove_duplicate=False))
    for module in model.modules():
        is_alone = all(uses[id(weight)] == 1 for weight in module.parameters())
        if type(module).__name__ in names and is_alone:
            yield module
