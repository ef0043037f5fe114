"""Fill an output directory with the documented files."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import perf_counter

from hespas.cli.settings import Settings
from hespas.cli.stages import Divided, price
from hespas.estimate.cache import Store
from hespas.estimate.graph import GraphEstimate, computation_assumptions
from hespas.files import OutputMark, json_bytes, staged_directory
from hespas.report.module_stats import module_stats
from hespas.report.region_files import write_region_files
from hespas.report.summary import estimate_summary
from hespas.schedule.chakra import write_traces
from hespas.schedule.tasks import TaskGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where files go: None for nowhere; and where estimates are kept."""

    stage: Path | None
    store: Store | None


@contextmanager
def output_of(settings: Settings) -> Generator[Output]:
    """Stage the output directory, where one is asked for; it appears only if all goes well."""
    target = settings.output
    if target is None:
        yield Output(stage=None, store=settings.store(None))
        return
    content = sha256(settings.workload.read_bytes()).hexdigest()
    mark = OutputMark(workload=settings.workload.name, content=content)
    with staged_directory(target, mark, clean=settings.clean) as stage:
        beside = target if target.exists() else stage
        yield Output(stage=stage, store=settings.store(beside))


def estimate_into(settings: Settings, divided: Divided, output: Output) -> GraphEstimate:
    """Estimate, and write the modules and their statistics where files are asked for."""
    start_s = perf_counter()
    result = price(settings, divided, output.store)
    if output.stage is not None:
        write_region_files(divided.graph, divided.modules, output.stage)
        elapsed_s = perf_counter() - start_s
        stats = module_stats(result, divided.modules, estimation_time_s=elapsed_s)
        (output.stage / "module_stats.json").write_bytes(json_bytes(stats))
    return result


def stats_of(result: GraphEstimate, divided: Divided) -> dict[str, object]:
    """Return the statistics of an estimate, and what it rests on, as JSON values."""
    return {
        **module_stats(result, divided.modules, estimation_time_s=result.reuse.elapsed_s),
        "assumptions": list(computation_assumptions(divided.graph, result)),
        "warnings": list(result.total.warnings),
    }


def summary_of(result: GraphEstimate, divided: Divided) -> str:
    """Return the same for people."""
    return estimate_summary(result, computation_assumptions(divided.graph, result))


def write_tasks(tasks: TaskGraph, output: Output) -> None:
    """Write the traces of all devices, where files are asked for."""
    if output.stage is not None:
        write_traces(tasks, output.stage)
