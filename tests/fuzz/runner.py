"""Run damaged inputs one after another in a child process, and judge how each ends.

An input is right if its command answers, or says in one line what is wrong, in 20 s of CPU time and
4 GB. The child is given up at an input that takes longer or that ends it, and another one goes on.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Self

from fuzz.mutators import cut, mutate

if TYPE_CHECKING:
    from fuzz.readers import Reader

MOST_S = 20.0
_MOST_WAITING_S = 10 * MOST_S
"""What does nothing for so long waits for something that does not come."""
_LOOK_EVERY_S = 1.0
MOST_BYTES = 4 << 30
_START_S = 900.0
_INPUTS_OF_A_CHILD = 10_000
_TIMES_OF_FAST_READERS = 10
_CUTS = 0.15
_FAULTS = ("Traceback (most recent call last)", "fault of hespas", "there is not enough memory")


class End(Enum):
    """How an input ended."""

    ANSWERED = "answered"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of an input: ``why`` says what is wrong with it, where it failed."""

    number: int
    reader: str
    words: tuple[str, ...]
    file: str
    end: End
    time_s: float
    is_cut: bool = False
    why: str = ""
    content: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged:
    """An input: a reader and what stands in its file."""

    reader: Reader
    content: bytes
    is_cut: bool


def outcomes(
    seed: int, numbers: Sequence[int] | range, *, time_s: float, only: Sequence[str] = ()
) -> Iterator[Outcome]:
    """Run inputs by number until the time is up, and yield how each ended.

    Readers are those whose names begin with one of ``only``, by default all. Equal seeds, numbers
    and readers are equal inputs.
    """
    end_s = time.monotonic() + time_s
    waiting = iter(numbers)
    number = next(waiting, None)
    while number is not None and time.monotonic() < end_s:
        with _Child(seed, tuple(only) or ("",)) as child:
            for _ in range(_INPUTS_OF_A_CHILD):
                outcome = child.outcome(number)
                yield outcome
                number = next(waiting, None)
                if number is None or child.is_over or time.monotonic() >= end_s:
                    break


class _Child:
    """A process that runs inputs, in a directory and with caches of its own."""

    def __init__(self, seed: int, only: tuple[str, ...]) -> None:
        self.is_over = False
        self._seed = seed
        self._only = only

    def __enter__(self) -> Self:
        self._home = tempfile.mkdtemp(prefix="hespas-fuzz-")
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        given = (self._seed, self._only, Path(self._home), other)
        self._process = context.Process(target=_work, args=given)
        self._process.start()
        other.close()
        if not self._pipe.poll(_START_S):
            self.__exit__()
            raise RuntimeError("the good files cannot be made")
        try:
            self._pipe.recv()
        except EOFError as error:
            self.__exit__()
            raise RuntimeError("a good file is refused") from error
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid or 0, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        shutil.rmtree(self._home, ignore_errors=True)

    def _cpu_s(self) -> float:
        """Return the CPU time of the process and of its children that ended, as Linux has it."""
        try:
            text = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8")
        except OSError:
            return time.monotonic()
        ticks = text.rpartition(")")[2].split()[11:15]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    def outcome(self, number: int) -> Outcome:
        start_s, start_cpu_s = time.monotonic(), self._cpu_s()
        self._pipe.send(number)
        started: Outcome | None = None
        try:
            while (
                self._cpu_s() - start_cpu_s < MOST_S
                and time.monotonic() - start_s < _MOST_WAITING_S
            ):
                if not self._pipe.poll(_LOOK_EVERY_S):
                    continue
                said: Outcome = self._pipe.recv()
                if said.why != "started":
                    return said
                started = said
            why = f"takes longer than {MOST_S:g} s"
        except EOFError:
            self._process.join(5)
            why = f"ends the process ({self._process.exitcode})"
        self.is_over = True
        assert started is not None
        return Outcome(
            number=number,
            reader=started.reader,
            words=started.words,
            file=started.file,
            end=End.FAILED,
            time_s=time.monotonic() - start_s,
            is_cut=started.is_cut,
            why=why,
            content=started.content,
        )


def _work(seed: int, only: tuple[str, ...], home: Path, pipe: Connection) -> None:
    """Run inputs, by the numbers that come, in a child process."""
    os.setsid()
    os.environ["XDG_CACHE_HOME"] = str(home / "cache")
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from base_install import base_install  # noqa: PLC0415 - as above
    from fuzz.readers import make_readers  # noqa: PLC0415 - in the child, whose caches these are

    with base_install():
        readers = make_readers(home)
        good = {
            (one.directory, one.file): (one.directory / one.file).read_bytes() for one in readers
        }
        output = _Output(home)
        for one in readers:
            said = output.of(one)
            is_missing = bool(one.needs) and one.needs in said.errors
            if said.code and not is_missing:
                raise RuntimeError(f"a good file is refused: {one.words}: {said.errors}")
        kept = {index: output.of(one) for index, one in enumerate(readers) if one.is_kept}
        drawn = [
            index
            for index, one in enumerate(readers)
            if one.name.startswith(only)
            for _ in range(1 if one.is_slow else _TIMES_OF_FAST_READERS)
        ]
        pipe.send(None)
        while True:
            number: int = pipe.recv()
            rng = Random(f"{seed}:{number}")
            index = rng.choice(drawn)
            reader = readers[index]
            whole = good[reader.directory, reader.file]
            is_cut = rng.random() < _CUTS
            content = cut(rng, whole) if is_cut else mutate(rng, whole, reader.form)
            damaged = Damaged(reader=reader, content=content, is_cut=is_cut)
            pipe.send(_outcome(number, damaged, End.FAILED, "started", 0.0))
            start_s = time.monotonic()
            said = output.of(reader, content)
            time_s = time.monotonic() - start_s
            (reader.directory / reader.file).write_bytes(whole)
            why = _fault(damaged, whole, said, kept.get(index))
            end = End.FAILED if why else End.REFUSED if said.code else End.ANSWERED
            pipe.send(_outcome(number, damaged, end, why, time_s))


def _outcome(number: int, one: Damaged, end: End, why: str, time_s: float) -> Outcome:
    reader = one.reader
    return Outcome(
        number=number,
        reader=reader.name,
        words=reader.words,
        file=reader.file,
        end=end,
        time_s=time_s,
        is_cut=one.is_cut,
        why=why,
        content=one.content if end is End.FAILED else b"",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a command said: its code, its standard output (with what it wrote), and its errors."""

    code: int
    answer: bytes
    errors: str


class _Output:
    """Runs commands with their output, that of libraries too, in files."""

    def __init__(self, home: Path) -> None:
        self._files = home / "stdout", home / "stderr"

    def of(self, reader: Reader, content: bytes | None = None) -> Said:
        from hespas.cli.commands import commands, run  # noqa: PLC0415 - in the child

        if content is not None:
            (reader.directory / reader.file).write_bytes(content)
        for path in reader.directory.glob("out*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        os.chdir(reader.directory)
        sys.stdout.flush()
        sys.stderr.flush()
        saved = os.dup(1), os.dup(2)
        for number, file in zip((1, 2), self._files, strict=True):
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, number)
            os.close(handle)
        try:
            code = run(commands, "hespas", reader.words)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            for number, handle in zip((1, 2), saved, strict=True):
                os.dup2(handle, number)
                os.close(handle)
        answer, errors = (file.read_bytes() for file in self._files)
        written = reader.directory / "out.json"
        if written.is_file():
            answer += written.read_bytes()
        return Said(code=code, answer=answer, errors=errors.decode("utf-8", "replace"))


def _fault(one: Damaged, whole: bytes, said: Said, kept: Said | None) -> str:
    """Return what is wrong with what a command said; "" for nothing."""
    last = (said.errors.splitlines() or [""])[-1]
    lines = [line for line in said.errors.splitlines() if line.startswith("hespas: error:")]
    is_shorter = len(one.content.rstrip()) < len(whole.rstrip())
    cut_answered = one.is_cut and is_shorter and one.reader.shows_cuts
    faults = {
        f"says: {last}": any(words in said.errors for words in _FAULTS),
        f"ends with {said.code}: {last}": said.code not in {0, 2},
        f"says more than one line, or none: {said.errors!r}": said.code == 2 and lines != [last],
        "a damaged cache changes the answer": (
            said.code == 0 and kept is not None and said.answer != kept.answer
        ),
        "a file that was cut short is answered": said.code == 0 and cut_answered,
    }
    return next((fault for fault, is_so in faults.items() if is_so), "")


def fingerprint(outcome: Outcome) -> str:
    """Return a short name for an input."""
    return f"{outcome.number}-{zlib.crc32(outcome.content):08x}"
