"""``hespas simulate``: traces on a system."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import click

from hespas.backends.astra_sim.run import AstraSimOptions
from hespas.cli import options
from hespas.cli.backends import Backend
from hespas.cli.backends import backend as backend_options
from hespas.cli.stages import check_targets, write_json, write_timeline
from hespas.errors import TraceError
from hespas.hardware.cluster import Cluster, read_cluster
from hespas.hardware.presets import load_system
from hespas.hardware.system import System
from hespas.report.external_text import external_text
from hespas.report.simulation_text import simulation_text
from hespas.schedule.chakra import read_traces
from hespas.schedule.tasks import Job
from hespas.simulate.astra.replay import is_replay
from hespas.simulate.imperfect import joined_job
from hespas.simulate.models import Model, ModelChoice, model_named, simulate_job
from hespas.simulate.network import Network, network_named

log = logging.getLogger("hespas")


@click.command("simulate", short_help="Run Chakra traces on a system.")
@click.argument("prefix", type=options.FILE)
@click.option("--system", required=True, help="The cluster: a preset's name, or a directory.")
@click.option(
    "--comm-groups",
    "--comm_groups",
    type=options.FILE,
    help="Groups of devices (default comm_group.json beside the traces, if there is one).",
)
@options.network_option
@options.model
@click.option(
    "--num-queues-per-dim",
    type=click.IntRange(min=1),
    help="Queues for chunks in each dimension of the network (default 1).",
)
@click.option(
    "--rendezvous-protocol",
    is_flag=True,
    help="Messages wait for a control message of their receiver.",
)
@click.option(
    "--injection-scale",
    type=click.FloatRange(min=0),
    help="Multiply the system's endpoint delay (default 1).",
)
@backend_options
@click.option("--nodes", is_flag=True, help="Give the start and end of every node (JSON).")
@options.json_option
@options.timeline_option
@options.common
def command(
    *,
    prefix: Path,
    system: str,
    comm_groups: Path | None,
    network: str | None,
    model: str | None,
    algorithm: str | None,
    cluster: Path | None,
    num_queues_per_dim: int | None,
    rendezvous_protocol: bool,
    injection_scale: float | None,
    backend: str,
    astra_sim: Path | None,
    backend_dir: Path | None,
    time_limit: float | None,
    nodes: bool,
    json_file: str | None,
    timeline: Path | None,
    log_level: str | None,
    log_path: Path | None,
) -> None:
    """Simulate the traces PREFIX.0.et, PREFIX.1.et, ... on a system.

    PREFIX may also be the directory that hespas trace wrote.
    """
    options.start_logging(log_level, log_path)
    if nodes and json_file is None:
        raise click.UsageError("--nodes has no effect without --json")
    engine = Backend(
        name=backend, astra_sim=astra_sim, directory=backend_dir, time_limit_s=time_limit
    )
    engine.check(wants_tasks=nodes or timeline is not None)
    check_targets(json_file, timeline)
    described = load_system(system)
    traces = prefix / "dev" if prefix.is_dir() else prefix
    imperfections = None if cluster is None else read_cluster(cluster)
    is_recorded = engine.is_own and is_replay(described)
    job = _job(traces, comm_groups, imperfections, described, is_recorded=is_recorded)
    log.info("read the traces of %d devices", job.device_count)
    if not engine.is_own:
        _refuse_model({"--model": model, "--algorithm": algorithm, "--cluster": cluster})
        settings = AstraSimOptions(
            network=network_named(network or Network.CONGESTION_UNAWARE.value),
            queues_per_dimension=num_queues_per_dim or 1,
            rendezvous=rendezvous_protocol,
            injection_scale=1.0 if injection_scale is None else injection_scale,
            binary=astra_sim,
            time_limit_s=time_limit or 3600.0,
        )
        found = engine.run(job, described, settings)
        if json_file is not None:
            write_json(json_file, found.as_json())
        if json_file != "-":
            click.echo(external_text(found))
        return
    choice = ModelChoice(
        model=model_named(model or Model.ASTRA_SIM.value),
        network=None if network is None else network_named(network),
        queues_per_dimension=num_queues_per_dim,
        rendezvous=rendezvous_protocol,
        injection_scale=injection_scale,
        algorithm=algorithm,
        cluster=imperfections,
    )
    result = simulate_job(job, described, choice)
    if timeline is not None:
        write_timeline(result, timeline)
    if json_file is not None:
        write_json(json_file, result.as_json(with_nodes=nodes))
    if json_file != "-":
        click.echo(simulation_text(result))


def _job(
    traces: Path,
    comm_groups: Path | None,
    cluster: Cluster | None,
    system: System,
    *,
    is_recorded: bool,
) -> Job:
    """Read the traces; a cluster with several programs has traces of its own for each."""
    if cluster is None or not cluster.programs:
        return read_traces(traces, _groups(traces, comm_groups), is_recorded=is_recorded)
    programs: list[tuple[Job, tuple[int, ...]]] = []
    for one in cluster.programs:
        files = one.traces / "dev" if one.traces.is_dir() else one.traces
        job = read_traces(files, _groups(files, None), is_recorded=is_recorded)
        programs.append((job, one.devices))
    return joined_job(programs, system.device_count, location=cluster.source)


def _refuse_model(given: Mapping[str, object]) -> None:
    for flag, value in given.items():
        if value is not None:
            raise click.UsageError(f"{flag} has no effect on another --backend")


def _groups(traces: Path, given: Path | None) -> Path | None:
    if given is not None:
        if not given.is_file():
            raise TraceError("no such file", location=str(given), hint="check --comm-groups")
        return given
    beside = traces.parent / "comm_group.json"
    return beside if beside.is_file() else None
