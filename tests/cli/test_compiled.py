"""Programs that a compiler scheduled: read as HLO, or made by ``--optimise``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from compilers import needs_gpu
from hespas.compile import compiler
from scheduled import done, kernel, scheduled_text, start

Call = Callable[..., CompletedProcess[str]]
NODE = ("--node", "H100_SXM_80GB")
SYSTEM = ("--system", "H100_80GB_4GPU")
OWN_SYSTEM = ("--system", "configs/systems/H100_80GB_4GPU")
"""By its path: a system of no part."""


@pytest.fixture
def hlo(tmp_path: Path) -> Path:
    file = tmp_path / "step.hlo"
    lines = [kernel("k0", "a"), start("r", "k0"), kernel("k1", "a"), done("d", "r")]
    file.write_text(scheduled_text(*lines, kernel("k2", "d")))
    return file


def answer(done: CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_scheduled_program_is_predicted_kernel_by_kernel(call: Call, hlo: Path) -> None:
    timeline = hlo.parent / "timeline.json"
    words = ("--method", "roofline", "--model", "astra-sim", "--json", "-", "--timeline", timeline)
    found = answer(call("hespas", "run", hlo, *NODE, *SYSTEM, *words))
    assert found["per_op"]["kernel launch"]["count"] == 3
    assert found["peak_memory_bytes"] == 3 * 1024
    # The all-reduce starts with k1, which takes longer for its launch alone.
    assert 0 < found["communication_s"] < 3e-6
    assert found["exposed_communication_s"] == 0
    assert found["step_time_s"] == pytest.approx(9e-6, rel=1e-3)
    events = json.loads(timeline.read_text())["traceEvents"]
    names = [event["name"] for event in events if event.get("cat") == "compute"]
    assert names == ["k0", "k1", "k2"]


def test_what_was_assumed_of_kernels_and_their_memory_is_reported(call: Call, hlo: Path) -> None:
    done = call("hespas", "run", hlo, *NODE, *SYSTEM, "--method", "roofline")
    assert "Memory                    3.072 kB of 85.9 GB a device, 85.9 GB free" in done.stdout
    assert "each launch costs 3 us" in done.stdout


def test_tables_price_what_was_compiled_unless_something_else_is_said(
    call: Call, hlo: Path
) -> None:
    shown = call("hespas", "run", hlo, *NODE, *SYSTEM, "--verbose").stdout
    assert "no kernel's PTX is known" in " ".join(shown.split())
    shown = call("hespas", "run", hlo, *NODE, *SYSTEM, "--method", "roofline").stdout
    assert "roofline: every kernel" in shown
    roofline = call("hespas", "run", hlo, *NODE, *SYSTEM, "--launch-overhead", "2us")
    assert roofline.returncode == 2
    assert "no effect on method measured; drop it, or add --method roofline" in roofline.stderr
    shown = call("hespas", "run", hlo, "--node", "TPUv3", "--system", "TPUv4_2x2x1").stdout
    assert "tensor_core: every kernel" in shown


def test_tables_are_scaled_to_rates_that_flags_give(call: Call, hlo: Path) -> None:
    words = ("estimate", hlo, *NODE, "--json", "-")
    usual = answer(call("hespas", *words))["runtime"]
    slow = answer(call("hespas", *words, "--memory-bandwidth", "1e9B/s"))
    assert slow["runtime"] > usual + 3 * 1024 / 1e9
    assert any(text.startswith("measured: ") for text in slow["assumptions"])


def test_a_step_that_does_not_fit_is_reported(call: Call, llama: Path) -> None:
    system = ("--system", "H100_80GB_4GPU", "--json", "-")
    found = answer(call("hespas", "run", llama, *NODE, *system))
    assert found["warnings"] == []
    small = Path("node.json")
    small.write_text('{"full_name": "small", "memory_capacity_bytes": 1000000000}')
    rates = {"peak_flops": 1e12, "memory_bandwidth": 1e12}
    config = {"perf_estimator": {"method": "roofline", "hardware": rates}}
    Path("config.json").write_text(json.dumps(config))
    found = answer(
        call("hespas", "run", llama, "--node", "./config.json", "--as-exported", *system)
    )
    (shown,) = found["warnings"]
    assert shown.startswith("the step needs 8.911 GB of device memory, and the device has 1 GB")


def test_memory_tells_the_peak_and_what_is_there(call: Call, hlo: Path) -> None:
    done = call("hespas", "memory", hlo, *NODE)
    lines = done.stdout.splitlines()
    assert lines[2] == "Peak                3.072 kB  fits into 85.9 GB"
    assert "    1.024 kB  temporary  tensor<256xf32>  k0" in lines
    found = answer(call("hespas", "memory", hlo, "--top", "1", "--json", "-"))
    assert (found["peak_memory_bytes"], found["fits"], len(found["held"])) == (3072, None, 1)


@pytest.mark.parametrize(
    "words", [("--matmuls", "triton"), ("--disable-passes", "x"), ("--xla-flag", "xla_x=1")]
)
def test_options_of_the_compiler_ask_for_it(
    call: Call, block: Path, hlo: Path, words: tuple[str, ...]
) -> None:
    rates = ("--peak-flops", "1TFLOP/s", "--memory-bandwidth", "1TB/s")
    for given, message in (
        ((block, *NODE, "--as-exported"), "no effect on --as-exported"),
        ((block, *NODE, "--fidelity", "fused"), "no effect on --fidelity fused"),
        ((hlo, *NODE), "no effect on a program that is HLO already"),
        ((block, *rates), "compiles for a node; give --node"),
    ):
        done = call("hespas", "run", *given, *OWN_SYSTEM, *words)
        assert done.returncode == 2
        assert f"{words[0]} " in done.stderr
        assert message in done.stderr


def test_what_a_launch_costs_may_be_reported(call: Call, hlo: Path, block: Path) -> None:
    words = (*SYSTEM, "--method", "roofline", "--json", "-")
    found = answer(call("hespas", "run", hlo, *NODE, *words, "--launch-overhead", "1us"))
    assert found["per_op"]["kernel launch"]["time_s"] == pytest.approx(3e-6)
    bad = call("hespas", "run", hlo, *NODE, *words, "--launch-overhead=-1us")
    assert (bad.returncode, "--launch-overhead" in bad.stderr) == (2, True)
    words = (*words, "--as-exported", "--launch-overhead", "1us")
    idle = call("hespas", "run", block, *NODE, *words)
    assert (idle.returncode, "there is no schedule of kernels" in idle.stderr) == (2, True)


@pytest.mark.parametrize("words", [("--optimise",), ("--fidelity", "compiled")])
def test_a_compilation_needs_a_node(call: Call, block: Path, words: tuple[str, ...]) -> None:
    rates = ("--peak-flops", "1TFLOP/s", "--memory-bandwidth", "1TB/s")
    done = call("hespas", "run", block, *rates, *OWN_SYSTEM, *words)
    assert done.returncode == 2
    assert f"{' '.join(words)} compiles for a node" in done.stderr


def test_one_fidelity_is_asked_for(call: Call, block: Path) -> None:
    done = call("hespas", "run", block, *NODE, *SYSTEM, "--as-exported", "--fidelity", "auto")
    assert done.returncode == 2
    assert "--as-exported has no effect with --fidelity; drop one" in done.stderr


def test_a_compiled_program_is_neither_exported_nor_fused(call: Call, hlo: Path) -> None:
    for words in (("--as-exported",), ("--fidelity", "exported"), ("--fidelity", "fused")):
        done = call("hespas", "run", hlo, *NODE, *SYSTEM, *words)
        assert done.returncode == 2
        assert f"{words[0]} has no effect on a program that is compiled" in done.stderr
    assert call("hespas", "run", hlo, *NODE, *SYSTEM, "--fidelity", "compiled").returncode == 0


def test_what_takes_a_program_as_it_is_has_no_fidelity(call: Call, block: Path) -> None:
    estimator = {"method": "roofline", "hardware": {"peak_flops": 1e12, "memory_bandwidth": 1e12}}
    config = {"perf_estimator": estimator, "mlir_file": str(block)}
    for value, code in (("compiled", 2), ("auto", 0)):
        Path("config.json").write_text(json.dumps({**config, "fidelity": value}))
        done = call("hespas", "estimate", "config.json")
        assert done.returncode == code, done.stderr
    Path("config.json").write_text(json.dumps({**config, "fidelity": "fuse"}))
    done = call("hespas", "run", "config.json", *SYSTEM)
    assert "did you mean 'fused'?" in done.stderr


@needs_gpu
@pytest.mark.finds_compilers
def test_programs_are_compiled_where_the_compiler_is_installed(
    call: Call, block: Path, tmp_path: Path
) -> None:
    words = (block, *NODE, *SYSTEM, "--cache-dir", tmp_path / "cache", "--json", "-")
    found = answer(call("hespas", "run", *words))
    asked = answer(call("hespas", "run", *words, "--fidelity", "compiled"))
    assert found.keys() == asked.keys()
    assert all(found[key] == asked[key] for key in found if key != "options")
    assert found["fidelity"] == asked["fidelity"] == "compiled"
    assert answer(call("hespas", "run", *words, "--optimise"))["fidelity"] == "compiled"
    assert answer(call("hespas", "run", *words, "--as-exported"))["fidelity"] == "exported"
    assert call("hespas", "kernels", block, *NODE).returncode == 0
    plain = answer(call("hespas", "memory", block, *NODE, "--json", "-"))
    as_exported = answer(call("hespas", "memory", block, *NODE, "--json", "-", "--as-exported"))
    assert plain != as_exported


@needs_gpu
def test_optimise_compiles_for_the_node_and_keeps_what_came_out(
    call: Call, block: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*NODE, *SYSTEM, "--optimise", "--cache-dir", tmp_path / "cache", "--json", "-")
    plain = answer(call("hespas", "run", block, *NODE, *SYSTEM, "--json", "-"))
    found = answer(call("hespas", "run", block, *words))
    fused = sum(op["count"] for op in found["per_op"].values())
    assert fused < sum(op["count"] for op in plain["per_op"].values())
    assert any("XLA optimises and schedules it for H100" in shown for shown in found["assumptions"])

    def fail(*_: object) -> None:
        pytest.fail("it is compiled again")

    monkeypatch.setattr(compiler, "run_job", fail)
    assert answer(call("hespas", "run", block, *words)) == found
