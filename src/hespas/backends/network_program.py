"""What the adapters of other network simulators share.

Each is a `Backend` once it has its options.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hespas.errors import DeviceCountError, SimulationError, ToolError
from hespas.hardware.system import System
from hespas.program.collectives import COMMON_KINDS
from hespas.simulate.astra.options import PER_NODE, custom_option
from hespas.simulate.external_result import ExternalResult
from hespas.tasks.graph import Job


class Backend(Protocol):
    """A simulator that times a whole job; its files and its log stay in ``directory``.

    Raises `DeviceCountError` where the job and the system differ in size, `ToolError` where the
    program is missing, fails or takes too long, `ImpossibleTimeError` for an answer that nothing
    can be as fast as (`hespas.backends.bound`), and `SimulationError` for what it cannot simulate.
    """

    def __call__(self, job: Job, system: System, directory: Path) -> ExternalResult:
        """Return what the simulator says of a job on a system."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """How to run a simulator that plays messages.

    ``program`` is its file, None for the one that is found; ``algorithm`` is that of all
    collectives, None for the usual one of each; ``arguments`` are passed on as they are.
    """

    program: Path | None = None
    algorithm: str | None = None
    arguments: tuple[str, ...] = ()
    time_limit_s: float = 3600.0


def find_program(name: str, variable: str, given: Path | None, *, what: str) -> Path:
    """Return a program: the one given, of an environment variable, or ``name`` on the PATH.

    One that is named is looked for here, and then on the PATH.

    Raises `ToolError`, which says what to install or set, where there is none.
    """
    named = str(given) if given is not None else os.environ.get(variable, "")
    here = Path(named or name).absolute()
    is_here = bool(named) and here.is_file() and os.access(here, os.X_OK)
    found = str(here) if is_here else shutil.which(named or name)
    if found is None:
        message = f"there is no program {named}" if named else f"{name} is not on the PATH"
        hint = f"build {what}, and give its path or set {variable}"
        raise ToolError(message, location=name, hint=hint)
    return Path(found).absolute()


def check_plays_messages(system: System) -> tuple[str, ...]:
    """List the properties of a system that an engine of messages ignores.

    Raises `SimulationError` for a system whose own files say how its collectives run.
    """
    custom = (PER_NODE, *map(custom_option, COMMON_KINDS))
    for name in ("replay-only", "model-shared-bus", *custom):
        if system.options.get(name):
            raise SimulationError(
                f"{name} is set, which no message says",
                location=system.name,
                hint="use --backend astra-sim, or hespas' own model of it: --model astra-sim",
            )
    note = (
        "of the system only the bandwidth and latency of links are simulated, as ASTRA-sim's files "
        "have them: no overheads of messages, delays of endpoints, chunks or reductions"
    )
    return (note,)


def check_size(job: Job, system: System) -> None:
    """Raise `DeviceCountError` if a job and a system differ in size."""
    if job.device_count != system.device_count:
        message = f"the job is for {job.device_count} devices, {system.name} has"
        raise DeviceCountError(f"{message} {system.device_count}")


def dimensions_text(system: System) -> str:
    """Return the dimensions of a system in words, such as ``4 FullyConnected x 2 Switch``."""
    used = [f"{one.npus_count} {one.topology.value}" for one in system.dimensions]
    return " x ".join(used) or "described for hespas' own model alone"
