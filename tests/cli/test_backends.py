from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

Call = Callable[..., CompletedProcess[str]]
SYSTEM = ("--system", "A100_SXM_40GB_4GPU")
SAYS = "\n".join(
    f'print("sys[{device}] finished, 20000 cycles, exposed communication 500 cycles.")'
    for device in range(4)
)


@pytest.fixture
def traces(call: Call, block: Path) -> str:
    done = call("hespas", "trace", block, "--node", "A100_SXM_40GB", "--output", "out")
    assert done.returncode == 0, done.stderr
    return "out/dev"


def program(text: str) -> Path:
    path = Path("astra")
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(0o755)
    return path


def test_another_engine_gives_the_same_report(call: Call, traces: str) -> None:
    engine = ("--backend", "astra-sim", "--astra-sim", program(SAYS), "--backend-dir", "run")

    shown = call("hespas", "simulate", traces, *SYSTEM, *engine)
    answered = call("hespas", "simulate", traces, *SYSTEM, *engine, "--json")

    assert shown.stdout.startswith("Step time: 20 us (by astra-sim)\n")
    assert "devices 0-3" in shown.stdout
    assert "rounded to whole microseconds" in shown.stdout
    found = json.loads(answered.stdout)
    assert found["step_time_ns"] == 20_000
    assert found["devices"]["3"] == {"finish_ns": 20_000, "exposed_communication_ns": 500}
    assert Path("run/log.txt").read_text().startswith("sys[0] finished")


def test_the_log_of_a_failure_stays_where_no_directory_is_given(call: Call, traces: str) -> None:
    engine = ("--backend", "astra-sim", "--astra-sim", program("raise SystemExit('no good')"))

    done = call("hespas", "simulate", traces, *SYSTEM, *engine)

    assert done.returncode == 2
    log = Path(done.stderr.removeprefix("hespas: error: ").split(": ASTRA-sim failed")[0])
    assert log.read_text() == "no good\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--backend", "astra-sim", "--nodes", "--json"), "leave --nodes and --timeline out"),
        (("--backend", "astra-sim", "--timeline", "t.json"), "doesn't say when tasks start"),
        (("--backend-dir", "run"), "--backend-dir has no effect without --backend"),
        (("--time-limit", "3"), "--time-limit has no effect"),
        (("--backend", "astra-sim", "--backend-program", "absent"), "there is no program absent"),
    ],
)
def test_what_has_no_effect_or_is_not_there_is_refused(
    call: Call, traces: str, arguments: tuple[str, ...], message: str
) -> None:
    done = call("hespas", "simulate", traces, *SYSTEM, *arguments)

    assert done.returncode == 2
    assert message in done.stderr
