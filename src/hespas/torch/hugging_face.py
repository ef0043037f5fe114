"""Steps of models of Hugging Face's ``transformers``, built from their configuration alone."""

# pyright: reportFunctionMemberAccess=false

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from hespas.errors import DeviceCountError, ProgramError, option


def train(
    *,
    config: str,
    batch: int = 1,
    sequence: int = 4096,
    layers: int | None = None,
    recompute: bool = True,
    compiled: bool = True,
) -> Callable[[], None]:
    """Return a step of training: FSDP2 over all ranks, bf16 with f32 weights, AdamW.

    ``config`` is the file of the model's configuration, ``batch`` counts sequences of a rank.
    With ``recompute`` each layer is computed again in the backward pass.
    """
    ranks = int(os.environ["WORLD_SIZE"])
    described = _configuration(config, layers)
    with torch.device("meta"):
        model = _model(described, torch.float32)
    model.train()
    if recompute:
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
        ids = torch.randint(0, described.vocab_size, (batch, sequence), device="cuda")
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    step.tokens = ranks * batch * sequence
    return step


def prefill(
    *,
    config: str,
    batch: int = 1,
    sequence: int = 4096,
    layers: int | None = None,
    compiled: bool = True,
) -> Callable[[], None]:
    """Return a step that prefills ``sequence`` tokens in bf16 on one GPU."""
    model, cache = _for_inference(config, layers, sequence, compiled=compiled)
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
) -> Callable[[], None]:
    """Return a decode step of sequences with ``sequence`` cached tokens."""
    model, cache = _for_inference(config, layers, sequence, compiled=compiled)
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
    config: str, layers: int | None, sequence: int, *, compiled: bool
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
        model = _model(described, torch.bfloat16)
    model.eval()
    if compiled:
        model.forward = torch.compile(model.forward)
    return model, transformers.StaticCache(config=described, max_cache_len=sequence)


def _configuration(file: str, layers: int | None) -> Any:
    """Read a ``config.json``; `ProgramError` for a model that transformers does not know."""
    values = json.loads(Path(file).read_text(encoding="utf-8"))
    kind, known = values.get("model_type", ""), cast("dict[str, Any]", transformers.CONFIG_MAPPING)
    if kind not in known:
        raise ProgramError(
            f"transformers {transformers.__version__} has no model_type {kind!r}", location=file
        )
    described = known[kind].from_dict(values)
    text = described.get_text_config()
    if layers is not None:
        text.num_hidden_layers = layers
        if getattr(text, "layer_types", None):
            text.layer_types = text.layer_types[:layers]
    return text


def _model(described: Any, dtype: torch.dtype) -> Any:
    return transformers.AutoModelForCausalLM.from_config(
        described, dtype=dtype, attn_implementation="sdpa"
    )


def _blocks(model: Any) -> Iterator[Any]:
    """Yield the layers: what transformers itself keeps on one device."""
    names: set[str] = set(model._no_split_modules or ())
    for module in model.modules():
        if type(module).__name__ in names:
            yield module
