"""Published steps of pipelines beside predictions and a closed form.

``python validation/pipelines.py`` predicts them and writes docs/data/pipelines.json and the table
of docs/evidence/pipelines.md. Nothing is fitted. Source of the published steps: logs of MLPerf
Training (mlcommons/training_results_v4.1 and v5.0), NVIDIA's submissions with NeMo and Megatron-LM,
median step of three runs; layouts are those of the configuration beside each log.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hespas.base.files import json_bytes, write_file
from hespas.hardware.presets import load_device
from hespas.hardware.sized import find_system
from hespas.models.catalogue import model_named
from hespas.models.model import parse_mesh
from hespas.prediction.options import (
    CompileChoice,
    EstimateOptions,
    Fidelity,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.prediction.staged import predict_pipeline
from hespas.sources.options import ModelOptions
from hespas.tasks.pipelining.options import PipelineOptions
from hespas.tasks.pipelining.schedule import ideal_bubble

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "data" / "pipelines.json"
PAGE = ROOT / "docs" / "evidence" / "pipelines.md"
_BEGIN, _END = "<!-- pipelines: begin -->", "<!-- pipelines: end -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A published step, None where there is none, and how it was run.

    ``node`` is the device where it is not that of the cluster.
    """

    name: str
    model: str
    cluster: str
    mesh: str
    global_batch: int
    sequence: int
    schedule: str
    micro_batch: int = 1
    node: str | None = None
    published_s: float | None = None
    source: str = ""


STEPS = (
    Step(
        name="Llama 3.1 405B, 512 H100",
        model="llama3.1-405b",
        cluster="512xH100_80GB",
        mesh="pipe=8,fsdp=4,context=2,tp=8",
        global_batch=1152,
        sequence=8192,
        schedule="interleaved:8",
        published_s=55.1342,
        source="v5.0, eos-dfw_n64_ngc25.01_nemo",
    ),
    Step(
        name="Llama 3.1 405B, 512 GB200",
        model="llama3.1-405b",
        cluster="512xB200_180GB",
        node="GB200_186GB",
        mesh="pipe=8,fsdp=8,context=2,tp=4",
        global_batch=896,
        sequence=8192,
        schedule="interleaved:8",
        published_s=19.4738,
        source="v5.0, tyche_ngpu512_ngc25.04_nemo",
    ),
    Step(
        name="GPT-3 175B, 256 H100",
        model="gpt3-175b",
        cluster="256xH100_80GB",
        mesh="pipe=8,fsdp=8,tp=4",
        global_batch=2048,
        sequence=2048,
        schedule="interleaved:6",
        micro_batch=2,
        published_s=18.378,
        source="v4.1, eos_n32_ngc24.09_nemo",
    ),
    Step(
        name="GPT-3 175B, 64 B200",
        model="gpt3-175b",
        cluster="64xB200_180GB",
        mesh="pipe=8,fsdp=2,tp=4",
        global_batch=2048,
        sequence=2048,
        schedule="interleaved:6",
        micro_batch=2,
        published_s=36.2332,
        source="v4.1, b200_n8_preview_nemo",
    ),
    Step(
        name="Llama 3.1 405B, 2,048 H100",
        model="llama3.1-405b",
        cluster="2048xH100_80GB",
        mesh="pipe=8,fsdp=16,context=2,tp=8",
        global_batch=1152 * 4,
        sequence=8192,
        schedule="interleaved:8",
    ),
    Step(
        name="Llama 3.1 405B, 8,192 H100",
        model="llama3.1-405b",
        cluster="8192xH100_80GB",
        mesh="pipe=8,fsdp=64,context=2,tp=8",
        global_batch=1152 * 16,
        sequence=8192,
        schedule="interleaved:8",
    ),
)


def options_of(step: Step) -> PredictOptions:
    """Return the options with which a step is predicted."""
    model = ModelOptions(
        mesh=parse_mesh(step.mesh),
        global_batch=step.global_batch,
        sequence=step.sequence,
        micro_batch=step.micro_batch,
        settings={"product_dtype": "f8", "sequence_parallel": "true"},
    )
    return PredictOptions(
        program=ProgramOptions(file=Path(step.model), model=model),
        compile=CompileChoice(fidelity=Fidelity.LIBRARY),
        pipeline=PipelineOptions(schedule=step.schedule),
        estimate=EstimateOptions(node=step.node),
        network=NetworkOptions(cluster=step.cluster),
    )


def predicted(step: Step) -> dict[str, Any]:
    """Return the figures of a step as they are published."""
    found = predict_pipeline(options_of(step))
    capacity = found.memory_capacity_bytes
    return {
        "name": step.name,
        "cluster": step.cluster,
        "mesh": step.mesh,
        "schedule": step.schedule,
        "source": step.source,
        "published_s": step.published_s,
        "predicted_s": found.step_time_s,
        "closed_form_s": closed_form_s(step),
        "bubble": found.bubble,
        "peak_memory_bytes": found.peak_memory_bytes,
        "fits": capacity is None or found.peak_memory_bytes <= capacity,
        "fidelity": found.fidelity,
    }


def closed_form_s(step: Step) -> float:
    """Return the step by a formula over the sizes of layers, as Calculon's.

    Products of layers run at the peak rate of 8 bits and attention at that of 16, what stands
    between them at the peak bandwidth of memory. Tensor-parallel communication takes its bytes at
    the bandwidth of the links, and all but one of as many pieces as devices is hidden. The bubble
    is that of equal stages; messages, sums of gradients and the optimiser are taken for hidden or
    short. Source: M. Isaev et al., Calculon: a Methodology and Tool for High-Level Co-Design of
    Systems and Large Language Models, 2023.
    """
    mesh = parse_mesh(step.mesh)
    sizes = model_named(step.model).settings.sizes_of_layers
    gated = model_named(step.model).settings.style.gated
    device = load_device(step.node or step.cluster.partition("x")[2])
    system = find_system(step.cluster)
    tp, context, stages = mesh.size("tp"), mesh.size("context"), mesh.size("pipe")
    tokens = step.micro_batch * step.sequence // context
    width, heads = sizes.embedding, sizes.heads * sizes.head_size
    kv = sizes.kv_heads * sizes.head_size
    weights = (width * (2 * heads + 2 * kv) + (3 if gated else 2) * width * sizes.mlp) / tp
    products_s = 2 * tokens * weights / device.rate("f8E4M3FN")
    mixed = 4 * tokens * step.sequence * heads / tp / 2
    attention_s = mixed / device.rate("bf16")
    # Norms, residuals and activations: read and written once each, in 16 bits.
    between = 2 * tokens * (8 * width + 3 * sizes.mlp) / tp
    between_s = between / device.memory_bandwidth_bytes_per_s
    shared = 2 * tokens * width * (tp - 1) / tp
    link = system.dimensions[0].bandwidth_bytes_per_s
    forward_tp_s = 4 * shared / link
    forward_s = products_s + attention_s + between_s + forward_tp_s / tp
    backward_s = 2 * (products_s + attention_s + between_s + forward_tp_s / tp)
    head_s = 3 * 2 * tokens * width * sizes.vocabulary / tp / device.rate("bf16")
    micro_batches = step.global_batch // (mesh.size("data", "fsdp") * step.micro_batch)
    per_stage = sizes.layers / stages * (forward_s + backward_s)
    bubble = ideal_bubble(step.schedule, stages=stages, micro_batches=micro_batches)
    return (micro_batches * per_stage) / (1 - bubble) + head_s


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as the page shows them."""
    lines = [
        "| step | layout | published | predicted | error | closed form | error | bubble | memory |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        published = row["published_s"]
        cells = [
            row["name"],
            f"`{row['mesh']}`, {row['schedule']}",
            "-" if published is None else f"{published:.2f} s",
            f"{row['predicted_s']:.2f} s",
            _error(row["predicted_s"], published),
            f"{row['closed_form_s']:.2f} s",
            _error(row["closed_form_s"], published),
            f"{100 * row['bubble']:.1f} %",
            f"{row['peak_memory_bytes'] / 1e9:.1f} GB" + ("" if row["fits"] else ", too much"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def summary() -> str:
    """Return a sentence without its full stop and without line breaks."""
    rows = [row for row in json.loads(DATA.read_text()) if row["published_s"] is not None]
    errors = [row["predicted_s"] / row["published_s"] - 1 for row in rows]
    return (
        f"{len(rows)} published steps are off by {100 * min(errors):+.1f} to "
        f"{100 * max(errors):+.1f} %"
    )


def _error(predicted_s: float, published_s: float | None) -> str:
    return "" if published_s is None else f"{100 * (predicted_s / published_s - 1):+.1f} %"


def with_table(text: str, rows: list[dict[str, Any]]) -> str:
    """Return a page with its table as the rows have it."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n\n{table(rows)}\n\n{_END}{after}"


def main() -> None:
    """Predict all steps, or those whose names hold a word, and write what was found."""
    words = sys.argv[1:]
    kept = {row["name"]: row for row in json.loads(DATA.read_text())} if DATA.exists() else {}
    for step in STEPS:
        if not words or any(word in step.name for word in words):
            kept[step.name] = predicted(step)
            print(table([kept[step.name]]).splitlines()[-1])
    rows = [kept[step.name] for step in STEPS if step.name in kept]
    write_file(DATA, json_bytes(rows))
    if PAGE.exists():
        write_file(PAGE, with_table(PAGE.read_text(), rows).encode())


if __name__ == "__main__":
    main()
