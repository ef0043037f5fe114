"""Map published steps of PyTorch to options.

A line names the model, the machine and the parallelism as the publisher does. `read_pytorch_rows`
gives each the options that mean the same here; a line that has none says why. Megatron-LM's data
parallelism is that of a pipeline, of one stage too; PyTorch's FSDP divides weights as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from hespas.base.table import Line, read_table
from hespas.errors import MeasurementError
from hespas.evidence.validate.measurements import Row
from hespas.hardware.presets import PRESETS_DIRECTORY
from hespas.models.catalogue import model_named
from hespas.models.megatron_layout import expert_layout
from hespas.models.software import SOFTWARE
from hespas.prediction.options import Fidelity

PYTORCH_TABLE = PRESETS_DIRECTORY / "published" / "pytorch_steps.csv"
_NEEDED = ("source", "framework", "model", "hardware", "devices")
_COLUMNS = (
    *_NEEDED,
    *("tp", "pp", "vp", "cp", "dp", "ep", "sharding", "global_batch", "micro_batch", "sequence"),
    *("precision", "recompute", "tokens_per_s_per_device", "step_time_s", "peak_memory_gib"),
    "note",
)
_GIB = 2**30


class _Model(msgspec.Struct, frozen=True, kw_only=True):
    family: str
    workload: str
    settings: dict[str, str] = {}


class _Recipes(msgspec.Struct, frozen=True, kw_only=True):
    """The meaning of publishers' names, and their recipes.

    `configs` has the sources. ``parts`` are by the beginning of what a publisher calls the machine,
    the longest first that fits. The others have parts by model and precision: those whose recipe
    runs all-to-alls of experts under another micro-batch (``hides_exchanges``), names the
    dispatcher alltoall (``sorts``), or computes modules again (``recomputed``, by modules).
    """

    parts: dict[str, str]
    models: dict[str, _Model]
    hides_exchanges: dict[str, dict[str, str]]
    recomputed: dict[str, dict[str, dict[str, str]]]
    sorts: dict[str, dict[str, str]]


_RECIPES = msgspec.json.decode(
    (PYTORCH_TABLE.parent / "pytorch_recipes.json").read_bytes(), type=_Recipes
)


class _UnmappedError(Exception):
    """A line has no equal options; the message says why."""


def _count(line: Line, name: str, default: int = 1) -> int:
    """Return a whole number, or ``default`` without one."""
    return default if line.text(name) in {"", "n/a", "0"} else int(line.amount(name))


def _number_in_note(line: Line, name: str) -> int:
    """Return a number from the note (vp=8), or 0."""
    match = re.search(rf"\b{name}=(\d+)", f"{line.text('sharding')} ;{line.text('note')}")
    return int(match[1]) if match else 0


def read_pytorch_rows(path: Path = PYTORCH_TABLE) -> tuple[Row, ...]:
    """Read published steps of PyTorch from CSV.

    A step that can't be predicted has its reason in ``missing``. Raises `MeasurementError`, with
    the line, for a table that lacks a column and a number that is none.

    >>> row = next(row for row in read_pytorch_rows() if row.publisher == "torchtitan")
    >>> row.workload, row.system, row.options["mesh"], row.framework_year
    ('meta-llama/Llama-3.1-8B', '8xH100_96GB', 'fsdp=8', 2024)
    """
    table = read_table(path, needed=_NEEDED, columns=_COLUMNS, error=MeasurementError)
    return tuple(map(_row, table.lines))


def _row(line: Line) -> Row:
    publisher = _publisher(line)
    missing, options = "", dict[str, str]()
    name = line.text("model")
    model = _RECIPES.models.get(_plain(_model_name(line, publisher)))
    if model is None:
        missing = f"there is no model {name} here"
    else:
        try:
            options = {**model.settings, **_MAPPINGS[publisher](line, model)}
        except _UnmappedError as error:
            missing = str(error)
    part = _part(line)
    peak = line.text("peak_memory_gib")
    return Row(
        family=name if model is None else model.family,
        workload=name if model is None else model.workload,
        options=options,
        xla_flags={},
        node=part,
        system=f"{_count(line, 'devices')}x{part}",
        devices=_count(line, "devices"),
        framework_year=_year(line, publisher),
        published_s=_published_s(line, options),
        resolution_s=0.0,
        missing=missing,
        source=line.text("source"),
        note=line.text("note"),
        location=line.location,
        fidelity=Fidelity.LIBRARY.value,
        publisher=publisher,
        published_peak_bytes=round(float(peak) * _GIB) if peak else None,
    )


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.casefold())


_PUBLISHERS = ("torchtitan", "llm-foundry", "SimuMax", "Megatron-Bridge", "MLPerf")


def _publisher(line: Line) -> str:
    source = f"{line.text('source')} {line.text('framework')}"
    for name in _PUBLISHERS:
        if name.casefold() in source.casefold():
            return name
    raise MeasurementError(
        f"nothing is known of the source {line.text('source')!r}",
        location=line.location,
        hint=f"there are tables of {', '.join(_PUBLISHERS)}",
    )


_YEARS = {"SimuMax": 2025}
"""Years of sources that do not say them: that of the first B200 table."""


def _year(line: Line, publisher: str) -> int | None:
    """Return the software's year from its source or container."""
    text = f"{line.text('source')} {line.text('framework')}"
    container = re.search(r"container (\d\d)\.", text)
    if container:
        return 2000 + int(container[1])
    year = re.search(r"(?<!\d)(20\d\d)", text.partition("@")[2] or text)
    year = year or re.search(r"\((20\d\d)\)", text)
    return int(year[1]) if year else _YEARS.get(publisher)


def _part(line: Line) -> str:
    plain = _plain(line.text("hardware"))
    for name in sorted(_RECIPES.parts, key=len, reverse=True):
        if plain.startswith(name):
            return _RECIPES.parts[name]
    raise MeasurementError(
        f"there is no part for the hardware {line.text('hardware')!r}",
        location=line.location,
        hint="the line needs a GPU such as DGX-H100",
    )


def _published_s(line: Line, options: Mapping[str, str]) -> float:
    """Return a step's published time, also from its throughput."""
    if line.text("step_time_s"):
        return line.amount("step_time_s")
    batch, sequence = options.get("global_batch"), options.get("sequence")
    if not batch or not sequence:
        return 1.0
    tokens = int(batch) * int(sequence) / _count(line, "devices")
    return tokens / line.amount("tokens_per_s_per_device")


def _model_name(line: Line, publisher: str) -> str:
    if publisher != "SimuMax":
        return line.text("model")
    return re.split(r"_(?=(?:l|tp|pp|dp|ep|cp|mbc)\d)", line.text("model"))[0]


def _llm_foundry_options(line: Line, _: _Model) -> dict[str, str]:
    return {
        "mesh": f"fsdp={_count(line, 'devices')}",
        **_batch(line),
        "software": "llm-foundry-2023",
        **({"remat": "whole"} if line.text("recompute") == "full" else {}),
    }


def _torchtitan_options(line: Line, model: _Model) -> dict[str, str]:
    """Return torchtitan's settings of a step: FSDP2, and stages."""
    stages, tensor, context = (max(1, _number_in_note(line, name)) for name in ("pp", "tp", "cp"))
    year = _year(line, "torchtitan") or 0
    eager = "-eager" if "eager" in line.text("precision") else ""
    names = (f"torchtitan-{year}{eager}", f"torchtitan-{year}", "torchtitan")
    software = next(name for name in names if name in SOFTWARE)
    shards = max(1, _number_in_note(line, "fsdp"))
    batch, local, _ = line.text("global_batch").partition(" local")
    options = {
        "mesh": _mesh(pipe=stages if stages > 1 else 0, fsdp=shards, context=context, tp=tensor),
        "global_batch": str(int(batch) * (shards if local else 1)),
        "sequence": str(_count(line, "sequence")),
        "software": software,
        **({"remat": "full"} if "full" in line.text("recompute") else {}),
        **_precision(line),
        **_tensor_parallel(tensor),
    }
    if stages == 1:
        return options
    chunks = 2 if "interleaved" in line.text("sharding").casefold() else 1
    # Until 2025 a batch has as many micro-batches as there are stages, later one for a sequence.
    # Source: custom-torchtitan 0.0.2.1, a copy of March 2025, and torchtitan 0.1.0 of June 2025,
    # distributed/pipeline.py: pipeline_parallel_microbatches, pipeline_parallel_microbatch_size.
    per_part = int(options["global_batch"]) // shards
    micro = max(1, per_part // (stages * chunks)) if year < _ONE_SEQUENCE_SINCE else 1
    return {**options, "micro_batch": str(micro), **_stages(model, stages, chunks)}


_ONE_SEQUENCE_SINCE = 2025
"""The year from which on torchtitan's micro-batches have one sequence by default."""


def _simumax_options(line: Line, _: _Model) -> dict[str, str]:
    """Return the options that a SimuMax row's name states.

    Tokens are taken to go to experts by Megatron-LM's own all-to-alls: DeepEP would be named.
    """
    pairs = re.findall(r"_(l|tp|pp|dp|ep|cp|seq|mbc)(\d+)", line.text("model"))
    number = {str(name): int(value) for name, value in pairs}
    tensor, stages, experts = (number.get(name, 1) for name in ("tp", "pp", "ep"))
    context = number.get("cp", 1)
    parts = _count(line, "devices") // (tensor * stages * context)
    if parts % experts:
        raise _UnmappedError("experts lie on devices of tensor parallelism, too")
    layers = number.get("l", 0)
    options = {
        "mesh": _mesh(
            pipe=stages, fsdp=parts // experts, expert=experts, context=context, tp=tensor
        ),
        "global_batch": str(parts * number.get("mbc", 1)),
        "micro_batch": "1",
        "sequence": str(number.get("seq", 4096)),
        "software": "megatron",
        "overlap": "tp=off,gradients=off,parameters=off",
        **_tensor_parallel(tensor),
    }
    if experts > 1:
        options |= {"dispatcher": "alltoall"}
    if layers:
        options |= {"layers": str(layers)}
    return options


def _mlperf_options(line: Line, model: _Model) -> dict[str, str]:
    """Return the options of NVIDIA's submission to MLPerf Training."""
    stages, experts = _count(line, "pp"), _count(line, "ep")
    parts = _count(line, "devices") // (_count(line, "tp") * stages * _count(line, "cp"))
    note = line.text("note").casefold()
    return {
        "mesh": _mesh(pipe=stages, fsdp=parts // experts, expert=experts),
        **_batch(line),
        "software": "megatron",
        "gradient_dtype": "bf16",
        **_precision(line, model),
        **({"overlap": "exchanges=on"} if "a2a overlap" in note else {}),
        **({"cuda_graphs": "true"} if "cuda graph" in note else {}),
        **_stages(model, stages, max(1, _number_in_note(line, "vp"))),
    }


def _megatron_bridge_options(line: Line, model: _Model) -> dict[str, str]:
    tensor, stages, context = _count(line, "tp"), _count(line, "pp"), _count(line, "cp")
    parts = _count(line, "devices") // (tensor * stages * context)
    # Its recipes give experts no tensor parallelism.
    parallel = _count(line, "ep")
    experts, axes = expert_layout(
        parallel, tensor=tensor, context=context, expert_tensor=1 if parallel > 1 else tensor
    )
    if parts % experts:
        raise _UnmappedError(f"experts over {experts} of {parts} data-parallel devices")
    shards = _number_in_note(line, "fsdp")
    options = {
        **_batch(line),
        "software": "megatron",
        **_precision(line, model),
        **_tensor_parallel(tensor),
        **({"expert_axes": axes} if axes != "expert" else {}),
        **(_ADAPTERS if "LoRA" in line.text("source") else {}),
        **(_PACKED if re.search(r"LoRA|SFT", line.text("source")) else {}),
    }
    # Its recipes of benchmarks sum gradients in bf16 (megatron/bridge/perf_recipes/_common.py).
    if shards <= 1:
        options["gradient_dtype"] = "bf16"
    if shards > 1:
        mesh = _mesh(data=parts // shards, fsdp=shards, tp=tensor)
        return {**options, "mesh": mesh}
    mesh = _mesh(pipe=stages, fsdp=parts // experts, expert=experts, context=context, tp=tensor)
    chunks = max(1, _number_in_note(line, "vp"))
    if parallel > 1 and _sorts_experts(line):
        options["dispatcher"] = "alltoall"
    if parallel > 1 and _hides_exchanges(line, chunks):
        options["overlap"] = "exchanges=on"
    recomputed = _recomputed_modules(line)
    if recomputed:
        options["remat"] = recomputed
    return {**options, "mesh": mesh, **_stages(model, stages, chunks)}


_ADAPTERS = {"lora_rank": "16", "lora_modules": "linear_qkv"}
"""Adapters of Megatron-Bridge's benchmarks, beside one module; those of Llama 3 70B.

Source: Megatron-Bridge 0.6.2, megatron/bridge/recipes/llama/h100/llama3.py, ``dim``, and
perf_recipes/llama, ``target_modules``.
"""
_PACKED = {"document_length": "256"}
"""Documents in sequences of fine-tuning: SQuAD's, of fewer tokens each. A step with half of that
takes as long.

Source: Megatron-Bridge 0.6.2, ``default_squad_config`` of recipes/utils/dataset_utils.py, which
packs them.
"""
_KNOWN_SINCE = (26, 6)
"""The container from which on these recipes are taken to be those of the published steps: earlier
versions of the package have no recipes of benchmarks."""


_ALWAYS_SORTED = frozenset({"gptoss120b"})
"""Models that sort rows in Megatron-Bridge 0.3.1 (recipes/gpt_oss/gpt_oss.py) by default."""


def _sorts_experts(line: Line) -> bool:
    model = _plain(line.text("model"))
    parts = _RECIPES.sorts.get(model, {})
    return _is_of_recipe(line, parts, is_known=model in _ALWAYS_SORTED)


def _hides_exchanges(line: Line, chunks: int) -> bool:
    if _count(line, "pp") > 1 and chunks == 1:
        return False
    return _is_of_recipe(line, _RECIPES.hides_exchanges.get(_plain(line.text("model")), {}))


def _recomputed_modules(line: Line) -> str:
    policies = _RECIPES.recomputed.get(_plain(line.text("model")), {})
    return next((remat for remat, parts in policies.items() if _is_of_recipe(line, parts)), "")


def _is_of_recipe(
    line: Line, parts_of_precision: Mapping[str, str], *, is_known: bool = False
) -> bool:
    """Return whether a step's precision, part and recipe are known."""
    container = re.search(r"container (\d\d)\.(\d\d)", line.text("source"))
    since = None if container is None else (int(container[1]), int(container[2]))
    if not is_known and (since is None or since < _KNOWN_SINCE):
        return False
    precision = re.search(r"fp[48]|bf16", line.text("precision").casefold())
    parts = parts_of_precision.get(precision[0] if precision else "", "").split()
    return _part(line).partition("_")[0] in parts


_MAPPINGS: Mapping[str, Callable[[Line, _Model], dict[str, str]]] = {
    "llm-foundry": _llm_foundry_options,
    "torchtitan": _torchtitan_options,
    "SimuMax": _simumax_options,
    "Megatron-Bridge": _megatron_bridge_options,
    "MLPerf": _mlperf_options,
}


def _mesh(**sizes: int) -> str:
    # A pipeline of one stage stays an axis; 0 leaves it out.
    axes = {name: size for name, size in sizes.items() if size > 1 or (name == "pipe" and size)}
    if set(axes) <= {"pipe"}:
        axes |= {"fsdp": 1}
    return ",".join(f"{name}={size}" for name, size in axes.items())


def _tensor_parallel(tensor: int) -> dict[str, str]:
    return {"sequence_parallel": "true"} if tensor > 1 else {}


def _batch(line: Line) -> dict[str, str]:
    names = ("global_batch", "micro_batch", "sequence")
    return {name: str(_count(line, name)) for name in names}


def _precision(line: Line, model: _Model | None = None) -> dict[str, str]:
    """Return the types of products; those of experts are in few bits of a ``model`` alone."""
    precision = line.text("precision").casefold()
    if "fp4" in precision:
        small = "f4"
    elif re.search(r"f(loat|p)8", precision):
        small = "f8"
    else:
        return {}
    if model is None or model_named(model.workload).settings.routing is None:
        return {"product_dtype": small}
    return {"product_dtype": small, "expert_product_dtype": small}


def _stages(model: _Model, stages: int, chunks: int) -> dict[str, str]:
    """Return the schedule and the layers of its parts."""
    layers = model_named(model.workload).settings.layers
    chunks = chunks if stages > 1 else 1
    while layers + 2 < 2 * stages * chunks and chunks > 1:
        chunks //= 2
    parts = stages * chunks
    options = {"schedule": f"interleaved:{chunks}"} if chunks > 1 else {}
    is_even = layers % parts == 0 or ((layers + 2) % parts == 0 and layers + 2 > parts)
    if not is_even:
        low, longer = divmod(layers, parts)
        options["stage_layers"] = f"{low + 1}x{longer},{low}x{parts - longer}"
    return options
