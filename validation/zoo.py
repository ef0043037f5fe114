"""Every model of the zoo that trains: parameters, FLOPs, and a step on H100.

``python validation/zoo.py [NAME..]`` predicts them, or those whose names are given, and writes
docs/data/zoo.json and the table of docs/evidence/zoo.md. ``--maxtext`` compares steps with those of
MaxText's own programs: that needs the compilers, and the interpreter that HESPAS_MAXTEXT_PYTHON
names. Sources of the published counts: the papers that `hespas.models.families` names; Mixtral of
Experts, 2024; Mixtral 8x22B, 2024; DeepSeek-V3, 2024; Gemma 2, 2024, and Gemma 3, 2025; Mistral 7B,
2023; torchvision's table of models for ResNet.
"""

from __future__ import annotations

import json
import sys
from math import prod
from pathlib import Path
from typing import Any

import jax

import hespas
from hespas.base.files import json_bytes, write_file
from hespas.frontend.load import load_source
from hespas.models.catalogue import model_named
from hespas.models.flops import model_flops
from hespas.prediction.figures.step import run_report
from hespas.sources.exported import partitioned
from hespas.sources.function import export_model

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "data" / "zoo.json"
PAGE = ROOT / "docs" / "evidence" / "zoo.md"
PUBLISHED = {
    "llama2-7b": 6.74e9,
    "llama2-70b": 69.0e9,
    "mistral-7b": 7.24e9,
    "llama3-8b": 8.03e9,
    "llama3-70b": 70.6e9,
    "llama3.1-405b": 405e9,
    "gpt3-125m": 0.125e9,
    "gpt3-350m": 0.350e9,
    "gpt3-760m": 0.760e9,
    "gpt3-1.3b": 1.3e9,
    "gpt3-2.7b": 2.7e9,
    "gpt3-6.7b": 6.7e9,
    "gpt3-13b": 13.0e9,
    "gpt3-175b": 175.0e9,
    "gemma2-2b": 2.614e9,
    "gemma2-9b": 9.242e9,
    "gemma2-27b": 27.227e9,
    "gemma3-12b": 11.77e9,
    "gemma3-27b": 27.01e9,
    "mixtral-8x7b": 46.7e9,
    "mixtral-8x22b": 141e9,
    "deepseek-v3": 671e9,
    "resnet18": 11.69e6,
    "resnet34": 21.80e6,
    "resnet50": 25.56e6,
    "resnet101": 44.55e6,
}
"""Parameters, as they were published."""
_PART, _NODE = "H100_80GB", 8
_CAPACITY = 80 * 2**30
_STATE_BYTES = 12
"""Of each parameter at least, where states are f32: where the search for enough nodes begins."""
_PRODUCTS = {"dot_general", "ragged_dot", "convolution"}
_COUNTED = {"attention": "unfused", "remat": "none", "scan": "true"}
_MESHES = {"llama3.1-405b": (512, "fsdp=64,tp=8"), "deepseek-v3": (1024, "fsdp=16,expert=64")}
"""Devices and meshes of models whose layers are too large to be gathered whole on one device."""
_MAXTEXT = (
    ("llama3-8b", 8, ("model_name=llama3-8b", "weight_dtype=bfloat16", "use_iota_embed=true")),
    ("mixtral-8x7b", 64, ("model_name=mixtral-8x7b", "sparse_matmul=false", "capacity_factor=1")),
)
_STATES = {"llama3-8b": {"state_dtype": "bf16"}}
"""What the zoo's step is given for the states of MaxText's."""
_STEP = ("attention=cudnn_flash_te", "per_device_batch_size=1", "max_target_length=4096")
_REMAT = "remat_policy=minimal_with_context"


def figures(name: str) -> dict[str, Any]:
    """Return a model's row."""
    is_image = name.startswith("resnet")
    axis = "data" if is_image else "fsdp"
    parameters, needed, counted = counts(name, axis)
    devices, mesh = _MESHES.get(name, (_NODE, ""))
    while not is_image and _STATE_BYTES * parameters / devices > _CAPACITY:
        devices *= 2
    found = step(name, mesh or f"{axis}={devices}", devices)
    while not is_image and not mesh and found["peak_memory_bytes"] > _CAPACITY:
        devices *= 2
        found = step(name, f"{axis}={devices}", devices)
    return {
        "name": name,
        "parameters": parameters,
        "published": PUBLISHED[name],
        "flops": needed,
        "counted_flops": counted,
        "devices": devices,
        **found,
    }


def counts(name: str, axis: str) -> tuple[int, float, int]:
    """Return the parameters, and the FLOPs of one sequence or image: needed, and in products."""
    model = model_named(name)
    options = {key: value for key, value in _COUNTED.items() if key in model.options()}
    options |= {"mesh": f"{axis}=1", "batch": "1"}
    state: Any = model.step(options).arguments[0]
    weights = state.get("weights", state.get("params", state))
    program = load_source(partitioned(export_model(name, options)).content, name=name)
    parameters = sum(prod(leaf.shape) for leaf in jax.tree.leaves(weights))
    return parameters, model_flops(model.with_options(options)) or 0.0, counted(program)


def counted(program: Any) -> int:
    """Return the FLOPs of a program's products, those of loops as often as they run."""
    prediction = hespas.predict(program, f"{_PART}", fidelity="exported")
    rows: list[Any] = list(prediction.rows("operations"))
    return round(sum(row["flops"] for row in rows if row["operation"].split(".")[-1] in _PRODUCTS))


def step(name: str, mesh: str, devices: int) -> dict[str, Any]:
    """Return a predicted step, one sequence for each device, or 128 images."""
    prediction = hespas.predict(
        name,
        cluster=f"{devices}x{_PART}",
        mesh=mesh,
        batch=128 if mesh.startswith("data") else 1,
        settings={"sequence_parallel": "true"} if "tp=" in mesh else {},
        fidelity="fused",
    )
    return {
        "step_time_s": prediction.step_time_s,
        "mfu": run_report(prediction, with_tables=False).mfu,
        "peak_memory_bytes": prediction.memory.peak_bytes,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as the page shows them."""
    heads = ("model", "parameters", "model FLOPs", "GPUs", "step", "MFU", "memory")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines.extend(f"| {' | '.join(_cells(row))} |" for row in rows)
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        f"`{row['name']}`",
        f"{_count(row['parameters'])} ({100 * (row['parameters'] / row['published'] - 1):+.1f}%)",
        f"{row['flops'] / 1e12:.4g} T",
        str(row["devices"]),
        _time(row["step_time_s"]),
        f"{100 * row['mfu']:.1f} %",
        f"{row['peak_memory_bytes'] / 1e9:.1f} GB"
        + (", too much" if row["peak_memory_bytes"] > _CAPACITY else ""),
    ]


def _count(number: float) -> str:
    return f"{number / 1e9:.4g} B" if number >= 1e9 else f"{number / 1e6:.4g} M"


def _time(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def beside_maxtext() -> list[dict[str, Any]]:
    """Return steps of the zoo and of MaxText's programs of the same models, on the same mesh."""
    return [
        {"name": name, "devices": devices, "ours": ours(name, devices), "maxtext": theirs}
        for name, devices, settings in _MAXTEXT
        for theirs in [of_maxtext(settings, devices)]
    ]


def ours(name: str, devices: int) -> dict[str, Any]:
    """Return a step of the zoo, compiled."""
    return compared(
        hespas.predict(
            name,
            cluster=f"{devices}x{_PART}",
            mesh=f"fsdp={devices}",
            settings=_STATES.get(name, {}),
            fidelity="compiled",
        )
    )


def of_maxtext(settings: tuple[str, ...], devices: int) -> dict[str, Any]:
    """Return a step of MaxText, compiled."""
    inside, slices = min(devices, _NODE), max(1, devices // _NODE)
    mesh = (f"ici_fsdp_parallelism={inside}", f"dcn_fsdp_parallelism={slices}")
    given = dict(each.split("=") for each in (*settings, *_STEP, _REMAT, *mesh))
    return compared(
        hespas.predict(
            "maxtext:base.yml", cluster=f"{devices}x{_PART}", settings=given, fidelity="compiled"
        )
    )


def compared(prediction: Any) -> dict[str, Any]:
    """Return what is compared: products, FLOPs, time and memory of a device."""
    kinds = prediction.rows("kinds")
    return {
        "products": sum(row["count"] for row in kinds if row["kind"].startswith("matrix")),
        "attention": sum(row["count"] for row in kinds if row["kind"] == "fused attention"),
        "flops": run_report(prediction, with_tables=False).flops,
        "step_time_s": prediction.step_time_s,
        "peak_memory_bytes": prediction.memory.peak_bytes,
    }


def comparison(rows: list[dict[str, Any]]) -> str:
    """Return the comparison as the page shows it."""
    lines = [
        "| model, devices | | products | fused attention | FLOPs of a device | step | memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ours_, theirs = row["ours"], row["maxtext"]
        for who, each in (("MaxText", theirs), ("the zoo", ours_)):
            lines.append(
                f"| `{row['name']}`, {row['devices']} | {who} | {each['products']} | "
                f"{each['attention']} | {each['flops'] / 1e12:.1f} T"
                f"{_off(each, theirs, 'flops')} | "
                f"{_time(each['step_time_s'])}{_off(each, theirs, 'step_time_s')} | "
                f"{each['peak_memory_bytes'] / 1e9:.1f} GB"
                f"{_off(each, theirs, 'peak_memory_bytes')} |"
            )
    return "\n".join(lines)


def _off(each: dict[str, Any], other: dict[str, Any], name: str) -> str:
    return "" if each is other else f" ({100 * (each[name] / other[name] - 1):+.1f} %)"


def between(text: str, name: str, made: str) -> str:
    """Return a page with what stands between two marks replaced."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{made}\n\n{end}{after}"


def with_tables(text: str, data: dict[str, Any]) -> str:
    """Return the page with its tables as they are recorded."""
    text = between(text, "zoo", table(data["models"]))
    return between(text, "maxtext", comparison(data["maxtext"]))


def main() -> None:
    """Predict, and write what was found."""
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    data: dict[str, Any] = {"models": [], "maxtext": []}
    if DATA.exists():
        data = json.loads(DATA.read_text())
    if "--maxtext" in sys.argv[1:]:
        data["maxtext"] = beside_maxtext()
    kept = {row["name"]: row for row in data["models"]}
    if "--maxtext" not in sys.argv[1:] or words:
        for name in PUBLISHED:
            if not words or name in words:
                kept[name] = figures(name)
                print(" | ".join(_cells(kept[name])), flush=True)
    data["models"] = [kept[name] for name in PUBLISHED if name in kept]
    write_file(DATA, json_bytes(data))
    if PAGE.exists():
        write_file(PAGE, with_tables(PAGE.read_text(), data).encode())


if __name__ == "__main__":
    main()
