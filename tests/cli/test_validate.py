"""``hespas validate``: what it refuses, and, where the GPU's compiler is there, what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from compilers import needs_gpu
from hespas.evidence.validate.pytorch import PYTORCH_TABLE

Call = Callable[..., CompletedProcess[str]]


def refused(done: CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert all(part in line for part in parts), line


PROGRAM = """
module attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
func.func @main(%a: tensor<1024x1024xbf16>) -> tensor<1024x1024xbf16> {
  %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
    : (tensor<1024x1024xbf16>, tensor<1024x1024xbf16>) -> tensor<1024x1024xbf16>
  return %0 : tensor<1024x1024xbf16>
}
}
"""
HEAD = "workload,node,system,step_s\n"


def test_a_workload_that_was_not_measured_is_refused(call: Call) -> None:
    done = call("hespas", "validate", "--workload", "llama3-7b")
    refused(done, "--workload llama3-7b: nothing was measured of it", "llama3-100m")


def test_a_table_in_another_unit_is_refused(call: Call) -> None:
    Path("steps.csv").write_text("workload,node,system,step_ms\n")
    refused(call("hespas", "validate", "steps.csv"), "steps.csv:1", "no column 'step_s'")


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("lama3-100m,,H100_80GB,H100_80GB_4GPU", ["no model or file 'lama3-100m'", "llama3-100m"]),
        ("no.mlir,,H100_80GB,H100_80GB_4GPU", ["no model or file 'no.mlir'"]),
        ("llama3-100m,,H100_81GB,H100_80GB_4GPU", ["H100_81GB", "did you mean 'H100_80GB'"]),
        ("llama3-100m,,H100_80GB,H100_4", ["H100_4"]),
        ("llama3-100m,mesh=fsdp=4;bacht=2,H100_80GB,H100_80GB_4GPU", ["bacht", "did you mean"]),
        ("p.mlir,batch=2,H100_80GB,H100_80GB_4GPU", ["is no model of the zoo"]),
    ],
)
def test_what_a_line_names_wrongly_is_refused_with_the_line(
    call: Call, line: str, parts: list[str]
) -> None:
    Path("p.mlir").write_text(PROGRAM)
    right = "llama3-100m,mesh=fsdp=4,H100_80GB,H100_80GB_4GPU,0.04\n"
    Path("steps.csv").write_text(f"workload,options,node,system,step_s\n{line},0.05\n{right}")
    refused(call("hespas", "validate", "steps.csv"), "steps.csv:2: ", *parts)


@needs_gpu
def test_ones_own_steps_are_predicted(call: Call) -> None:
    Path("p.mlir").write_text(PROGRAM)
    Path("steps.csv").write_text(HEAD + "p.mlir,H100_80GB,H100_80GB_4GPU,1e-5\n")
    done = call("hespas", "validate", "steps.csv", "--cache-dir", "cache", "--json", "-")
    (step,) = json.loads(done.stdout)["steps"]
    assert 3e-6 < step["predicted_s"]["measured"] < 1e-4
    assert step["predicted_s"]["roofline"] > 2 * 1024**3 / 989.5e12


@needs_gpu
def test_a_step_faster_than_every_peak_is_refused(call: Call) -> None:
    Path("p.mlir").write_text(PROGRAM)
    Path("steps.csv").write_text(HEAD + "p.mlir,H100_80GB,H100_80GB_4GPU,1e-7\n")
    done = call("hespas", "validate", "steps.csv", "--cache-dir", "cache")
    refused(done, "steps.csv:2", "at every peak of H100_80GB it would take", "give seconds")


COMPILED = """HloModule step, is_scheduled=true, num_partitions=4

ENTRY %main (a: bf16[4096,4096]) -> bf16[4096,4096] {
  %a = bf16[4096,4096]{1,0} parameter(0)
  ROOT %d = bf16[4096,4096]{1,0} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


def compiled(*lines: str) -> None:
    Path("step.hlo").write_text(COMPILED)
    Path("steps.csv").write_text(HEAD + "\n".join(lines) + "\n")


def test_a_compiled_program_is_taken_as_it_is(call: Call) -> None:
    compiled("step.hlo,H100_80GB,H100_80GB_4GPU,2e-4")
    (step,) = json.loads(call("hespas", "validate", "steps.csv", "--json", "-").stdout)["steps"]
    on = ("--node", "H100_80GB", "--system", "H100_80GB_4GPU", "--model", "hespas", "--json")
    ran = json.loads(call("hespas", "run", "step.hlo", *on).stdout)
    assert step["predicted_s"]["measured"] == ran["step_time_s"]


def test_what_no_compiler_scheduled_is_refused(call: Call) -> None:
    compiled("step.hlo,H100_80GB,H100_80GB_4GPU,2e-4")
    Path("step.hlo").write_text(COMPILED.replace("is_scheduled=true, ", ""))
    done = call("hespas", "validate", "steps.csv")
    refused(done, "steps.csv:2: step.hlo: is HLO that no compiler scheduled; give its StableHLO")


def test_nodes_of_ones_own_are_reported_from_presets(call: Call) -> None:
    Path("gemm.csv").write_text("m,n,k,dtype,latency_us\n4096,4096,4096,bf16,200\n")
    call("hespas", "calibrate", "--node", "H100_80GB", "--gemm", "gemm.csv", "-o", "mine")
    systems = (
        "mine,H100_80GB_4GPU",
        "H100_80GB,H100_80GB_4GPU",
        "A100_SXM_40GB,A100_SXM_40GB_4GPU",
    )
    compiled(
        *(f"step.hlo,{each},{time}" for each, time in zip(systems, (2e-4, 2e-4, 6e-4), strict=True))
    )
    lines = call("hespas", "validate", "steps.csv").stdout.splitlines()
    own, preset, _ = lines[1:4]
    assert own.startswith("step.hlo          H100_80GB_4GPU of mine ")
    assert preset.startswith("step.hlo          H100_80GB_4GPU  ")
    ratios = [line.split(":")[0].split(None, 1)[1] for line in lines if " over " in line]
    assert ratios == [
        "H100_80GB_4GPU of mine over A100_SXM_40GB_4GPU",
        "H100_80GB_4GPU over A100_SXM_40GB_4GPU",
    ]
    found = json.loads(call("hespas", "validate", "steps.csv", "--json", "-").stdout)
    assert [each["faster_node"] for each in found["speed_ups"]] == ["mine", "H100_80GB"]


def test_the_roofline_stands_once(call: Call) -> None:
    compiled("step.hlo,H100_80GB,H100_80GB_4GPU,2e-4")
    head = call("hespas", "validate", "steps.csv", "--method", "roofline").stdout.splitlines()[0]
    assert head.split() == [
        "workload",
        "system",
        "published",
        "roofline",
        "error",
        "profiled",
        "error",
    ]


def test_a_step_far_from_what_is_predicted_is_refused(call: Call) -> None:
    compiled("step.hlo,H100_80GB,H100_80GB_4GPU,2e-4", "step.hlo,H100_80GB,H100_80GB_8GPU,0.2")
    Path("step.hlo").write_text(COMPILED.replace(", num_partitions=4", ""))
    done = call("hespas", "validate", "steps.csv")
    refused(
        done,
        "steps.csv:3: step.hlo on H100_80GB_8GPU took 200 ms, 1002 times the 199.6 us",
        "; give seconds, and",
    )


def test_a_node_that_the_method_cannot_price_is_reported_before_anything_is_compiled(
    call: Call,
) -> None:
    Path("mine.csv").write_text("workload,node,system,step_s\nllama3-100m,TPUv5e,TPUv5e_2x2,0.1\n")
    done = call("hespas", "validate", "mine.csv")
    refused(done, "mine.csv:2: ", "no tables of measured kernels serve this device")
    done = call("hespas", "validate", "mine.csv", "--method", "kernel")
    refused(done, "mine.csv:2: ", "the microarchitecture of TPUv5e is not described")


def test_every_step_of_a_group_is_shown_with_ones_own(call: Call) -> None:
    compiled("step.hlo,H100_80GB,H100_80GB_4GPU,2e-4", "none.mlir,H100_80GB,H100_80GB_4GPU,1")
    done = call(
        "hespas", "validate", "--all", "steps.csv", "--group", "step.hlo", "--group", "none.mlir",
        "--group", "llama3.1-70b fp8", "--cache-dir", "cache", "--json", "rows.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(Path("rows.json").read_text())["rows"]
    mine = next(row for row in rows if row["workload"] == "step.hlo")
    on = ("--node", "H100_80GB", "--system", "H100_80GB_4GPU", "--json")
    ran = json.loads(call("hespas", "run", "step.hlo", *on).stdout)
    assert mine["predicted_s"] == ran["step_time_s"]
    assert mine["held_by"] == "compiled"
    assert mine["cpu_s"] > 0
    reasons = {row["workload"]: row["reason"] for row in rows if row["predicted_s"] is None}
    assert "no such file" in reasons["none.mlir"]
    assert any("batch and settings are not at hand" in reason for reason in reasons.values())
    assert all(reason in done.stdout for reason in reasons.values())


@pytest.mark.finds_compilers
def test_a_row_with_stages_is_predicted_as_a_pipeline(call: Call) -> None:
    settings = ("layers=2", "vocabulary=512")
    options = (
        "mesh=pipe=2,fsdp=2;schedule=1f1b;global_batch=4;sequence=128;micro_batch=1;"
        f"{';'.join(settings)}"
    )
    Path("mine.csv").write_text(
        f'workload,options,system,step_s\nllama3-100m,"{options}",4xH100_80GB,0.01\n'
    )
    arguments = ("--all", "mine.csv", "--group", "llama3-100m", "--cache-dir", "cache")
    done = call("hespas", "validate", *arguments, "--json", "rows.json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(Path("rows.json").read_text())["rows"]
    of_model = [word for setting in settings for word in ("--set", setting)]
    ran = call(
        "hespas", "run", "llama3-100m", "--mesh", "pipe=2,fsdp=2", "--schedule", "1f1b",
        "--global-batch", "4", "--sequence", "128", "--micro-batch", "1", *of_model,
        "--cluster", "4xH100_80GB", "--json",
    )  # fmt: skip
    assert row["predicted_s"] == json.loads(ran.stdout)["step_time_s"]
    assert row["held_by"] == json.loads(ran.stdout)["fidelity"]
    assert row["peak_memory_bytes"] > 0


def test_a_recipe_without_maxtext_is_a_reason_with_the_remedy(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HESPAS_MAXTEXT_PYTHON", "/nowhere/python")
    done = call("hespas", "validate", "--all", "--group", "H200", "--cache-dir", "cache")
    assert done.returncode == 0
    assert "/nowhere/python" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--all", "--workload", "llama3-100m"), "--workload has no effect with --all"),
        (("--all", "--set", "pytorch"), "--all and --set are both given"),
        (("--set", "pytorch", "--workload", "mpt"), "--workload has no effect with --set"),
        (("--set", "pytorch", "--group", "keras"), "no published step is in the group 'keras'"),
        (("--group", "resnet"), "--group has no effect without --all or --set"),
        (("--time-limit", "60s"), "--time-limit has no effect without --all or --set"),
        (("--all", "--time-limit", "soon"), "--time-limit"),
        (("--all", "--time-limit", "0s"), "--time-limit is below a second"),
        (("--all", "--group", "resnot"), "no published step is in the group 'resnot'"),
        (("--all", "--method", "magic"), "magic"),
        (("--all", "none.csv"), "none.csv"),
    ],
)
def test_what_does_not_go_with_all_is_refused(
    call: Call, arguments: tuple[str, ...], part: str
) -> None:
    refused(call("hespas", "validate", *arguments), part)


def test_steps_of_pytorch_are_predicted_with_kernels_of_libraries(call: Call) -> None:
    head = Path(PYTORCH_TABLE).read_text().splitlines()[0]
    cells = {
        "source": "mosaicml/llm-foundry",
        "framework": "Composer (2023)",
        "model": "mpt-125m",
        "hardware": "a100_40gb",
        "devices": "8",
        "global_batch": "16",
        "micro_batch": "1",
        "sequence": "512",
        "recompute": "none",
        "tokens_per_s_per_device": "50000",
    }
    unknown = {**cells, "model": "bert-base"}
    lines = [",".join(row.get(name, "") for name in head.split(",")) for row in (cells, unknown)]
    Path("mine.csv").write_text("\n".join([head, *lines]) + "\n")
    arguments = ("--set", "pytorch", "mine.csv", "--cache-dir", "cache", "--json", "rows.json")
    done = call("hespas", "validate", *arguments)
    assert done.returncode == 0, done.stderr
    row, missing = json.loads(Path("rows.json").read_text())["rows"]
    assert row["published_s"] == 16 * 512 / 8 / 50000
    assert (row["held_by"], row["publisher"], row["framework_year"]) == (
        "library",
        "llm-foundry",
        2023,
    )
    assert row["predicted_s"] > 0
    assert missing["reason"] == "there is no model bert-base here"
    assert "there is no model bert-base here: bert-base on 8 x A100_SXM_40GB" in done.stdout
