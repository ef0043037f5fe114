"""``hespas simulate``: simulate traces on a system."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from hespas.backends.astra_sim import AstraSimOptions, run_astra_sim
from hespas.backends.htsim import run_htsim
from hespas.backends.network_program import Backend, ProgramOptions
from hespas.backends.sst import run_sst
from hespas.base.fields import Group
from hespas.base.process import scratch_directory
from hespas.base.progress import Stage, stage
from hespas.cli import flags
from hespas.cli.answers import Answer, answering, check_targets
from hespas.cli.outputs import write_timeline
from hespas.errors import ConfigError, TraceError, option
from hespas.hardware.cluster import Cluster
from hespas.hardware.system import System
from hespas.prediction import machines
from hespas.prediction.options import NetworkOptions
from hespas.report.stages import external_text, simulation_text
from hespas.simulate.astra.streamed import simulate_streamed
from hespas.simulate.models import ModelChoice, is_replay, joined_job, simulate_job
from hespas.simulate.options import ContentionModel, Model
from hespas.simulate.timeline import ExternalResult, Timeline
from hespas.tasks.chakra.reader import read_traces
from hespas.tasks.graph import Job

log = logging.getLogger("hespas")

_OWN = "hespas"
_ASTRA_SIM = "astra-sim"
_OF_MESSAGES: Mapping[str, Callable[[Job, System, Path, ProgramOptions], ExternalResult]] = {
    "sst": run_sst,
    "htsim": run_htsim,
}
_OTHERS = (_ASTRA_SIM, *_OF_MESSAGES)
_LONGEST = 3600.0

_backend_options = flags.combined(
    flags.plain(
        "--backend",
        type=click.Choice([_OWN, *_OTHERS]),
        default=_OWN,
        group=Group.ENGINE,
        help="What simulates: hespas (default), or an installed ASTRA-sim, SST or htsim.",
    ),
    flags.plain(
        "--backend-program",
        "--astra-sim",
        type=flags.FILE,
        metavar="FILE",
        group=Group.ENGINE,
        needs="--backend",
        help="Its program (default: $ASTRA_SIM_BINARY, $SST_BINARY or $HTSIM_BINARY, or the one on "
        "the PATH).",
    ),
    flags.plain(
        "--backend-argument",
        multiple=True,
        metavar="ARGUMENT",
        group=Group.ENGINE,
        needs="--backend sst or htsim",
        help="Pass this on to it, as in --backend-argument=-sender_cc_algo.",
    ),
    flags.plain(
        "--backend-dir",
        type=flags.FILE,
        metavar="DIR",
        group=Group.ENGINE,
        needs="--backend",
        help="Keep what the backend reads and prints here.",
    ),
    flags.plain(
        "--time-limit",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        group=Group.ENGINE,
        needs="--backend",
        help="How long the backend may take (default: 3600).",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Backend:
    """The engine that ``--backend`` and related options select."""

    name: str
    program: Path | None
    arguments: tuple[str, ...]
    directory: Path | None
    time_limit_s: float | None

    @property
    def is_own(self) -> bool:
        """Whether hespas itself simulates."""
        return self.name == _OWN

    def check(self, *, wants_tasks: bool) -> None:
        """Raise `click.UsageError` for options that would have no effect."""
        backend_flags = {
            "--backend-program": self.program,
            "--backend-argument": self.arguments,
            "--backend-dir": self.directory,
            "--time-limit": self.time_limit_s,
        }
        if self.is_own:
            _refuse(backend_flags, f"has no effect without --backend {' or '.join(_OTHERS)}")
        if self.arguments and self.name == _ASTRA_SIM:
            raise click.UsageError(f"--backend-argument has no effect on {_ASTRA_SIM}")
        if not self.is_own and wants_tasks:
            message = f"--backend {self.name} doesn't say when tasks start and end"
            raise click.UsageError(f"{message}: leave --nodes and --timeline out")

    def messages(self, algorithm: str | None) -> Backend:
        """Return the engine of this name that simulates messages."""
        settings = ProgramOptions(
            program=self.program,
            algorithm=algorithm,
            arguments=self.arguments,
            time_limit_s=self.time_limit_s or _LONGEST,
        )
        play = _OF_MESSAGES[self.name]
        return lambda job, system, directory: play(job, system, directory, settings)

    def astra_sim(self, settings: AstraSimOptions) -> Backend:
        """Return ASTRA-sim with its settings."""
        limited = replace(settings, binary=self.program, time_limit_s=self.time_limit_s or _LONGEST)
        return partial(run_astra_sim, options=limited)

    def run(self, engine: Backend, job: Job, system: System) -> ExternalResult:
        """Run an engine in the given directory, or one that is removed on success."""
        kept_directory = self.directory
        with (
            scratch_directory(self.name)
            if kept_directory is None
            else nullcontext(kept_directory) as directory
        ):
            return engine(job, system, directory)


def _refuse(given: Mapping[str, object], text: str) -> None:
    """Raise `click.UsageError` with a text for the first flag that is set."""
    for flag, value in given.items():
        is_set = value is not None and value is not False and value != ()
        if is_set:
            raise click.UsageError(f"{flag} {text}")


@answering("simulate", example="hespas simulate traces --system H100_80GB_8GPU", checks_target=True)
@click.argument("prefix", type=flags.FILE)
@flags.plain(
    "--comm-groups",
    "--comm_groups",
    type=flags.FILE,
    metavar="FILE",
    help="Groups of devices (default: comm_group.json beside the traces, if there is one).",
)
@flags.derived(NetworkOptions)
@flags.plain(
    "--num-queues-per-dim",
    type=click.IntRange(min=1),
    metavar="N",
    group=Group.NETWORK,
    help="Queues for chunks in each dimension of the network (default: 1).",
)
@flags.plain(
    "--rendezvous-protocol",
    is_flag=True,
    group=Group.NETWORK,
    help="Messages wait for a control message of their receiver.",
)
@flags.plain(
    "--injection-scale",
    type=click.FloatRange(min=0),
    metavar="FACTOR",
    group=Group.NETWORK,
    help="Multiply the system's endpoint delay (default: 1).",
)
@flags.plain(
    "--stream",
    is_flag=True,
    group=Group.ENGINE,
    help="Simulate the traces as they are read, for traces larger than memory: computations and "
    "collectives, as ASTRA-sim has them.",
)
@_backend_options
@flags.plain(
    "--nodes",
    is_flag=True,
    group=Group.OUTPUT,
    needs="--json",
    help="Add the start and end of every node.",
)
@flags.timeline_option
def simulate(
    *,
    prefix: Path,
    comm_groups: Path | None,
    num_queues_per_dim: int | None,
    rendezvous_protocol: bool,
    injection_scale: float | None,
    stream: bool,
    backend: str,
    backend_program: Path | None,
    backend_argument: tuple[str, ...],
    backend_dir: Path | None,
    time_limit: float | None,
    nodes: bool,
    json_file: str | None,
    timeline: Path | None,
    **given: Any,
) -> Answer:
    """Simulate the traces PREFIX.0.et, PREFIX.1.et, ... on a system.

    PREFIX may also be the directory that hespas trace wrote.
    """
    if nodes and json_file is None:
        raise click.UsageError("--nodes has no effect without --json")
    engine = _Backend(
        name=backend,
        program=backend_program,
        arguments=backend_argument,
        directory=backend_dir,
        time_limit_s=time_limit,
    )
    engine.check(wants_tasks=nodes or timeline is not None)
    check_targets(json_file, timeline)
    options = flags.built(NetworkOptions, given)
    system = machines.system_of(options)
    if system is None:
        raise ConfigError(
            "no system is given", hint=f"give {option('cluster')} or {option('system')}"
        )
    traces = prefix / "dev" if prefix.is_dir() else prefix
    details = {
        "--num-queues-per-dim": num_queues_per_dim,
        "--rendezvous-protocol": rendezvous_protocol,
        "--injection-scale": injection_scale,
    }
    if stream:
        other_flags = {
            "--nodes": nodes,
            "--timeline": timeline,
            "--backend": not engine.is_own,
            "--model hespas": options.model is Model.HESPAS,
            "--imperfect": options.imperfect,
            "--algorithm": options.algorithm,
        }
        _refuse(other_flags | details, "does not go together with --stream")
        network = options.network or ContentionModel.CONGESTION_UNAWARE
        with stage(Stage.SIMULATE, f"on {system.name}, as traces are read"):
            groups = _groups(traces, comm_groups)
            return _answer(simulate_streamed(traces, groups, system, network=network))
    is_recorded = engine.is_own and is_replay(system)
    job = _job(traces, comm_groups, options.imperfect, system, is_recorded=is_recorded)
    log.info("read the traces of %d devices", job.device_count)
    if not engine.is_own:
        of_own = {"--model": given["model"], "--imperfect": given["imperfect"]}
        if backend in _OF_MESSAGES:
            _refuse(of_own, "has no effect on another --backend")
            # Only ASTRA-sim and hespas' model of it have these options.
            _refuse({"--network": options.network, **details}, "has no effect on this --backend")
            external_engine = engine.messages(options.algorithm)
        else:
            of_own["--algorithm"] = given["algorithm"]
            _refuse(of_own, "has no effect on another --backend")
            settings = AstraSimOptions(
                network=options.network or ContentionModel.CONGESTION_UNAWARE,
                queues_per_dimension=num_queues_per_dim or 1,
                rendezvous=rendezvous_protocol,
                injection_scale=1.0 if injection_scale is None else injection_scale,
            )
            external_engine = engine.astra_sim(settings)
        with stage(Stage.SIMULATE, f"on {system.name} by {backend}"):
            external = engine.run(external_engine, job, system)
        return Answer(text=lambda: external_text(external), json=external.as_json)
    choice = ModelChoice(
        model=options.model or Model.ASTRA_SIM,
        network=options.network,
        queues_per_dimension=num_queues_per_dim,
        rendezvous=rendezvous_protocol,
        injection_scale=injection_scale,
        algorithm=options.algorithm,
        cluster=options.imperfect,
    )
    with stage(Stage.SIMULATE, f"on {system.name}"):
        result = simulate_job(job, system, choice)
    is_perfect = options.imperfect is None
    if is_perfect and machines.model_of(options, system).model is not choice.model:
        noted = (_other_model(system.name), *result.assumptions)
        result = replace(result, assumptions=noted)
    if timeline is not None:
        write_timeline(result, timeline)
    return _answer(result, with_nodes=nodes)


def _other_model(system: str) -> str:
    """Return the note on the network models of traces and of their program."""
    return (
        "network: ASTRA-sim's model, the default for traces; hespas run takes hespas' own on "
        f"{system}, as --model hespas does here"
    )


def _answer(result: Timeline, *, with_nodes: bool = False) -> Answer:
    return Answer(
        text=lambda: simulation_text(result), json=lambda: result.as_json(with_nodes=with_nodes)
    )


def _job(
    traces: Path,
    comm_groups: Path | None,
    cluster: Cluster | None,
    system: System,
    *,
    is_recorded: bool,
) -> Job:
    """Read the traces; a cluster with several programs has traces for each."""
    if cluster is None or not cluster.programs:
        return read_traces(traces, _groups(traces, comm_groups), is_recorded=is_recorded)
    programs: list[tuple[Job, tuple[int, ...]]] = []
    for program in cluster.programs:
        files = program.traces / "dev" if program.traces.is_dir() else program.traces
        job = read_traces(files, _groups(files, None), is_recorded=is_recorded)
        programs.append((job, program.devices))
    return joined_job(programs, system.device_count, location=cluster.source)


def _groups(traces: Path, given: Path | None) -> Path | None:
    if given is not None:
        if not given.is_file():
            raise TraceError("no such file", location=str(given), hint="check --comm-groups")
        return given
    beside = traces.parent / "comm_group.json"
    return beside if beside.is_file() else None
