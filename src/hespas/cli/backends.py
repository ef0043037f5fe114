"""Other engines behind ``hespas simulate --backend``."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from hespas.backends.astra_sim.run import AstraSimOptions, run_astra_sim
from hespas.cli import options
from hespas.hardware.system import System
from hespas.schedule.tasks import Job
from hespas.simulate.external_result import ExternalResult
from hespas.tools.scratch import scratch_directory

OWN = "hespas"
ASTRA_SIM = "astra-sim"

backend = options.combined(
    click.option(
        "--backend",
        type=click.Choice([OWN, ASTRA_SIM]),
        default=OWN,
        show_default=True,
        help="Who simulates: hespas, or an installed ASTRA-sim.",
    ),
    click.option(
        "--astra-sim",
        type=options.FILE,
        metavar="FILE",
        help="ASTRA-sim's program (default $ASTRA_SIM_BINARY, or the one on the PATH).",
    ),
    click.option(
        "--backend-dir",
        type=options.FILE,
        metavar="DIR",
        help="Keep what the backend reads and says here.",
    ),
    click.option(
        "--time-limit",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="How long the backend may take (default 3600).",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What ``--backend`` and its like say."""

    name: str
    astra_sim: Path | None
    directory: Path | None
    time_limit_s: float | None

    @property
    def is_own(self) -> bool:
        """Whether hespas itself simulates."""
        return self.name == OWN

    def check(self, *, wants_tasks: bool) -> None:
        """Raise `click.UsageError` for options that would have no effect."""
        given = {
            "--astra-sim": self.astra_sim,
            "--backend-dir": self.directory,
            "--time-limit": self.time_limit_s,
        }
        for flag, value in given.items():
            if self.is_own and value is not None:
                message = f"{flag} has no effect without --backend {ASTRA_SIM}"
                raise click.UsageError(message)
        if not self.is_own and wants_tasks:
            message = f"--backend {self.name} doesn't say when tasks start and end"
            raise click.UsageError(f"{message}: leave --nodes and --timeline out")

    def run(self, job: Job, system: System, settings: AstraSimOptions) -> ExternalResult:
        """Run the engine in its directory: the one given, else one that goes when all is well."""
        with self._directory() as directory:
            return run_astra_sim(job, system, directory, settings)

    @contextmanager
    def _directory(self) -> Generator[Path]:
        if self.directory is not None:
            yield self.directory
            return
        with scratch_directory(self.name) as made:
            yield made
