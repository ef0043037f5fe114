"""Faults, one after another: a command meets one, and what is left is judged.

A command that meets a fault answers, or says in one line what is wrong; or it ends by the signal
that it got. What it was to write is as it was, or whole; nothing that it started goes on; and the
next run, without the fault, has the answer of a machine without faults.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from faults.jobs import Job, Said, command, environment, inputs, prepare, run, written

MARK = "HESPAS_FAULT_TRIAL"
_SHIM = Path(__file__).with_name("shim.c")
_ENDED_BY = {signal.SIGINT: {130}, signal.SIGTERM: {143, -15}, signal.SIGKILL: {-9}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A fault that a command met: ``why`` says what is wrong with what came of it."""

    fault: str
    job: str
    answered: bool
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Machine:
    """A job, what its command reads and answers on a machine without faults, and what runs it."""

    job: Job
    python: str
    inputs: dict[str, bytes]
    files: dict[str, bytes]
    said: Said
    took_s: float

    @contextmanager
    def directory(self) -> Generator[Path]:
        """Yield a directory with what the command reads."""
        with tempfile.TemporaryDirectory(prefix="hespas-faults-") as made:
            prepare(self.inputs, Path(made))
            yield Path(made)
            with suppress(OSError):
                (Path(made) / "work").chmod(0o755)

    def again(self, directory: Path) -> Said:
        """Run the command without a fault."""
        return run(self.job.words, directory, python=self.python)


def machine_of(job: Job, python: str) -> Machine:
    """Run a job's command on a machine without faults."""
    with tempfile.TemporaryDirectory(prefix="hespas-faults-") as made:
        directory = Path(made)
        reads = inputs(job, directory, python=python)
        began_s = time.monotonic()
        said = run(job.words, directory, python=python)
        took_s = time.monotonic() - began_s
        if said.code:
            raise RuntimeError(f"{job.name} is refused: {said.errors}")
        files = written(job, directory)
        shown = run(job.answer, directory, python=python) if job.answer else said
    return Machine(job=job, python=python, inputs=reads, files=files, said=shown, took_s=took_s)


def judged(
    machine: Machine, directory: Path, fault: str, said: Said, *, ends: set[int] | None = None
) -> Trial:
    """Return what came of a fault: of what the command said, of its files, of the next run."""
    job = machine.job
    lines = said.errors.splitlines()
    errors = [line for line in lines if line.startswith("hespas: error:")]
    after = written(job, directory)
    half = [name for name, content in after.items() if content != machine.files.get(name)]
    left = orphans(directory)
    again = machine.again(directory)
    answer = run(job.answer, directory, python=machine.python) if job.answer else again
    is_right = written(job, directory) == machine.files
    if job.answer:
        is_right = answer.output == machine.said.output
    known = {0, 2} | (ends or set())
    faults = {
        f"ends with {said.code}: {said.errors[-300:]!r}": said.code not in known,
        f"a traceback: {said.errors[-600:]!r}": "Traceback (most recent" in said.errors,
        f"a fault of hespas: {said.errors[-300:]!r}": "fault of hespas" in said.errors,
        f"not one line: {said.errors[-300:]!r}": said.code == 2 and len(errors) != 1,
        f"half-written: {half}": bool(half),
        f"answered, but not all is written: {sorted(after)}": (
            said.code == 0 and not job.answer and after.keys() != machine.files.keys()
        ),
        f"goes on: {left}": bool(left),
        f"the next run: {again.code} {again.errors[-300:]!r}": again.code != 0,
        "the next run answers something else": again.code == 0 and not is_right,
    }
    why = next((text for text, is_so in faults.items() if is_so), "")
    return Trial(fault=fault, job=job.name, answered=said.code == 0, why=why)


def orphans(directory: Path, *, wait_s: float = 5.0) -> list[str]:
    """Return the processes of a trial that are still there after some seconds."""
    end_s = time.monotonic() + wait_s
    while True:
        found = list(_processes(directory))
        if not found or time.monotonic() > end_s:
            return found
        time.sleep(0.1)


def _processes(directory: Path) -> Iterator[str]:
    return (" ".join(words) for _, words in _commands(directory))


def _commands(directory: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the processes of a trial, by number, with their command lines."""
    home = f"HOME={directory / 'home'}".encode()
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with suppress(OSError):
                if home in (path / "environ").read_bytes().split(b"\0"):
                    words = (path / "cmdline").read_bytes().decode(errors="replace")
                    if words:
                        yield int(path.name), words.rstrip("\0").split("\0")


# Signals.


def signalled(machine: Machine, number: signal.Signals, rng: Random) -> Trial:
    """Send a signal at a random time, to the command alone as a scheduler does."""
    with machine.directory() as directory:
        process = _start(machine, directory)
        time.sleep(rng.uniform(0.05, machine.took_s))
        with suppress(ProcessLookupError):
            process.send_signal(number)
        said = _end(process)
        if number is signal.SIGINT and _is_of_python(said):
            said = replace(said, code=130, errors="")
        ends = _ENDED_BY[number] | {-number}
        return judged(machine, directory, number.name, said, ends=ends)


def _is_of_python(said: Said) -> bool:
    """Return whether an interrupt came before hespas' first line, while Python itself started."""
    return "KeyboardInterrupt" in said.errors and "/hespas/cli/" not in said.errors


def _start(
    machine: Machine, directory: Path, *more_words: str, **more: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command((*machine.job.words, *more_words), python=machine.python),
        cwd=directory / "work",
        env=environment(directory, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def _end(process: subprocess.Popen[str]) -> Said:
    try:
        output, errors = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        return Said(code=99, output=output, errors=f"takes longer than 300 s: {errors}")
    return Said(code=process.returncode, output=output, errors=errors)


# Faults of the system, from a library that is loaded before all others.


class Shim:
    """A library that makes calls of the system fail, compiled by the C compiler that is there."""

    def __init__(self, directory: Path) -> None:
        self.library = directory / "shim.so"
        self._counter = directory / "counter"
        words = ("cc", "-shared", "-fPIC", "-O1", "-w", "-o", self.library, _SHIM, "-ldl")
        subprocess.run(words, check=True, capture_output=True)

    @staticmethod
    def is_possible() -> bool:
        """Return whether there is a C compiler."""
        return sys.platform == "linux" and shutil.which("cc") is not None

    def run(self, machine: Machine, directory: Path, kind: str, after: int) -> tuple[Said, int]:
        """Run a command where calls fail after so many; how many there were stands beside."""
        self._counter.write_bytes(bytes(8))
        said = run(
            machine.job.words,
            directory,
            python=machine.python,
            LD_PRELOAD=str(self.library),
            FAULT_COUNTER=str(self._counter),
            FAULT_KIND=kind,
            FAULT_AFTER=str(after),
        )
        return said, int.from_bytes(self._counter.read_bytes(), sys.byteorder)


def full_at_each_write(machine: Machine, shim: Shim, *, most: int, rng: Random) -> Iterator[Trial]:
    """Let the disk be full from each write on, or from ``most`` of them."""
    with machine.directory() as directory:
        said, writes = shim.run(machine, directory, "full", -1)
        if said.code:
            raise RuntimeError(said.errors)
    chosen = range(writes) if writes <= most else sorted(rng.sample(range(writes), most))
    for after in chosen:
        with machine.directory() as directory:
            said, _ = shim.run(machine, directory, "full", after)
            yield judged(machine, directory, "disk full from one write on", said)


def without_locks(machine: Machine, shim: Shim) -> Trial:
    """Run where no file can be locked."""
    with machine.directory() as directory:
        said, _ = shim.run(machine, directory, "locks", 0)
        return judged(machine, directory, "a file system without locks", said)


def clock_back(machine: Machine, shim: Shim) -> Trial:
    """Run once, and then with the clock a day back."""
    with machine.directory() as directory:
        machine.again(directory)
        said, _ = shim.run(machine, directory, "clock", 0)
        return judged(machine, directory, "the clock set back by a day", said)


# Homes and permissions.


_WITHOUT_RIGHTS = """
import ctypes
drop_of_bounding_set, override, search = 24, 1, 2
for right in (override, search):
    ctypes.CDLL(None).prctl(drop_of_bounding_set, right, 0, 0, 0)
"""
"""Lets permissions hold for root too, from the next program on."""
_THEN = "import os, sys\nos.execv(sys.argv[1], sys.argv[1:])"


def limited(machine: Machine, directory: Path, before: str, **more: str) -> Said:
    """Run a command in a process that ran some Python before."""
    process = subprocess.Popen(
        [
            *(machine.python, "-c", f"{before}\n{_THEN}"),
            *command(machine.job.words, python=machine.python),
        ],
        cwd=directory / "work",
        env=environment(directory, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    return _end(process)


def no_permission(machine: Machine) -> Trial:
    """Run in a directory that cannot be written."""
    with machine.directory() as directory:
        (directory / "work").chmod(0o555)
        said = limited(machine, directory, _WITHOUT_RIGHTS)
        (directory / "work").chmod(0o755)
        return judged(machine, directory, "a directory without permission", said)


def homes(machine: Machine) -> Iterator[Trial]:
    """Run with a home that can only be read, with none, and with a file in the cache's place."""
    with machine.directory() as directory:
        environment(directory)
        (directory / "home").chmod(0o555)
        said = limited(machine, directory, _WITHOUT_RIGHTS)
        (directory / "home").chmod(0o755)
        yield judged(machine, directory, "a home that can only be read", said)
    with machine.directory() as directory:
        said = limited(machine, directory, _WITHOUT_RIGHTS, HOME="/nowhere/at/all")
        yield judged(machine, directory, "a home that is not there", said)
    with machine.directory() as directory:
        file = directory / "file"
        file.write_text("")
        said = limited(machine, directory, _WITHOUT_RIGHTS, XDG_CACHE_HOME=str(file))
        yield judged(machine, directory, "a file in the cache's place", said)


def little_memory(machine: Machine, rng: Random) -> Trial:
    """Run where a process can address little memory."""
    most = int(rng.uniform(0.06, 1.5) * 2**30)
    limit = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, ({most}, {most}))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
"""
    with machine.directory() as directory:
        said = limited(machine, directory, limit, OPENBLAS_NUM_THREADS="1")
        # Libraries in C end their process where they get no memory.
        return judged(machine, directory, "little memory", said, ends={1, -6, -11, 127, 134, 139})


def two_at_once(machine: Machine, rng: Random) -> Trial:
    """Run a command twice at a time, the second a little later, in one directory."""
    with machine.directory() as directory:
        first = _start(machine, directory)
        time.sleep(rng.uniform(0.0, machine.took_s / 2))
        second = _start(machine, directory)
        ends = [_end(first), _end(second)]
        worst = max(ends, key=lambda said: (said.code not in {0, 2}, said.code))
        trial = judged(machine, directory, "two at once", worst)
        if not trial.why and all(said.code for said in ends):
            return Trial(fault=trial.fault, job=trial.job, answered=False, why="both are refused")
        return trial


def with_another(machine: Machine, other: Machine, rng: Random) -> Iterator[Trial]:
    """Run a command while another one runs, with one home and one cache."""
    with machine.directory() as directory, other.directory() as beside:
        first = _start(machine, directory)
        time.sleep(rng.uniform(0.0, machine.took_s / 2))
        shared = {"HOME": str(directory / "home"), "TMPDIR": str(directory / "tmp")}
        second = _start(other, beside, **shared)
        ends = {machine: _end(first), other: _end(second)}
        for one, place in ((machine, directory), (other, beside)):
            trial = judged(one, place, "another command at once", ends[one])
            if not trial.why and ends[one].code:
                trial = replace(trial, why=f"is refused: {ends[one].errors[-300:]!r}")
            yield trial


def stopped(machine: Machine, rng: Random) -> Trial:
    """Stop all processes for a second, as where a machine is suspended."""
    with machine.directory() as directory:
        process = _start(machine, directory)
        time.sleep(rng.uniform(0.05, machine.took_s))
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGSTOP)
            time.sleep(1)
            process.send_signal(signal.SIGCONT)
        return judged(machine, directory, "suspended for a second", _end(process))


# Compilers and other workers in processes of their own.


def worker_killed(machine: Machine, rng: Random) -> Trial:
    """Kill a command's worker, as the kernel does where memory is short."""
    with machine.directory() as directory:
        process = _start(machine, directory)
        _signal_worker(machine, directory, process, signal.SIGKILL, rng)
        return judged(machine, directory, "a compiler or worker that is killed", _end(process))


def worker_hangs(machine: Machine, rng: Random) -> Trial:
    """Stop a command's worker for good: its time limit ends it, or a signal to the command."""
    job = machine.job
    with machine.directory() as directory:
        process = _start(machine, directory, *job.limit)
        _signal_worker(machine, directory, process, signal.SIGSTOP, rng)
        if not job.limit:
            time.sleep(1)
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        ends = set[int]() if job.limit else _ENDED_BY[signal.SIGTERM]
        said = _end(process)
        return judged(machine, directory, "a compiler or worker that hangs", said, ends=ends)


def _signal_worker(
    machine: Machine,
    directory: Path,
    process: subprocess.Popen[str],
    number: signal.Signals,
    rng: Random,
) -> None:
    """Send a signal to a command's worker, soon after it starts."""
    while process.poll() is None:
        for pid, words in _commands(directory):
            # What watches over a worker is a shell, which has the same words.
            if machine.job.worker in words and not words[0].endswith("sh"):
                time.sleep(rng.uniform(0.0, 0.5))
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
                return
        time.sleep(0.02)
