"""What only a real process shows: signals, pipes, weight, several at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hespas import estimator
from hespas.price.methods import METHODS

ESTIMATORS = {path.stem for path in Path(estimator.__path__[0]).glob("[a-z]*.py")}
HEAVY = ("numpy", "jaxlib", "click", "yaml", "google.protobuf", "msgspec", "sqlite3", "jax")
BIN = Path(sys.executable).parent
PRESETS = ("--node", "A100_SXM_40GB", "--system", "A100_SXM_40GB_4GPU")


def shell(command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    return subprocess.run(
        ["/bin/bash", "-c", f"set -o pipefail; {command}"],
        cwd=directory, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_importing_hespas_is_light() -> None:
    code = f"""
import sys, time
start = time.process_time()
import hespas
spent = time.process_time() - start
print(spent, *[name for name in {HEAVY!r} if name in sys.modules])
"""
    times: list[float] = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        spent, *heavy = done.stdout.split()
        assert heavy == []
        times.append(float(spent))
    assert min(times) <= 0.1


MOST_MODULES = 208
"""Of hespas, for a step of a program: 203 of its 544 in November 2026."""
MOST_FOR_A_REPORT = 140
"""Of hespas, where the step was predicted before: 108 in November 2026."""


def test_predicting_a_program_imports_what_it_runs(tmp_path: Path) -> None:
    """No models of the zoo, pipelines, studies, charts or compilers for a program in a file.

    What was predicted before is shown without anything that predicts.
    """
    code = """
import sys
from hespas.cli.main import main
sys.argv = ["hespas", *sys.argv[1:]]
try:
    main()
finally:
    print(*[name for name in sys.modules if name.startswith("hespas")], file=sys.stderr)
"""
    arguments = ["examples/attention_block.mlir", "--as-exported", "--cluster", "4xA100_SXM_40GB"]
    first, again = (
        subprocess.run(
            [sys.executable, "-c", code, "run", *arguments],
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        for _ in range(2)
    )
    modules = first.stderr.split()
    assert len(modules) <= MOST_MODULES
    for other in ("models.catalogue", "prediction.staged", "study", "report.page", "lower.fused"):
        assert f"hespas.{other}" not in modules
    assert again.stdout == first.stdout
    modules = again.stderr.split()
    assert len(modules) <= MOST_FOR_A_REPORT
    for other in ("prediction.composition", "frontend.load", "simulate.flow.simulate"):
        assert f"hespas.{other}" not in modules


def test_no_function_stands_in_the_place_of_a_folder() -> None:
    folders = sorted(each.parent.name for each in Path("src/hespas").glob("*/__init__.py"))
    code = "import hespas\nimport types\n" + "\n".join(
        f"import hespas.{name} as {name}\nassert isinstance({name}, types.ModuleType)"
        for name in folders
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_help_is_fast(tmp_path: Path) -> None:
    done = shell(
        "TIMEFORMAT='%U %S'; for i in 1 2 3; do time hespas --help > /dev/null; done", tmp_path
    )
    times = [sum(map(float, line.split())) for line in done.stderr.splitlines()]
    assert min(times) <= 0.25


@pytest.mark.parametrize(
    "name", ["hespas_chakra_gen", "hespas_mlir_splitter", "hespas_mlir_analyzer"]
)
def test_documented_commands_are_installed(name: str, tmp_path: Path) -> None:
    done = shell(f"{name} --help", tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: {name} [OPTIONS]")


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_documented_estimators_run_alone(name: str, tmp_path: Path) -> None:
    assert name in METHODS
    done = shell(f"python -m hespas.estimator.{name} --help", tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: python -m hespas.estimator.{name} [OPTIONS]")


def test_a_documented_estimator_takes_the_documented_flags(block: Path, tmp_path: Path) -> None:
    done = shell(
        f"python -m hespas.estimator.roofline --mlir-file {block} --num-npus 4 --peak-flops 9.7e12 "
        "--memory-bandwidth 1555e9 --per-datatype-flops '{\"bf16\": 312e12}' --disable-cache",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "Compute Runtime Estimation: 14.835 us" in done.stdout
    assert "Total estimator time taken vs cached time: " in done.stdout


def test_a_closed_pipe_is_no_error(llama: Path, tmp_path: Path) -> None:
    for command in (f"analyze -s {llama}", "hardware", f"run {llama} {' '.join(PRESETS)} --json -"):
        done = shell(f"hespas {command} | head -1", tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        assert done.stdout.count("\n") == 1


def test_a_full_disk_behind_standard_output_is_reported(block: Path, tmp_path: Path) -> None:
    done = shell(f"hespas analyze {block} > /dev/full", tmp_path)
    assert done.returncode == 2
    assert done.stderr == "hespas: error: standard output: No space left on device\n"


# Says that it has begun to estimate, and then takes its time.
_SLOW = """
import os, sys, time
from hespas.price.roofline import Roofline
original = Roofline.estimate
def slow(self, region, program):
    os.write(2, b"estimating\\n")
    time.sleep(0.05)
    return original(self, region, program)
Roofline.estimate = slow
from hespas.cli.main import main
sys.argv[0] = "hespas"
main()
"""


def begun(llama: Path, directory: Path, *words: str) -> subprocess.Popen[str]:
    """Start a run, and return once it estimates."""
    arguments = ["run", str(llama), *PRESETS, "--split", "individual_split", *words]
    process = subprocess.Popen(
        [sys.executable, "-c", _SLOW, *arguments],
        cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    first = process.stderr.readline()
    if first != "estimating\n":
        process.kill()
        pytest.fail(first + process.communicate()[1])
    return process


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_nothing(
    llama: Path, tmp_path: Path, number: signal.Signals, code: int, threads: str
) -> None:
    process = begun(
        llama, tmp_path, "-o", "deep/out", "--json", "answer.json", "--threads", threads
    )
    start_s = time.monotonic()
    process.send_signal(number)
    out, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert time.monotonic() - start_s < 5, "what was waiting is not worked off first"
    assert out == ""
    assert "Traceback" not in errors
    if number is signal.SIGINT:
        assert "hespas: interrupted" in errors
    assert list(tmp_path.iterdir()) == []


def test_a_killed_writer_leaves_a_usable_cache(llama: Path, tmp_path: Path) -> None:
    words = f"run {llama} {' '.join(PRESETS)} --cache-dir cache --json -"
    expected = json.loads(shell(f"hespas {words}", tmp_path).stdout)
    for when_s in (0.0, 0.05):
        process = begun(llama, tmp_path, "--cache-dir", "cache")
        time.sleep(when_s)
        process.kill()
        process.communicate()
    # Killed in the middle of a transaction.
    subprocess.run(
        [sys.executable, "-c", _KILLED_IN_TRANSACTION, "cache"], cwd=tmp_path, check=False
    )
    done = shell(f"hespas {words}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected


_KILLED_IN_TRANSACTION = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1] + "/estimates.sqlite")
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
rows = [(f"key {at}", "half an estimate" * 50) for at in range(5000)]
connection.executemany("INSERT OR REPLACE INTO estimates VALUES (?, ?)", rows)
connection.execute("UPDATE estimates SET value = 'garbage'")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_several_processes_may_write_one_cache(llama: Path, tmp_path: Path) -> None:
    words = f"hespas run {llama} {' '.join(PRESETS)} --split individual_split --json -"
    alone = shell(words, tmp_path)
    together = shell(
        "for i in 1 2 3 4; do " + words + " --cache-dir cache > $i.json & done; wait", tmp_path
    )
    assert together.stderr == ""
    for number in (1, 2, 3, 4):
        assert (tmp_path / f"{number}.json").read_text() == alone.stdout
    assert shell(words + " --cache-dir cache", tmp_path).stdout == alone.stdout


def test_results_do_not_depend_on_the_hash_seed(llama: Path, tmp_path: Path) -> None:
    words = f"hespas trace {llama} --node A100_SXM_40GB --merge -o"
    for seed in ("1", "2"):
        assert shell(f"PYTHONHASHSEED={seed} {words} {seed}", tmp_path).returncode == 0
    done = shell("diff -r --exclude=module_stats.json 1 2", tmp_path)
    assert done.stdout == ""


def test_python_runs_the_package_too(tmp_path: Path) -> None:
    done = shell(f"{sys.executable} -m hespas --version", tmp_path)
    assert (done.returncode, done.stdout) == (0, shell("hespas --version", tmp_path).stdout)


def test_a_closed_standard_output_is_reported_before_the_work(block: Path, tmp_path: Path) -> None:
    done = shell(f"hespas split {block} -o out >&-", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("hespas: error: standard output is closed")
    assert list(tmp_path.iterdir()) == []


_INTERRUPTED_WHILE_IMPORTING = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from hespas.cli.main import main
main()
"""


def test_an_interrupt_before_the_commands_are_there_ends_the_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_WHILE_IMPORTING], cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGINT
    assert done.stderr == ""
