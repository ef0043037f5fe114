"""``hespas calibrate``: fit presets to measurements of one's cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from hespas.base.fields import Group, changed, declare
from hespas.base.frozen import frozen
from hespas.cli import flags
from hespas.cli.answers import Answer, answering
from hespas.errors import ConfigError, MeasurementError, option
from hespas.evidence.calibrate.factors import Group as FactorGroup
from hespas.evidence.calibrate.factors import fit_factors
from hespas.evidence.calibrate.gemm_csv import gemm_groups
from hespas.evidence.calibrate.nccl_tests import (
    KINDS,
    CollectiveRun,
    check_messages,
    read_run,
    with_coverage,
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
from hespas.hardware.presets import check_node_file, load_device, load_system, system_directory
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


@frozen
class _Measurements:
    """The measurements of a cluster, beside an engine's requests."""

    GROUP: ClassVar[Group] = Group.MAIN

    link: str | None = declare(
        help="The link to start from, for its wire: a preset's name or a path.",
        metavar="LINK",
        needs="nccl",
    )
    system: str | None = declare(
        help="The cluster: a preset's name, or a directory.",
        aliases=("cluster",),
        metavar="SYSTEM",
    )
    gemm: tuple[Path, ...] = declare(
        help="Times of matrix products: m,n,k,dtype,latency_us.",
        parse=lambda texts: tuple(map(Path, texts)),
        metavar="CSV",
        repeats=True,
        default=(),
    )
    nccl: tuple[str, ...] = declare(
        help="What nccl-tests printed; KIND (all_reduce, ..) where the file doesn't say it.",
        metavar="[KIND=]FILE",
        repeats=True,
        default=(),
    )
    profile: Path | None = declare(
        help="A trace.json.gz of jax.profiler.", metavar="TRACE", needs="program"
    )
    program: Path | None = declare(
        help="The program that was profiled.", metavar="HLO", needs="profile"
    )
    kernels: Path | None = declare(
        help="The kernels of the program, as hespas compile --kernels writes them.",
        metavar="JSON",
        needs="profile",
    )
    steps: Path | None = declare(help="Measured step times: workload,seconds.", metavar="CSV")
    ranks: Path | None = declare(
        help="How long each rank computes in each step: rank,step,seconds.", metavar="CSV"
    )

    def __post_init__(self) -> None:
        if self.system is not None and self.steps is None and not self.nccl:
            raise ConfigError(
                "--system has no effect without --steps or --nccl", hint="give --steps or --nccl"
            )

    @property
    def files(self) -> list[Path]:
        """The files that figures are fitted to."""
        files = (self.profile, self.steps, self.ranks)
        single = [file for file in files if file is not None]
        return [*self.gemm, *single, *(_file(text)[1] for text in self.nccl)]


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
@flags.derived(_Measurements)
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
    *, node: str, serving_log: Path | None, model: str | None, output: Path, **values: Any
) -> Answer:
    """Fit presets to measurements, report the fit, and write a preset of one's own.

    The directory that --output names is then a node for --node (where --gemm, --profile or
    --steps were given), a variation for --variation (where --ranks was), its link.json a link
    (where --nccl was), and with --system a system for --system too. --serving stands alone: DIR is
    then what hespas serve takes as --step-factors.
    """
    measured = flags.built(_Measurements, values)
    served = {name: values[name] for name in _OF_SERVING}
    if serving_log is not None:
        if changed(measured):
            raise ConfigError("--serving stands alone", hint="calibrate in two runs")
        return _calibrated_serving(serving_log, model, node, served, output)
    needs_serving = {option(name): value for name, value in {"model": model, **served}.items()}
    flags.refuse(needs_serving, "has no effect without --serving", "drop it")
    calibration = _calibrated(node, measured)
    written = write_calibration(calibration, output)
    names = ", ".join(str(file) for file in written)
    return Answer(
        text=lambda: f"{report_text(calibration)}\nWritten: {names}",
        json=lambda: report_json(calibration),
    )


def _calibrated(node: str, measured: _Measurements) -> Calibration:
    """Fit all factors to the measurements."""
    link, system = measured.link, measured.system
    home = None if system is None or not measured.nccl else system_directory(system)
    base = load_link(link) if link is not None else None if home is None else first_link(home)
    device = load_device(node)
    check_node_file(node)
    groups = [group for file in measured.gemm for group in gemm_groups(file, device)]
    if measured.profile is not None:
        profiled = ProgramOptions(file=measured.program, kernels=measured.kernels)
        graph = load_alone(PredictOptions(program=profiled, compile=AS_GIVEN))
        groups += profile_groups(measured.profile, graph, device)
    _check_once(groups)
    if measured.steps is not None:
        cluster = None if system is None else load_system(system)
        pipelines = PipelineSteps(node=device, system=cluster)
        groups.append(step_group(measured.steps, pipelines, device))
    fits = fit_factors(groups, device)
    runs = [_run(text, base) for text in measured.nccl]
    check_messages(runs)
    if home is not None:
        runs = with_coverage(runs, interconnect_of(load_system(home)), base)
    variation = None if measured.ranks is None else read_ranks(measured.ranks)
    if not fits and not runs and variation is None:
        hint = "give --gemm, --nccl, --profile, --steps or --ranks, or --serving"
        raise ConfigError("there is nothing to calibrate with", hint=hint)
    return Calibration(
        node=node,
        link=base,
        system=home,
        factors=fits,
        runs=runs,
        sources=[file.name for file in measured.files],
        bases=[Path(text) for text in (node, link, system) if text is not None],
        variation=variation,
    )


def _calibrated_serving(
    log: Path, model: str | None, node: str, values: Mapping[str, Any], output: Path
) -> Answer:
    if model is None:
        raise ConfigError("--serving needs the model that was served", hint="give --model")
    mesh = values["mesh"] or "tp=1"
    served = {"model_name": model, "mesh": mesh, "log": log}
    served["cluster"] = f"{parse_mesh(mesh).device_count}x{node}"
    options = flags.built(ServeOptions, {**values, **served})
    calibrated = calibrated_serving(options, node, output)
    return Answer(
        text=lambda: serving_calibration_text(calibrated, output),
        json=lambda: msgspec.to_builtins(calibrated),
    )


def _check_once(groups: list[FactorGroup]) -> None:
    """Refuse two files that fit one factor."""
    seen: dict[str, FactorGroup] = {}
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
