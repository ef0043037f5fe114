from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from hespas.base.process import Finished, Limits, end_programs_on, run_program
from hespas.errors import ToolError


def run(code: str, directory: Path, time_s: float = 60) -> Finished:
    command = [sys.executable, "-c", code]
    return run_program(command, name="probe", directory=directory, limits=Limits(time_s=time_s))


def test_a_program_that_another_thread_waits_for_is_interrupted(tmp_path: Path) -> None:
    event = Event()
    start_s = time.monotonic()
    with ThreadPoolExecutor(1, initializer=end_programs_on, initargs=(event,)) as pool:
        waiting = pool.submit(run, "import time; time.sleep(60)", tmp_path)
        time.sleep(0.3)
        assert not waiting.done()
        event.set()
    assert time.monotonic() - start_s < 20
    assert isinstance(waiting.exception(), KeyboardInterrupt)


def test_one_that_ends_or_takes_too_long_does_so_as_ever(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1, initializer=end_programs_on, initargs=(Event(),)) as pool:
        assert pool.submit(run, "print(1)", tmp_path).result().log.read_text() == "1\n"
        with pytest.raises(ToolError, match=r"took longer than 0\.4 s"):
            pool.submit(run, "import time; time.sleep(60)", tmp_path, 0.4).result()
