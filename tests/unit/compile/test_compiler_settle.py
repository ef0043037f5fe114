from __future__ import annotations

from dataclasses import replace

import pytest

from compilers import JOB, needs_gpu, needs_tpu
from hespas.compile import compiler
from hespas.compile.cache import job_key
from hespas.compile.compiler import Settled, settled
from hespas.compile.job import Layout, job_of
from hespas.compile.options import CompileOptions
from hespas.compile.recipe import parse_recipe
from hespas.compile.targets import find_target
from hespas.errors import ConfigError
from hespas.xla.compile.messages import FlagsAnswer

TPU = """
xla_tpu_scoped_vmem_limit_kib=98304
xla_tpu_aggressive_opt_barrier_removal=ENABLED
xla_sc_disjoint_spmem=false
"""
GPU = """
--xla_gpu_enable_triton_gemm=true --xla_gpu_enable_while_loop_double_buffering=true
--xla_gpu_graph_level=0 --xla_gpu_enable_command_buffer=FUSION --xla_dump_to=/tmp/x
"""


def settled_for(target: str, text: str, double_buffered_loops: bool | None = None) -> Settled:
    job = job_of(
        b"module {}",
        name="a.mlir",
        target=find_target(target),
        layout=Layout(devices=1),
        options=CompileOptions(
            recipe=parse_recipe(text, file="r.txt"), double_buffered_loops=double_buffered_loops
        ),
    )
    return settled(job)


@needs_tpu
def test_a_tpu_gets_what_its_compiler_takes_and_the_rest_is_said() -> None:
    made = settled_for("TPUv6e", TPU)
    assert dict(made.job.request.overrides) == {
        "xla_tpu_scoped_vmem_limit_kib": "98304",
        "xla_tpu_aggressive_opt_barrier_removal": "ENABLED",
    }
    assert made.notes[0] == "compiled with 2 of the 3 flags of r.txt"
    assert made.notes[1].endswith("xla_sc_disjoint_spmem")


@needs_gpu
def test_a_gpu_gets_what_its_compiler_takes_and_options_go_before() -> None:
    made = settled_for("H100_SXM", GPU, double_buffered_loops=False)
    flags = made.job.flags
    assert flags["xla_gpu_enable_triton_gemm"] == "true"
    assert flags["xla_gpu_enable_while_loop_double_buffering"] == "false"
    assert flags["xla_gpu_enable_command_buffer"] == ""
    assert "xla_gpu_graph_level" not in flags
    assert "xla_dump_to" not in flags
    left = "\n".join(made.notes[1:])
    for name in ("graph_level", "command_buffer", "double_buffering", "xla_dump_to"):
        assert name in left
    assert "triton_gemm" not in left


@pytest.mark.parametrize(
    ("target", "text", "message"),
    [
        pytest.param(
            "TPUv6e",
            "\nxla_sc_disjoint_spmen=false",
            "r.txt:2: the compiler for TPUv6e has no flag xla_sc_disjoint_spmen; "
            "did you mean xla_sc_disjoint_spmem",
            marks=needs_tpu,
        ),
        pytest.param(
            "H100_SXM",
            "xla_gpu_enable_triton_gem=false",
            "r.txt:1: the compiler for H100_SXM has no flag xla_gpu_enable_triton_gem; "
            "did you mean xla_gpu_enable_triton_gemm",
            marks=needs_gpu,
        ),
        pytest.param(
            "TPUv6e",
            "xla_tpu_scoped_vmem_limit_kib=many",
            "r.txt:1: 'many' is no value of the compiler's flag xla_tpu_scoped_vmem_limit_kib",
            marks=needs_tpu,
        ),
    ],
)
def test_a_flag_that_no_compiler_has_is_an_error(target: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settled_for(target, text)


def test_a_recipe_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (parse_recipe(f"xla_a_b={value}", file="r") for value in (1, 2))
    keys = {job_key(replace(JOB, recipe=recipe)) for recipe in (None, first, second)}
    assert len(keys) == 3
    assert job_key(replace(JOB, set_flags={"xla_a_b": "1"})) == job_key(JOB)

    def all_of_them(*_: object) -> FlagsAnswer:
        return FlagsAnswer()

    monkeypatch.setattr(compiler, "_ask_compiler", all_of_them)
    made = settled(replace(JOB, recipe=first))
    assert made.job.flags == {**JOB.flags, "xla_a_b": "1"}
    assert made.job.request.overrides == made.job.flags


def test_without_a_recipe_nothing_is_asked() -> None:
    assert settled(JOB).job is JOB
