"""Write a training step as a trainer's command.

Sources of the flags: MaxText 0.2.5, ``maxtext/configs/base.yml``, ``configs/models`` and
``trainers/pre_train``; torchtitan 0.3.0, ``torchtitan/config/configs.py`` and
``models/*/config_registry.py``; Megatron-LM core 0.19.2, ``megatron/training/arguments.py`` and the
configurations in ``megatron/core`` that it makes flags of. A setting whose flag those don't have is
left out, and a note says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import Enum
from math import prod
from textwrap import wrap
from typing import Any

from hespas.base.configs import CONFIGS
from hespas.base.frozen import frozen
from hespas.compile.options import SLOP_FLAG
from hespas.errors import ConfigError
from hespas.hardware.interconnect import Dimensions
from hespas.hardware.system import System, interconnect_of
from hespas.models.language import Training
from hespas.models.model import MODULES, PIPE
from hespas.prediction.cutting import cut_of
from hespas.prediction.machines import system_of
from hespas.prediction.options import PredictOptions
from hespas.prediction.workload import source_of
from hespas.sources.source import ModelSource, platform_of
from hespas.tasks.pipelining.options import DEFAULT, Overlap

_WIDTH = 90


class Trainer(Enum):
    """The trainers whose commands are known."""

    MAXTEXT = "maxtext"
    TORCHTITAN = "torchtitan"
    MEGATRON = "megatron"


@frozen
class Launch:
    """A command per node of the cluster, and its differences."""

    trainer: str
    command: str
    notes: tuple[str, ...]

    @property
    def text(self) -> str:
        """The command with its notes, as a shell reads both."""
        lines = wrap(self.command, _WIDTH, subsequent_indent="    ", break_on_hyphens=False)
        notes = (f"# {note}" for note in self.notes)
        return "\n".join([f"# {self.trainer}", *notes, " \\\n".join(lines)])


@frozen
class _Step:
    """A training step: its axes, outermost first, and batch."""

    model: str
    axes: Mapping[str, int]
    system: System
    batch: int
    rounds: int
    sequence: int
    parts: int
    remat: str
    product_dtype: str
    divides_rows: bool
    schedule: str
    chunks: int
    layers: tuple[int, ...]
    has_own_layers: bool
    hidden: frozenset[Overlap]

    def size(self, *names: str) -> int:
        return prod(self.axes.get(name, 1) for name in names)

    @property
    def node_devices(self) -> int:
        """A node's device count: the network's innermost dimension."""
        fabric = interconnect_of(self.system).fabric
        return fabric.dimensions[0].size if isinstance(fabric, Dimensions) else 1

    @property
    def platform(self) -> str:
        return platform_of(self.system.part)

    @property
    def is_staged(self) -> bool:
        """Whether the layers are divided into stages."""
        return self.size(PIPE) > 1

    @property
    def is_even(self) -> bool:
        """Whether the parts of all stages have as many layers."""
        return len(set(self.layers)) < 2


def launch_of(trainer: Trainer, options: PredictOptions) -> Launch:
    """Return a trainer's command for the step of ``options``.

    Raises `ConfigError` for a step that isn't training, and for axes that the trainer lacks.
    """
    step = _step(options)
    axes = _AXES[trainer]
    for axis, size in step.axes.items():
        if axis not in axes and size > 1:
            raise ConfigError(
                f"{trainer.value} has no axis {axis}",
                location=f"{axis}={size}",
                hint=f"search meshes of {', '.join(axes)} (--mesh)",
            )
    if trainer is not Trainer.MAXTEXT and step.platform != "cuda":
        raise ConfigError(f"{trainer.value} runs on GPUs here", hint="name maxtext")
    words, notes = {
        Trainer.MAXTEXT: _maxtext,
        Trainer.TORCHTITAN: _torchtitan,
        Trainer.MEGATRON: _megatron,
    }[trainer](step)
    factor = options.compile.options.memory_limit_slop_factor
    if trainer is Trainer.MAXTEXT and isinstance(factor, int):
        words.insert(0, f"XLA_FLAGS=--{SLOP_FLAG}={factor}")
    if step.product_dtype != "same":
        notes.append(f"products in {step.product_dtype} are left out: set the trainer's recipe")
    return Launch(trainer=_NAMES[trainer], command=" ".join(words), notes=tuple(notes))


_NAMES = {
    Trainer.MAXTEXT: "MaxText 0.2.5",
    Trainer.TORCHTITAN: "torchtitan 0.3.0",
    Trainer.MEGATRON: "Megatron-LM core 0.19.2",
}
_AXES: Mapping[Trainer, tuple[str, ...]] = {
    Trainer.MAXTEXT: (PIPE, "data", "fsdp", "sequence", "context", "expert", "tp"),
    Trainer.TORCHTITAN: (PIPE, "data", "fsdp", "context", "expert", "tp"),
    Trainer.MEGATRON: (PIPE, "data", "fsdp", "context", "expert", "tp"),
}


def _step(options: PredictOptions) -> _Step:
    system, schedule, chunks, layers = system_of(options.network), "", 1, tuple[int, ...]()
    hidden = frozenset[Overlap]()
    if options.is_pipeline:
        cut = cut_of(options)
        source, mesh, system = cut.source, cut.mesh, cut.system
        schedule, chunks = options.pipeline.schedule or DEFAULT, cut.schedule.chunks
        layers = tuple(part.layers for part in cut.parts)
        hidden = frozenset(filter(options.pipeline.hides, Overlap))
    else:
        source = source_of(options)
        if not isinstance(source, ModelSource):
            raise ConfigError(f"{source.name} is no model", hint="name a model: hespas models")
        mesh = source.mesh
    settings: Any = source.settings
    if system is None or not isinstance(getattr(settings, "run", None), Training):
        raise ConfigError(
            f"{source.name} is no training step of a language model on a cluster",
            hint="serving has commands of its own: hespas search --serve",
        )
    return _Step(
        model=source.name,
        axes=dict(mesh.axes),
        system=system,
        batch=settings.batch,
        rounds=settings.accumulation,
        sequence=settings.sequence,
        parts=settings.parts,
        remat=settings.run.remat,
        product_dtype=settings.run.product_dtype,
        divides_rows=settings.run.sequence_parallel,
        schedule=schedule,
        chunks=chunks,
        layers=layers,
        has_own_layers=options.pipeline.stage_layers is not None,
        hidden=hidden,
    )


_MAXTEXT_AXES = {PIPE: "pipeline", "tp": "tensor"}
_MAXTEXT_REMAT = frozenset({"minimal_with_context", "full"})
"""Names that both have."""
_TRAINER_MODELS = CONFIGS / "trainer_models.json"


def _models_of(trainer: str) -> Any:
    """Return a trainer's models; torchtitan's have module and configuration."""
    return json.loads(_TRAINER_MODELS.read_bytes())[trainer]


def _trainer_name(model: str) -> str:
    """Return a model's name as trainers write it.

    >>> _trainer_name("meta-llama/Llama-3.1-8B"), _trainer_name("Qwen/Qwen3-8B")
    ('llama3.1-8b', 'qwen3-8b')
    """
    return model.rpartition("/")[2].lower().replace("llama-", "llama")


def _maxtext(step: _Step) -> tuple[list[str], list[str]]:
    notes: list[str] = []
    name = _trainer_name(step.model)
    if name not in _models_of("maxtext"):
        name = "MODEL"
        notes.append(f"write MaxText's name of {step.model} for MODEL")
    words = ["python3 -m maxtext.trainers.pre_train.train maxtext/configs/base.yml"]
    words += [f"run_name=hespas steps=20 dataset_type=synthetic model_name={name}"]
    words += [f"{place}_{axis}_parallelism={size}" for place, axis, size in _placed_axes(step)]
    # Fractions are allowed. Micro-batches of a pipeline are parts of a device's batch.
    device_batch = step.batch * step.parts / step.system.device_count
    device_batch /= 1 if step.is_staged else step.rounds
    words += [f"per_device_batch_size={device_batch:g}", f"max_target_length={step.sequence}"]
    if step.rounds > 1:
        setting = "num_pipeline_microbatches" if step.is_staged else "gradient_accumulation_steps"
        words.append(f"{setting}={step.rounds}")
    if step.is_staged:
        words.append(f"num_layers_per_pipeline_stage={max(step.layers)}")
        notes += _maxtext_stages(step)
    if step.remat in _MAXTEXT_REMAT:
        words.append(f"remat_policy={step.remat}")
    else:
        notes.append(f"recomputation {step.remat!r} is left out: MaxText has other policies")
    return words, notes


def _maxtext_stages(step: _Step) -> Iterator[str]:
    """Yield what MaxText's stages do otherwise, or do not take."""
    stages = step.size(PIPE)
    if step.rounds % stages:
        yield f"MaxText takes multiples of {stages} micro-batches, and {step.rounds} are given"
    if not step.is_even:
        layers = f"{sum(step.layers)} layers"
        yield f"MaxText divides layers evenly, and {layers} are not (pipeline_parallel_layers)"
    if step.schedule != "gpipe":
        yield f"schedule {step.schedule} is left out: MaxText's passes are all forward, then back"


def _placed_axes(step: _Step) -> Iterator[tuple[str, str, int]]:
    """Yield MaxText's axes with their location and size.

    ``ici`` is inside nodes, ``dcn`` across them. Nodes of GPUs are MaxText's slices; a slice of
    TPUs is one. The last axis lies nearest.
    """
    is_gpu = step.platform == "cuda"
    free_devices = step.node_devices if is_gpu else step.system.device_count
    placed: list[tuple[str, str, int]] = []
    for axis, size in reversed(list(step.axes.items())):
        inside = min(size, free_devices)
        if size % inside or free_devices % inside:
            raise ConfigError(
                f"{axis}={size} lies unevenly across nodes of {step.node_devices} devices",
                hint="choose a mesh whose axes divide a node",
            )
        free_devices //= inside
        name = _MAXTEXT_AXES.get(axis, axis)
        placed += [("ici", name, inside), ("dcn", name, size // inside)]
    # MaxText gives the remaining devices to these two, unless they are named.
    always = {("ici", "fsdp"), ("dcn", "data")}
    shown = [entry for entry in reversed(placed) if entry[2] > 1 or entry[:2] in always]
    missing = always - {entry[:2] for entry in shown}
    yield from [*shown, *((place, name, 1) for place, name in sorted(missing))]


def _torchrun(step: _Step) -> str:
    nodes = max(1, step.system.device_count // step.node_devices)
    devices = min(step.node_devices, step.system.device_count)
    rendezvous = "" if nodes == 1 else "--rdzv_backend c10d --rdzv_endpoint HOST:29500 "
    return f"torchrun --nnodes {nodes} --nproc_per_node {devices} {rendezvous}".rstrip()


def _torchtitan(step: _Step) -> tuple[list[str], list[str]]:
    notes: list[str] = []
    module, configuration = _models_of("torchtitan").get(
        _trainer_name(step.model), ("MODULE", "CONFIG")
    )
    if module == "MODULE":
        notes.append(f"write torchtitan's module and configuration of {step.model}")
    # Experts are on ranks of FSDP: https://github.com/pytorch/torchtitan, config/configs.py.
    degrees = {
        "data_parallel_replicate_degree": step.size("data"),
        "data_parallel_shard_degree": step.size("fsdp", "expert"),
        "tensor_parallel_degree": step.size("tp"),
        "context_parallel_degree": step.size("context"),
        "pipeline_parallel_degree": step.size(PIPE),
        "expert_parallel_degree": step.size("expert"),
    }
    words = [_torchrun(step), "-m torchtitan.train", f"--module {module}"]
    words.append(f"--config {configuration}")
    words += [
        f"--parallelism.{name} {size}"
        for name, size in degrees.items()
        if size > 1 or name == "data_parallel_shard_degree"
    ]
    micro_batch = step.batch // step.rounds
    local_batch = step.batch if step.is_staged else micro_batch
    words += [f"--training.local_batch_size {local_batch}", f"--training.seq_len {step.sequence}"]
    if step.is_staged:
        words.append(f"--parallelism.pipeline_parallel_microbatch_size {micro_batch}")
        words += _torchtitan_stages(step, notes)
    elif step.rounds > 1:
        words.append(f"--training.global_batch_size {step.batch * step.parts}")
    notes.append(f"recomputation ({step.remat}) is that of the configuration")
    return words, notes


_TORCHTITAN_SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B"}


def _torchtitan_stages(step: _Step, notes: list[str]) -> list[str]:
    """Return the flags of a pipeline's schedule and layers.

    torchtitan counts the embedding, and the head, as ``less_layers`` layers.
    """
    prefix = "--parallelism.pipeline_parallel_"
    words: list[str] = []
    kind = step.schedule.partition(":")[0]
    if kind in _TORCHTITAN_SCHEDULES:
        words.append(f"{prefix}schedule {_TORCHTITAN_SCHEDULES[kind]}")
    else:
        notes.append(f"schedule {step.schedule} is left out: torchtitan has others")
    if step.has_own_layers:
        notes.append("layers of stages are left out: name modules (module_fqns_per_model_part)")
        return words
    counted = 0 if step.is_even else 1
    words += [f"{prefix}{place}_stage_less_layers {counted}" for place in ("first", "last")]
    if step.chunks > 1:
        layers = -(-(sum(step.layers) + 2 * counted) // len(step.layers))
        words.append(f"{prefix}layers_per_stage {layers}")
    return words


_MEGATRON_OVERLAP = (
    (Overlap.GRADIENTS, "--overlap-grad-reduce", ("data", "fsdp")),
    (Overlap.PARAMETERS, "--overlap-param-gather", ("fsdp",)),
    (Overlap.TP, "--tp-comm-overlap", ("tp",)),
    (Overlap.EXPERTS, "--moe-shared-expert-overlap", ("expert",)),
    (Overlap.EXCHANGES, "--overlap-moe-expert-parallel-comm", ("expert",)),
)
"""What a flag hides, and the axes that it concerns."""


def _megatron(step: _Step) -> tuple[list[str], list[str]]:
    notes = [f"MODEL_ARGS are the sizes of {step.model} (--num-layers, --hidden-size, ..)"]
    degrees = {
        "tensor-model-parallel-size": step.size("tp"),
        "pipeline-model-parallel-size": step.size(PIPE),
        "context-parallel-size": step.size("context"),
        "expert-model-parallel-size": step.size("expert"),
    }
    words = [_torchrun(step), "pretrain_gpt.py $MODEL_ARGS --bf16"]
    words += [f"--{name} {size}" for name, size in degrees.items() if size > 1]
    words += [
        f"--micro-batch-size {step.batch // step.rounds}",
        f"--global-batch-size {step.batch * step.parts}",
        f"--seq-length {step.sequence}",
    ]
    if step.schedule.startswith("interleaved"):
        words.append(f"--num-virtual-stages-per-pipeline-rank {step.chunks}")
    elif step.schedule not in {"", DEFAULT} and step.is_staged:
        notes.append(f"schedule {step.schedule} is left out: Megatron-LM runs 1f1b")
    if step.has_own_layers or (not step.is_even and (sum(step.layers) + 2) % len(step.layers)):
        notes.append("layers of stages are left out: write --pipeline-model-parallel-layout")
    elif not step.is_even:
        words += [f"--account-for-{part}-in-pipeline-split" for part in ("embedding", "loss")]
    if step.size("tp") > 1:
        words.append("--sequence-parallel")
    if step.size("tp") > 1 and not step.divides_rows:
        notes.append("tokens between products are divided too (--sequence-parallel)")
    if step.size("fsdp") > 1:
        words.append("--use-distributed-optimizer")
    words += [
        flag
        for overlap, flag, axes in _MEGATRON_OVERLAP
        if overlap in step.hidden and step.size(*axes) > 1
    ]
    if step.size("fsdp") > 1 and PIPE not in step.axes:
        notes.append("states are divided, weights are not, as fsdp divides them: memory differs")
    recomputation = _megatron_recomputation(step.remat)
    if recomputation is None:
        notes.append(f"recomputation {step.remat!r} is left out: Megatron-LM has others")
    return [*words, *(recomputation or [])], notes


def _megatron_recomputation(remat: str) -> list[str] | None:
    """Return the flags that compute results again; None where none do."""
    match remat:
        case "whole":
            full = "--recompute-granularity full --recompute-method uniform"
            return [full, "--recompute-num-layers 1"]
        case "core_attention":
            return ["--recompute-granularity selective"]
        case modules if set(modules.split("+")).issubset(MODULES):
            named = modules.replace("+", " ")
            return ["--recompute-granularity selective", f"--recompute-modules {named}"]
        case "none" | "elementwise":
            return []
        case _:
            return None
