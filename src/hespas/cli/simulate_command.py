"""``hespas simulate``: simulate traces on a system."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import click

from hespas.backends.astra_sim import AstraSimOptions, run_astra_sim
from hespas.backends.htsim import run_htsim
from hespas.backends.network_program import Backend, ProgramOptions
from hespas.backends.result import ExternalResult
from hespas.backends.sst import run_sst
from hespas.base.fields import Group, Use, changed, declare, refuse_unused
from hespas.base.frozen import frozen
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
from hespas.simulate.options import MESSAGES, AstraSettings, ContentionModel, Model
from hespas.simulate.timeline import Timeline
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

_OWN_ENGINE = Use(f" without {option('backend')} {' or '.join(_OTHERS)}", "add it")
_OWN_ARGUMENTS = Use(f" on {_ASTRA_SIM}")


@frozen
class _Engine:
    """The engine that simulates, with its options."""

    GROUP: ClassVar[Group] = Group.ENGINE

    stream: bool = declare(
        help="Simulate the traces as they are read, for traces larger than memory: computations "
        "and collectives, as ASTRA-sim has them.",
        default=False,
    )
    name: str = declare(
        help="What simulates: hespas, or an installed ASTRA-sim, SST or htsim.",
        name="backend",
        choices=(_OWN, *_OTHERS),
        default=_OWN,
    )
    program: Path | None = declare(
        help="Its program.",
        name="backend_program",
        aliases=("astra_sim",),
        default_text="$ASTRA_SIM_BINARY, $SST_BINARY or $HTSIM_BINARY, or the one on the PATH",
        needs="backend",
        applies_to=(_OWN_ENGINE,),
    )
    arguments: tuple[str, ...] = declare(
        help="Pass this on to SST or htsim, as in --backend-argument=-sender_cc_algo.",
        name="backend_argument",
        metavar="ARGUMENT",
        repeats=True,
        needs="backend",
        applies_to=(_OWN_ENGINE, _OWN_ARGUMENTS),
        default=(),
    )
    directory: Path | None = declare(
        help="Keep what the backend reads and prints here.",
        name="backend_dir",
        metavar="DIR",
        needs="backend",
        applies_to=(_OWN_ENGINE,),
    )
    time_limit_s: float = declare(
        help="How long the backend may take.",
        name="time_limit",
        unit="",
        metavar="SECONDS",
        needs="backend",
        applies_to=(_OWN_ENGINE,),
        default_text="3600",
        default=3600.0,
    )

    @property
    def is_own(self) -> bool:
        """Whether hespas itself simulates."""
        return self.name == _OWN

    def messages(self, algorithm: str | None) -> Backend:
        """Return the engine of this name that simulates messages."""
        settings = ProgramOptions(
            program=self.program,
            algorithm=algorithm,
            arguments=self.arguments,
            time_limit_s=self.time_limit_s,
        )
        play = _OF_MESSAGES[self.name]
        return lambda job, system, directory: play(job, system, directory, settings)

    def astra_sim(self, settings: AstraSimOptions) -> Backend:
        """Return ASTRA-sim with its settings."""
        limited = replace(settings, binary=self.program, time_limit_s=self.time_limit_s)
        return partial(run_astra_sim, options=limited)

    def run(self, engine: Backend, job: Job, system: System) -> ExternalResult:
        """Run an engine in the given or a temporary directory."""
        if self.directory is not None:
            return engine(job, system, self.directory)
        with scratch_directory(self.name) as directory:
            return engine(job, system, directory)


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
@flags.derived(AstraSettings)
@flags.derived(_Engine)
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
    nodes: bool,
    json_file: str | None,
    timeline: Path | None,
    **values: Any,
) -> Answer:
    """Simulate the traces PREFIX.0.et, PREFIX.1.et, ... on a system.

    PREFIX may also be the directory that hespas trace wrote.
    """
    if nodes and json_file is None:
        raise ConfigError("--nodes has no effect without --json", hint="add it")
    engine, astra = flags.built(_Engine, values), flags.built(AstraSettings, values)
    refuse_unused(engine, {_OWN_ENGINE: engine.is_own, _OWN_ARGUMENTS: engine.name == _ASTRA_SIM})
    if not engine.is_own and (nodes or timeline is not None):
        raise ConfigError(
            f"--backend {engine.name} doesn't say when tasks start and end",
            hint="leave --nodes and --timeline out",
        )
    check_targets(json_file, timeline=timeline)
    options = flags.built(NetworkOptions, values)
    system = machines.system_of(options)
    if system is None:
        raise ConfigError(
            "no system is given", hint=f"give {option('cluster')} or {option('system')}"
        )
    traces = prefix / "dev" if prefix.is_dir() else prefix
    if engine.stream:
        _check_streamed(options, engine, astra, {"--nodes": nodes, "--timeline": timeline})
        network = options.network or ContentionModel.CONGESTION_UNAWARE
        with stage(Stage.SIMULATE, f"on {system.name}, as traces are read"):
            groups = _groups(traces, comm_groups)
            return _answer(simulate_streamed(traces, groups, system, network=network))
    is_recorded = engine.is_own and is_replay(system)
    job = _job(traces, comm_groups, options.imperfect, system, is_recorded=is_recorded)
    log.info("read the traces of %d devices", job.device_count)
    if not engine.is_own:
        play = _other_engine(options, engine, astra)
        with stage(Stage.SIMULATE, f"on {system.name} by {engine.name}"):
            external = engine.run(play, job, system)
        return Answer(text=lambda: external_text(external), json=external.as_json)
    result = _simulated(job, system, options, astra)
    if timeline is not None:
        write_timeline(result, timeline)
    return _answer(result, with_nodes=nodes)


def _check_streamed(
    options: NetworkOptions, engine: _Engine, astra: AstraSettings, values: Mapping[str, object]
) -> None:
    other_flags = {
        **values,
        "--backend": not engine.is_own,
        "--model hespas": options.model is Model.HESPAS,
        "--imperfect": options.imperfect,
        "--algorithm": options.algorithm,
        **{flags.flag(name): True for name in changed(astra)},
    }
    flags.refuse(other_flags, f"does not go together with {flags.flag('stream')}")


def _other_engine(options: NetworkOptions, engine: _Engine, astra: AstraSettings) -> Backend:
    """Return another engine; refuse options without effect on it."""
    of_own = {"--model": options.model, "--imperfect": options.imperfect}
    if engine.name in _OF_MESSAGES:
        flags.refuse(of_own, "has no effect on another --backend")
        # Only ASTRA-sim and hespas' model of it have these options.
        flags.refuse({"--network": options.network}, "has no effect on this --backend")
        refuse_unused(astra, {MESSAGES: True})
        return engine.messages(options.algorithm)
    flags.refuse({**of_own, "--algorithm": options.algorithm}, "has no effect on another --backend")
    network = options.network or ContentionModel.CONGESTION_UNAWARE
    return engine.astra_sim(AstraSimOptions(network=network, settings=astra))


def _simulated(job: Job, system: System, options: NetworkOptions, astra: AstraSettings) -> Timeline:
    choice = ModelChoice(
        model=options.model or Model.ASTRA_SIM,
        network=options.network,
        astra=astra,
        algorithm=options.algorithm,
        cluster=options.imperfect,
    )
    with stage(Stage.SIMULATE, f"on {system.name}"):
        result = simulate_job(job, system, choice)
    is_perfect = options.imperfect is None
    if is_perfect and machines.model_of(options, system).model is not choice.model:
        note = (
            "network: ASTRA-sim's model, the default for traces; hespas run takes hespas' own on "
            f"{system.name}, as --model hespas does here"
        )
        result = replace(result, assumptions=(note, *result.assumptions))
    return result


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
    """Read the traces of one or several programs."""
    if cluster is None or not cluster.programs:
        return read_traces(traces, _groups(traces, comm_groups), is_recorded=is_recorded)
    programs: list[tuple[Job, tuple[int, ...]]] = []
    for program in cluster.programs:
        files = program.traces / "dev" if program.traces.is_dir() else program.traces
        job = read_traces(files, _groups(files, None), is_recorded=is_recorded)
        programs.append((job, program.devices))
    return joined_job(programs, system.device_count, location=cluster.source)


def _groups(traces: Path, file: Path | None) -> Path | None:
    if file is not None:
        if not file.is_file():
            raise TraceError("no such file", location=str(file), hint="check --comm-groups")
        return file
    beside = traces.parent / "comm_group.json"
    return beside if beside.is_file() else None
