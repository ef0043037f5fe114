"""Output directories: whole or not there, the same bytes for the same input."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from hespas.base.files import MARK_FILE
from hespas.program.recorded import encode_recorded
from hespas.report.regions import MOST_DESCRIPTION_FILES, WALL_TIMES
from hespas.tasks.chakra.writer import write_traces
from programs import all_reduce, on_devices, vector_main
from recorded_stages import recorded_pipeline

Call = Callable[..., CompletedProcess[str]]
NODE = ("--node", "V100_32GB")
SYSTEM = ("--system", "V100_32GB_4GPU")
ADD = vector_main("%r = stablehlo.add %a, %a : tensor<8xf32>")
REDUCE = on_devices(
    vector_main(
        f"%b = stablehlo.add %a, %a : tensor<8xf32>\n{all_reduce('%c', '%b')}\n"
        "%r = stablehlo.add %c, %b : tensor<8xf32>"
    )
)
CACHE = "cache/estimates.sqlite"


def contents(directory: str) -> dict[str, bytes]:
    """Return the files of a directory but the cache, without the times taken on this machine."""
    files = [path for path in Path(directory).rglob("*") if path.is_file()]
    found = {str(path.relative_to(directory)): path.read_bytes() for path in files}
    found.pop(CACHE, None)
    if "module_stats.json" in found:
        stats: dict[str, Any] = json.loads(found["module_stats.json"])
        for name in WALL_TIMES:
            assert stats.pop(name) >= 0
        found["module_stats.json"] = json.dumps(stats).encode()
    return found


def write(text: str, name: str = "p.mlir") -> Path:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return Path(name)


def run(call: Call, workload: str | Path, output: str, *flags: str) -> CompletedProcess[str]:
    return call("hespas", "run", workload, *NODE, *SYSTEM, "-o", output, *flags)


def left_over() -> list[str]:
    return [path.name for path in Path().rglob(".*")]


def test_the_same_input_gives_the_same_bytes(call: Call, llama: Path) -> None:
    base = ("--node", "A100_SXM_40GB", "--system", "A100_SXM_40GB_4GPU")
    for output, threads in (("one", "1"), ("two", "2"), ("seven", "7")):
        done = call("hespas", "run", llama, *base, "-o", output, "--threads", threads)
        assert done.returncode == 0, done.stderr
    assert contents("one") == contents("two") == contents("seven")
    caches = {Path(name, CACHE).read_bytes() for name in ("one", "two", "seven")}
    assert len(caches) == 1


def test_place_and_spelling_of_paths_do_not_matter(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(REDUCE)
    write(REDUCE, "deep/er/p.mlir")
    assert run(call, "p.mlir", "one").returncode == 0
    assert run(call, Path("p.mlir").resolve(), "two").returncode == 0
    assert run(call, "deep/er/../er/p.mlir", "three").returncode == 0
    here = Path.cwd()
    monkeypatch.chdir("deep")
    assert run(call, "er/p.mlir", str(here / "four")).returncode == 0
    monkeypatch.chdir(here)
    assert contents("one") == contents("two") == contents("three") == contents("four")


def test_a_copied_workload_finds_its_estimates(call: Call) -> None:
    write(REDUCE)
    assert (
        "Cache hits" not in call("hespas", "estimate", "p.mlir", *NODE, "--cache-dir", "c").stdout
    )
    # Another place, other names of values, more devices: the same computation.
    renamed = REDUCE.replace("%b", "%other").replace("%c", "%one")
    copy = write(renamed, "elsewhere/q.mlir")
    done = call("hespas", "estimate", copy, *NODE, "--cache-dir", "c")
    assert "Cache hits: 2\n" in done.stdout
    assert "Basic block reuse rate: 1.000 (2/2)\n" in done.stdout


def test_a_second_run_gives_the_same_answer_from_the_cache(call: Call, llama: Path) -> None:
    base = (
        "run",
        llama,
        "--node",
        "A100_SXM_40GB",
        "--system",
        "A100_SXM_40GB_4GPU",
        "--json",
        "-",
    )
    fresh = call("hespas", *base, "-o", "out").stdout
    kept = contents("out")
    assert call("hespas", *base, "-o", "out").stdout == fresh
    assert call("hespas", *base, "--disable-cache").stdout == fresh
    assert call("hespas", *base, "--in-memory-only-cache").stdout == fresh
    again = contents("out")
    figures = json.loads(again.pop("module_stats.json"))
    before = json.loads(kept.pop("module_stats.json"))
    assert again == kept
    assert figures["cache_hit_prop"] == 1 > before["cache_hit_prop"]
    assert {key: value for key, value in figures.items() if "cache" not in key} == {
        key: value for key, value in before.items() if "cache" not in key
    }


def test_without_reuse_statistics_name_the_same_files(call: Call, llama: Path) -> None:
    words = ("estimate", llama, "--node", "A100_SXM_40GB", "-o")
    call("hespas", *words, "one")
    call("hespas", *words, "two", "--disable-cache")
    one = json.loads(Path("one/module_stats.json").read_text())
    two = json.loads(Path("two/module_stats.json").read_text())
    assert two["per_module"] == one["per_module"]
    assert two["runtime"] == one["runtime"]
    assert "cache_hits" in one
    assert "cache_hits" not in two
    assert not Path("two/cache").exists()


def test_an_earlier_run_is_replaced(call: Call) -> None:
    write(
        vector_main(
            "%b = stablehlo.sine %a : tensor<8xf32>\n%r = stablehlo.sine %b : tensor<8xf32>"
        )
    )
    run(call, "p.mlir", "out", "--devices", "4")
    run(call, "p.mlir", "other", "--split", "individual_split", "--devices", "4")
    assert contents("out") != contents("other")
    Path("out/mine.txt").write_text("mine")
    Path("out/plots").mkdir()
    done = run(call, "p.mlir", "out", "--split", "individual_split", "--devices", "4")
    assert done.returncode == 0
    replaced = contents("out")
    assert replaced.pop("mine.txt") == b"mine"
    assert replaced == contents("other"), "nothing of the first run is left"
    assert Path("out/plots").is_dir()
    assert left_over() == []


def test_another_workload_is_not_overwritten(call: Call) -> None:
    write(REDUCE)
    write(ADD, "q.mlir")
    run(call, "p.mlir", "out")
    Path("out/mine.txt").write_text("mine")
    kept = contents("out")
    done = run(call, "q.mlir", "out", "--devices", "4")
    assert done.returncode == 2
    assert "out: holds the files of another workload (p.mlir)" in done.stderr
    assert "--clean" in done.stderr
    assert contents("out") == kept
    assert run(call, "q.mlir", "out", "--devices", "4", "--clean").returncode == 0
    assert Path("out/mine.txt").read_text() == "mine"
    assert json.loads(Path("out", MARK_FILE).read_text())["workload"] == "q.mlir"


def test_a_changed_workload_of_the_same_name_is_another(call: Call) -> None:
    write(REDUCE)
    run(call, "p.mlir", "out")
    write(REDUCE.replace("stablehlo.add %c", "stablehlo.multiply %c"))
    assert run(call, "p.mlir", "out").returncode == 2


def test_traces_of_unknown_origin_are_not_overwritten(call: Call) -> None:
    write(REDUCE)
    Path("out").mkdir()
    Path("out/dev.0.et").write_bytes(b"someone's")
    done = run(call, "p.mlir", "out")
    assert done.returncode == 2
    assert "unknown origin" in done.stderr
    assert Path("out/dev.0.et").read_bytes() == b"someone's"
    Path("out", MARK_FILE).write_text("{broken")
    assert run(call, "p.mlir", "out").returncode == 2
    assert run(call, "p.mlir", "out", "--clean").returncode == 0


def test_an_empty_directory_and_one_of_other_files_are_filled(call: Call) -> None:
    write(REDUCE)
    Path("out").mkdir()
    assert run(call, "p.mlir", "out").returncode == 0
    Path("docs").mkdir()
    Path("docs/readme.txt").write_text("x")
    assert run(call, "p.mlir", "docs").returncode == 0
    assert run(call, "p.mlir", ".").returncode == 0
    assert Path("dev.0.et").is_file()
    assert left_over() == []


@pytest.mark.parametrize("output", ["file", "file/out", "file/a/b", "/proc/out", "/dev/null"])
def test_places_that_cannot_be_written_are_refused(call: Call, output: str) -> None:
    write(REDUCE)
    Path("file").write_text("x")
    done = run(call, "p.mlir", output)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert output in done.stderr
    assert "fault of hespas" not in done.stderr
    assert Path("file").read_text() == "x"
    assert {path.name for path in Path().iterdir()} == {"p.mlir", "file"}


def test_failing_late_leaves_nothing(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    write(REDUCE)

    def fail(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hespas.tasks.chakra.writer.write_traces", fail)
    done = run(call, "p.mlir", "deep/er/out")
    assert done.returncode == 2
    assert "deep/er/out: cannot be written: No space left on device" in done.stderr
    assert {path.name for path in Path().iterdir()} == {"p.mlir"}


def test_failing_late_leaves_an_earlier_run(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    write(REDUCE)
    run(call, "p.mlir", "out")
    kept = contents("out")

    def interrupt(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hespas.tasks.chakra.writer.write_traces", interrupt)
    done = run(call, "p.mlir", "out", "--split", "individual_split")
    assert done.returncode == 130
    assert contents("out") == kept
    assert left_over() == []


def test_an_answer_may_go_into_the_new_directory(call: Call) -> None:
    write(REDUCE)
    done = run(call, "p.mlir", "out", "--json", "out/answer.json", "--timeline", "out/step.json")
    assert done.returncode == 0, done.stderr
    assert json.loads(Path("out/answer.json").read_text())["devices"] == 4
    assert run(call, "p.mlir", "out").returncode == 0
    assert Path("out/step.json").is_file(), "what the user named is the user's"


def test_pickles_are_never_loaded(call: Call) -> None:
    write(REDUCE)
    run(call, "p.mlir", "out")

    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (Path("sprung").resolve(),)

    trap = pickle.dumps(Trap())
    for name in ("cache.pkl", "cache/estimates.pkl", "cache/roofline.pickle", "perf.pkl"):
        Path("out", name).write_bytes(trap)
    assert run(call, "p.mlir", "out").returncode == 0
    assert not Path("sprung").exists()
    Path("out", CACHE).write_bytes(trap)
    assert run(call, "p.mlir", "out").returncode == 2
    assert not Path("sprung").exists()


def test_many_distinct_regions_are_described_in_one_file(call: Call) -> None:
    lines = [
        f"%v{at} = stablehlo.constant dense<{at}.0> : tensor<f32>\n"
        f"%w{at} = stablehlo.add %v{at}, %v{at} : tensor<f32>"
        for at in range(MOST_DESCRIPTION_FILES + 1)
    ]
    write(vector_main("\n".join([*lines, "%r = stablehlo.add %a, %a : tensor<8xf32>"])))
    done = call("hespas", "split", "p.mlir", "--split", "individual_split", "-o", "out")
    assert done.returncode == 0, done.stderr
    assert not list(Path("out").glob("mini_module_*.json"))
    listed = json.loads(Path("out/regions.json").read_text())
    assert len(listed["modules"]) == MOST_DESCRIPTION_FILES + 2


def test_two_runs_may_share_an_output(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second to end finds the directory that the first has made meanwhile."""
    write(REDUCE)
    run(call, "p.mlir", "finished")

    def overtaken(*given: Any) -> None:
        write_traces(*given)
        shutil.copytree("finished", "out")

    monkeypatch.setattr("hespas.tasks.chakra.writer.write_traces", overtaken)
    done = run(call, "p.mlir", "out")
    assert done.returncode == 0, done.stderr
    assert contents("out") == contents("finished")
    assert left_over() == []


def test_recorded_stages_leave_traces_of_all_devices(call: Call) -> None:
    Path("step.json").write_bytes(encode_recorded(recorded_pipeline(stages=2, copies=2)))
    cluster = ("--cluster", "4xH100_80GB", "--json")
    whole = json.loads(call("hespas", "run", "step.json", *cluster, "-o", "out").stdout)
    assert all(Path(f"out/dev.{device}.et").is_file() for device in range(4))
    assert Path("out/mini_module_0.mlir").is_file()
    assert Path("out/stage1/mini_module_0.mlir").is_file()
    again = json.loads(call("hespas", "simulate", "out", *cluster, "--model", "hespas").stdout)
    assert again["step_time_ns"] == pytest.approx(1e9 * whole["step_time_s"], rel=0.02)
