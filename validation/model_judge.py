"""Count published models as Hugging Face's transformers and diffusers build them.

    python validation/model_judge.py [NAME ...]

Each configuration of src/hespas/configs/models is built without weights, on PyTorch's ``meta``
device, from its file alone, in the interpreter of requirements/models.txt. Two tables are written
to validation/measurements: ``model_counts.csv`` with a row for each model, and
``model_tensors.csv`` with its parameters by name and shape, equal layers in one row. With names,
the rows of those models are replaced. What the columns of ``model_counts.csv`` hold:

- ``parameters``: elements of all parameters, shared ones once; ``buffers``: elements of what a
  checkpoint holds besides, e.g. the biases of DeepSeek's routers. No library builds the layers that
  predict further tokens.
- ``flops``: of one forward of ``input``, counted by PyTorch's FlopCounterMode: two for each
  multiplication and addition of a product, none for anything else. Attention is counted for all
  pairs of tokens, masked or not; ``attention_flops`` are its two products, and all that a
  layer of linear attention does besides its projections. A token passes ``top_k`` experts.
  ``long_`` is the same for a longer sequence.
- ``kv_elements``: of the cache, a token, latent vectors where attention has such;
  ``state_elements``: of recurrent layers, whatever the tokens.

``model_cards.csv`` holds the numbers of parameters that others publish.
"""

# PyTorch's and transformers' types are not installed where types are checked.
# pyright: basic
# ruff: noqa: PLC0415, SLF001

from __future__ import annotations

import csv
import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "src" / "hespas" / "configs" / "models"
COUNTS = ROOT / "validation" / "measurements" / "model_counts.csv"
TENSORS = ROOT / "validation" / "measurements" / "model_tensors.csv"
SHORT, LONG = 128, 4096
FACTS = ("source", "date")
"""Keys that hespas adds to a published configuration."""
TYPES = {"DeepseekV3ForCausalLM": "deepseek_v3", "KimiK25ForConditionalGeneration": "deepseek_v3"}
"""What transformers calls the type of an architecture whose configuration calls it otherwise."""
REMARKS = {
    **dict.fromkeys(
        (
            "meta-llama/Llama-4-Maverick-17B-128E-Instruct",
            "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        ),
        "transformers multiplies each token by all experts",
    ),
    "google/t5-v1_1-xxl": "transformers ties lm_head, of 131596288 parameters, to the embedding",
    "facebook/DiT-XL-2-256": "diffusers builds an embedder of steps and classes in each block, "
    "of 2777472 parameters; the paper's model has one",
}
COLUMNS = [
    "name",
    "library",
    "class",
    "parameters",
    "buffers",
    "input",
    "flops",
    "attention_flops",
    "long_input",
    "long_flops",
    "long_attention_flops",
    "kv_elements",
    "state_elements",
    "remark",
]
Inputs = tuple[dict[str, Any], str]


def names() -> list[str]:
    """Return the names of all configurations, ORG/NAME."""
    return [path.relative_to(MODELS).as_posix()[:-5] for path in sorted(MODELS.glob("*/*.json"))]


def configuration(name: str) -> dict[str, Any]:
    """Read a model's configuration without what hespas adds to it."""
    fields = json.loads((MODELS / f"{name}.json").read_text())
    return {key: value for key, value in fields.items() if key not in FACTS}


def build(fields: dict[str, Any], device: str = "meta", **options: Any) -> tuple[Any, str]:
    """Return a model without trained weights and the library that built it."""
    import torch

    if "_class_name" in fields:
        import diffusers

        with torch.device(device):
            model = getattr(diffusers, fields["_class_name"]).from_config(fields)
        return model.eval(), f"diffusers {diffusers.__version__}"
    import transformers

    architecture = fields["architectures"][0].replace("MPT", "Mpt")
    if "text_config" in fields and "vision_config" not in fields:
        fields = fields["text_config"]
        make = transformers.AutoModelForCausalLM.from_config
    else:
        make = getattr(transformers, architecture)._from_config
    fields = {key: value for key, value in fields.items() if key != "quantization_config"}
    fields["model_type"] = TYPES.get(architecture, fields["model_type"])
    config = transformers.AutoConfig.for_model(**fields)
    config._attn_implementation = "eager"
    config._experts_implementation = options.get("experts", "batched_mm")
    with torch.device(device):
        return make(config).eval(), f"transformers {transformers.__version__}"


def tensors(model: Any) -> Counter[tuple[str, tuple[int, ...]]]:
    """Count parameters by name, with ``*`` for numbers of layers, and shape; shared ones once."""
    return Counter(
        (re.sub(r"\.\d+(?=\.)", ".*", name), tuple(parameter.shape))
        for name, parameter in model.named_parameters()
    )


def _values(*shape: int) -> Any:
    import torch

    return torch.zeros(shape, device="meta")


def _ids(*shape: int) -> Any:
    return _values(*shape).long()


def _language(fields: dict[str, Any], tokens: int) -> Inputs:
    text = fields.get("text_config", fields)
    most = text.get("max_position_embeddings", text.get("max_seq_len", tokens))
    tokens = min(tokens, most)
    return {"input_ids": _ids(1, tokens)}, f"{tokens} tokens"


def _t5(_: dict[str, Any], tokens: int) -> Inputs:
    ids = _ids(1, tokens)
    words = f"{tokens} tokens into the encoder and the decoder"
    return {"input_ids": ids, "decoder_input_ids": ids}, words


def _whisper(fields: dict[str, Any], tokens: int) -> Inputs:
    tokens = min(tokens, fields["max_target_positions"])
    sound = _values(1, fields["num_mel_bins"], 2 * fields["max_source_positions"])
    words = f"30 s of sound, {tokens} tokens into the decoder"
    return {"input_features": sound, "decoder_input_ids": _ids(1, tokens)}, words


def _image(fields: dict[str, Any], _: int) -> Inputs:
    size = fields.get("vision_config", fields).get("image_size", 224)
    given, words = {"pixel_values": _values(1, 3, size, size)}, f"an image of {size} x {size}"
    if "text_config" in fields:
        tokens = fields["text_config"]["max_position_embeddings"]
        return given | {"input_ids": _ids(1, tokens)}, f"{words}, {tokens} tokens"
    return given, words


def _flux(fields: dict[str, Any], _: int) -> Inputs:
    patches, tokens = 4096, 512
    given = {
        "hidden_states": _values(1, patches, fields["in_channels"]),
        "encoder_hidden_states": _values(1, tokens, fields["joint_attention_dim"]),
        "pooled_projections": _values(1, fields["pooled_projection_dim"]),
        "timestep": _values(1),
        "img_ids": _values(patches, 3),
        "txt_ids": _values(tokens, 3),
        "guidance": _values(1) if fields["guidance_embeds"] else None,
    }
    return given, f"{patches} patches, {tokens} tokens"


def _dit(fields: dict[str, Any], _: int) -> Inputs:
    side = fields["sample_size"]
    given = {
        "hidden_states": _values(1, fields["in_channels"], side, side),
        "timestep": _ids(1),
        "class_labels": _ids(1),
    }
    return given, f"latents of {side} x {side}"


def _unet(fields: dict[str, Any], _: int) -> Inputs:
    side, tokens = fields["sample_size"], 77
    given = {
        "sample": _values(1, fields["in_channels"], side, side),
        "timestep": _values(1),
        "encoder_hidden_states": _values(1, tokens, fields["cross_attention_dim"]),
    }
    if fields.get("addition_embed_type"):
        given["added_cond_kwargs"] = {"text_embeds": _values(1, 1280), "time_ids": _values(1, 6)}
    return given, f"latents of {side} x {side}, {tokens} tokens"


INPUTS: dict[str, Callable[[dict[str, Any], int], Inputs]] = {
    "t5": _t5,
    "whisper": _whisper,
    "vit": _image,
    "resnet": _image,
    "siglip": _image,
    "FluxTransformer2DModel": _flux,
    "DiTTransformer2DModel": _dit,
    "UNet2DConditionModel": _unet,
}
"""What a forward takes, by type; others take the numbers of tokens."""


def forward(model: Any, given: dict[str, Any]) -> tuple[int, int, Any]:
    """Return the FLOPs of a forward, those of attention's own products, and its output."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    if "use_cache" in inspect.signature(model.forward).parameters:
        given = {**given, "use_cache": True}
    counter = FlopCounterMode(display=False, depth=None)
    with torch.no_grad(), counter:
        output = model(**given)
    root = type(model).__name__
    flops = {
        name.removeprefix(f"{root}."): sum(kinds.values())
        for name, kinds in counter.get_flop_counts().items()
    }
    attention = 0
    for name, part in model.named_modules():
        if re.search(r"Attention|GatedDeltaNet|Mamba", type(part).__name__):
            inner = sum(flops.get(f"{name}.{child}", 0) for child, _ in part.named_children())
            attention += flops.get(name, 0) - inner
    return counter.get_total_flops(), attention, output


def cache_elements(cache: Any) -> tuple[int, int]:
    """Return the elements of keys and values that a token adds, and those of recurrent states."""
    counts = Counter[bool]()
    for layer in cache.layers:
        for name, value in vars(layer).items():
            for tensor in value.values() if isinstance(value, dict) else [value]:
                if getattr(tensor, "ndim", 0) > 1:
                    state = "state" in name
                    counts[state] += tensor.numel() // (1 if state else tensor.shape[-2])
    return counts[False], counts[True]


def row(name: str) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """Return the row of a model, and those of its tensors."""
    fields = configuration(name)
    kind = fields.get("model_type") or fields["_class_name"]
    if kind == "dlrm_dcnv2":
        return {"name": name, "remark": "neither library builds it"}, []
    model, library = build(fields)
    kept = set(model.state_dict())
    result: dict[str, Any] = {
        "name": name,
        "library": library,
        "class": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "buffers": sum(value.numel() for key, value in model.named_buffers() if key in kept),
    }
    remarks = [REMARKS[name]] if name in REMARKS else []
    for prefix, tokens in (("", SHORT), ("long_", LONG)):
        given, words = INPUTS.get(kind, _language)(fields, tokens)
        if words == result.get("input"):
            break
        result[f"{prefix}input"] = words
        try:
            flops, attention, output = forward(model, given)
        except Exception as error:  # noqa: BLE001 - what meta tensors cannot do is a fact as well
            remarks.append(f"no FLOPs: {type(error).__name__}: {str(error).splitlines()[0]}"[:160])
            break
        result |= {f"{prefix}flops": flops, f"{prefix}attention_flops": attention}
        cache = getattr(output, "past_key_values", None)
        if not prefix and hasattr(cache, "layers"):
            keys, states = cache_elements(cache)
            result |= {"kv_elements": keys, "state_elements": states}
    result["remark"] = "; ".join(remarks)
    shapes = tensors(model).items()
    return result, [(name, key, "x".join(map(str, shape)), n) for (key, shape), n in shapes]


def main(chosen: list[str]) -> None:
    """Judge models by name, or all, and write both tables."""
    counts: dict[str, dict[str, Any]] = {}
    listed: dict[str, list[Any]] = {}
    if chosen:
        with COUNTS.open() as file:
            counts = {line["name"]: line for line in csv.DictReader(file)}
        with TENSORS.open() as file:
            for line in list(csv.reader(file))[1:]:
                listed.setdefault(line[0], []).append(line)
    for name in chosen or names():
        counts[name], listed[name] = row(name)
        print(json.dumps(counts[name]), flush=True)
        write(counts, listed)


def write(counts: dict[str, dict[str, Any]], listed: dict[str, list[Any]]) -> None:
    """Write both tables, in the order of names."""
    with COUNTS.open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(counts[name] for name in names() if name in counts)
    with TENSORS.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("name", "tensor", "shape", "count"))
        rows.writerows(line for name in names() for line in listed.get(name, []))


if __name__ == "__main__":
    main(sys.argv[1:])
