"""``hespas validate``: published or own measurements of steps against predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hespas.cli import flags
from hespas.cli.outputs import check_targets, write_json
from hespas.errors import MeasurementError
from hespas.options import NetworkOptions
from hespas.stages import Stage, stage
from hespas.validate.measurements import PUBLISHED, MeasuredStep, read_steps
from hespas.validate.recompute import Recomputed, Sources, check_step, recompute
from hespas.validate.tables import validation_json, validation_text
from hespas.xla.cpu import use_cpu


@flags.command(
    "validate",
    short_help="Compare predictions with measured steps.",
    example="hespas validate --workload llama3-100m",
)
@click.argument("measurements", type=flags.FILE, required=False)
@flags.plain(
    "--workload", multiple=True, metavar="NAME", help="Only this workload; may be given again."
)
@flags.plain(
    "--system", multiple=True, metavar="NAME", help="Only this system; may be given again."
)
@flags.plain(
    "--method",
    default="measured",
    metavar="METHOD",
    help="Estimation method (default: measured); the roofline stands beside it.",
)
@flags.derived(NetworkOptions, only=("model",))
@flags.plain(
    "--cache-dir", type=flags.FILE, metavar="DIR", help="Where compiled programs are cached."
)
@flags.json_option
@flags.common
def command(
    measurements: Path | None,
    workload: tuple[str, ...],
    system: tuple[str, ...],
    json_file: str | None,
    **given: Any,
) -> None:
    """Predict steps that were measured, and report how far off the predictions are.

    MEASUREMENTS is a CSV table with the columns workload (a model of hespas export, or a program's
    file), node, system and step_s, and, if wanted, options (mesh=fsdp=4;batch=2), resolution_s
    and profiled_compute_s. Without it, the published measurements are predicted.

    Each program is exported, compiled for its node, which need not be there, priced and simulated.
    Compiling takes some seconds, or minutes for large programs, the first time. A program that is
    compiled already is taken as it is; the PTX of its kernels is not known then.
    """
    flags.start_logging(given["log_level"], given["log_path"])
    check_targets(json_file, None)
    use_cpu()
    table = measurements or PUBLISHED
    method: str = given["method"]
    sources = Sources(cache_dir=given["cache_dir"])
    model = flags.built(NetworkOptions, {"model": given["model"]}).model
    steps = {
        f"{table}:{step.line}": step for step in _chosen(read_steps(table), workload, system, table)
    }
    for location, step in steps.items():
        check_step(step, method=method, location=location)
    recomputed: list[Recomputed] = []
    with stage(Stage.VALIDATE, f"{len(steps)} measured steps", total=len(steps)) as advance:
        for location, step in steps.items():
            recomputed.append(
                recompute(step, sources, method=method, model=model, location=location)
            )
            advance(1)
    if json_file is not None:
        write_json(json_file, validation_json(recomputed, method))
    if json_file != "-":
        click.echo(validation_text(recomputed, method))


def _chosen(
    steps: tuple[MeasuredStep, ...],
    workloads: tuple[str, ...],
    systems: tuple[str, ...],
    table: Path,
) -> tuple[MeasuredStep, ...]:
    for flag, given, known in (
        ("--workload", workloads, {step.workload for step in steps}),
        ("--system", systems, {step.system for step in steps}),
    ):
        for name in given:
            if name not in known:
                raise MeasurementError(
                    f"{flag} {name}: nothing was measured of it",
                    location=str(table),
                    hint=f"there is {', '.join(sorted(known))}",
                )
    chosen = tuple(
        step
        for step in steps
        if (not workloads or step.workload in workloads) and (not systems or step.system in systems)
    )
    if not chosen:
        raise MeasurementError("the table holds no such step", location=str(table))
    return chosen
