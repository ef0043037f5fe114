"""A warm process, ``python -m hespas.app.worker``, that answers questions.

It reads a question a line and writes an answer a line, JSON both (`hespas.base.process.Worker`).
Imports, traced models and prices of kernels stay; exports run in this process. It ends with the
process that started it, in the middle of a question too.
"""

from __future__ import annotations

import json
import os
import resource
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import perf_counter, process_time
from typing import Any, cast

import msgspec

from hespas.app.describe import describe_model, hardware_names, model_names
from hespas.app.network import network_of
from hespas.app.pool import MEMORY_VARIABLE
from hespas.app.serving import serve_copies, serve_load
from hespas.app.state import State, copies_of, options_of, runs_code
from hespas.app.view import view_of
from hespas.base.files import json_bytes
from hespas.base.process import stay, within_inherited
from hespas.base.question import answer_lines
from hespas.errors import ConfigError, HespasError, option
from hespas.hardware.presets import part_of
from hespas.prediction import checks, composition, staged
from hespas.prediction.answer import PipelinePrediction
from hespas.prediction.fidelity import why_not_compiled
from hespas.prediction.figures.schema import RunReport
from hespas.prediction.figures.step import run_report
from hespas.prediction.machines import node_of
from hespas.prediction.options import CompileChoice, Fidelity, PredictOptions
from hespas.prediction.result import Prediction
from hespas.report.answers import memory_details, with_chart_data
from hespas.split.flatten import MOST_OPERATIONS

Answer = dict[str, Any]


def quick(state: State) -> Answer:
    """Return the first drawing: the modelled step, without tables.

    ``is_last`` says whether the whole answer prices the same kernels; else they are compiled.
    """
    options = options_of(state)
    is_compiled = _is_compiled(options)
    if is_compiled:
        modelled = CompileChoice(fidelity=Fidelity.FUSED, options=options.compile.options)
        options = replace(options, compile=modelled)
    prediction = _predicted(options, whole_up_to=0)
    report = run_report(prediction, with_tables=False)
    return {"view": msgspec.to_builtins(view_of(_with_memory(report, prediction)))} | {
        "is_last": not is_compiled
    }


def whole(state: State) -> Answer:
    """Return the whole drawing, and the JSON of ``hespas run``."""
    prediction = _predicted(options_of(state), whole_up_to=MOST_OPERATIONS)
    report = with_chart_data(run_report(prediction), prediction)
    view = view_of(_with_memory(report, prediction), dimensions=_dimensions(prediction))
    text = json_bytes(msgspec.to_builtins(report)).decode()
    return {"view": msgspec.to_builtins(view), "is_last": True, "json": text}


def _dimensions(prediction: Prediction | PipelinePrediction) -> tuple[int, ...]:
    """Return the dimensions whose links can be changed."""
    if not isinstance(prediction, Prediction) or prediction.system is None:
        return ()
    return checks.dimensions_sent_along(prediction.system, prediction.tasks)


def _predicted(options: PredictOptions, *, whole_up_to: int) -> Prediction | PipelinePrediction:
    """Predict a step as ``hespas run`` does."""
    if options.is_pipeline:
        return staged.predict_pipeline(options)
    return composition.predict_folded(checks.checked(options), whole_up_to=whole_up_to)


def _is_compiled(options: PredictOptions) -> bool:
    """Return whether the whole answer takes a compiler."""
    if options.is_pipeline:
        return False
    options = checks.checked(options)
    if options.compile.requested not in {Fidelity.AUTO, Fidelity.COMPILED}:
        return False
    node = node_of(options.estimate)
    part = None if node is None else part_of(node)
    return part is not None and not why_not_compiled(part)


def _with_memory(report: RunReport, prediction: Prediction | PipelinePrediction) -> RunReport:
    """Return a report with at least the memory breakdown."""
    if report.memory is not None or not isinstance(prediction, Prediction):
        return report
    return msgspec.structs.replace(report, memory=memory_details(prediction, ()))


_QUESTIONS: Mapping[str, Callable[[Any], Answer]] = {
    "names": lambda _: {"models": model_names(), "parts": hardware_names()},
    "describe": describe_model,
    "copies": copies_of,
    "quick": quick,
    "whole": whole,
    "network": network_of,
    "serve": serve_load,
    "serve-copies": serve_copies,
}
"""What can be asked, each about a state."""
_OF_WORKLOADS = frozenset({"describe", "copies", "quick", "whole"})
"""Questions about a workload: its code runs only if it is ``allowed``."""


_IGNORED = "ignore_memory"
"""The option that predicts what does not fit."""


def answer_question(question: Mapping[str, Any]) -> Answer:
    """Return the answer to a question, or its error."""
    start_s, cpu_s = perf_counter(), process_time()
    answer: Answer
    try:
        answer = _answer(question)
    except Exception as error:  # noqa: BLE001 - the last resort: other questions go on
        answer = {"error": _error_text(error)}
        if isinstance(error, HespasError) and option(_IGNORED) in error.marked_hint:
            answer["apply"] = {_IGNORED: True}
    elapsed = {"elapsed_s": perf_counter() - start_s, "cpu_s": process_time() - cpu_s}
    return {**answer, **elapsed}


def _answer(question: Mapping[str, Any]) -> Answer:
    kind, about = question["ask"], question["about"]
    if kind not in _QUESTIONS or not isinstance(about, dict):
        raise ConfigError(f"{kind!r} is nothing that can be asked")
    if kind in _OF_WORKLOADS:
        code = runs_code(cast("dict[str, Any]", about))
        if code and code not in question["allowed"]:
            return {"code": code}
        # Code of the user's runs in a process of its own, as for commands.
        stay(stays=not code)
    return _QUESTIONS[kind](about)


def _error_text(error: Exception) -> str:
    match error:
        case HespasError():
            return error.text(lambda name: name.replace("_", " ")).replace("$.", "")
        case MemoryError():
            return "there is not enough memory for this question"
        case RecursionError() | OverflowError() | OSError():
            return f"{type(error).__name__}: {error}"
        case _:
            traceback.print_exception(error)
            return f"{type(error).__name__}: {error}; this is a fault of hespas"


def main() -> None:
    """Answer questions until standard input ends."""
    if limit_text := os.environ.get(MEMORY_VARIABLE):
        limit = within_inherited(resource.RLIMIT_AS, int(limit_text))
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    stay(stays=True)
    answer_lines(lambda line: json.dumps(answer_question(json.loads(line))).encode())


if __name__ == "__main__":
    main()
