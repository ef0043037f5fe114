"""Options that follow from a framework: its name, or Megatron-LM's arguments.

The user's own options go before those of a file. This module imports little, as all commands
import it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hespas.base.fields import overridden
from hespas.errors import ConfigError, DeviceCountError, option
from hespas.models.model import EXPERT, PIPE
from hespas.models.software import ARGUMENTS_PREFIX
from hespas.prediction.options import Fidelity, PredictOptions

if TYPE_CHECKING:
    from hespas.models.megatron import Arguments
    from hespas.models.megatron_layout import Layout


def with_framework(options: PredictOptions) -> PredictOptions:
    """Apply what a framework's name or arguments decide.

    A step with a framework's kernels has those of libraries. Raises `ConfigError` for a step with
    others, for a file of arguments that can't be read, and for a cluster that its layout does not
    fit.
    """
    options = _with_arguments(options)
    software = options.program.model.software
    requested = options.compile.requested
    if software is None or requested is Fidelity.LIBRARY:
        return options
    if requested is Fidelity.AUTO:
        return overridden(options, {"fidelity": Fidelity.LIBRARY})
    raise ConfigError(
        f"{option('software')} {software} names kernels of libraries, and "
        f"{options.compile.words} makes others",
        hint=f"drop one, or give {option('fidelity')} library",
    )


def _with_arguments(options: PredictOptions) -> PredictOptions:
    """Apply a Megatron-LM arguments file, if one is named."""
    text = str(options.program.file or "")
    if not text.startswith(ARGUMENTS_PREFIX) or options.program.model.part is not None:
        return options
    from hespas.models.megatron import read_arguments  # noqa: PLC0415 - few runs have one
    from hespas.prediction.machines import system_of  # noqa: PLC0415 - the same

    path = Path(text.removeprefix(ARGUMENTS_PREFIX))
    arguments = read_arguments(path)
    layout = arguments.layout
    system = system_of(options.network)
    if system is None:
        raise ConfigError(
            "a run of Megatron-LM is on a cluster, and none is given",
            location=text,
            hint=f"give {option('cluster')}, as in 64xH100_80GB",
        )

    model, pipeline = options.program.model, options.pipeline
    if layout.sequence is None and model.sequence is None:
        raise ConfigError(
            "seq_length is missing",
            location=str(path),
            hint=f"add it, or give {option('sequence')}",
        )
    changes: dict[str, Any] = {
        "mesh": model.mesh or _mesh(layout, system.device_count, text),
        "sequence": model.sequence or layout.sequence,
        "software": model.software or "megatron",
        "remat": model.remat or (None if layout.remat == "elementwise" else layout.remat),
        "dtype": model.dtype or layout.dtype,
        "attention": model.attention or layout.attention,
        "settings": {**_settings(arguments), **model.settings},
        "overlap": {**layout.overlap, **pipeline.overlap},
        "stage_layers": pipeline.stage_layers or layout.stage_layers,
    }
    if model.batch is None and model.global_batch is None:
        changes["global_batch"] = layout.global_batch
        # Megatron-LM's default: one micro-batch of each data-parallel part.
        changes["batch"] = None if layout.global_batch else layout.micro_batch
    if model.micro_batch is None and model.micro_batches is None:
        changes["micro_batch"] = layout.micro_batch
    if pipeline.schedule is None and layout.chunks > 1:
        changes["schedule"] = f"interleaved:{layout.chunks}"
    if options.compile.requested is Fidelity.AUTO:
        changes["fidelity"] = Fidelity.LIBRARY
    return overridden(options, changes)


def _settings(arguments: Arguments) -> dict[str, str]:
    """Return the settings of the model that the layout decides."""
    layout = arguments.layout
    settings: dict[str, str] = {}
    if layout.sequence_parallel:
        settings["sequence_parallel"] = "true"
    if layout.product_dtype != "same":
        settings["product_dtype"] = layout.product_dtype
        if arguments.model.routing is not None:
            settings["expert_product_dtype"] = layout.product_dtype
    if layout.gradient_dtype != "same":
        settings["gradient_dtype"] = layout.gradient_dtype
    if layout.expert_axes != "expert":
        settings["expert_axes"] = layout.expert_axes
    return settings


def _mesh(layout: Layout, devices: int, text: str) -> str:
    """Return the mesh: pipeline, data, experts, context and tensor parallelism."""
    inner = layout.tensor * layout.stages * layout.context
    parts, remainder = divmod(devices, inner)
    if remainder or not parts:
        raise DeviceCountError(
            f"{devices} devices are not divided by tensor x pipeline x context = {inner}",
            location=text,
            hint=f"give {option('cluster')} a multiple of {inner} devices",
        )
    if parts % layout.experts:
        raise ConfigError(
            f"{parts} data-parallel devices are not divided by experts over {layout.experts}",
            location=text,
            hint=f"give {option('cluster')} a multiple of {inner * layout.experts} devices, or a "
            "smaller expert_model_parallel_size",
        )
    axes = {
        PIPE: layout.stages,
        "fsdp" if layout.divides_states else "data": parts // layout.experts,
        EXPERT: layout.experts,
        "context": layout.context,
        "tp": layout.tensor,
    }
    required = {PIPE} if layout.expert_axes == "expert" else {PIPE, EXPERT}
    axes = {name: size for name, size in axes.items() if size > 1 or name in required}
    if set(axes) == {PIPE}:
        axes["fsdp"] = 1
    return ",".join(f"{name}={size}" for name, size in axes.items())
