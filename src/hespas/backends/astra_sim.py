"""Run an installed ASTRA-sim on a job.

The system is written to the three files that `hespas.hardware.system.read_system` reads. Source of
flags and lines: ASTRA-sim's analytical front ends (commit 518bd51).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from hespas.backends.network_program import (
    check_answer,
    find_program,
    least_of_job_ps,
    run_on_files,
)
from hespas.backends.result import DeviceFigures, ExternalResult
from hespas.base.files import json_bytes, write_file
from hespas.base.frozen import frozen
from hespas.base.process import LOG_NAME
from hespas.base.units import GIB, to_gb_per_s, to_ns
from hespas.errors import ConfigError, SimulationError, ToolError
from hespas.hardware.system import RemoteMemory, System, astra_name
from hespas.program.collectives import COMMON_KINDS
from hespas.simulate.astra.plan import PER_NODE
from hespas.simulate.models import check_size
from hespas.simulate.options import USUAL, AstraSettings, ContentionModel
from hespas.tasks.chakra.format import COMM_GROUP_FILE
from hespas.tasks.chakra.writer import write_traces
from hespas.tasks.graph import ComputeTask, Job, TaskGraph, as_job, devices_text

BINARY_VARIABLE = "ASTRA_SIM_BINARY"
"""The environment variable that names the program."""

_PROGRAMS = {
    ContentionModel.CONGESTION_UNAWARE: "AstraSim_Analytical_Congestion_Unaware",
    ContentionModel.CONGESTION_AWARE: "AstraSim_Analytical_Congestion_Aware",
}
_PREFIX = "workload"
_PS_PER_MICROSECOND = 1_000_000
_FINISHED = re.compile(r"sys\[(\d+)\] finished, (\d+) cycles, exposed communication (\d+) cycles")
_STATISTIC = re.compile(
    r"sys\[(\d+)\], (GPU time|Comm time|Total compute-communication overlap): (\d+)"
)


@frozen
class AstraSimOptions:
    """Options of a run of ASTRA-sim."""

    network: ContentionModel = ContentionModel.CONGESTION_UNAWARE
    settings: AstraSettings = USUAL
    binary: Path | None = None
    time_limit_s: float = 3600.0


def find_binary(network: ContentionModel, binary: Path | None = None) -> Path:
    """Return ASTRA-sim's program: ``binary``, from `BINARY_VARIABLE`, or on the PATH."""
    source = "ASTRA-sim's analytical front end"
    return find_program(_PROGRAMS[network], BINARY_VARIABLE, binary, source=source)


def run_astra_sim(
    job: Job | TaskGraph, system: System, directory: Path, options: AstraSimOptions
) -> ExternalResult:
    """Return ASTRA-sim's result for a job on a system.

    Raises the errors of `hespas.backends.network_program.Backend`, and `SimulationError` if it ends
    but some devices never did.
    """
    job_of_all = as_job(job)
    check_size(job_of_all.device_count, system)
    binary = find_binary(options.network, options.binary)
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    write_traces(job_of_all, directory, prefix=_PREFIX)
    command = _command(binary, write_system(system, directory), directory, options)
    notes = _rounding_notes(job_of_all)
    log = directory / LOG_NAME
    limit_s = options.time_limit_s
    try:
        run_on_files(command, {}, name="ASTRA-sim", directory=directory, time_limit_s=limit_s)
    except ToolError as error:
        # It sometimes crashes after all its output.
        if len(read_log(log)) < job_of_all.device_count:
            raise
        notes = (*notes, f"ASTRA-sim failed after its results: {error.message}")
    figures = read_log(log)
    absent = [device for device in range(job_of_all.device_count) if device not in figures]
    if absent:
        message = f"ASTRA-sim ended, but {devices_text(absent)} never finished"
        hint = "hespas' own simulation of the job says why"
        raise SimulationError(message, location=str(log), hint=hint)
    result = ExternalResult(engine="astra-sim", devices=figures, notes=notes, log=log)
    return check_answer(result, least_of_job_ps(job_of_all, system))


def _command(
    binary: Path, files: tuple[Path, Path, Path], directory: Path, options: AstraSimOptions
) -> list[str]:
    system, network, remote_memory = files
    command = [
        str(binary),
        f"--workload-configuration={directory / _PREFIX}",
        f"--system-configuration={system}",
        f"--remote-memory-configuration={remote_memory}",
        f"--network-configuration={network}",
        f"--comm-group-configuration={directory / COMM_GROUP_FILE}",
    ]
    settings = options.settings
    if settings.queues != 1:
        command.append(f"--num-queues-per-dim={settings.queues}")
    if settings.rendezvous_protocol:
        command.append("--rendezvous-protocol=true")
    if settings.scale != 1:
        command.append(f"--injection-scale={settings.scale}")
    return command


def _rounding_notes(job: Job) -> tuple[str, ...]:
    """Return a note on rounding to whole microseconds."""
    tasks = [task for graph in job.graphs for task in graph.tasks if isinstance(task, ComputeTask)]
    rounded = sum(task.duration_ps % _PS_PER_MICROSECOND > 0 for task in tasks)
    if not rounded:
        return ()
    return (f"{rounded} computations are rounded to whole microseconds, as ASTRA-sim reads them",)


def read_log(log: Path) -> Mapping[int, DeviceFigures]:
    """Return the figures of finished devices by number.

    A cycle is a ns. Statistics exist only for a device that just computed and communicated.
    Raises `ToolError` if more communication is exposed than time passed, as after a counter that
    went below zero.
    """
    text = log.read_text(errors="replace") if log.is_file() else ""
    statistics: dict[tuple[int, str], int] = {
        (int(device), name): int(value) for device, name, value in _STATISTIC.findall(text)
    }
    figures: dict[int, DeviceFigures] = {}
    for match in _FINISHED.findall(text):
        device, finish_ns, exposed_ns = map(int, match)
        if exposed_ns > finish_ns:
            raise ToolError(
                f"ASTRA-sim says that device {device} ends after {finish_ns:,} ns, {exposed_ns:,} "
                "ns of which are exposed communication",
                location=str(log),
            )
        compute_ns = statistics.get((device, "GPU time"))
        communication_ns = statistics.get((device, "Comm time"))
        has_statistics = compute_ns is not None or communication_ns is not None
        overlap_ns = statistics.get((device, "Total compute-communication overlap"))
        figures[device] = DeviceFigures(
            finish_ns=finish_ns,
            exposed_communication_ns=exposed_ns,
            compute_ns=compute_ns or 0 if has_statistics else None,
            communication_ns=communication_ns or 0 if has_statistics else None,
            # Without a line there is no overlap: ASTRA-sim prints only what is above 0.
            overlap_ns=overlap_ns or 0 if has_statistics else None,
        )
    return figures


_CUSTOM = "-implementation-custom"


def write_system(system: System, directory: Path) -> tuple[Path, Path, Path]:
    """Write ``system.json``, ``network.yml`` and ``remote_memory.json``; return their paths.

    Paths of custom collectives become absolute. Raises `ConfigError` for an algorithm in XML, and
    for a network that only hespas' own model can describe, because ASTRA-sim doesn't read them.
    """
    if not system.dimensions:
        message = "ASTRA-sim reads no network of hespas' own model"
        raise ConfigError(message, location=system.name, hint="give a network.yml")
    system_file = directory / "system.json"
    network_file = directory / "network.yml"
    memory_file = directory / "remote_memory.json"
    write_file(system_file, json_bytes(_system_json(system)))
    write_file(network_file, _network_yml(system).encode())
    write_file(memory_file, json_bytes(_remote_memory_json(system.remote_memory)))
    return system_file, network_file, memory_file


def _system_json(system: System) -> dict[str, object]:
    entries: dict[str, object] = {
        "scheduling-policy": system.scheduling_policy,
        "endpoint-delay": round(to_ns(system.endpoint_delay_s)),
        "active-chunks-per-dimension": system.active_chunks_per_dimension,
        "preferred-dataset-splits": system.preferred_dataset_splits,
        "collective-optimization": system.collective_optimization,
    }
    if system.local_memory_bandwidth_bytes_per_s is not None:
        entries["local-mem-bw"] = to_gb_per_s(system.local_memory_bandwidth_bytes_per_s)
    for kind in COMMON_KINDS:
        if kind in system.implementations:
            entries[f"{kind.option}-implementation"] = list(system.implementations[kind])
    return entries | {name: _absolute(name, value) for name, value in system.options.items()}


def _absolute(name: str, value: object) -> object:
    """Return an option with absolute paths."""
    if name == PER_NODE and value:
        return str(Path(str(value)).absolute())
    if not name.endswith(_CUSTOM) or not value:
        return value
    prefixes = [Path(prefix).absolute() for prefix in cast("Sequence[str]", value)]
    for prefix in prefixes:
        if prefix.suffix == ".xml":
            hint = "write its graphs with hespas algorithm --chakra, and give their prefix"
            raise ConfigError(f"ASTRA-sim reads no XML: {prefix.name}", location=name, hint=hint)
    return [str(prefix) for prefix in prefixes]


def _network_yml(system: System) -> str:
    rows = {
        "topology": [astra_name(dimension.shape) for dimension in system.dimensions],
        "npus_count": [dimension.size for dimension in system.dimensions],
        "bandwidth": [dimension.bandwidth_bytes_per_s / GIB for dimension in system.dimensions],
        "latency": [to_ns(dimension.latency_s) for dimension in system.dimensions],
    }
    return "".join(f"{key}: [{', '.join(map(str, row))}]\n" for key, row in rows.items())


def _remote_memory_json(memory: RemoteMemory) -> dict[str, object]:
    latency_s, bandwidth = memory.latency_s, memory.bandwidth_bytes_per_s
    figures: dict[str, object | None] = {
        "memory-type": memory.kind.value,
        "remote-mem-latency": None if latency_s is None else to_ns(latency_s),
        "remote-mem-bw": None if bandwidth is None else to_gb_per_s(bandwidth),
        "num-nodes": memory.nodes,
        "num-npus-per-node": memory.npus_per_node,
    }
    return {name: value for name, value in figures.items() if value is not None}
