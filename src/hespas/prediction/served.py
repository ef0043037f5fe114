"""Choose serving engines' kernels for inference on GPUs."""

from __future__ import annotations

from dataclasses import replace

from hespas.base.fields import changed
from hespas.hardware.presets import is_tpu, part_of
from hespas.models.language import LanguageModel
from hespas.prediction.fidelity import needs_operations
from hespas.prediction.options import Fidelity, PredictOptions
from hespas.prediction.result import StepKind
from hespas.prediction.workload import kind_of, target_of
from hespas.sources.options import ModelOptions
from hespas.sources.source import ModelSource

WITHOUT_CAPACITY = {"dropless": "true", "expert_groups": "1", "chosen_groups": "1"}
"""Settings of experts that neither drop nor pad tokens."""


def as_served(options: PredictOptions, source: ModelSource) -> PredictOptions:
    """Return options with an engine's kernels for inference.

    The user's fidelity goes before that default. Experts neither drop nor pad tokens.
    """
    if kind_of(source.settings) is not StepKind.INFERENCE or not _is_gpu(target_of(options)):
        return options
    choice = options.compile
    is_left = choice.requested is Fidelity.AUTO and not changed(choice.options)
    if is_left and options.program.kernels is None and not needs_operations(options):
        options = replace(options, compile=replace(choice, fidelity=Fidelity.LIBRARY))
    if options.compile.requested is not Fidelity.LIBRARY:
        return options
    model = without_capacity(options.program.model, source.model.settings)
    return replace(options, program=replace(options.program, model=model))


def without_capacity(options: ModelOptions, model: LanguageModel) -> ModelOptions:
    """Return options whose experts neither drop nor pad tokens."""
    if model.routing is None or WITHOUT_CAPACITY.keys() & options.settings.keys():
        return options
    return replace(options, settings={**options.settings, **WITHOUT_CAPACITY})


def _is_gpu(target: str | None) -> bool:
    part = None if target is None else part_of(target)
    return part is not None and is_tpu(part) is False
