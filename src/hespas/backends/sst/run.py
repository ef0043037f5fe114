"""Run an installed SST on a job, and read how long it says that the job takes."""

from __future__ import annotations

import re
from pathlib import Path

from hespas.backends.bound import LinkRate, check_answer, least_of_ranks_ps
from hespas.backends.network_program import (
    ProgramOptions,
    check_plays_messages,
    check_size,
    find_program,
)
from hespas.backends.rank_programs import rank_programs
from hespas.backends.sst.network import link_of, network_text
from hespas.backends.sst.traces import write_traces
from hespas.base.files import write_file
from hespas.base.process import Limits, run_program
from hespas.errors import ToolError
from hespas.hardware.system import System
from hespas.simulate.external_result import ExternalResult
from hespas.tasks.graph import Job

PROGRAM, VARIABLE = "sst", "SST_BINARY"
_PREFIX, _NETWORK = "rank", "network.py"
_TIME = re.compile(
    r"simulated time:\s*([0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*(ps|ns|us|ms|s|[kK]s|Ms)\b"
)
_NS = {"ps": 1e-3, "ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "ks": 1e12, "Ks": 1e12, "Ms": 1e15}
_CLOCK_ENDS_NS = 0.99 * 2**64 / 1e3
"""SST counts ps in 64 bits: that is what it says where a packet never leaves."""


def run_sst(job: Job, system: System, directory: Path, options: ProgramOptions) -> ExternalResult:
    """Return what SST says of a job on a system; its files stay in ``directory``.

    SST says how long the job takes, and nothing of single ranks. Raises `ToolError` where it is
    missing, fails, takes too long or doesn't say a time, `ImpossibleTimeError` for one in which the
    job cannot be done, and `SimulationError` for what its traces and networks can't say.
    """
    check_size(job, system)
    of_system = check_plays_messages(system)
    program = find_program(PROGRAM, VARIABLE, options.program, what="SST with its elements")
    programs = rank_programs(job, algorithm=options.algorithm)
    network = network_text(system, prefix=_PREFIX)
    link = link_of(system)
    rate = LinkRate(bytes_per_s=link.bandwidth_bytes_per_s, latency_s=link.latency_s)
    least_ps = least_of_ranks_ps(programs.ranks, rate)
    directory.mkdir(parents=True, exist_ok=True)
    directory = directory.absolute()
    write_traces(programs.ranks, directory / _PREFIX)
    write_file(directory / _NETWORK, network.encode())
    done = run_program(
        [str(program), *options.arguments, _NETWORK],
        name="SST",
        directory=directory,
        limits=Limits(time_s=options.time_limit_s),
    )
    result = ExternalResult(
        engine=PROGRAM,
        devices={},
        whole_ns=simulated_ns(done.log.read_text(errors="replace"), str(done.log)),
        notes=(*programs.notes, *of_system, "SST does not say when single devices end"),
        log=done.log,
    )
    return check_answer(result, least_ps)


def simulated_ns(text: str, location: str) -> int:
    """Return the time that SST's last line says.

    >>> simulated_ns("Simulation is complete, simulated time: 2.055 ms", "log.txt")
    2055000
    """
    found = _TIME.findall(text)
    if not found:
        raise ToolError("SST said no simulated time", location=location, hint="read its log")
    number, unit = found[-1]
    time_ns = float(number) * _NS[unit]
    if not time_ns < _CLOCK_ENDS_NS:
        raise ToolError("SST's clock ran to its end", location=location, hint="read its log")
    return round(time_ns)
