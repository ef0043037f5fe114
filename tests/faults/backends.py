"""Other programs that misbehave: they hang, print garbage, fail, leave children behind."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from faults.jobs import environment, run
from faults.trials import Trial, orphans
from fuzz.good_files import LOOPS

PROGRAMS = {
    "hangs": "import time\ntime.sleep(600)\n",
    "hangs with a child": (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "time.sleep(600)\n"
    ),
    "prints garbage": "import os\nos.write(1, os.urandom(100_000))\n",
    "prints a figure that is none": (
        "print('sys[0] finished, nan cycles, exposed communication -1 cycles.')\n"
        "print('Simulation is complete, simulated time: nan us')\n"
    ),
    "prints a time in which nothing can be done": (
        "for device in range(4):\n"
        "    print(f'sys[{device}] finished, 1 cycles, exposed communication 0 cycles.')\n"
        "    print('Flow finished at 1e-06')\n"
        "print('Simulation is complete, simulated time: 1 ps')\n"
    ),
    "prints nothing": "",
    "fails": "import sys\nprint('no licence', file=sys.stderr)\nsys.exit(7)\n",
    "is killed": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
    "prints without end": "while True:\n    print('x' * 4096)\n",
}
BACKENDS = ("astra-sim", "sst", "htsim")


def bad_backends() -> Iterator[Trial]:
    """Let each program stand for each back end."""
    for backend in BACKENDS:
        for what in PROGRAMS:
            yield bad_backend(backend, what)


def bad_backend(backend: str, what: str) -> Trial:
    """Let `hespas simulate` run a program as a back end; it must say in one line what is wrong."""
    with tempfile.TemporaryDirectory(prefix="hespas-faults-") as made:
        return _met(Path(made), backend, what, PROGRAMS[what])


def _met(directory: Path, backend: str, what: str, text: str) -> Trial:
    work = directory / "work"
    work.mkdir()
    environment(directory)
    (work / "step.mlir").write_text(LOOPS)
    program = work / "program"
    program.write_text(f"#!{sys.executable} -S\n{text}")
    program.chmod(0o755)
    run(("trace", "step.mlir", "--node", "A100_SXM_40GB", "-o", "t"), directory)
    # One switch, so that every back end takes it.
    words = ("simulate", "t", "--system", "GB200_186GB_4GPU", "--backend", backend)
    limited = ("--backend-program", "./program", "--time-limit", "3")
    said = run((*words, *limited), directory)
    errors = [line for line in said.errors.splitlines() if line.startswith("hespas: error:")]
    left = orphans(directory)
    faults = {
        f"is answered: {said.output[:200]!r}": said.code == 0,
        f"ends with {said.code}: {said.errors[-300:]!r}": said.code not in {0, 2},
        f"not one line: {said.errors[-300:]!r}": len(errors) != 1,
        f"not about the program: {said.errors[-300:]!r}": "log.txt" not in said.errors,
        f"a fault of hespas: {said.errors[-300:]!r}": "fault of hespas" in said.errors,
        f"goes on: {left}": bool(left),
    }
    why = next((one for one, is_so in faults.items() if is_so), "")
    fault = f"a back end that {what}"
    return Trial(fault=fault, job=f"simulate {backend}", answered=False, why=why)
