"""``hespas validate``: compare measured steps with predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hespas.base.home import cache_home
from hespas.base.progress import Stage, stage
from hespas.base.units import parse_quantity
from hespas.cli import flags
from hespas.cli.answers import Answer, answering
from hespas.errors import ConfigError, MeasurementError
from hespas.evidence.validate.every import RowOptions, predict_rows, row_cache
from hespas.evidence.validate.measurements import (
    PUBLISHED,
    MeasuredStep,
    chosen,
    read_rows,
    read_steps,
)
from hespas.evidence.validate.pytorch import PYTORCH_TABLE, read_pytorch_rows
from hespas.evidence.validate.recompute import Recomputed, Sources, check_step, recompute
from hespas.evidence.validate.tables import every_json, every_text, validation_json, validation_text
from hespas.prediction.options import NetworkOptions
from hespas.price.methods import method_named
from hespas.xla.cpu import use_cpu

_METHOD = "measured"


@answering("validate", example="hespas validate --workload llama3-100m")
@click.argument("measurements", type=flags.FILE, required=False)
@flags.plain(
    "--workload", multiple=True, metavar="NAME", help="Only this workload; may be given again."
)
@flags.plain(
    "--system", multiple=True, metavar="NAME", help="Only this system; may be given again."
)
@flags.plain(
    "--method",
    metavar="METHOD",
    help="Estimation method (default: measured, and with --all that of the device); the roofline "
    "stands beside it.",
)
@flags.plain(
    "--all",
    "every",
    is_flag=True,
    help="Every published step that is at hand, and those of MEASUREMENTS, with what fails listed.",
)
@flags.plain(
    "--set",
    "table",
    type=click.Choice(["pytorch", "serving"]),
    help="Published steps of PyTorch by kernels of libraries, in place of JAX's, or points of "
    "engines that serve; MEASUREMENTS is then a table with the same columns.",
)
@flags.plain(
    "--group",
    multiple=True,
    metavar="NAME",
    help="With --all or --set: only this family, part, publisher or scale (one node, tens, "
    "hundreds, thousands); may be given again.",
)
@flags.plain(
    "--time-limit",
    default=None,
    metavar="TIME",
    help="With --all: CPU time after which a program is not compiled but predicted with modelled "
    "fusion (default: 600s). With --set: after which a step is given up (default: 120s).",
)
@flags.derived(NetworkOptions, only=("model",))
@flags.plain(
    "--cache-dir", type=flags.FILE, metavar="DIR", help="Where compiled programs are cached."
)
def validate(
    *,
    measurements: Path | None,
    workload: tuple[str, ...],
    system: tuple[str, ...],
    every: bool,
    table: str | None,
    group: tuple[str, ...],
    time_limit: str | None,
    **values: Any,
) -> Answer:
    """Predict steps that were measured, and report how far off the predictions are.

    MEASUREMENTS is a CSV table with the columns workload (a model of hespas export, or a program's
    file), node, system and step_s, and, if wanted, options (mesh=fsdp=4;batch=2), resolution_s
    and profiled_compute_s. Without it, the published measurements are predicted.

    Each program is exported, compiled for its node, which need not be there, priced and simulated.
    Compiling takes some seconds, or minutes for large programs, the first time. A program that is
    compiled already is taken as it is; the PTX of its kernels is not known then.

    With --all, steps of training recipes are predicted too, each in a process of its own. What was
    predicted before is not predicted again, so that a run that was ended goes on. With --set
    pytorch, these are steps of Megatron-LM, torchtitan and Composer.
    """
    if every and table:
        raise ConfigError("--all and --set are both given", hint="give one")
    if table == "serving":
        unused = {"--workload": workload, "--system": system, "--group": group}
        unused |= {"--time-limit": time_limit}
        flags.refuse(unused, "has no effect with --set serving", "drop it")
        return _validate_serving(measurements)
    if every or table:
        unused = {"--workload": workload, "--system": system}
        flags.refuse(
            unused, f"has no effect with {'--all' if every else '--set'}", "choose by --group"
        )
        how = _how_to_predict(values, time_limit, compiles=every)
        if every:
            rows = chosen((*read_rows(), *(read_rows(measurements) if measurements else ())), group)
        else:
            rows = chosen(read_pytorch_rows(measurements or PYTORCH_TABLE), group)
        cached = row_cache(values["cache_dir"] or cache_home() / "validated")
        with stage(Stage.VALIDATE, f"{len(rows)} published steps", total=len(rows)) as advance:
            predicted = predict_rows(rows, how, cached=cached, advance=advance)
        return Answer(text=lambda: every_text(predicted), json=lambda: every_json(predicted))
    needs_all = {"--group": group, "--time-limit": time_limit}
    flags.refuse(needs_all, "has no effect without --all or --set", "give one of them")
    file = measurements or PUBLISHED
    return _validate_steps(file, _choose_steps(read_steps(file), workload, system, file), values)


def _validate_steps(
    file: Path, chosen_steps: tuple[MeasuredStep, ...], values: Mapping[str, Any]
) -> Answer:
    use_cpu()
    method: str = values["method"] or _METHOD
    sources = Sources(cache_dir=values["cache_dir"])
    model = flags.built(NetworkOptions, {"model": values["model"]}).model
    steps = {f"{file}:{step.line}": step for step in chosen_steps}
    for location, step in steps.items():
        check_step(step, method=method, location=location)
    recomputed: list[Recomputed] = []
    with stage(Stage.VALIDATE, f"{len(steps)} measured steps", total=len(steps)) as advance:
        for location, step in steps.items():
            recomputed.append(
                recompute(step, sources, method=method, model=model, location=location)
            )
            advance(1)
    return Answer(
        text=lambda: validation_text(recomputed, method),
        json=lambda: validation_json(recomputed, method),
    )


def _validate_serving(measurements: Path | None) -> Answer:
    # Steps of training need none of these imports.
    from hespas.evidence.validate import serving  # noqa: PLC0415

    points = serving.read_serving_points(measurements or serving.SERVING_TABLE)
    with stage(Stage.VALIDATE, f"{len(points)} points", total=len(points)) as advance:
        served = list(serving.served_points(points, advance))
    return Answer(
        text=lambda: serving.serving_points_text(served), json=lambda: serving.serving_json(served)
    )


_TABLE_LIMIT_S = 120.0
"""Steps of libraries' kernels take 2 to 16 s of CPU time."""
_TABLE_AT_ONCE = 2
"""Each takes up to 0.4 GB, so that a small machine has room for two."""


def _how_to_predict(
    values: Mapping[str, Any], time_limit: str | None, *, compiles: bool
) -> RowOptions:
    if values["method"] is not None:
        method_named(values["method"])
    how = RowOptions(
        method=values["method"],
        model=flags.built(NetworkOptions, {"model": values["model"]}).model,
        cache_dir=values["cache_dir"] and str(values["cache_dir"].resolve()),
    )
    if not compiles:
        how = replace(how, cpu_limit_s=_TABLE_LIMIT_S, at_once=_TABLE_AT_ONCE)
    if time_limit is None:
        return how
    limit_s = parse_quantity(time_limit, "s", location="--time-limit")
    if limit_s < 1:
        raise ConfigError("--time-limit is below a second", hint="give more")
    return replace(how, cpu_limit_s=limit_s)


def _choose_steps(
    steps: tuple[MeasuredStep, ...],
    workloads: tuple[str, ...],
    systems: tuple[str, ...],
    table: Path,
) -> tuple[MeasuredStep, ...]:
    for flag, names, measured_names in (
        ("--workload", workloads, {step.workload for step in steps}),
        ("--system", systems, {step.system for step in steps}),
    ):
        for name in names:
            if name not in measured_names:
                raise MeasurementError(
                    f"{flag} {name}: nothing was measured of it",
                    location=str(table),
                    hint=f"there is {', '.join(sorted(measured_names))}",
                )
    chosen_steps = tuple(
        step
        for step in steps
        if (not workloads or step.workload in workloads) and (not systems or step.system in systems)
    )
    if not chosen_steps:
        raise MeasurementError("the table holds no such step", location=str(table))
    return chosen_steps
