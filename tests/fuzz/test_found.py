"""Damaged files that were not refused in one line once."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from fuzz.good_files import HLO, LOOPS, PTX
from hespas.cli.commands import commands, run
from hespas.errors import ProgramError
from hespas.price.ptx.opcodes import slots_of
from hespas.price.ptx.parser import read_kernel
from hespas.program.kernels import CompiledKernels, KernelLaunch, encode_kernels
from hespas.study.store import opened
from hespas.study.study import study_of
from hespas.xla.hlo.module import read_hlo_module
from hespas.xla.mlir.module import parse_mlir
from mosaic_kernels import matmul, shape
from small_studies import STUDY, study_rows
from triton_kernels import product

Hespas = Callable[..., str]
NODE = ("--node", "A100_SXM_40GB")


@pytest.fixture
def hespas(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Hespas:
    """Return a function that runs a command and returns what it prints, an error in one line."""
    monkeypatch.chdir(tmp_path)

    def said(*words: str) -> str:
        capsys.readouterr()
        code = run(commands, "hespas", words)
        shown = capsys.readouterr()
        assert "fault of hespas" not in shown.err
        assert len(shown.err.splitlines()) == (code == 2)
        return shown.err if code else shown.out

    return said


def test_kernels_that_are_no_text(hespas: Hespas) -> None:
    Path("step.hlo").write_text(HLO)
    Path("kernels.json").write_bytes(b'{"launches": [], "ptx": {"negated": "\xff"}}')
    text = hespas("kernels", "step.hlo", "--kernels", "kernels.json", *NODE)
    assert "kernels.json: holds no kernels" in text


def test_a_buffer_of_an_algorithm_that_is_none(hespas: Hespas) -> None:
    hespas("algorithm", "ring", "--ranks", "4", "--chakra", "c")
    file = Path("c/ring_allreduce_4.0.et")
    changed, times = re.subn(
        rb"(srcbuf.{1,4}\x01)[ios]", rb"\1?", file.read_bytes(), flags=re.DOTALL
    )
    assert times
    file.write_bytes(changed)
    text = hespas("algorithm", "c/ring_allreduce_4", "--ranks", "4")
    assert "srcbuf is '?'" in text


def test_a_profile_that_is_damaged_inside(hespas: Hespas) -> None:
    Path("step.hlo").write_text(HLO)
    packed = bytearray(gzip.compress(b'{"traceEvents": []}' * 9, mtime=0))
    packed[12:20] = b"\xff" * 8
    Path("p.json.gz").write_bytes(packed)
    profile = ("--profile", "p.json.gz", "--program", "step.hlo")
    assert "p.json.gz: the profile" in hespas("calibrate", *NODE, *profile, "-o", "out")


def test_half_a_character_in_a_configuration(hespas: Hespas) -> None:
    Path("c.json").write_text('{"mlir_file": "\\ud800"}')
    assert "c.json: a text holds half of a character, \\ud800" in hespas("run", "c.json")


def test_a_number_of_thousands_of_digits(hespas: Hespas) -> None:
    Path("c.json").write_text('{"block_lim": ' + "9" * 5000 + "}")
    assert "c.json: malformed JSON: Exceeds the limit" in hespas("run", "c.json")


def test_a_computation_that_calls_itself(hespas: Hespas) -> None:
    message = read_hlo_module(HLO.encode(), name="step.hlo").message
    (body,) = (one for one in message.computations if one.name == "body")
    (fusion,) = (one for one in body.instructions if one.opcode == "fusion")
    fusion.called_computation_ids[:] = [body.id]
    Path("step.hlo").write_bytes(message.SerializeToString())
    assert "calls itself" in hespas("estimate", "step.hlo", *NODE)


def test_a_price_in_a_cache_that_was_changed(hespas: Hespas) -> None:
    Path("step.mlir").write_text(LOOPS)
    words = ("estimate", "step.mlir", *NODE, "--cache-dir", "kept")
    hespas(*words)
    with closing(sqlite3.connect("kept/estimates.sqlite")) as connection, connection:
        connection.execute("UPDATE estimates SET value = replace(value, '1', '2')")
    assert "holds an entry that is no estimate; delete" in hespas(*words)


def test_a_block_of_too_many_threads(hespas: Hespas) -> None:
    Path("step.hlo").write_text(HLO)
    launch = KernelLaunch(
        instruction="f.1",
        kernel="negated",
        grid=(1, 1, 1),
        block=(128, 2**31, 1),
        shared_memory_bytes=0,
    )
    kernels = CompiledKernels(launches=(launch,), ptx={"negated": PTX})
    Path("kernels.json").write_bytes(encode_kernels(kernels))
    text = hespas("kernels", "step.hlo", "--kernels", "kernels.json", *NODE)
    assert "f.1 launches (1, 1, 1) blocks of (128, 2147483648, 1) threads" in text


def test_a_device_in_a_list_that_is_no_number(hespas: Hespas) -> None:
    Path("step.mlir").write_text(LOOPS)
    Path("c.yml").write_text("devices: [{devices: [1x], compute_scale: 2}]")
    system = ("--system", "A100_SXM_40GB_4GPU")
    text = hespas("run", "step.mlir", *NODE, *system, "--imperfect", "c.yml")
    assert 'c.yml: $.devices[0].devices[0] is "1x"' in text


def test_a_name_in_bytecode_that_is_no_text(hespas: Hespas) -> None:
    name = b"num_partitions"
    written = BytesIO()
    parse_mlir(LOOPS.encode(), name="step.mlir").handle.operation.write_bytecode(written)
    damaged = written.getvalue().replace(name, name[:-1] + b"\xff")
    Path("step.mlir").write_bytes(damaged)
    assert "step.mlir: cannot be parsed" in hespas("run", "step.mlir", *NODE, "--as-exported")


def test_cycles_of_thousands_of_digits(hespas: Hespas) -> None:
    config = 'backend_config={"window_config":{"estimated_cycles":"' + "9" * 5000 + '"}}'
    Path("step.hlo").write_text(HLO.replace("calls=%fused", f"calls=%fused, {config}", 1))
    assert "hespas: error" not in hespas("memory", "step.hlo", *NODE)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("m,n,k,dtype,latency_us\n" + "9" * 5000 + ",8,8,bf16,1\n", "gemm.csv:2: m is '9999"),
        ("m,n,k,dtype,latency_us\n٣,8,8,bf16,1\n", "gemm.csv:2: m is "),
    ],
)
def test_a_size_that_is_no_number(hespas: Hespas, table: str, said: str) -> None:
    Path("gemm.csv").write_text(table)
    assert said in hespas("calibrate", *NODE, "--gemm", "gemm.csv", "-o", "out")


def test_results_of_nccl_tests_with_two_points_in_a_number(hespas: Hespas) -> None:
    ranks = "".join(f"#  Rank {at} Group 0\n" for at in range(4))
    line = " 2048 512 float sum -1 12.0.1 0.17 0.26 0\n"
    Path("nccl.txt").write_text(f"# all_reduce_perf\n{ranks}#  (B) (us)\n{line}")
    words = ("calibrate", *NODE, "--link", "NVLink3_A100", "-o", "out")
    assert "nccl.txt:7: it is no line of results" in hespas(*words, "--nccl", "nccl.txt")


def test_a_kind_of_step_that_there_is_none_of(hespas: Hespas) -> None:
    hespas("algorithm", "ring", "--ranks", "4", "--chakra", "c")
    file = Path("c/ring_allreduce_4.0.et")
    changed, times = re.subn(
        rb"(step_type.{1,6}\x03)rrc", rb"\1rrx", file.read_bytes(), flags=re.DOTALL
    )
    assert times
    file.write_bytes(changed)
    assert "step_type is 'rrx'" in hespas("algorithm", "c/ring_allreduce_4", "--ranks", "4")


@pytest.mark.parametrize(
    "text", ["expert,tokens\n0,1\r1,\x002\n", "expert,tokens\n0," + "1" * 200_000]
)
def test_a_table_that_is_no_csv(hespas: Hespas, text: str) -> None:
    Path("step.mlir").write_text(LOOPS)
    Path("load.csv").write_text(text)
    words = ("run", "step.mlir", "--cluster", "4xA100_SXM_40GB", "--as-exported")
    assert "load.csv" in hespas(*words, "--expert-load", "load.csv")


@pytest.mark.parametrize("damage", ["cut", "figures", "text"])
def test_results_of_a_study_that_are_damaged(hespas: Hespas, damage: str) -> None:
    with opened(Path("kept")) as store:
        store.keep_study(study_of(STUDY).to_dict(), {})
        store.keep_rows(study_rows())
    file = Path("kept/study.sqlite")
    content = file.read_bytes()
    changed = {
        "cut": content[:-4096],
        "text": content.replace(b'"title": "Eight', b'"title": "Eigh\xff'),
        "figures": content.replace(b'{"step_time_s": ', b'{"step_time_s"= '),
    }
    assert changed[damage] != content
    file.write_bytes(changed[damage])
    said = "kept/study.sqlite: the study's results "
    assert said in hespas("study", "table", "kept")
    assert said in hespas("report", "kept", "-o", "out.html")
    if damage != "figures":
        assert said in hespas("study", "resume", "kept", "--workers", "1")


def test_a_result_with_kernels_that_never_run(hespas: Hespas) -> None:
    Path("step.hlo").write_text(HLO)
    system = ("--system", "A100_SXM_40GB_4GPU")
    hespas("run", "step.hlo", *NODE, *system, "--json", "run.json")
    result = json.loads(Path("run.json").read_text())
    assert result["kernels"]
    for kernel in result["kernels"]:
        kernel["count"] = 0
    Path("run.json").write_text(json.dumps(result))
    assert "page.html" in hespas("report", "run.json", "-o", "page.html")


def test_text_of_hlo_that_ends_before_its_entry(hespas: Hespas) -> None:
    beginning, entry, _ = HLO.partition("ENTRY")
    assert entry
    Path("step.hlo").write_text(beginning)
    assert "step.hlo: it has no ENTRY computation" in hespas("memory", "step.hlo", *NODE)


def test_a_cache_whose_index_has_a_name_that_is_no_text(hespas: Hespas) -> None:
    Path("step.mlir").write_text(LOOPS)
    words = ("estimate", "step.mlir", *NODE, "--cache-dir", "kept")
    hespas(*words)
    file = Path("kept/estimates.sqlite")
    content = file.read_bytes()
    assert b"indexsqlite_auto" in content
    file.write_bytes(content.replace(b"indexsqlite_auto", b"index\xf3qlite_auto"))
    assert "the estimator cache is damaged or unusable" in hespas(*words)


def test_a_result_of_no_operation(hespas: Hespas) -> None:
    Path("step.mlir").write_text(LOOPS.replace("%r#0 :", "%r#2147483647 :"))
    said = hespas("run", "step.mlir", *NODE, "--as-exported")
    assert "step.mlir:28: the result #2147483647 is of no operation" in said


def test_a_result_with_figures_that_make_endless_rates(hespas: Hespas) -> None:
    Path("step.hlo").write_text(HLO)
    system = ("--system", "A100_SXM_40GB_4GPU")
    hespas("run", "step.hlo", *NODE, *system, "--json", "run.json")
    result = json.loads(Path("run.json").read_text())
    result["kernels"][0]["time_s"] = 1e-308
    Path("run.json").write_text(json.dumps(result))
    assert "no finite number" in hespas("report", "run.json", "-o", "page.html")


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("ld.global.b32", "ld.global.", r"cannot read the PTX statement 'ld\.global\. %r5"),
        ("cvta.to.global.u64 %rd4", "cvta.to.global4", r"'cvta\.to\.global4, %rd2' lacks an oper"),
        ("mov.u32 %r7, 0", "mov.u32 %r7, " + "9" * 5000, "has hundreds of digits"),
    ],
)
def test_a_kernel_that_is_no_ptx(old: str, new: str, error: str) -> None:
    text = PTX.replace(old, new)
    assert text != PTX
    with pytest.raises(ProgramError, match=error):
        read_kernel(text)


def test_a_conversion_in_ptx_between_no_types() -> None:
    kernel = read_kernel(PTX.replace("neg.s32 %r6", "cvt.rn %r6"))
    with pytest.raises(ProgramError, match=r"'cvt\.rn' does not say what it converts"):
        slots_of(kernel.instructions)


def test_folded_groups_of_no_devices(hespas: Hespas) -> None:
    message = read_hlo_module(HLO.encode(), name="step.hlo").message
    (start,) = (
        one
        for computation in message.computations
        for one in computation.instructions
        if one.opcode == "all-reduce-start"
    )
    start.iota_collective_device_list.num_devices_per_group = 0
    start.iota_collective_device_list.iota_reshape_dims[:] = [4]
    start.iota_collective_device_list.iota_transpose_perm[:] = [0]
    Path("step.hlo").write_bytes(message.SerializeToString())
    system = ("--system", "A100_SXM_40GB_4GPU")
    assert "replica groups of 0 don't divide" in hespas("run", "step.hlo", *NODE, *system)


def test_dimensions_of_a_convolution_at_one_place(hespas: Hespas) -> None:
    text = (Path(__file__).parents[1] / "laws" / "tpu_v5e.hlo").read_text()
    message = read_hlo_module(text.encode(), name="step.hlo").message
    convolutions = [
        one
        for computation in message.computations
        for one in computation.instructions
        if one.opcode == "convolution"
    ]
    assert convolutions
    for one in convolutions:
        one.convolution_dimension_numbers.output_feature_dimension = 0
    Path("step.hlo").write_bytes(message.SerializeToString())
    said = hespas("estimate", "step.hlo", "--node", "TPUv5e")
    assert "dimensions of a convolution's output lie at (0, 0" in said


def test_a_kernel_of_triton_whose_name_is_no_text(hespas: Hespas) -> None:
    text = product(128, 128, 128)
    changed = text.replace("\\00matmul_kernel\\00", "\\00matmul\\FFkernel\\00")
    assert changed != text
    Path("step.mlir").write_text(changed)
    assert "its kernel cannot be read" in hespas("estimate", "step.mlir", *NODE)


def test_a_kernel_of_pallas_on_arrays_of_other_dimensions(hespas: Hespas) -> None:
    jax: Any = import_module("jax")
    traced = jax.jit(matmul(256, 256, 256, blocks=(128, 128, 128))).trace(
        shape(256, 256), shape(256, 256)
    )
    text: str = traced.lower(lowering_platforms=("tpu",)).as_text()
    for old, new in (
        ("tensor<256x256xbf16>", "tensor<256x256x1xbf16>"),
        ("dense<[1, 0]> : tensor<2xindex>", "dense<[2, 1, 0]> : tensor<3xindex>"),
    ):
        assert old in text
        text = text.replace(old, new)
    Path("step.mlir").write_text(text)
    said = hespas("estimate", "step.mlir", "--node", "TPUv5e")
    assert "has blocks of 2 dimensions on an array of 3" in said


def test_errors_in_two_modules_of_one_file(tmp_path: Path) -> None:
    wrong = LOOPS.replace("<{start_indices", "<{star_indices")
    (tmp_path / "step.mlir").write_text(wrong + wrong)
    command = [sys.executable, "-m", "hespas", "run", "step.mlir", *NODE, "--as-exported"]
    for _ in range(3):
        done = subprocess.run(
            command, cwd=tmp_path, timeout=120, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert "step.mlir:1" in done.stderr


def test_a_loop_over_a_tuple_of_nothing(hespas: Hespas) -> None:
    message = read_hlo_module(HLO.encode(), name="step.hlo").message
    (carried,) = (
        one
        for computation in message.computations
        for one in computation.instructions
        if one.name == "in"
    )
    carried.operand_ids[:] = []
    Path("step.hlo").write_bytes(message.SerializeToString())
    said = hespas("memory", "step.hlo", *NODE)
    assert "%loop: a while of 0 values has 2 in its body" in said


def test_a_loop_whose_body_returns_more_than_it_takes(hespas: Hespas) -> None:
    message = read_hlo_module(HLO.encode(), name="step.hlo").message
    (body,) = (one for one in message.computations if one.name == "body")
    (returned,) = (one for one in body.instructions if one.opcode == "tuple")
    returned.operand_ids.extend(list(returned.operand_ids))
    Path("step.hlo").write_bytes(message.SerializeToString())
    said = hespas("memory", "step.hlo", *NODE)
    assert "%loop: the body of a while of 2 values has 4" in said


def test_a_fusion_of_nothing(hespas: Hespas) -> None:
    message = read_hlo_module(HLO.encode(), name="step.hlo").message
    (main,) = (one for one in message.computations if one.name == "main")
    (fused,) = (one for one in main.instructions if one.name == "f.1")
    fused.operand_ids[:] = []
    Path("step.hlo").write_bytes(message.SerializeToString())
    said = hespas("memory", "step.hlo", *NODE)
    assert "%f.1: a fusion of 0 values has 1 in its body" in said


def test_hlo_text_that_ends_its_parser(hespas: Hespas) -> None:
    Path("step.hlo").write_text(HLO.replace("dot(%a, %b)", "dot(s32[], f32[4096,512])"))
    assert "step.hlo: cannot be parsed: XLA's parser" in hespas("memory", "step.hlo", *NODE)


def test_a_path_with_a_zero_in_it(hespas: Hespas) -> None:
    Path("step.mlir").write_text(LOOPS)
    directory = Path("system/hespas")
    directory.mkdir(parents=True)
    dimension = {"topology": "switch", "size": 4, "link": "/a\0b"}
    (directory / "network.json").write_text(json.dumps({"dimensions": [dimension]}))
    said = hespas("run", "step.mlir", "--as-exported", *NODE, "--system", "./system")
    assert "no link preset or file is named '/a\\x00b'" in said
