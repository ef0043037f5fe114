"""Run an installed htsim on the messages of a job, and read when the last flow ends."""

from __future__ import annotations

import re
from pathlib import Path

from hespas.backends.htsim.matrix import connection_matrix, matrix_text
from hespas.backends.network_program import ProgramOptions, check_size, find_program
from hespas.backends.rank_programs import rank_programs
from hespas.errors import SimulationError, ToolError
from hespas.files import write_file
from hespas.hardware.system import System, Topology
from hespas.schedule.tasks import Job
from hespas.simulate.external_result import ExternalResult
from hespas.tools.process import Limits, run_program
from hespas.units import PS_PER_NS, PS_PER_S, format_time

PROGRAM, VARIABLE = "htsim_uec", "HTSIM_BINARY"
_MATRIX = "connections.cm"
_FINISHED = re.compile(r"finished at ([0-9.]+)")


def run_htsim(job: Job, system: System, directory: Path, options: ProgramOptions) -> ExternalResult:
    """Return what htsim says of a job's messages on a fat tree as fast as the system's switch.

    Its files stay in ``directory``. What all devices compute between messages is added. Raises
    `ToolError` where the program is missing, fails or takes too long, and `SimulationError` for a
    system that is not one switch, for messages that don't match, for devices that compute at
    different times, and where flows never ended.
    """
    check_size(job, system)
    program = find_program(PROGRAM, VARIABLE, options.program, what="uet-htsim")
    megabits_per_s = _megabits_per_s(system)
    programs = rank_programs(job, algorithm=options.algorithm)
    matrix = connection_matrix(programs.ranks)
    if not matrix.flows:
        raise SimulationError("the job sends no message", hint="htsim plays messages alone")
    directory.mkdir(parents=True, exist_ok=True)
    directory = directory.absolute()
    write_file(directory / _MATRIX, matrix_text(matrix).encode())
    done = run_program(
        [
            *(str(program), "-tm", _MATRIX, "-nodes", str(matrix.nodes)),
            *("-linkspeed", f"{megabits_per_s:.12g}", *options.arguments),
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
    notes = [*programs.notes, "rounds of a group start together", "flows end at their senders"]
    if matrix.computation_ps:
        computation = format_time(matrix.computation_ps / PS_PER_S)
        notes.append(
            f"computation of {computation}, alike on all devices, is added to the messages"
        )
    return ExternalResult(
        engine="htsim",
        devices={},
        whole_ns=round(1e3 * max(map(float, ends)) + matrix.computation_ps / PS_PER_NS),
        notes=tuple(notes),
        log=done.log,
    )


def _megabits_per_s(system: System) -> float:
    """Return the rate of a device's link to the switch, which the flag counts so."""
    used = [each for each in system.dimensions if each.npus_count > 1]
    if len(used) != 1 or used[0].topology is not Topology.SWITCH:
        raise SimulationError(
            "htsim's fat tree stands for one dimension with a switch",
            location=system.name,
            hint="simulate it by hespas: --backend hespas",
        )
    return used[0].bandwidth_bytes_per_s * 8 / 1e6
