"""The stages as commands run them: with progress bars and log lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import click

from hespas.cli.optimising import is_optimised
from hespas.cli.settings import Settings
from hespas.cli.source import source_of, with_kernels
from hespas.cli.told import check_custom_calls, check_told, parsed
from hespas.errors import OutputError
from hespas.estimate.cache import Store
from hespas.estimate.graph import GraphEstimate, Progress, estimate_graph
from hespas.files import check_file, json_bytes, replaced_file, write_file
from hespas.hardware.fit import settled_program
from hespas.hardware.system import System
from hespas.program.devices import with_device_count
from hespas.program.program import Program
from hespas.schedule.perfetto import write_perfetto
from hespas.simulate.timeline import Timeline
from hespas.split.modules import RegionModules, region_modules
from hespas.split.regions import RegionGraph
from hespas.split.strategies import split_program

log = logging.getLogger("hespas")


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """A split program with its distinct modules."""

    graph: RegionGraph
    modules: RegionModules


def load(settings: Settings, *, system: System | None, alone: bool) -> Program:
    """Read the program; ``alone`` is for work that needs no system even if it communicates."""
    source = source_of(settings, system)
    loaded = parsed(source, settings.load_options)
    check_told(loaded, settings)
    known = _with_origin(with_kernels(loaded.program, source), settings)
    if alone:
        return with_device_count(known, requested=settings.devices, system=None)
    return settled_program(known, devices=settings.devices, system=system)


def _with_origin(program: Program, settings: Settings) -> Program:
    """Return the program, with a note where it was compiled for another part than the node."""
    node = settings.flags.node
    if node is None or is_optimised(settings.flags) or not program.is_scheduled:
        return program
    # Few programs are compiled ones: the others need not wait for it.
    from hespas.compile.made_for import with_origin  # noqa: PLC0415

    return with_origin(program, node)


def divide(settings: Settings, program: Program) -> Divided:
    """Split the program and find its distinct regions."""
    graph = split_program(program, settings.split)
    modules = region_modules(graph)
    log.info("%d regions, %d distinct", len(graph.regions), len(modules.modules))
    return Divided(graph=graph, modules=modules)


def price(settings: Settings, divided: Divided, store: Store | None) -> GraphEstimate:
    """Estimate every region, with a progress bar where that takes long."""
    program = divided.graph.program
    check_custom_calls(program, settings.custom_calls)
    estimator = settings.estimator(program)
    start_s = perf_counter()
    with _progress("Estimating", len(divided.graph.compute_regions)) as progress:
        result = estimate_graph(
            divided.graph,
            divided.modules,
            estimator,
            store=store,
            threads=settings.threads,
            progress=progress,
        )
    saved = 100 * result.reuse.time_reduction
    log.info("estimated in %.3f s; reuse saved %.1f %%", perf_counter() - start_s, saved)
    return result


_SHORT = 2000


@contextmanager
def _progress(label: str, length: int) -> Generator[Progress | None]:
    """Show a bar on a terminal for work of many pieces."""
    if length < _SHORT or not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=length, label=label, file=sys.stderr) as bar:
        yield bar.update


def check_targets(json_file: str | None, timeline: Path | None, output: Path | None = None) -> None:
    """Raise `OutputError` for files that can't be written: before the work, not after it."""
    named = [] if json_file in (None, "-") else [Path(json_file)]
    targets = named if timeline is None else [*named, timeline]
    for target in targets:
        check_file(target, made_later=output)
    if len(targets) == 2 and targets[0].absolute() == targets[1].absolute():
        raise OutputError(
            "is named for both --json and --timeline", location=str(timeline), hint="name two files"
        )


def write_timeline(timeline: Timeline, file: Path) -> None:
    """Write a timeline for ui.perfetto.dev, at once or not at all."""
    with replaced_file(file) as temporary:
        write_perfetto(timeline, temporary)


def write_json(target: str, value: object) -> None:
    """Write JSON to a file, or to standard output for "-"."""
    content = json_bytes(value)
    if target == "-":
        click.echo(content.decode(), nl=False)
    else:
        write_file(Path(target), content)
