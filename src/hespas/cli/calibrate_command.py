"""``hespas calibrate``: turn measurements of the user's cluster into a preset."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hespas.cli import flags
from hespas.cli.answers import Answer, answering
from hespas.errors import ConfigError, MeasurementError, option
from hespas.evidence.calibrate.factors import Group, fit_factors
from hespas.evidence.calibrate.gemm_csv import gemm_groups
from hespas.evidence.calibrate.nccl_tests import (
    KINDS,
    CollectiveRun,
    check_messages,
    read_run,
    with_reach,
)
from hespas.evidence.calibrate.preset import (
    Calibration,
    first_link,
    report_json,
    report_text,
    write_calibration,
)
from hespas.evidence.calibrate.profile import profile_groups
from hespas.evidence.calibrate.ranks import read_ranks
from hespas.evidence.calibrate.serving import calibrated_serving, serving_calibration_text
from hespas.evidence.calibrate.steps import PipelineSteps, step_group
from hespas.hardware.links import Link, load_link
from hespas.hardware.presets import load_device, load_system, system_directory
from hespas.hardware.system import interconnect_of
from hespas.models.model import parse_mesh
from hespas.prediction.composition import load_alone
from hespas.prediction.options import AS_GIVEN, PredictOptions, ProgramOptions
from hespas.serve.options import ServeOptions

_OF_SERVING = (
    *("mesh", "engine", "max_sequences", "max_batched_tokens", "memory_share", "dtype", "set"),
    "time_limit",
)
"""Options of ``hespas serve`` that say how a log was measured."""


@answering(
    "calibrate",
    example="hespas calibrate --node H100_80GB --gemm gemm.csv -o my_h100",
    has_log=False,
)
@flags.plain(
    "--node",
    required=True,
    metavar="NODE",
    help="The node to start from: a preset's name or a path.",
)
@flags.plain(
    "--link",
    metavar="LINK",
    help="The link to start from, for its wire: a preset's name or a path.",
)
@flags.both(
    "system", "cluster", metavar="SYSTEM", help="The cluster: a preset's name, or a directory."
)
@flags.plain(
    "--gemm",
    "gemm_files",
    type=flags.FILE,
    multiple=True,
    metavar="CSV",
    help="Times of matrix products: m,n,k,dtype,latency_us.",
)
@flags.plain(
    "--nccl",
    "nccl_files",
    multiple=True,
    metavar="[KIND=]FILE",
    help="What nccl-tests printed; KIND (all_reduce, ..) where the file doesn't say it.",
)
@flags.plain(
    "--profile",
    type=flags.FILE,
    metavar="TRACE",
    help="A trace.json.gz of jax.profiler, of --program.",
)
@flags.plain("--program", type=flags.FILE, metavar="HLO", help="The program that was profiled.")
@flags.plain(
    "--kernels",
    type=flags.FILE,
    metavar="JSON",
    help="The kernels of --program, as hespas compile --kernels writes them.",
)
@flags.plain(
    "--steps", type=flags.FILE, metavar="CSV", help="Measured step times: workload,seconds."
)
@flags.plain(
    "--ranks",
    type=flags.FILE,
    metavar="CSV",
    help="How long each rank computes in each step: rank,step,seconds.",
)
@flags.plain(
    "--serving",
    "serving_log",
    type=flags.FILE,
    metavar="LOG",
    help="Measured requests of an engine that served --model: arrival_s, input_tokens, "
    "output_tokens, queue_s, ttft_s, tpot_s.",
)
@flags.plain("--model", metavar="MODEL", help="The model that --serving was measured with.")
@flags.plain(
    "--output",
    "-o",
    type=flags.FILE,
    required=True,
    metavar="DIR",
    help="The directory of the new preset.",
)
@flags.derived(ServeOptions, only=_OF_SERVING)
def calibrate(
    *,
    node: str,
    link: str | None,
    system: str | None,
    gemm_files: tuple[Path, ...],
    nccl_files: tuple[str, ...],
    profile: Path | None,
    program: Path | None,
    kernels: Path | None,
    steps: Path | None,
    ranks: Path | None,
    serving_log: Path | None,
    model: str | None,
    output: Path,
    **given: Any,
) -> Answer:
    """Fit presets to measurements, report the fit, and write a preset of one's own.

    The directory that --output names is then a node for --node (where --gemm, --profile or
    --steps were given), its link.json a link (where --nccl was), its variation.json a variation
    for --variation (where --ranks was), and with --system a system for --system too. --serving
    stands alone: DIR is then what hespas serve takes as --step-factors.
    """
    if serving_log is not None:
        files = (*gemm_files, *nccl_files, profile, program, kernels, steps, ranks, link, system)
        if any(file is not None for file in files):
            raise ConfigError("--serving stands alone", hint="calibrate in two runs")
        return _of_serving(serving_log, model, node, given, output)
    _refuse_serving(model, given)
    _check_effects(link=link, system=system, nccl=nccl_files, steps=steps)
    if (profile is None) != (program is None):
        raise ConfigError("--profile and --program belong together", hint="give both")
    if kernels is not None and profile is None:
        raise ConfigError("--kernels has no effect without --profile", hint="drop it")
    home = None if system is None or not nccl_files else system_directory(system)
    base = load_link(link) if link is not None else None if home is None else first_link(home)
    device = load_device(node)
    groups = [group for file in gemm_files for group in gemm_groups(file, device)]
    if profile is not None and program is not None:
        profiled = PredictOptions(
            program=ProgramOptions(file=program, kernels=kernels), compile=AS_GIVEN
        )
        groups += profile_groups(profile, load_alone(profiled), device)
    _check_once(groups)
    if steps is not None:
        cluster = None if system is None else load_system(system)
        groups.append(step_group(steps, PipelineSteps(node=device, system=cluster), device))
    fits = fit_factors(groups, device)
    runs = [_run(text, base) for text in nccl_files]
    check_messages(runs)
    if home is not None:
        runs = with_reach(runs, interconnect_of(load_system(home)), base)
    variation = None if ranks is None else read_ranks(ranks)
    if not fits and not runs and variation is None:
        hint = "give --gemm, --nccl, --profile, --steps or --ranks, or --serving"
        raise ConfigError("there is nothing to calibrate with", hint=hint)
    source_files = [*gemm_files, profile, steps, ranks, *(_file(text)[1] for text in nccl_files)]
    calibration = Calibration(
        node=node,
        link=base,
        system=home,
        factors=fits,
        runs=runs,
        sources=[file.name for file in source_files if file is not None],
        bases=[Path(text) for text in (node, link, system) if text is not None],
        variation=variation,
    )
    written = write_calibration(calibration, output)
    names = ", ".join(str(file) for file in written)
    return Answer(
        text=lambda: f"{report_text(calibration)}\nWritten: {names}",
        json=lambda: report_json(calibration),
    )


def _of_serving(
    log: Path, model: str | None, node: str, given: Mapping[str, Any], output: Path
) -> Answer:
    if model is None:
        raise ConfigError("--serving needs the model that was served", hint="give --model")
    mesh = given["mesh"] or "tp=1"
    served = {"model_name": model, "mesh": mesh, "log": log}
    served["cluster"] = f"{parse_mesh(mesh).device_count}x{node}"
    options = flags.built(ServeOptions, {**given, **served})
    calibrated = calibrated_serving(options, node, output)
    return Answer(
        text=lambda: serving_calibration_text(calibrated, output),
        json=lambda: msgspec.to_builtins(calibrated),
    )


def _refuse_serving(model: str | None, given: Mapping[str, Any]) -> None:
    used = {"model": model, **given}
    for name, value in used.items():
        if value not in (None, (), {}):
            raise ConfigError(f"{option(name)} has no effect without --serving", hint="drop it")


def _check_effects(
    *, link: str | None, system: str | None, nccl: tuple[str, ...], steps: Path | None
) -> None:
    if link is not None and not nccl:
        raise ConfigError("--link has no effect without --nccl", hint="give --nccl")
    if system is not None and steps is None and not nccl:
        hint = "give --steps or --nccl"
        raise ConfigError("--system has no effect without --steps or --nccl", hint=hint)


def _check_once(groups: list[Group]) -> None:
    """Raise `MeasurementError` if two files fit one factor: which is right is unknown."""
    seen: dict[str, Group] = {}
    for group in groups:
        first_group = seen.setdefault(group.name, group)
        if first_group is not group:
            raise MeasurementError(
                f"{group.name} is measured here and in {first_group.cases[0].location}",
                location=group.cases[0].location,
                hint="give one of them, or join the files",
            )


def _file(text: str) -> tuple[str, Path]:
    kind, separator, name = text.partition("=")
    if separator and kind in KINDS:
        return KINDS[kind], Path(name)
    return "", Path(text)


def _run(text: str, base: Link | None) -> CollectiveRun:
    kind, file = _file(text)
    wire = None if base is None else base.parameters
    fastest = None if wire is None else wire.bandwidth_bytes_per_s
    return read_run(file, kind, fastest_bytes_per_s=fastest)
