"""``hespas kernels``: what a compiled program's kernels cost, and why."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from msgspec.structs import replace

import hespas
from hespas.program.kernels import (
    CompiledKernels,
    KernelLaunch,
    decode_kernels,
    encode_kernels,
)
from programs import vector_main

Call = Callable[..., CompletedProcess[str]]
NODE = ("--node", "H100_SXM_80GB")
HLO = """HloModule step, is_scheduled=true

%loop (p: f32[16777216]) -> f32[16777216] {
  %p = f32[16777216]{0} parameter(0)
  ROOT %n = f32[16777216]{0} negate(%p)
}

ENTRY %main (a: f32[16777216]) -> f32[16777216] {
  %a = f32[16777216]{0} parameter(0)
  %fusion.1 = f32[16777216]{0} fusion(%a), kind=kLoop, calls=%loop
  %fusion.2 = f32[16777216]{0} fusion(%fusion.1), kind=kLoop, calls=%loop
  ROOT %fusion.3 = f32[16777216]{0} fusion(%fusion.2), kind=kLoop, calls=%loop
}
"""
# Two threads an element apart in every second sector: twice the sectors that it needs.
PTX = """
.visible .entry negated(.param .u64 negated_param_0, .param .u64 negated_param_1)
{
    ld.param.b64 %rd1, [negated_param_0];
    ld.param.b64 %rd2, [negated_param_1];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.s32 %r3, %r1, 128, %r2;
    mul.wide.u32 %rd3, %r3, 64;
    add.s64 %rd4, %rd1, %rd3;
    ld.global.nc.b32 %r5, [%rd4];
    neg.f32 %r6, %r5;
    add.s64 %rd5, %rd2, %rd3;
    st.global.b32 [%rd5], %r6;
    ret;
}
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "step.hlo"
    file.write_text(HLO)
    return file


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    launches = tuple(
        KernelLaunch(
            instruction=f"fusion.{number}",
            kernel="negated",
            grid=(131072, 1, 1),
            block=(128, 1, 1),
            shared_memory_bytes=0,
        )
        for number in (1, 2)
    )
    file = tmp_path / "kernels.json"
    file.write_bytes(encode_kernels(CompiledKernels(launches=launches, ptx={"negated": PTX})))
    return file


def test_equal_kernels_stand_together_with_their_reason(
    call: Call, program: Path, kernels: Path
) -> None:
    done = call("hespas", "kernels", program, "--kernels", kernels, *NODE)
    assert done.returncode == 0, done.stderr
    assert "3 launches of 2 kernels" in done.stdout
    (read,) = [line for line in done.stdout.splitlines() if "negated" in line]
    assert "8x L2 write sectors: 4-byte stores at 64-byte stride" in read
    assert read.split()[4] == "2"


def test_json_holds_every_term(call: Call, program: Path, kernels: Path) -> None:
    done = call("hespas", "kernels", program, "--kernels", kernels, *NODE, "--json")
    rows = json.loads(done.stdout)["kernels"]
    assert [row["launches"] for row in rows] == [2, 1]
    terms = rows[0]["terms_s"]
    assert set(terms) == {"memory", "l2", "l1", "pipe", "turnover", "launch"}
    assert rows[0]["time_s"] >= max(terms.values())
    assert rows[0]["limit"] == "L2"
    assert "no PTX" in rows[1]["reasons"][0]


def test_without_kernels_each_is_priced_by_its_kind(call: Call, program: Path) -> None:
    done = call("hespas", "kernels", program, *NODE, "--json")
    (row,) = json.loads(done.stdout)["kernels"]
    assert (row["kind"], row["launches"]) == ("loop", 3)


def test_kernels_name_the_modules_that_launch_them(
    call: Call, program: Path, kernels: Path
) -> None:
    names = {
        "fusion.1": "jit(f)/jvp(layers_0)/mlp/neg",
        "fusion.2": "jit(f)/jvp(layers_1)/mlp/neg",
        "fusion.3": "jit(f)/transpose(jvp(head))/neg",
    }
    text = program.read_text()
    for instruction, name in names.items():
        start = text.index(f"%{instruction} = ")
        end = text.index("calls=%loop", start) + len("calls=%loop")
        text = f'{text[:end]}, metadata={{op_name="{name}"}}{text[end:]}'
    program.write_text(text)
    done = call("hespas", "kernels", program, "--kernels", kernels, *NODE, "--json")
    rows = json.loads(done.stdout)["kernels"]
    assert [row["modules"] for row in rows] == [["layers/mlp"], ["head"]]
    shown = call("hespas", "kernels", program, "--kernels", kernels, *NODE).stdout
    assert "negated in layers/mlp (" in shown
    alike = json.loads(call("hespas", "kernels", program, *NODE, "--json").stdout)["kernels"]
    assert [row["modules"] for row in alike] == [["head", "layers/mlp"]]
    assert "in head and 1 more (" in call("hespas", "kernels", program, *NODE).stdout


def step_s(call: Call, program: Path, *more: object) -> float:
    done = call("hespas", "run", program, *NODE, "--json", *more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["step_time_s"]


def test_a_step_takes_what_its_kernels_take(call: Call, program: Path, kernels: Path) -> None:
    read_s = step_s(call, program, "--kernels", kernels)
    assert read_s > 1.5 * step_s(call, program)
    known = replace(hespas.stages.load(program), kernels=decode_kernels(kernels.read_bytes()))
    assert hespas.predict(known, NODE[1]).step_time_s == read_s
    assert hespas.predict(known, NODE[1], method="measured").step_time_s == read_s
    roofline_s = step_s(call, program, "--method", "roofline")
    assert hespas.predict(known, NODE[1], method="roofline").step_time_s == roofline_s < read_s


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"program": "0" * 64}, r"step\.hlo; give those"),
        ({"launches": ("fusion.1", "fusion.9")}, r"step\.hlo, which launch fusion\.9"),
    ],
)
def test_kernels_of_another_program_are_refused(
    call: Call, program: Path, kernels: Path, change: Mapping[str, Any], why: str
) -> None:
    known = decode_kernels(kernels.read_bytes())
    names = change.get("launches", ())
    launches = [replace(known.launches[0], instruction=name) for name in names]
    wrong = replace(known, program=change.get("program", ""), launches=tuple(launches))
    kernels.write_bytes(encode_kernels(wrong))
    done = call("hespas", "run", program, "--kernels", kernels, *NODE)
    assert done.returncode == 2
    shown = rf"kernels\.json: holds the kernels of another program than .*{why}"
    assert re.search(shown, done.stderr)


def test_kernels_without_effect_are_refused(call: Call, program: Path, kernels: Path) -> None:
    plain = program.with_name("plain.mlir")
    plain.write_text(vector_main("%r = stablehlo.add %a, %a : tensor<8xf32>"))
    for words, message in (
        ((program, "--method", "roofline"), "--kernels has no effect on method roofline"),
        ((plain,), "--kernels has no effect on a program that is not compiled"),
        ((plain, "--optimise"), "--kernels has no effect with --optimise"),
    ):
        done = call("hespas", "run", *words, "--kernels", kernels, *NODE)
        assert done.returncode == 2
        assert message in done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"[]", "holds no kernels"), (b"\xff", "holds no kernels")],
)
def test_a_file_that_holds_no_kernels_is_refused(
    call: Call, program: Path, kernels: Path, content: bytes, message: str
) -> None:
    kernels.write_bytes(content)
    done = call("hespas", "kernels", program, "--kernels", kernels, *NODE)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_program_as_exported_is_refused(call: Call, block: Path) -> None:
    done = call("hespas", "kernels", block, *NODE, "--as-exported")
    assert done.returncode == 2
    assert "give --fidelity compiled" in done.stderr


def test_a_device_whose_inside_is_not_described_is_refused(call: Call, program: Path) -> None:
    done = call("hespas", "kernels", program, "--node", "TPUv3")
    assert done.returncode == 2
    assert "is not described" in done.stderr


def test_kernels_of_another_part_are_said_to_be(call: Call, program: Path, kernels: Path) -> None:
    made = replace(decode_kernels(kernels.read_bytes()), target="sm_90a")
    kernels.write_bytes(encode_kernels(made))
    here = ("kernels", program, "--kernels", kernels, "--node")
    assert "Assumed" not in call("hespas", *here, "H100_80GB").stdout
    shown = call("hespas", *here, "A100_SXM_40GB").stdout
    assert "compiled for compute capability 9.0" in shown.partition("Assumed:")[2]
    found = json.loads(call("hespas", *here, "A100_SXM_40GB", "--json", "-").stdout)
    assert ["capability 9.0" in text for text in found["assumptions"]] == [True]
    step = ("estimate", program, "--kernels", kernels, "--method", "kernel")
    assert "capability 9.0" in call("hespas", *step, "--node", "A100_SXM_40GB").stdout


# Six rounds of a loop whose body has a loop of three rounds and a branch.
LOOPS = """HloModule step, is_scheduled=true

%loop (p: f32[16777216]) -> f32[16777216] {
  %p = f32[16777216]{0} parameter(0)
  ROOT %n = f32[16777216]{0} negate(%p)
}

%small (p: f32[16777216]) -> f32[4194304] {
  %p = f32[16777216]{0} parameter(0)
  ROOT %s = f32[4194304]{0} slice(%p), slice={[0:4194304]}
}

%nothing (p: f32[16777216]) -> f32[16777216] {
  ROOT %p = f32[16777216]{0} parameter(0)
}

%twice (p: f32[16777216]) -> f32[16777216] {
  %p = f32[16777216]{0} parameter(0)
  %first = f32[16777216]{0} fusion(%p), kind=kLoop, calls=%loop
  ROOT %second = f32[16777216]{0} fusion(%first), kind=kLoop, calls=%loop
}

%again (s: (s32[], f32[16777216])) -> pred[] {
  %s = (s32[], f32[16777216]{0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %end = s32[] constant(9)
  ROOT %less = pred[] compare(%i, %end), direction=LT
}

%inner (s: (s32[], f32[16777216])) -> (s32[], f32[16777216]) {
  %s = (s32[], f32[16777216]{0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[16777216]{0} get-tuple-element(%s), index=1
  %fusion.1 = f32[16777216]{0} fusion(%x), kind=kLoop, calls=%loop
  ROOT %next = (s32[], f32[16777216]{0}) tuple(%i, %fusion.1)
}

%outer (s: (s32[], f32[16777216])) -> (s32[], f32[16777216]) {
  %s = (s32[], f32[16777216]{0}) parameter(0)
  %w = (s32[], f32[16777216]{0}) while(%s), condition=%again, body=%inner,
    backend_config={"known_trip_count":{"n":"3"}}
  %i = s32[] get-tuple-element(%w), index=0
  %x = f32[16777216]{0} get-tuple-element(%w), index=1
  %fusion.2 = f32[4194304]{0} fusion(%x), kind=kLoop, calls=%small
  %c = f32[16777216]{0} conditional(%i, %x, %x), branch_computations={%nothing, %twice}
  ROOT %next = (s32[], f32[16777216]{0}) tuple(%i, %c)
}

ENTRY %main (i: s32[], a: f32[16777216]) -> (s32[], f32[16777216]) {
  %i = s32[] parameter(0)
  %a = f32[16777216]{0} parameter(1)
  %s = (s32[], f32[16777216]{0}) tuple(%i, %a)
  ROOT %w = (s32[], f32[16777216]{0}) while(%s), condition=%again, body=%outer,
    backend_config={"known_trip_count":{"n":"6"}}
}
"""


@pytest.mark.parametrize(
    ("weights", "negated"), [((), 6 * (3 + 2)), (("--branch-weights", "0.75,0.25"), 6 * (3 + 0.5))]
)
def test_launches_count_the_rounds_of_loops(
    call: Call, tmp_path: Path, weights: tuple[str, ...], negated: float
) -> None:
    file = tmp_path / "loops.hlo"
    file.write_text(LOOPS)
    done = call("hespas", "kernels", file, *NODE, "--json", *weights)
    assert done.returncode == 0, done.stderr
    table = json.loads(done.stdout)
    assert [row["launches"] for row in table["kernels"]] == [negated, 6]
    assert table["launches"] == negated + 6
    total_s = sum(row["launches"] * row["time_s"] for row in table["kernels"])
    assert table["kernels_s"] == pytest.approx(total_s)
    assert total_s == pytest.approx(step_s(call, file, *weights))
    assert table["library"] == {"launches": 0, "time_s": 0}
    text = call("hespas", "kernels", file, *NODE, *weights).stdout
    assert f"{negated + 6:g} launches of 2 kernels take" in text


def test_what_libraries_run_stands_beside_and_the_two_are_the_whole(
    call: Call, program: Path
) -> None:
    product = """  %d = f32[1024,1024]{1,0} bitcast(%fusion.2)
  %product = f32[1024,1024]{1,0} dot(%d, %d), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT"""
    program.write_text(
        HLO.replace("16777216", "1048576").replace("  ROOT %fusion.3", f"{product} %fusion.3")
    )
    table = json.loads(call("hespas", "kernels", program, *NODE, "--json").stdout)
    assert table["library"]["launches"] == 1
    assert table["kernels_s"] + table["library"]["time_s"] == pytest.approx(step_s(call, program))
    assert "1 calls of libraries" in call("hespas", "kernels", program, *NODE).stdout


def test_kernels_add_up_to_the_computation_at_its_clock(call: Call, llama: Path) -> None:
    """Its products run longer than those of the tables, which a power limit slows."""
    step = (llama, "--node", "A100_SXM_40GB", "--fidelity", "fused")
    on = ("--system", "A100_SXM_40GB_4GPU", "--json", "-")
    for more in ((), ("--power-limit", "300W"), ("--clocks", "measured")):
        table = json.loads(call("hespas", "kernels", *step, *on, *more).stdout)
        run = json.loads(call("hespas", "run", *step, *on, *more).stdout)
        added_s = table["kernels_s"] + table["library"]["time_s"]
        assert added_s == pytest.approx(run["compute_s"], rel=1e-6)
