"""Every input has an effect, or is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from programs import VECTOR, all_reduce, main_function, on_devices, vector_main

Call = Callable[..., CompletedProcess[str]]
NODE = ("--node", "V100_32GB")
SYSTEM = ("--system", "V100_32GB_4GPU")
ADD = vector_main("%r = stablehlo.add %a, %a : tensor<8xf32>")
REDUCE = on_devices(vector_main(all_reduce("%r", "%a")))


def loop(result: str, operand: str, *, counted: bool = False) -> str:
    """Return a loop that says how often it runs, or doesn't: 2 FLOPs per element each time."""
    if counted:
        types = f"{VECTOR}, tensor<i32>"
        return f"""{result}, %end = stablehlo.while(%x = {operand}, %n = %zero) : {types}
  cond {{
    %k = stablehlo.constant dense<5> : tensor<i32>
    %p = stablehlo.compare LT, %n, %k : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }} do {{
    %one = stablehlo.constant dense<1> : tensor<i32>
    %m = stablehlo.multiply %x, %x : {VECTOR}
    %o = stablehlo.add %n, %one : tensor<i32>
    stablehlo.return %m, %o : {types}
  }}"""
    return f"""{result} = stablehlo.while(%x = {operand}) : {VECTOR}
  cond {{
    %p = stablehlo.constant dense<true> : tensor<i1>
    stablehlo.return %p : tensor<i1>
  }} do {{
    %m = stablehlo.multiply %x, %x : {VECTOR}
    stablehlo.return %m : {VECTOR}
  }}"""


TWO_LOOPS = vector_main(f"{loop('%q', '%a')}\n{loop('%r', '%q')}")
COUNTED = vector_main(
    f"%zero = stablehlo.constant dense<0> : tensor<i32>\n{loop('%r', '%a', counted=True)}"
)
BRANCH = vector_main(
    f"""%p = stablehlo.constant dense<true> : tensor<i1>
  %r = "stablehlo.if"(%p) ({{
    %b = stablehlo.add %a, %a : {VECTOR}
    %c = stablehlo.add %b, %a : {VECTOR}
    stablehlo.return %c : {VECTOR}
  }}, {{
    %b = stablehlo.multiply %a, %a : {VECTOR}
    stablehlo.return %b : {VECTOR}
  }}) : (tensor<i1>) -> {VECTOR}"""
)
CUSTOM = vector_main(f"%r = stablehlo.custom_call @mine(%a) : ({VECTOR}) -> {VECTOR}")


def write(text: str) -> Path:
    Path("p.mlir").write_text(text)
    return Path("p.mlir")


def answer(done: CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run(call: Call, text: str, *flags: str) -> dict[str, Any]:
    return answer(call("hespas", "run", write(text), *NODE, "--as-exported", *flags, "--json", "-"))


def refused(done: CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2, done.stdout
    assert done.stderr.count("\n") == 1
    for part in parts:
        assert part in done.stderr


def count(found: dict[str, Any], kind: str) -> float:
    return found["per_op"][f"stablehlo.{kind}"]["count"]


@pytest.mark.parametrize("spelling", ["--trip-count", "--trip_count"])
def test_a_trip_count_counts(call: Call, spelling: str) -> None:
    assert count(run(call, TWO_LOOPS, spelling, "7"), "multiply") == 14
    found = run(call, TWO_LOOPS, spelling, "2=7", spelling, "10=100")
    assert count(found, "multiply") == 107, "equal loops that run differently often differ"
    assert [text for text in found["assumptions"] if "as the user says" in text] == [
        "p.mlir:2:6: the loop runs 7 times, as the user says",
        "p.mlir:10:6: the loop runs 100 times, as the user says",
    ]


def test_trip_counts_are_part_of_the_cache_key(call: Call) -> None:
    cache = ("--cache-dir", "cache")
    for split in ("linear_split", "individual_split"):
        for times in (3, 8, 3):
            found = run(call, TWO_LOOPS, "--trip-count", str(times), "--split", split, *cache)
            assert count(found, "multiply") == 2 * times


def test_a_trip_count_without_a_loop_is_refused(call: Call) -> None:
    base = ("hespas", "run", "p.mlir", *NODE)
    write(ADD)
    refused(call(*base, "--trip-count", "3"), "p.mlir", "--trip-count has no effect", "drop it")
    refused(call(*base, "--trip-count", "2=3"), "p.mlir", "no loop on line 2")
    write(COUNTED)
    refused(call(*base, "--trip-count", "3"), "no loop whose count can't be read")
    write(TWO_LOOPS)
    refused(call(*base, "--trip-count", "5=3"), "no loop on line 5", "2, 10")
    refused(call(*base, "--trip-count", "2=3"), "p.mlir:10:", "--trip-count")


def test_a_count_for_a_line_goes_before_the_loops_own(call: Call) -> None:
    assert count(run(call, COUNTED), "multiply") == 5
    assert count(run(call, COUNTED, "--trip-count", "3=9"), "multiply") == 9


def test_branch_weights_weigh(call: Call) -> None:
    most_expensive = run(call, BRANCH)
    assert count(most_expensive, "add") == 2
    assert any("most expensive branch" in text for text in most_expensive["assumptions"])
    weighed = run(call, BRANCH, "--branch-weights", "0.25,0.75")
    assert count(weighed, "add") == 0.5
    assert count(weighed, "multiply") == 0.75
    assert any("weights [0.25, 0.75]" in text for text in weighed["assumptions"])
    assert count(run(call, BRANCH, "--branch_weights", "3=0,1"), "multiply") == 1


def test_branch_weights_that_fit_no_branch_are_refused(call: Call) -> None:
    base = ("hespas", "run", "p.mlir", *NODE)
    write(BRANCH)
    refused(call(*base, "--branch-weights", "0.5,0.25,0.25"), "p.mlir:3:", "3 branch weights")
    refused(call(*base, "--branch-weights", "9=1,0"), "no branch on line 9")
    write(ADD)
    refused(call(*base, "--branch-weights", "1,0"), "--branch-weights has no effect")


def test_custom_calls_are_stated_and_listed(call: Call) -> None:
    traffic = run(call, CUSTOM, "--custom-call", "mine=traffic")
    assert traffic["per_op"]["stablehlo.custom_call"]["bytes"] == 64
    assert any("custom call mine" in text for text in traffic["assumptions"])
    stated = run(call, CUSTOM, "--custom-call", "mine=flops:125e12,type:f16,bytes:10")
    assert stated["compute_s"] == 1.0
    assert stated["per_op"]["stablehlo.custom_call"]["bytes"] == 10
    assert any("as the user states" in text for text in stated["assumptions"])
    done = call("hespas", "run", write(CUSTOM), *NODE, "--custom-call", "mein=traffic")
    refused(done, "'mein'", "did you mean 'mine'")
    done = call("hespas", "run", write(ADD), *NODE, "--custom-call", "mine=traffic")
    refused(done, "'mine'", "doesn't call")


def test_single_rates_go_before_the_node(call: Call) -> None:
    text = main_function(
        "%r = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0] : "
        "(tensor<64x64xi16>, tensor<64x64xi16>) -> tensor<64x64xi16>\n"
        "return %r : tensor<64x64xi16>",
        arguments="%a: tensor<64x64xi16>",
        results="tensor<64x64xi16>",
    )
    moved, flops = 2 * 64 * 64 * 2, 2 * 64**3
    slow = ("--memory-bandwidth", "1GB/s")
    fast = ("--memory-bandwidth", "1PB/s")
    assert run(call, text, *slow)["compute_s"] == moved / 1e9
    assert run(call, text, *fast)["compute_s"] == flops / 7.8e12, "the node has no i16 rate"
    assert run(call, text, *fast, "--peak-flops", "1TFLOPS")["compute_s"] == flops / 1e12
    rates = ("--per-datatype-flops", "i16=2 TFLOP/s")
    assert run(call, text, *fast, *rates)["compute_s"] == flops / 2e12


def test_block_limit_and_separators_cut(call: Call) -> None:
    text = vector_main(
        "%b = stablehlo.add %a, %a : tensor<8xf32>\n%c = stablehlo.sine %b : tensor<8xf32>\n"
        "%d = stablehlo.add %c, %b : tensor<8xf32>\n%r = stablehlo.add %d, %d : tensor<8xf32>"
    )
    write(text)

    def sizes(*flags: str) -> list[int]:
        done = call("hespas", "split", "p.mlir", *flags, "--json", "-")
        assert done.returncode == 0, done.stderr
        return [region["op_count"] for region in json.loads(done.stdout)]

    assert sizes() == [4]
    assert sizes("--block_lim", "3") == [3, 1]
    sine = ("--separator", "stablehlo.sine")
    assert sizes(*sine) == [1, 1, 2]
    assert sizes(*sine, "--separator_policy", "end_block") == [2, 2]
    assert sizes(*sine, "--separator-policy", "start_block") == [1, 3]
    assert sizes("--split", "individual_split") == [1, 1, 1, 1]
    assert len(sizes("--split", "individual_split", "--merge")) == 1


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (("--clean",), ("--clean has no effect without --output",)),
        (
            ("--cache-dir", "c", "--disable-cache"),
            ("--cache-dir has no effect with --disable-cache",),
        ),
        (
            ("--cache-dir", "c", "--in-memory-only-cache"),
            ("--cache-dir has no effect with --in-memory-only-cache",),
        ),
        (
            ("--disable-cache", "--in_memory_only_cache"),
            ("--in-memory-only-cache has no effect with --disable-cache",),
        ),
        (("--split", "individual_split", "--block-lim", "5"), ("--block-lim has no effect",)),
        (
            ("--split", "individual_split", "--separator", "stablehlo.add"),
            ("separator has no effect",),
        ),
        (("--separator-policy", "end_block"), ("--separator-policy has no effect on collectives",)),
    ],
    ids=" ".join,
)
def test_flags_without_effect_are_refused(
    call: Call, flags: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    refused(call("hespas", "run", write(REDUCE), *NODE, *SYSTEM, *flags), *parts)
    assert not Path("c").exists()


def test_a_network_without_a_system_is_refused(call: Call) -> None:
    done = call("hespas", "run", write(ADD), *NODE, "--network", "congestion-unaware")
    refused(done, "--network has no effect without --cluster")


def test_the_network_is_chosen(call: Call) -> None:
    unaware = run(call, REDUCE, *SYSTEM, "--network", "congestion-unaware")
    by_default = run(call, REDUCE, *SYSTEM)
    assert unaware.pop("options") == {**by_default.pop("options"), "network": "congestion-unaware"}
    assert unaware == by_default
    aware = call("hespas", "run", "p.mlir", *NODE, *SYSTEM, "--network", "congestion-aware")
    if aware.returncode:
        refused(aware, "congestion-aware")
    else:
        assert "congestion-aware" in aware.stdout


@pytest.mark.parametrize(
    "flags",
    [("--rendezvous-protocol",), ("--injection-scale", "1000"), ("--network", "congestion-aware")],
)
def test_what_the_simulator_can_be_reported_has_an_effect(
    call: Call, flags: tuple[str, ...]
) -> None:
    call("hespas", "run", write(REDUCE), *NODE, *SYSTEM, "-o", "out")
    (prefix,) = {str(file).removesuffix(".0.et") for file in Path("out").rglob("*.0.et")}
    base = ("hespas", "simulate", prefix, *SYSTEM, "--json", "-")
    plain, shown = answer(call(*base)), answer(call(*base, *flags))
    if "congestion-aware" in flags:
        assert shown == plain, "messages of one direct all-reduce have a link each"
    else:
        assert shown["step_time_ns"] > plain["step_time_ns"]
    assert answer(call(*base, "--num-queues-per-dim", "2")) == plain, "there is one chunk"


DEVICE: dict[str, Any] = {"peak_flops": 1e12, "memory_bandwidth": 1e11}


def configured(
    call: Call, hardware: dict[str, Any], *flags: str, **keys: object
) -> CompletedProcess[str]:
    estimator = {"method": "roofline", "hardware": DEVICE | hardware}
    Path("c.json").write_text(
        json.dumps({"perf_estimator": estimator, "mlir_file": "p.mlir", **keys})
    )
    return call("hespas", "run", "c.json", "--as-exported", *flags, "--json", "-")


def test_every_hardware_key_has_an_effect(call: Call) -> None:
    write(ADD)
    base = answer(configured(call, {}))
    assert base["compute_s"] == 64 / 1e11
    assert answer(configured(call, {"memory_bandwidth": 1e10}))["compute_s"] == 64 / 1e10
    assert answer(configured(call, {"peak_flops": 1e8}))["compute_s"] == 8 / 1e8
    rates = {"peak_flops": 1e8, "per_datatype_flops": {"f32": 1e9}}
    assert answer(configured(call, rates))["compute_s"] == 8 / 1e9
    assert answer(configured(call, {"num_npus": 5}))["devices"] == 5
    assert base["energy_j"] is None
    power = answer(configured(call, {"tdp_W": 100}))
    assert power["energy_j"] == pytest.approx(100 * 64 / 1e11)
    shared = answer(configured(call, {"tdp_W": 100, "hbm_power_ratio": 0.5}))
    assert shared["energy_j"] == pytest.approx(50 * 64 / 1e11 + 50 * 8 / 1e12)
    refused(configured(call, {"error_on_unknown_type": True}), "f32", "per_datatype_flops")
    warned = answer(configured(call, {"warn_on_unknown_type": True}))
    assert warned["warnings"] == ["per_datatype_flops doesn't name f32: priced at peak_flops"]


def test_options_about_unknown_types_come_with_the_node(call: Call) -> None:
    write(ADD)
    configured(call, {"warn_on_unknown_type": True})
    estimator = json.loads(Path("c.json").read_text())["perf_estimator"]
    Path("mine.json").write_text(json.dumps({"perf_estimator": estimator}))
    found = answer(call("hespas", "run", "p.mlir", "--node", "./mine.json", "--json", "-"))
    assert found["warnings"] == ["per_datatype_flops doesn't name f32: priced at peak_flops"]


def test_flags_of_the_cache_go_before_the_configuration(call: Call) -> None:
    write(ADD)
    memory = {"in_memory_only_cache": True}
    assert configured(call, memory, "--cache-dir", "kept").returncode == 0
    assert Path("kept/estimates.sqlite").is_file()
    assert configured(call, {}, "--in-memory-only-cache", cache_dir="other").returncode == 0
    assert configured(call, {}, "--disable-cache", cache_dir="other").returncode == 0
    assert not Path("other").exists()
    assert configured(call, {}, cache_dir="other").returncode == 0
    assert Path("other/estimates.sqlite").is_file()


def test_no_merge_goes_before_the_configuration(call: Call) -> None:
    write(REDUCE)
    config = {"mlir_file": "p.mlir", "split_strategy": "individual_split", "merge": True}
    Path("c.json").write_text(json.dumps(config | {"block_lim": 2}))
    assert call("hespas", "split", "c.json").returncode == 0
    # Without merging the limit of the configuration has no effect left.
    refused(call("hespas", "split", "c.json", "--no-merge"), "block_lim has no effect")


ARRAY: dict[str, Any] = {
    "array_rows": 8,
    "array_columns": 8,
    "clock_hz": 1e9,
    "memory_bandwidth": 1e11,
    "vector_flops": 1e10,
}


@pytest.mark.parametrize(
    "flags",
    [
        NODE,
        ("--peak-flops", "1e12"),
        ("--memory-bandwidth", "1e9"),
        ("--per-datatype-flops", "f32=1e12"),
    ],
    ids=lambda flags: flags[0],
)
@pytest.mark.parametrize("command", ["run", "estimate"])
def test_a_device_is_refused_by_methods_that_use_none(
    call: Call, command: str, flags: tuple[str, str]
) -> None:
    write(ADD)
    estimator = {"method": "systolic", "hardware": ARRAY}
    Path("c.json").write_text(json.dumps({"perf_estimator": estimator, "mlir_file": "p.mlir"}))
    simulated = call("hespas", command, "c.json", *flags)
    refused(simulated, f"{flags[0]} has no effect on method systolic", "drop it")
    here = call("hespas", command, "p.mlir", "--method", "xla", *flags)
    refused(here, f"{flags[0]} has no effect on method xla, which runs on this machine")


def test_the_compiler_is_not_waited_for_where_the_method_refuses_the_node(call: Call) -> None:
    done = call("hespas", "run", write(ADD), *NODE, "--method", "xla", "--optimise")
    refused(done, "--node has no effect on method xla")


def test_times_taken_here_are_not_headed_as_those_of_another_machine(call: Call) -> None:
    done = call("hespas", "run", write(REDUCE), "--method", "xla", *SYSTEM)
    heading, *_ = done.stdout.splitlines()
    where = "4 x this machine's cpu (method xla) on V100_32GB_4GPU"
    assert heading == f"p.mlir: one step on {where} (as exported)"
