"""Predict one row, in a process with limits.

It answers a question (`hespas.base.question`).
"""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import msgspec

from hespas.base.fields import overridden
from hespas.base.process import within_inherited
from hespas.base.question import serve
from hespas.compile.recipe import RecipeFlags
from hespas.errors import HespasError, spelled
from hespas.evidence.validate.every import RowAnswer, RowRequest
from hespas.hardware.sized import find_system
from hespas.models.catalogue import find_model
from hespas.models.model import PIPE
from hespas.prediction import composition, loading, staged
from hespas.prediction.answer import PipelinePrediction
from hespas.prediction.figures.step import run_report
from hespas.prediction.options import CompileChoice, Fidelity, PredictOptions
from hespas.prediction.result import Prediction
from hespas.program.slices import COMPILED_SLICES, with_slices
from hespas.sources.exported import partitioned
from hespas.sources.function import export_model
from hespas.sources.options import ModelOptions
from hespas.xla.cpu import use_cpu

_KIB = 1024
_OVER_S = 5
_THREADS = 2
_DEFAULT_STACK_BYTES = 2**23


def _answer_with_cost(request: RowRequest, _: Path) -> RowAnswer:
    """Return the answer or refusal, with its time and memory."""
    use_cpu()
    try:
        _limit(request)
        answer = _answer_request(request)
    except HespasError as error:
        answer = RowAnswer(refused=spelled(error.text(str), str))
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return msgspec.structs.replace(
        answer,
        cpu_s=sum(usage.ru_utime + usage.ru_stime for usage in usages),
        memory_bytes=_KIB * max(usage.ru_maxrss for usage in usages),
    )


def _limit(request: RowRequest) -> None:
    limit_s = within_inherited(resource.RLIMIT_CPU, round(request.options.cpu_limit_s))
    over_s = within_inherited(resource.RLIMIT_CPU, limit_s + _OVER_S)
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, over_s))
    memory = request.options.memory_limit_bytes + stacks_bytes(
        find_system(request.row.system).device_count
    )
    limit_bytes = within_inherited(resource.RLIMIT_DATA, memory)
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def stacks_bytes(devices: int) -> int:
    """Return the bytes that the partitioner's threads reserve for stacks.

    The threads hardly use them. XLA's client has two threads for each device, each with the stack
    that a process may have.
    """
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return _THREADS * devices * (stack if stack > 0 else _DEFAULT_STACK_BYTES)


def _answer_request(request: RowRequest) -> RowAnswer:
    options = _options(request)
    if request.fidelity is Fidelity.LIBRARY or PIPE in request.row.options.get("mesh", ""):
        options = _row_options(options, request)
        if options.is_pipeline:
            return _answer_of_pipeline(staged.predict_pipeline(options))
        return _answer(composition.predict(options))
    if _is_extended(request):
        answer = _answer(_predict_extended(options, request))
        is_compiled = request.fidelity is Fidelity.COMPILED
        return msgspec.structs.replace(answer, held_by="extended") if is_compiled else answer
    return _answer(_predict(options, request))


def _options(request: RowRequest) -> PredictOptions:
    row, how = request.row, request.options
    flags = row.xla_flags
    recipe = RecipeFlags(file="the recipe", flags=flags, lines=dict.fromkeys(flags, 1))
    changes = {
        "file": row.workload,
        "settings": row.options,
        "fidelity": request.fidelity,
        "recipe": recipe if flags else None,
        "node": row.node,
        "method": how.method,
        "cache_dir": how.cache_dir,
        "system": row.system,
        "model": how.model,
    }
    return overridden(PredictOptions(), changes)


_MAXTEXT = "maxtext:"
_DCN_DATA = "dcn_data_parallelism"


def _is_extended(request: RowRequest) -> bool:
    """Return whether a row has more equal slices than compiled."""
    if not request.row.workload.startswith(_MAXTEXT):
        return False
    slices = find_system(request.row.system).slices
    dcn_options = {name for name in request.row.options if name.startswith("dcn_")}
    is_alike = dcn_options == {_DCN_DATA} and request.row.options[_DCN_DATA] == str(slices)
    return slices > COMPILED_SLICES and is_alike


def _predict_extended(options: PredictOptions, request: RowRequest) -> Prediction:
    """Predict a row from the two-slice program, its collectives extended."""
    system = find_system(request.row.system)
    count, _, part = request.row.system.partition("x")
    two = replace(
        options,
        program=replace(
            options.program,
            model=ModelOptions(settings={**request.row.options, _DCN_DATA: str(COMPILED_SLICES)}),
        ),
        network=replace(options.network, system=f"{COMPILED_SLICES}x{part}"),
    )
    compiled = loading.load(two)
    note = (
        f"the program is that of {COMPILED_SLICES} slices, and simulated on {count}: a slice does "
        "the same however many there are"
    )
    program = with_slices(compiled, system.slices)
    program = msgspec.structs.replace(program, assumptions=(note, *program.assumptions))
    return composition.predict(replace(options, compile=CompileChoice()), program=program)


_OPTIONS = frozenset(
    {
        *("mesh", "remat", "software", "scan", "global_batch", "sequence", "micro_batch"),
        *("fidelity", "stage_layers", "cuda_graphs", "schedule", "overlap"),
    }
)
"""What a row gives beside settings of its model."""
_YES_NO = {"true": True, "false": False}


def _row_options(options: PredictOptions, request: RowRequest) -> PredictOptions:
    """Return a row's options of its model and any pipeline.

    The option ``fidelity`` selects the kernels.
    """
    given, settings = dict[str, object](), dict[str, str]()
    for name, text in request.row.options.items():
        if name not in _OPTIONS:
            settings[name] = text
        else:
            given[name] = int(text) if text.isdecimal() else _YES_NO.get(text, text)
    is_of_libraries = request.fidelity is Fidelity.LIBRARY
    fidelity = Fidelity.LIBRARY if is_of_libraries else Fidelity.AUTO
    own = replace(options, compile=CompileChoice(fidelity=fidelity))
    own = overridden(own, {**given, "settings": settings})
    mesh = own.program.model.mesh
    ignores_memory = is_of_libraries and mesh is not None and PIPE in mesh.names
    return overridden(own, {"ignore_memory": ignores_memory})


def _predict(options: PredictOptions, request: RowRequest) -> Prediction:
    if find_model(request.row.workload) is not None:
        # As in `hespas validate`: layers written out, and divided before they are compiled.
        program = replace(options.program, model=ModelOptions())
        source = partitioned(export_model(request.row.workload, request.row.options)).content
        return composition.predict(replace(options, program=program), source=source)
    return composition.predict(options)


def _answer_of_pipeline(prediction: PipelinePrediction) -> RowAnswer:
    return RowAnswer(
        predicted_s=prediction.step_time_s,
        compute_s=prediction.compute_s,
        exposed_s=prediction.exposed_communication_s,
        held_by=prediction.fidelity,
        peak_bytes=prediction.peak_memory_bytes,
        assumptions=prediction.assumptions,
    )


def _answer(prediction: Prediction) -> RowAnswer:
    report = run_report(prediction)
    kinds: dict[str, float] = {}
    for row in report.kinds:
        kinds[row.kind] = kinds.get(row.kind, 0.0) + row.time_s
    return RowAnswer(
        predicted_s=report.step_time_s,
        compute_s=report.compute_s,
        exposed_s=report.exposed_communication_s,
        held_by=report.fidelity,
        bound=msgspec.structs.asdict(report.bound),
        kinds=kinds,
        peak_bytes=prediction.memory.peak_bytes,
        assumptions=tuple(report.assumptions),
    )


if __name__ == "__main__":
    serve(RowRequest, _answer_with_cost)
