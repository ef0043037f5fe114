from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hespas.base import process
from hespas.base.process import LOG_NAME, Limits, last_words, run_program, scratch_directory
from hespas.errors import ToolError

MINUTE = Limits(time_s=60)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_failure_names_the_log_and_what_it_ends_with(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"log\.txt: probe failed with code 3: alas"):
        run_program(
            python("print('alas'); raise SystemExit(3)"),
            name="probe",
            directory=tmp_path / "made",
            limits=MINUTE,
        )
    assert (tmp_path / "made" / "log.txt").read_text() == "alas\n"


def test_a_crash_names_the_signal(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="probe was ended by SIGABRT"):
        run_program(
            python("import os; os.abort()"), name="probe", directory=tmp_path, limits=MINUTE
        )


def test_a_program_that_takes_too_long_is_gone_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "written_by_the_grandchild"
    grandchild = f"import time, pathlib; time.sleep(3); pathlib.Path({str(mark)!r}).touch()"
    code = (
        "import subprocess, sys, time;"
        f"subprocess.Popen([sys.executable, '-c', {grandchild!r}]); time.sleep(60)"
    )
    with pytest.raises(ToolError, match=r"took longer than 1 s.*allow more time"):
        run_program(python(code), name="probe", directory=tmp_path, limits=Limits(time_s=1))
    time.sleep(4)
    assert not mark.exists()


def test_memory_is_limited(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="MemoryError"):
        run_program(
            python("bytearray(2**31)"),
            name="probe",
            directory=tmp_path,
            limits=Limits(time_s=60, memory_bytes=2**30),
        )


@pytest.mark.parametrize("inherited_kib", [2**20, 2**21])
def test_a_limit_above_the_inherited_one_is_the_inherited_one(
    tmp_path: Path, inherited_kib: int
) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from hespas.base.process import Limits, run_program\n"
        'limit = "import resource; print(resource.getrlimit(resource.RLIMIT_AS)[1])"\n'
        "done = run_program([sys.executable, '-c', limit], name='probe', directory=Path('made'),\n"
        "                   limits=Limits(time_s=60, memory_bytes=3 * 2**30))\n"
        "print(done.log.read_text().strip())"
    )
    shell = f'ulimit -v {inherited_kib} && exec "$@"'
    done = subprocess.run(
        ["/bin/sh", "-c", shell, "sh", *python(code)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == (str(inherited_kib * 1024), "")


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="/no/such: probe cannot be started: No such file"):
        run_program(["/no/such"], name="probe", directory=tmp_path, limits=MINUTE)


def test_the_environment_is_added_to(tmp_path: Path) -> None:
    done = run_program(
        python("import os; print(os.environ['HESPAS_PROBE'], 'PATH' in os.environ)"),
        name="probe",
        directory=tmp_path,
        limits=MINUTE,
        environment={"HESPAS_PROBE": "7"},
    )
    assert done.log.read_text() == "7 True\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def work(error: BaseException | None) -> Path:
    """Work in a directory that holds a log, until an error."""
    with scratch_directory("test") as directory:
        (directory / "log").write_text("said")
        if error is not None:
            raise error
    return directory


def test_a_scratch_directory_is_new_and_is_removed(home: Path) -> None:
    assert work(None) != work(None)
    assert list(home.iterdir()) == []


def test_a_scratch_directory_is_kept_after_an_error(home: Path) -> None:
    with pytest.raises(ToolError):
        work(ToolError("it failed"))
    (left,) = home.iterdir()
    assert left.name.startswith("hespas-test-")
    assert (left / "log").read_text() == "said"


def test_a_scratch_directory_with_nothing_in_it_is_not_kept(home: Path) -> None:
    with pytest.raises(ToolError), scratch_directory("test"):
        raise ToolError("refused before anything ran")
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SystemExit(1)])
def test_a_scratch_directory_is_removed_after_an_interruption(
    home: Path, interruption: BaseException
) -> None:
    with pytest.raises(type(interruption)):
        work(interruption)
    assert list(home.iterdir()) == []


def test_the_last_words_of_a_compiler_are_its_failed_check(tmp_path: Path) -> None:
    log = tmp_path / LOG_NAME
    log.write_text("F1122 07:51:43.161830   27079 util.h:47] Check failed: x \n    @ 0x7fc main\n")
    assert last_words(log) == "util.h:47] Check failed: x"


def test_a_program_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    inner = f"import pathlib, time; pathlib.Path({str(mark)!r}).touch(); time.sleep(60)"
    code = (
        "import sys; from pathlib import Path; from hespas.base.process import *;"
        f"run_program([sys.executable, '-c', {inner!r}], name='probe',"
        f" directory=Path({str(tmp_path / 'run')!r}), limits=Limits(time_s=60))"
    )
    process = subprocess.Popen(python(code))
    assert within_10_s(mark.exists)
    process.kill()
    process.wait()
    assert within_10_s(lambda: not running(inner))


def running(text: str) -> bool:
    """Say whether a process has ``text`` among its arguments."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if text.encode() in file.read_bytes().split(b"\0"):
                return True
    return False


def within_10_s(holds: Callable[[], bool]) -> bool:
    end_s = time.monotonic() + 10
    while time.monotonic() < end_s:
        if holds():
            return True
        time.sleep(0.05)
    return False


def test_a_program_may_wait_for_whatever_it_started(tmp_path: Path) -> None:
    code = (
        "import os\n"
        "try: os.wait()\n"
        "except ChildProcessError: print('none, and', repr(os.read(0, 1)))"
    )
    done = run_program(python(code), name="probe", directory=tmp_path, limits=Limits(time_s=20))
    assert done.log.read_text() == "none, and b''\n"


def test_a_program_that_is_not_executable_is_named(tmp_path: Path) -> None:
    (tmp_path / "tool").touch()
    with pytest.raises(ToolError, match="probe cannot be started: Permission denied"):
        run_program(["./tool"], name="probe", directory=tmp_path, limits=MINUTE)


def test_a_program_that_prints_without_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "MOST_LOG_BYTES", 2**24)
    for code in ("while True: print('x' * 9999)", "print('x' * 2**25)"):
        with pytest.raises(ToolError, match="probe printed more than 16 MiB"):
            run_program(python(code), name="probe", directory=tmp_path, limits=MINUTE)
        assert (tmp_path / LOG_NAME).stat().st_size < 2**20
