"""Bad input: one line that says what, where and how to mend it; code 2; nothing left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from programs import all_reduce, on_devices, vector_main

Call = Callable[..., CompletedProcess[str]]
NODE = ("--node", "V100_32GB")
SYSTEM = ("--system", "V100_32GB_4GPU")
ADD = vector_main("%r = stablehlo.add %a, %a : tensor<8xf32>")
REDUCE = on_devices(vector_main(all_reduce("%r", "%a")))
LOOP = vector_main(
    """%r = stablehlo.while(%x = %a) : tensor<8xf32>
  cond {
    %p = stablehlo.constant dense<true> : tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %m = stablehlo.multiply %x, %x : tensor<8xf32>
    stablehlo.return %m : tensor<8xf32>
  }"""
)
CUSTOM = vector_main("%r = stablehlo.custom_call @mine(%a) : (tensor<8xf32>) -> tensor<8xf32>")


def refused(done: CompletedProcess[str], *parts: str) -> None:
    """Check that a command failed on one line that holds all parts, and left nothing."""
    assert done.returncode == 2, done.stdout
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith(f"{done.args[0]}: error: ")
    for part in parts:
        assert part in lines[0]
    assert "fault of hespas" not in lines[0]
    left = {path.name for path in Path().iterdir()}
    assert left <= {"p.mlir", "c.json", "file", "traces", "node"}, left


def program(text: str) -> Path:
    Path("p.mlir").write_text(text)
    return Path("p.mlir")


PROGRAMS = {
    "empty": ("", ("p.mlir: the file is empty",)),
    "blank": (" \n\n", ("p.mlir: the file is empty",)),
    "truncated": (REDUCE[: len(REDUCE) // 2], ("p.mlir:", "cannot be parsed")),
    "text": ("hello, world", ("p.mlir:1:1: cannot be parsed",)),
    "dialect": (vector_main("%r = foo.bar %a : tensor<8xf32>"), ("p.mlir:2:", "foo")),
    "op": (vector_main("%r = stablehlo.bogus %a"), ("p.mlir:2:", "stablehlo.bogus")),
    "no main": (ADD.replace("@main", "@other"), ("p.mlir", "named main", "other")),
    "dynamic": (ADD.replace("8xf32", "?xf32"), ("p.mlir", "dynamic shape", "static")),
    "unknown call": (
        vector_main("%r = call @f(%a) : (tensor<8xf32>) -> tensor<8xf32>"),
        ("p.mlir:2:", "'f'"),
    ),
    "hlo": ("HloModule m\n", ("p.mlir", "it has no ENTRY computation")),
    "loop": (LOOP, ("p.mlir:2:", "loop", "--trip-count")),
    "custom call": (CUSTOM, ("p.mlir:2:", "'mine'", "--custom-call mine=traffic")),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_bad_program_is_refused(call: Call, name: str) -> None:
    text, parts = PROGRAMS[name]
    refused(call("hespas", "run", program(text), *NODE, "-o", "out/deep"), *parts)
    refused(call("hespas", "trace", "p.mlir", *NODE, "-o", "out/deep"), *parts)


def test_a_missing_program_or_a_directory_is_refused(call: Call) -> None:
    refused(call("hespas", "run", "nope.mlir", *NODE, "-o", "out"), "nope.mlir: no such file")
    refused(call("hespas", "run", ".", *NODE, "-o", "out"), ".: there are no modules of XLA")
    refused(call("hespas", "run", *NODE), "no program is given", "--mlir-file")
    refused(call("hespas_mlir_analyzer", "nope.mlir"), "nope.mlir: no such file")
    refused(call("hespas_mlir_analyzer"), "issing argument 'FILE'", "hespas_mlir_analyzer --help")


def test_a_compressed_or_binary_file_is_refused(call: Call) -> None:
    Path("p.mlir").write_bytes(bytes(range(256)) * 8)
    refused(call("hespas", "run", "p.mlir", *NODE, "-o", "out"), "p.mlir")
    Path("p.mlir").write_bytes(b"ML\xefR" + bytes(64))
    refused(call("hespas", "run", "p.mlir", *NODE, "-o", "out"), "p.mlir")


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (("--launch-overhead", "3"), ("3 without a unit is 3 s", "give 3us, or 3s")),
        (("--peak-flops", "-1"), ("--peak-flops is '-1'", "positive")),
        (("--peak-flops", "0"), ("--peak-flops is '0'", "positive")),
        (("--peak-flops", "989"), ("without a unit is 989 FLOP/s", "give 989TFLOP/s")),
        (("--memory-bandwidth", "3350"), ("is 3350 B/s; give 3350GB/s, or 3350B/s",)),
        (("--per-datatype-flops", "bf16=989"), ("flops bf16: 989 without", "give 989TFLOP/s")),
        (("--peak-flops", "fast"), ("--peak-flops", "'fast'", "TFLOP/s")),
        (("--peak-flops", "1.2.3"), ("--peak-flops", "'1.2.3'")),
        (("--peak-flops", "1e999"), ("--peak-flops", "too large")),
        (("--peak-flops", "nan"), ("--peak-flops", "'nan'")),
        (("--memory-bandwidth", "-2GB/s"), ("--memory-bandwidth", "positive")),
        (("--memory-bandwidth", "5 furlongs"), ("--memory-bandwidth", "GB/s")),
        (("--per-datatype-flops", "bf16"), ("is 'bf16'; write TYPE=RATE",)),
        (("--per-datatype-flops", "bf17=1"), ("'bf17'", "did you mean 'bf16'")),
        (("--per-datatype-flops", "bf16=-1"), ("bf16", "positive")),
        (("--per-datatype-flops", "bf16=1e12,bf16=2e12"), ("twice", "bf16")),
        (("--per-datatype-flops", '{"bf16": true}'), ("bf16", "'true'")),
        (("--per-datatype-flops", '{"bf16": 1e12, "bf16": 2e12}'), ("twice", "bf16")),
        (("--per-datatype-flops", '{"bf16"'), ("--per-datatype-flops", "malformed JSON")),
        (("--node", "V100_32G"), ("'V100_32G'", "did you mean 'V100_32GB'")),
        (("--node", "./nothing.json"), ("nothing.json", "cannot be read")),
        (("--system", "V100_4GPU"), ("'V100_4GPU'", "did you mean 'V100_32GB_4GPU'")),
        (("--system", "./nowhere"), ("nowhere", "cannot be read")),
        (("--devices", "0"), ("0 devices", "the system has 4", "drop --devices")),
        (("--devices", "-4"), ("-4 devices", "the system has 4", "drop --devices")),
        (("--devices", "many"), ("'--num-npus'", "'many'")),
        (("--threads", "0"), ("--threads is 0", "1 or more")),
        (("--block-lim", "0"), ("--block-lim is 0", "1 or more")),
        (("--separator", ""), ("separator ''", "is_communication_op")),
        (("--separator", "stablehlo.nope"), ("'stablehlo.nope'", "nowhere")),
        (("--trip-count", "x"), ("--trip-count", "N or LINE=N")),
        (("--trip-count", "\u00b2"), ("--trip-count", "N or LINE=N")),
        (("--trip-count", "-3"), ("--trip-count", "N or LINE=N")),
        (("--trip-count", "1", "--trip-count", "2"), ("--trip-count", "twice")),
        (("--branch-weights", "0.5,0.6"), ("--branch-weights", "adding to 1")),
        (("--branch-weights", "nan,1"), ("--branch-weights", "adding to 1")),
        (("--custom-call", "traffic"), ("--custom-call", "TARGET=traffic")),
        (("--custom-call", "m=flops:nan"), ("--custom-call", "TARGET=traffic")),
        (("--custom-call", "m=flops:inf"), ("--custom-call", "TARGET=traffic")),
        (("--custom-call", "m=type:f32"), ("--custom-call", "TARGET=traffic")),
        (("--custom-call", "m=flops:1,type:f33"), ("--custom-call", "'f33'")),
        (("--custom-call", "m=flops:1,flops:2"), ("--custom-call", "TARGET=traffic")),
        (("--json", "no/where.json"), ("no/where.json", "no is no directory")),
        (("--json", "."), (".: is a directory",)),
        (("--timeline", "no/where.json"), ("no/where.json", "no is no directory")),
        (("--json", "x.json", "--timeline", "./x.json"), ("--json and --timeline",)),
        (("--output", ""), ("--output", "empty")),
        (("--bogus",), ("'--bogus'", "see hespas run --help")),
        (("--network", "magic"), ("'magic'", "congestion-unaware")),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_bad_flag_is_refused(call: Call, flags: tuple[str, ...], parts: tuple[str, ...]) -> None:
    usual = {"--node": "V100_32GB", "--system": "V100_32GB_4GPU", "--output": "out/deep"}
    base = [word for pair in usual.items() if pair[0] not in flags for word in pair]
    refused(call("hespas", "run", program(REDUCE), *base, *flags), *parts)


def test_a_device_described_in_part_is_refused(call: Call) -> None:
    refused(call("hespas", "run", program(ADD)), "no device", "--node", "--peak-flops")
    done = call("hespas", "run", "p.mlir", "--peak-flops", "1e12")
    refused(done, "--memory-bandwidth is not given")
    done = call("hespas", "run", "p.mlir", "--memory-bandwidth", "1e12")
    refused(done, "--peak-flops is not given")


HARDWARE: dict[str, Any] = {"peak_flops": 1e12, "memory_bandwidth": 1e11}


def config(hardware: object = None, **keys: object) -> str:
    estimator = {"method": "roofline", "hardware": HARDWARE if hardware is None else hardware}
    return json.dumps({"perf_estimator": estimator} | keys)


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in HARDWARE.items() if name != key}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("{", ("c.json:1:2: malformed JSON",)),
        ("", ("c.json:1:1: malformed JSON",)),
        ("[]", ("c.json",)),
        (config(typo=1), ("c.json", "unknown key 'typo'")),
        (config(outputdir="x"), ("'outputdir'", "did you mean 'output_dir'")),
        (config(without("peak_flops")), ("lacks 'peak_flops'", "add it")),
        (config(without("memory_bandwidth")), ("lacks 'memory_bandwidth'", "add it")),
        (config(HARDWARE | {"peak_flops": -1}), ("peak_flops is -1", "give")),
        (config(HARDWARE | {"peak_flops": 0}), ("peak_flops is 0", "give")),
        (config(HARDWARE | {"peak_flops": "fast"}), ('peak_flops is "fast"', "a number")),
        (config(HARDWARE | {"memory_bandwidth": 1555}),
         ("hardware.memory_bandwidth is 1555 B/s", "give 1555e9 for 1555 GB/s")),
        (config(HARDWARE | {"peak_flops": 9.7}), ("peak_flops is 9.7 FLOP/s", "give 9.7e12 for")),
        (config(HARDWARE | {"per_datatype_flops": {"bf16": 2e6}}),
         ("per_datatype_flops.bf16 is 2e+06 FLOP/s", "give 312e12 for 312 TFLOP/s")),
        (config(HARDWARE | {"peak_flop": 1}), ("'peak_flop'", "did you mean 'peak_flops'")),
        (config(HARDWARE | {"num_npus": True}), ("num_npus is true", "an integer")),
        (config(HARDWARE | {"num_npus": 0}), ("num_npus is 0",)),
        (config(HARDWARE | {"hbm_power_ratio": 0.5}), ("hbm_power_ratio", "tdp_W")),
        (config(HARDWARE | {"tdp_w": 400}), ("'tdp_w'", "did you mean 'tdp_W'")),
        (config(split_strategy="linear"), ("split_strategy", "did you mean 'linear_split'")),
        (config(block_lim=0), ("block_lim is 0",)),
        (config(num_threads=0), ("num_threads is 0",)),
        (config(separator_policy="no"), ("separator_policy",)),
        (config(clean=True), ("c.json", "clean has no effect without --output")),
        (config(cache_dir="x", disable_cache=True), ("c.json", "cache_dir has no effect")),
        (config(HARDWARE | {"in_memory_only_cache": True}, cache_dir="x"), ("c.json", "cache_dir")),
        (
            '{"perf_estimator": {"method": "xla", "hardware": {"type": "gpux"}}}',
            ("there is no platform 'gpux'",),
        ),
        ('{"perf_estimator": {"method": "cocossim"}}', ("array_rows",)),
        ('{"perf_estimator": {"method": "rofline"}}', ("did you mean 'roofline'",)),
        ("{}", ("no device is given",)),
    ],
)  # fmt: skip
def test_a_bad_configuration_is_refused(call: Call, text: str, parts: tuple[str, ...]) -> None:
    Path("c.json").write_text(text)
    refused(call("hespas", "run", "c.json", "--mlir_file", program(ADD)), *parts)


def test_an_unknown_method_is_refused(call: Call) -> None:
    done = call("hespas", "run", program(ADD), *NODE, "--method", "mesured")
    refused(done, "there is no method 'mesured'", "did you mean 'measured'")


def test_a_log_that_cannot_be_written_is_refused(call: Call) -> None:
    done = call("hespas", "run", program(ADD), *NODE, "--log-path", "no/log.txt")
    refused(done, "no/log.txt", "log cannot be written")


def test_a_configuration_without_a_program_is_refused(call: Call) -> None:
    Path("c.json").write_text(config())
    refused(call("hespas_chakra_gen", "c.json", "--output", "out"), "c.json", "--mlir-file")
    refused(call("hespas_chakra_gen", "c.json", "--mlir_file", program(ADD)), "--output")
    both = call("hespas", "run", "p.mlir", "--mlir_file", "p.mlir", *NODE)
    refused(both, "two programs")


GROUPS = {
    "overlap": ([[0, 1], [1, 2]], ("p.mlir:3:",)),
    "absent devices": ([[0, 1], [2, 3], [4, 5]], ("p.mlir:3:", "5")),
    "gap": ([[0, 1], [2, 9]], ("p.mlir:3:", "3")),
}


@pytest.mark.parametrize("name", GROUPS)
def test_impossible_groups_are_refused(call: Call, name: str) -> None:
    groups, parts = GROUPS[name]
    text = on_devices(vector_main(all_reduce("%r", "%a", groups=groups)))
    refused(call("hespas", "run", program(text), *NODE, *SYSTEM, "-o", "out"), *parts)


def test_a_part_of_another_kind_than_the_system_is_refused(call: Call) -> None:
    program(REDUCE)
    on_gpus = call("hespas", "run", "p.mlir", "--node", "TPUv5e", "--system", "H100_80GB_4GPU")
    refused(on_gpus, "TPUv5e is a TPU", "system of GPUs", "--system TPUv5e_2x2", "--node H100_80GB")
    on_tpus = call("hespas", "run", "p.mlir", "--node", "H100_80GB", "--system", "TPUv5e_2x2")
    refused(on_tpus, "H100_80GB is a GPU", "slice of TPUs", "--system H100_80GB_4GPU")


def test_devices_that_disagree_are_refused(call: Call) -> None:
    program(REDUCE)
    run = ("hespas", "run", "p.mlir", *NODE, "-o", "out")
    refused(
        call(*run, *SYSTEM, "--devices", "8"), "8 devices", "the system has 4", "drop --devices"
    )
    refused(call(*run, "--system", "V100_32GB_8GPU"), "4 devices", "has 8", "system of 4")
    program(vector_main(all_reduce("%r", "%a", groups=[[0, 1]])))
    refused(call(*run, "--system", "A40_48GB_2GPU", "--devices", "4"), "4 devices", "has 2")
    refused(call(*run, *SYSTEM), "2 devices", "has 4")
    Path("c.json").write_text(config(HARDWARE | {"num_npus": 8}))
    done = call("hespas", "run", "c.json", "--mlir_file", "p.mlir", "--system", "A40_48GB_2GPU")
    refused(done, "8 devices", "has 2")


def test_a_program_that_communicates_needs_a_system(call: Call) -> None:
    done = call("hespas", "run", program(REDUCE), *NODE, "-o", "out")
    refused(done, "4 devices", "no system is given", "V100_32GB_4GPU", "hespas estimate")


def test_traces_that_are_none_are_refused(call: Call, block: Path) -> None:
    system = ("--system", "A100_SXM_40GB_4GPU")
    refused(call("hespas", "simulate", "nothing", *system), "nothing.0.et")
    traces = Path("traces")
    traces.mkdir()
    refused(call("hespas", "simulate", traces, *system), "dev.0.et")
    for device in range(4):
        (traces / f"dev.{device}.et").write_bytes(b"\x7fnot a trace")
    refused(call("hespas", "simulate", traces, *system), "dev.0.et")
    refused(
        call("hespas", "simulate", "traces"), "no system is given", "give --cluster or --system"
    )
    refused(call("hespas", "simulate", traces, *system, "--nodes"), "--nodes", "--json")
    refused(call("hespas", "simulate", traces, *system, "--comm-groups", "x"), "x: no such file")


def test_traces_for_another_number_of_devices_are_refused(call: Call, block: Path) -> None:
    assert call("hespas", "trace", block, *NODE, "-o", "traces").returncode == 0
    done = call("hespas", "simulate", "traces", "--system", "V100_32GB_8GPU")
    refused(done, "4 devices", "V100_32GB_8GPU has 8")


def test_a_traceback_is_for_debugging(call: Call) -> None:
    done = call("hespas", "run", program(""), *NODE, "--debug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1] == "hespas: error: p.mlir: the file is empty"


def test_a_fault_of_ours_is_one_line_too(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object, **named: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("hespas.cli.flags.requested", fail)
    done = call("hespas", "run", program(ADD), *NODE)
    assert done.returncode == 2
    assert done.stderr == (
        "hespas: error: RuntimeError: two lines; this is a fault of hespas, --debug shows where\n"
    )


def test_an_unknown_command_is_refused(call: Call) -> None:
    refused(call("hespas", "rum"), "'rum'", "see hespas --help")
    refused(call("hespas", "hardware", "A100_SXM_40G"), "did you mean 'A100_SXM_40GB'")


def test_times_beyond_what_can_be_computed_with_are_reported(call: Call, block: Path) -> None:
    node = ("--node", "H100_80GB")
    slow = call("hespas", "estimate", block, *node, "--memory-bandwidth", "1e-300B/s")
    refused(slow, "region 0 takes longer than can be computed with", "check the rates")
    links = ("--cluster", "4xH100_80GB", "--link-bandwidth", "0=1e-300B/s")
    refused(call("hespas", "run", block, *links), "a transfer or a task takes longer", "check its")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("run", "maxtext:base.yml", "model_name=llama3.1-8b"),
            "nothing takes the argument 'model_name=llama3.1-8b'; settings are given as --set",
        ),
        (("hardware", "H100_80GB", "a=b"), "nothing takes the argument 'a=b'; see hespas hardware"),
    ],
)
def test_arguments_that_nothing_takes_are_refused(
    call: Call, arguments: tuple[str, ...], message: str
) -> None:
    refused(call("hespas", *arguments), message)
