"""Evaluate one candidate; a worker process, ``python -m hespas.study.evaluate``.

A worker reads tasks from standard input, a line of JSON each, and writes an outcome for each to
standard output. It ends with the process that started it, in the middle of a task too.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import sys
from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter

import msgspec

from hespas.base.cache import used_files
from hespas.base.process import stay
from hespas.base.question import answer_lines
from hespas.errors import CacheError, HespasError, OutputError, TimeLimitError, ToolError
from hespas.prediction import composition, staged
from hespas.prediction.figures.schema import RunReport
from hespas.prediction.figures.step import run_report
from hespas.prediction.options import CompileChoice, Fidelity, PredictOptions
from hespas.study.entry import entry_of
from hespas.study.executor import Ending, Outcome, Phase, Task, exhausted
from hespas.study.goal import FIGURES
from hespas.study.space import candidate_of
from hespas.study.store import names_of

_LOG = re.compile(r"\S*/hespas-[a-z-]+-\w{8}(/[\w.]+)?")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MOST_IN_TABLES = 100_000
"""The most operations, loops unrolled, of a step whose report has tables."""


def evaluate(task: Task) -> Outcome:
    """Predict a candidate; a failure is an outcome too."""
    start_s, (before_s, _) = perf_counter(), _usage()
    with used_files() as used:
        outcome = _evaluate_task(task)
    cpu_s, peak_bytes = _usage()
    return msgspec.structs.replace(
        outcome,
        elapsed_s=perf_counter() - start_s,
        cpu_s=cpu_s - before_s,
        peak_memory_bytes=peak_bytes,
        cached=names_of(used) if task.is_checked else [],
    )


def _evaluate_task(task: Task) -> Outcome:
    try:
        if task.is_checked and (refused := _refusal(task)):
            return Outcome(ending=Ending.REFUSED, reason=refused)
        report = _report(
            options_of(task.candidate, task.phase), in_full=task.with_report and task.with_tables
        )
        return Outcome(
            ending=Ending.DONE,
            figures=_figures(report),
            fidelity=report.fidelity,
            report=msgspec.json.encode(report).decode() if task.with_report else "",
        )
    except HespasError as error:
        # The reason must be the same on every run: names of logs differ.
        reason = _LOG.sub("its log", " ".join(str(error).split()))
        return Outcome(ending=_ending(error, reason), reason=reason)
    except OSError as error:
        return Outcome(ending=Ending.REFUSED, reason=f"{type(error).__name__}: {error}")
    except MemoryError as error:
        return exhausted(f"there is not enough memory: {error}".rstrip(": "))
    except (RecursionError, OverflowError) as error:
        return Outcome(ending=Ending.FAILED, reason=f"{type(error).__name__}: {error}")


def _ending(error: HespasError, reason: str) -> Ending:
    """Return how an evaluation ended, from its error.

    A program that could not start, or ended before it answered, may have lacked memory or threads:
    that is no property of the candidate. A program that took too long is not run again.
    """
    is_of_room = any(os.strerror(code) in reason for code in _NO_ROOM)
    if isinstance(error, CacheError | OutputError) or is_of_room:
        return Ending.REFUSED
    is_of_tool = isinstance(error, ToolError) and not isinstance(error, TimeLimitError)
    return Ending.EXHAUSTED if is_of_tool else Ending.FAILED


def _refusal(task: Task) -> str:
    """Return why this machine can't answer, or ""."""
    entry = entry_of(0, candidate_of(task.candidate))
    if entry.key(task.phase) == task.key:
        return ""
    own_versions = entry.versions(task.phase)
    for name in sorted({*own_versions, *task.versions}):
        study_version, worker_version = (
            task.versions.get(name, "none"),
            own_versions.get(name, "none"),
        )
        if study_version != worker_version:
            return (
                f"a worker has {name} {worker_version}, and the study is made with {study_version}"
            )
    return "presets or files of a worker differ from those that the study is made with"


def options_of(candidate: Mapping[str, object], phase: Phase) -> PredictOptions:
    """Return the options of a candidate's prediction in a phase."""
    options = candidate_of(candidate).options()
    compiler = options.compile.options
    return replace(options, compile=CompileChoice(fidelity=Fidelity(phase.value), options=compiler))


def _report(options: PredictOptions, *, in_full: bool) -> RunReport:
    """Return the report, with tables ``in_full`` of small steps."""
    if options.is_pipeline:
        return run_report(staged.predict_pipeline(options), with_tables=in_full)
    prediction = composition.predict_folded(options, whole_up_to=_MOST_IN_TABLES if in_full else 0)
    return run_report(
        prediction, with_tables=in_full and prediction.graph.kernels <= _MOST_IN_TABLES
    )


def _figures(report: RunReport) -> dict[str, float | int | None]:
    figures: dict[str, float | int | None] = {
        name: getattr(report, name) for name, figure in FIGURES.items() if figure.of_report
    }
    limit = report.scheduler
    raised = None if limit is None or limit.is_given_up else limit.full_factor
    figures["memory_limit_slop_factor"] = raised
    energy_j = None if report.energy_j is None else report.energy_j * report.devices
    tokens_per_s = report.tokens_per_s
    tokens = None if tokens_per_s is None else tokens_per_s * report.step_time_s
    figures["energy_j"] = energy_j
    figures["energy_j_per_token"] = energy_j / tokens if energy_j is not None and tokens else None
    if report.variation is not None:
        figures["expected_step_time_s"] = report.variation.expected_step_s
    if report.goodput is not None:
        run = report.goodput
        figures |= {
            "goodput": run.productive,
            "tokens_per_day": run.tokens_per_day,
            "days": run.days,
        }
        if run.played is not None:
            played = run.played
            figures |= {
                "played_goodput_p5": played.goodput.p5,
                "played_energy_j": None if played.energy_j is None else played.energy_j.p50,
                "played_tokens_per_day_p5": (
                    None if played.tokens_per_day is None else played.tokens_per_day.p5
                ),
            }
    return figures


def _usage() -> tuple[float, int]:
    """Return the CPU time and peak memory, children included."""
    unit = 1 if sys.platform == "darwin" else 1024
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    return cpu_s, sum(usage.ru_maxrss for usage in usages) * unit


def _answered(line: bytes) -> bytes:
    task = msgspec.json.decode(line, type=Task)
    stay(stays=task.may_stay)
    return msgspec.json.encode(evaluate(task))


if __name__ == "__main__":
    answer_lines(_answered)
