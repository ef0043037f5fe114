"""Predict one row: a process of its own, so that its limits and its memory are the row's alone.

Started as ``python -m hespas.validate.worker`` in a directory that holds the request; the answer is
left there (`hespas.validate.messages` names the files).
"""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from hespas import pipeline
from hespas.compile.options import CompileOptions
from hespas.compile.recipe import RecipeFlags
from hespas.errors import HespasError, spelled
from hespas.export.exported import partitioned
from hespas.export.function import export_model
from hespas.export.options import ModelOptions
from hespas.models.catalogue import models
from hespas.options import (
    CompileChoice,
    EstimateOptions,
    Fidelity,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.prediction import Prediction
from hespas.report.run import run_report
from hespas.simulate.models import Model
from hespas.validate.messages import ANSWER_FILE, REQUEST_FILE, RowAnswer, RowRequest
from hespas.xla.cpu import use_cpu

_KIB = 1024
_OVER_S = 5


def main() -> None:
    """Read the request in the working directory, predict, and write the answer."""
    request = msgspec.json.decode(Path(REQUEST_FILE).read_bytes(), type=RowRequest)
    use_cpu()
    _limit(request)
    try:
        answer = _answer(_predicted(request))
    except HespasError as error:
        answer = RowAnswer(refused=spelled(error.text(str), str))
    spent = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    done = msgspec.structs.replace(
        answer,
        cpu_s=sum(each.ru_utime + each.ru_stime for each in spent),
        memory_bytes=_KIB * max(each.ru_maxrss for each in spent),
    )
    Path(ANSWER_FILE).write_bytes(msgspec.json.encode(done))


def _limit(request: RowRequest) -> None:
    """Limit this process and those that it starts: the compiler, and what exports."""
    limit_s = round(request.cpu_limit_s)
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + _OVER_S))
    memory = request.memory_limit_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))


def _predicted(request: RowRequest) -> Prediction:
    options = PredictOptions(
        program=ProgramOptions(
            file=Path(request.workload), model=ModelOptions(more=request.options)
        ),
        compile=CompileChoice(
            fidelity=Fidelity(request.fidelity),
            options=CompileOptions(recipe=_recipe(request.xla_flags)),
        ),
        estimate=EstimateOptions(
            node=request.node,
            method=request.method,
            cache_dir=None if request.cache_dir is None else Path(request.cache_dir),
        ),
        network=NetworkOptions(
            system=request.system,
            model=None if request.model is None else Model(request.model),
        ),
    )
    if request.workload in models():
        # As `hespas validate` does: layers written out, and divided before they are compiled.
        program = replace(options.program, model=ModelOptions())
        source = partitioned(export_model(request.workload, request.options)).text
        return pipeline.predict(replace(options, program=program), source=source)
    return pipeline.predict(options)


def _recipe(flags: Mapping[str, str]) -> RecipeFlags | None:
    """Return a row's flags as those of a recipe: what the compiler doesn't take is noted."""
    if not flags:
        return None
    return RecipeFlags(file="the recipe", flags=flags, lines=dict.fromkeys(flags, 1))


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
        assumptions=tuple(report.assumptions),
    )


if __name__ == "__main__":
    main()
