"""What ``run`` and ``simulate`` answer, as text, JSON and timelines."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from hespas.cli import predicted
from hespas.split import flatten
from programs import all_reduce, on_devices, vector_main

Call = Callable[..., CompletedProcess[str]]
ADD = vector_main("%r = stablehlo.add %a, %a : tensor<8xf32>")


def answer(done: CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_run_answers_with_the_documented_object(predict: Call) -> None:
    found = answer(predict("--json", "-"))
    assert {
        "step_time_s", "compute_s", "communication_s", "exposed_communication_s",
        "straggler_s", "devices",
        "flops", "energy_j", "peak_memory_bytes", "per_op", "assumptions", "warnings",
        "schema_version", "fidelity", "options", "versions", "tokens_per_s",
        "tokens_per_s_per_device", "mfu", "memory_capacity_bytes", "bound", "phases", "layers",
        "communication", "explain",
    } <= set(found)  # fmt: skip
    assert sum(found["bound"].values()) == pytest.approx(1)
    assert found["fidelity"] == "exported"
    assert found["devices"] == 4
    # By hand: scores 5242880 B, exponential 8388608 B, mixed 5242880 B, transpose 1048576 B,
    # projection 3145728 B, each bound by memory at 1555e9 B/s; the reshape moves nothing.
    moved = 5242880 + 8388608 + 5242880 + 1048576 + 3145728
    assert found["compute_s"] == pytest.approx(moved / 1555e9, rel=1e-12)
    assert sum(op["bytes"] for op in found["per_op"].values()) == moved
    dots = 2 * (2 * 1024 * 1024 * 128) * 2 + 2 * 1024 * 256 * 1024
    assert found["per_op"]["stablehlo.dot_general"]["flops"] == dots
    assert found["per_op"]["stablehlo.dot_general"]["count"] == 3
    assert found["flops"] == dots + 2 * 1024 * 1024, "an exponential counts as one"
    assert found["energy_j"] == pytest.approx(400 * found["compute_s"])
    assert found["step_time_s"] == pytest.approx(
        found["compute_s"] + found["exposed_communication_s"], abs=1e-11
    )
    assert found["communication_s"] == found["exposed_communication_s"], "nothing overlaps"


def test_a_program_that_does_not_communicate_needs_no_system(call: Call) -> None:
    Path("p.mlir").write_text(ADD)
    words = ("run", "p.mlir", "--node", "V100_32GB", "--as-exported")
    found = answer(call("hespas", *words, "--json", "-"))
    assert found["devices"] == 1
    assert found["step_time_s"] == found["compute_s"] == 64 / 900e9
    assert found["communication_s"] == 0
    reported = call("hespas", *words).stdout
    assert "ommunication" not in reported
    assert "71.11 ps" in reported, "64 bytes: an operand used twice is read once"


def test_energy_is_null_where_power_is_unknown(call: Call) -> None:
    Path("p.mlir").write_text(ADD)
    words = ("--peak-flops", "1TFLOP/s", "--memory-bandwidth", "1GB/s", "--json", "-")
    assert answer(call("hespas", "run", "p.mlir", *words))["energy_j"] is None


@pytest.mark.parametrize("stage", ["run", "estimate", "split", "analyze"])
def test_only_json_goes_to_standard_output(call: Call, block: Path, stage: str) -> None:
    presets = ("--node", "A100_SXM_40GB") if stage in ("run", "estimate") else ()
    system = ("--system", "A100_SXM_40GB_4GPU") if stage == "run" else ()
    done = call("hespas", stage, block, *presets, *system, "--json", "-", "--log-level", "info")
    json.loads(done.stdout)
    assert "read" in done.stderr
    in_file = call("hespas", stage, block, *presets, *system, "--json", "answer.json")
    assert in_file.stdout, "people get their text too"
    from_file, printed = json.loads(Path("answer.json").read_text()), json.loads(done.stdout)
    for wall_time in ("estimation_time", "uncached_time"):
        for value in (from_file, printed):
            if isinstance(value, dict):
                value.pop(wall_time, None)  # pyright: ignore[reportUnknownMemberType]
    assert from_file == printed


def test_every_figure_of_the_text_has_a_unit(predict: Call) -> None:
    lines = predict().stdout.splitlines()
    assert lines[0].endswith(
        "attention_block.mlir: one step on 4 x A100_SXM_40GB on A100_SXM_40GB_4GPU (as exported)"
    )
    assert re.fullmatch(r"Step time +27\.61 us", lines[2])
    assert re.fullmatch(r"  compute +14\.84 us +53\.7 %", lines[3])
    assert re.fullmatch(r"  exposed communication +12\.78 us +46\.3 %", lines[4])
    assert max(map(len, lines)) <= 100
    units = r"(?:[pnum]?s|[kMGT]?(?:B/s|B|FLOP/s|FLOP)|[um]?J|%|x)"
    figures = re.compile(rf"(?<![\w.-])(?>\d+(?:\.\d+)?)(?! ?{units}(?:[\s,]|$))", re.MULTILINE)
    answer_part = "\n".join(lines[2 : lines.index("Assumed:")])
    bare = [match[0] for match in figures.finditer(answer_part)]
    assert bare == ["3", "1", "1", "4", "1"], "only counts, of operations and devices, have none"


def test_the_answer_lists_what_was_assumed(predict: Call, call: Call) -> None:
    listed = answer(predict("--json", "-"))["assumptions"]
    assert [text.partition(":")[0] for text in listed] == ["roofline", "network"]
    Path("dot.mlir").write_text(
        "func.func @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {\n"
        "  %r = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0] : "
        "(tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>\n"
        "  return %r : tensor<8x8xf32>\n}\n"
    )
    words = ("run", "dot.mlir", "--node", "A100_SXM_40GB", "--json", "-")
    assert any("tf32" in text for text in answer(call("hespas", *words))["assumptions"])


def test_a_verbose_answer_has_all_that_json_has(call: Call, block: Path) -> None:
    words = ("hespas", "run", block, *SYSTEM, "--node", "A100_SXM_40GB")
    listed = answer(call(*words, "--json", "-"))["assumptions"]
    shown = " ".join(call(*words, "--verbose").stdout.split())
    assert len(listed) > 4
    assert all(" ".join(text.split()) in shown for text in listed)
    few = call(*words).stdout
    assert f" of {len(listed)}, by the share of the step that each decides; --verbose" in few
    refused = call(*words, "--verbose", "--json", "-")
    assert refused.returncode == 2
    assert "--verbose has no effect on JSON" in refused.stderr


def traced(call: Call, block: Path) -> None:
    done = call("hespas", "trace", block, "--node", "A100_SXM_40GB", "-o", "out")
    assert done.returncode == 0, done.stderr


SYSTEM = ("--system", "A100_SXM_40GB_4GPU")


def test_simulate_answers_with_the_documented_object(call: Call, block: Path) -> None:
    traced(call, block)
    found = answer(call("hespas", "simulate", "out/dev", *SYSTEM, "--json", "-"))
    assert found.keys() == {"step_time_ns", "devices", "model", "assumptions"}
    assert list(found["devices"]) == ["0", "1", "2", "3"]
    device = found["devices"]["2"]
    assert device.keys() == {
        "finish_ns", "compute_ns", "communication_ns", "exposed_communication_ns", "overlap_ns",
    }  # fmt: skip
    assert device["finish_ns"] == found["step_time_ns"]
    assert device["overlap_ns"] == 0
    assert device["compute_ns"] + device["communication_ns"] == device["finish_ns"]


def test_simulate_gives_every_node_on_demand(call: Call, block: Path) -> None:
    traced(call, block)
    found = answer(call("hespas", "simulate", "out", *SYSTEM, "--nodes", "--json", "-"))
    assert found.keys() == {"step_time_ns", "devices", "model", "assumptions", "nodes"}
    nodes = found["nodes"]["0"]
    assert nodes["0"] == [0, found["devices"]["0"]["compute_ns"]]
    assert nodes["1"] == [nodes["0"][1], found["step_time_ns"]]


def test_simulate_and_run_agree(call: Call, predict: Call, block: Path) -> None:
    traced(call, block)
    simulated = answer(call("hespas", "simulate", "out", *SYSTEM, "--json", "-"))
    predicted = answer(predict("--json", "-"))
    assert predicted["step_time_s"] == pytest.approx(simulated["step_time_ns"] * 1e-9, rel=1e-12)


def events(file: str) -> list[dict[str, Any]]:
    return json.loads(Path(file).read_text())["traceEvents"]


def test_a_timeline_is_a_chrome_trace(call: Call, predict: Call, block: Path) -> None:
    assert predict("--timeline", "run.json").returncode == 0
    traced(call, block)
    assert call("hespas", "simulate", "out", *SYSTEM, "--timeline", "sim.json").returncode == 0
    for file in ("run.json", "sim.json"):
        spans = [event for event in events(file) if event["ph"] == "X"]
        kinds = {span["cat"] for span in spans}
        assert kinds >= {"compute", "communication", "exposed", "wait"}
        assert all({"name", "ts", "dur", "pid", "tid"} <= span.keys() for span in spans)
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


def test_a_timeline_needs_no_system_where_nothing_communicates(call: Call) -> None:
    Path("p.mlir").write_text(ADD)
    words = ("--node", "V100_32GB", "--as-exported", "--timeline", "t.json")
    assert call("hespas", "run", "p.mlir", *words).returncode == 0
    (span,) = [event for event in events("t.json") if event["ph"] == "X"]
    assert span["dur"] == pytest.approx(64 / 900e9 * 1e6, abs=1e-3)


@pytest.mark.parametrize("mode", ["", "--merge"])
def test_devices_come_from_the_flag_where_the_program_does_not_say(call: Call, mode: str) -> None:
    Path("p.mlir").write_text(ADD)
    words = ("run", "p.mlir", "--node", "V100_32GB", "--json", "-", *([mode] if mode else []))
    assert answer(call("hespas", *words))["devices"] == 1
    assert answer(call("hespas", *words, "--devices", "6"))["devices"] == 6
    assert answer(call("hespas", *words, "--num_npus", "3"))["devices"] == 3
    assert answer(call("hespas", *words, "--system", "A40_48GB_2GPU"))["devices"] == 2


def test_devices_come_from_the_groups(call: Call) -> None:
    Path("p.mlir").write_text(vector_main(all_reduce("%r", "%a", groups=[[0, 1], [2, 3]])))
    words = ("run", "p.mlir", "--node", "V100_32GB", "--system", "V100_32GB_4GPU", "--json", "-")
    assert answer(call("hespas", *words))["devices"] == 4
    Path("q.mlir").write_text(on_devices(vector_main(all_reduce("%r", "%a"))))
    assert answer(call("hespas", words[0], "q.mlir", *words[2:]))["devices"] == 4


def test_collectives_of_single_devices_take_no_time_and_are_named(call: Call) -> None:
    groups = [[0], [1], [2], [3]]
    Path("p.mlir").write_text(on_devices(vector_main(all_reduce("%r", "%a", groups=groups))))
    words = ("run", "p.mlir", "--node", "V100_32GB", "--system", "V100_32GB_4GPU", "--json", "-")
    found = answer(call("hespas", *words))
    assert found["step_time_s"] == 0
    assert "1 collectives among single devices" in found["assumptions"][-1]


def test_json_without_a_file_goes_to_standard_output(call: Call, block: Path) -> None:
    bare = call("hespas", "analyze", block, "--json")
    dashed = call("hespas", "analyze", block, "--json", "-")
    assert json.loads(bare.stdout) == json.loads(dashed.stdout)


@pytest.mark.parametrize("stage", [("estimate",), ("trace", "-o", "out")], ids=" ".join)
def test_prices_alone_rest_on_what_is_said_too(
    call: Call, block: Path, stage: tuple[str, ...]
) -> None:
    command = ("hespas", *stage, block, "--node", "MI300X", "--method", "measured")
    listed = answer(call(*command, "--json", "-"))["assumptions"]
    assert any("H200" in text for text in listed), "an MI300X is priced by another part's tables"
    reported = call(*command).stdout
    _, _, below = reported.partition("\nAssumed:\n")
    shown = " ".join(below.split())
    assert all(" ".join(text.split()) in shown for text in listed)


def test_prices_alone_warn_too(call: Call, block: Path) -> None:
    hardware = {"peak_flops": 1e12, "memory_bandwidth": 1e11, "warn_on_unknown_type": True}
    estimator = {"method": "roofline", "hardware": hardware}
    Path("c.json").write_text(json.dumps({"perf_estimator": estimator, "mlir_file": str(block)}))
    (warning,) = answer(call("hespas", "estimate", "c.json", "--json", "-"))["warnings"]
    assert "per_datatype_flops doesn't name" in warning
    assert "warning: per_datatype_flops doesn't name" in call("hespas", "estimate", "c.json").stdout


def test_what_is_too_large_to_be_walked_is_answered_by_some_rounds_of_its_loops(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = ("llama3-100m", "--cluster", "8xH100_80GB", "--mesh", "fsdp=8", "--set", "layers=2")
    batch = ("--sequence", "512", "--global-batch", "128", "--micro-batch", "1")
    words = ("run", *step, *batch, "--fidelity", "fused")
    whole = answer(call("hespas", *words, "--json", "-"))
    for module in (predicted, flatten):
        monkeypatch.setattr(module, "MOST_OPERATIONS", 2000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("cache").absolute()))
    found = answer(call("hespas", *words, "--json", "-"))
    assert found["step_time_s"] == whole["step_time_s"]
    assert found["energy_j"] == pytest.approx(whole["energy_j"])
    assert whole["layers"]
    assert not found["layers"]
    assert "tables are left out" in call("hespas", *words).stdout.replace("\n ", "")
    refused = call("hespas", *words, "--timeline", "t.json")
    assert refused.returncode == 2
    assert "over 2,000 kernels; drop --timeline and --output, without which" in refused.stderr
