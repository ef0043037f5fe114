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
from hespas.split.modules import RegionModules
from hespas.split.regions import RegionGraph
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
        elapsed_s = perf_counter() - start_s
        _write_modules(prepared.graph, prepared.modules, result, output.stage, elapsed_s)
    return result


def _write_modules(
    graph: RegionGraph,
    modules: RegionModules,
    result: GraphEstimate,
    directory: Path,
    elapsed_s: float,
) -> None:
    from hespas.report.regions import module_stats, write_region_files  # noqa: PLC0415 - as above

    write_region_files(graph, modules, directory)
    stats = module_stats(result, modules, estimation_time_s=elapsed_s)
    (directory / "module_stats.json").write_bytes(json_bytes(stats))


def write_tasks(tasks: TaskGraph, output: Output) -> None:
    """Write the traces of all devices, if files are requested."""
    if output.stage is not None:
        from hespas.tasks.chakra.writer import write_traces  # noqa: PLC0415 - as above

        write_traces(tasks, output.stage)


def write_all_tasks(prediction: Prediction, output: Output) -> None:
    """Write the traces of all devices, and modules of the stages of a recorded pipeline.

    Those of the first stage are there; each other one has a directory, as ``stage1``.
    """
    stages, system = prediction.stages, prediction.system
    if output.stage is None or system is None or not stages:
        write_tasks(prediction.tasks, output)
        return
    from hespas.prediction.recorded_stages import job_of_stages  # noqa: PLC0415 - as above
    from hespas.tasks.chakra.writer import write_traces  # noqa: PLC0415 - as above

    for number, one in enumerate(stages[1:], 1):
        own = one.prediction
        directory = output.stage / f"stage{number}"
        directory.mkdir()
        _write_modules(
            own.graph, own.modules, own.estimates, directory, own.estimates.reuse.elapsed_s
        )
    tasks = [stage.prediction.tasks for stage in stages]
    write_traces(job_of_stages(stages, tasks, system.device_count), output.stage)


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
