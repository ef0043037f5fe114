"""Write the output files of stage commands, and timelines."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from hespas.base.files import (
    OutputMark,
    json_bytes,
    staged_directory,
)
from hespas.base.frozen import frozen
from hespas.prediction.composition import Prepared, price
from hespas.prediction.machines import store_of
from hespas.prediction.options import PredictOptions
from hespas.prediction.workload import source_of, workload_digest
from hespas.price.cache import Store
from hespas.price.graph import GraphEstimate, computation_assumptions
from hespas.price.methods import DEFAULT, method_named
from hespas.tasks.graph import TaskGraph

if TYPE_CHECKING:
    from hespas.prediction.answer import PipelinePrediction
    from hespas.prediction.result import Prediction
    from hespas.report.timeline.write import Chart
    from hespas.simulate.timeline import Timeline

log = logging.getLogger("hespas")


def write_timeline(timeline: Timeline, file: Path) -> None:
    """Write a timeline for ui.perfetto.dev."""
    # Few commands write a timeline.
    from hespas.report.timeline.step import step_chart  # noqa: PLC0415

    _write_chart(step_chart(timeline), file)


def write_prediction(prediction: Prediction | PipelinePrediction, file: Path) -> None:
    """Write a prediction's timeline, with details of its program."""
    from hespas.report.timeline.step import prediction_chart  # noqa: PLC0415 - as above

    _write_chart(prediction_chart(prediction), file)


def _write_chart(chart: Chart, file: Path) -> None:
    from hespas.report.timeline.write import write_chart  # noqa: PLC0415 - as above

    write_chart(chart, file)
    for note in chart.notes:
        log.warning("%s: %s", file, note)


@frozen
class Output:
    """The staged directory, if any, and the store of prices."""

    stage: Path | None
    store: Store | None


@contextmanager
def output_of(options: PredictOptions) -> Generator[Output]:
    """Stage the output directory, if requested.

    It appears only on success.
    """
    target, workload = options.output.directory, options.program.file
    if target is None or workload is None:
        yield Output(stage=None, store=store_of(options.estimate))
        return
    source = source_of(options)
    mark = OutputMark(workload=workload.name, content=workload_digest(source))
    with staged_directory(target, mark, clean=options.output.clean) as stage:
        beside = target if target.exists() else stage
        yield Output(stage=stage, store=store_of(options.estimate, beside=beside))


def estimate_into(prepared: Prepared, options: PredictOptions, output: Output) -> GraphEstimate:
    """Estimate, and write modules and statistics if requested."""
    start_s = perf_counter()
    result = price(prepared, options, store=output.store)
    if output.stage is not None:
        from hespas.report.regions import module_stats, write_region_files  # noqa: PLC0415 - as above

        write_region_files(prepared.graph, prepared.modules, output.stage)
        elapsed_s = perf_counter() - start_s
        stats = module_stats(result, prepared.modules, estimation_time_s=elapsed_s)
        (output.stage / "module_stats.json").write_bytes(json_bytes(stats))
    return result


def write_tasks(tasks: TaskGraph, output: Output) -> None:
    """Write the traces of all devices, if files are requested."""
    if output.stage is not None:
        from hespas.tasks.chakra.writer import write_traces  # noqa: PLC0415 - as above

        write_traces(tasks, output.stage)


def stats_of(result: GraphEstimate, prepared: Prepared) -> dict[str, object]:
    """Return an estimate's statistics, assumptions and warnings as JSON values."""
    from hespas.report.regions import module_stats  # noqa: PLC0415 - as above

    return {
        **module_stats(result, prepared.modules, estimation_time_s=result.reuse.elapsed_s),
        "assumptions": list(computation_assumptions(prepared.graph, result)),
        "warnings": list(result.total.warnings),
    }


def summary_of(
    result: GraphEstimate, prepared: Prepared, options: PredictOptions, *, times: bool
) -> str:
    """Return an estimate's summary as text.

    With ``times`` or after profiling it has the estimator's time.
    """
    from hespas.report.regions import estimate_summary  # noqa: PLC0415 - as above

    assumptions = computation_assumptions(prepared.graph, result)
    is_profiled = method_named(options.estimate.method or DEFAULT.name).device_here
    return estimate_summary(result, assumptions, times=times or bool(is_profiled))
