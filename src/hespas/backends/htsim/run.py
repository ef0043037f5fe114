"""Run an installed htsim on the messages of a job, and read when the last flow ends."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from hespas.backends.bound import LinkRate, check_answer, least_of_ranks_ps
from hespas.backends.htsim.matrix import Matrix, connection_matrix, matrix_text
from hespas.backends.htsim.topology import Switch, switch_of, topology_text
from hespas.backends.network_program import (
    ProgramOptions,
    check_plays_messages,
    check_size,
    find_program,
)
from hespas.backends.rank_programs import Action, Exchange, rank_programs
from hespas.base.files import write_file
from hespas.base.process import Limits, run_program
from hespas.base.units import PS_PER_NS, PS_PER_S, format_time
from hespas.errors import SimulationError, ToolError
from hespas.hardware.system import System
from hespas.simulate.external_result import ExternalResult
from hespas.tasks.graph import Job

PROGRAM, VARIABLE = "htsim_uec", "HTSIM_BINARY"
_MATRIX, _TOPOLOGY = "connections.cm", "one_switch.topo"
_FINISHED = re.compile(r"finished at ([0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)")
_PS_PER_US = 1_000_000
_LAST_US = 2**31 - 1
"""Where htsim's clock ends: the number after ``-end`` has 31 bits."""
_SLOWER, _MORE_US = 100, 10**6
"""How many times longer than their bound, and how much longer, flows may take."""


def run_htsim(job: Job, system: System, directory: Path, options: ProgramOptions) -> ExternalResult:
    """Return what htsim says of a job's messages through the system's switch.

    Its files stay in ``directory``. What all devices compute between messages is added. Raises
    `ToolError` where the program is missing, fails or takes too long, `ImpossibleTimeError` for an
    answer that links cannot give, and `SimulationError` for a system that is not one switch, for
    messages that don't match, for devices that compute at different times, for a job that is longer
    than htsim's clock, and where flows never ended.
    """
    check_size(job, system)
    program = find_program(PROGRAM, VARIABLE, options.program, what="uet-htsim")
    switch = switch_of(system)
    of_system = check_plays_messages(system)
    programs = rank_programs(job, algorithm=options.algorithm)
    matrix = connection_matrix(programs.ranks)
    if not matrix.flows:
        raise SimulationError("the job sends no message", hint="htsim plays messages alone")
    least_ps = _least_ps(programs.ranks, switch)
    directory.mkdir(parents=True, exist_ok=True)
    directory = directory.absolute()
    write_file(directory / _MATRIX, matrix_text(matrix).encode())
    write_file(directory / _TOPOLOGY, topology_text(switch).encode())
    end_us = min(_LAST_US, round(_SLOWER * least_ps / _PS_PER_US) + _MORE_US)
    done = run_program(
        [
            *(str(program), "-tm", _MATRIX, "-topo", _TOPOLOGY),
            *("-linkspeed", str(1000 * switch.gigabits_per_s), "-end", str(end_us)),
            *options.arguments,
        ],
        name="htsim",
        directory=directory,
        limits=Limits(time_s=options.time_limit_s),
    )
    ends = _FINISHED.findall(done.log.read_text(errors="replace"))
    if len(ends) < len(matrix.flows):
        raise ToolError(
            f"{len(matrix.flows) - len(ends)} of {len(matrix.flows)} flows never ended",
            location=str(done.log),
            hint="give htsim more time: --backend-argument=-end --backend-argument=MICROSECONDS",
        )
    result = ExternalResult(
        engine="htsim",
        devices={},
        whole_ns=round(1e3 * max(map(float, ends)) + matrix.computation_ps / PS_PER_NS),
        notes=(*programs.notes, *of_system, *_notes(matrix, switch)),
        log=done.log,
    )
    return check_answer(result, least_ps + matrix.computation_ps)


def _least_ps(ranks: Sequence[Sequence[Action]], switch: Switch) -> float:
    """Return the least time of the messages alone; `SimulationError` where the clock ends before.

    A message passes two links.
    """
    messages = [[one for one in actions if isinstance(one, Exchange)] for actions in ranks]
    rate = LinkRate(bytes_per_s=switch.bytes_per_s, latency_s=2e-9 * switch.latency_ns)
    least_ps = least_of_ranks_ps(messages, rate)
    if least_ps / _PS_PER_US >= _LAST_US:
        raise SimulationError(
            f"the messages take {format_time(least_ps / PS_PER_S)} at least, and htsim's clock "
            f"ends after {_LAST_US // 10**6} s",
            hint="give it fewer steps or less data",
        )
    return least_ps


def _notes(matrix: Matrix, switch: Switch) -> Iterator[str]:
    yield "rounds of a group start together"
    yield "flows end at their senders"
    yield from switch.notes
    if matrix.computation_ps:
        computation = format_time(matrix.computation_ps / PS_PER_S)
        yield f"computation of {computation}, alike on all devices, is added to the messages"
