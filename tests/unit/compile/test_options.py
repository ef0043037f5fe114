from __future__ import annotations

import pytest

from hespas.compile.options import CompileOptions, Matmuls, gpu_flags, tpu_flags
from hespas.errors import ConfigError


def test_the_defaults_are_the_documented_workflow() -> None:
    flags = gpu_flags(CompileOptions())
    assert flags["xla_gpu_enable_triton_gemm"] == "false"
    assert flags["xla_gpu_enable_latency_hiding_scheduler"] == "true"
    assert flags["xla_gpu_enable_command_buffer"] == ""
    assert flags["xla_gpu_all_reduce_combine_threshold_bytes"] == "134217728"
    assert flags["xla_gpu_all_gather_combine_threshold_bytes"] == "134217728"
    assert flags["xla_gpu_reduce_scatter_combine_threshold_bytes"] == "67108864"
    assert flags["xla_disable_hlo_passes"] == "rematerialization"


@pytest.mark.parametrize(
    ("options", "flag", "value"),
    [
        (CompileOptions(matmuls=Matmuls.TRITON), "xla_gpu_enable_triton_gemm", "true"),
        (
            CompileOptions(latency_hiding_scheduler=False),
            "xla_gpu_enable_latency_hiding_scheduler",
            "false",
        ),
        (
            CompileOptions(pipelined_collectives=False),
            "xla_gpu_enable_pipelined_all_gather",
            "false",
        ),
        (
            CompileOptions(double_buffered_loops=False),
            "xla_gpu_enable_while_loop_double_buffering",
            "false",
        ),
        (
            CompileOptions(all_reduce_combine_bytes=0),
            "xla_gpu_all_reduce_combine_threshold_bytes",
            "0",
        ),
        (
            CompileOptions(all_gather_combine_bytes=2),
            "xla_gpu_all_gather_combine_threshold_bytes",
            "2",
        ),
        (
            CompileOptions(reduce_scatter_combine_bytes=3),
            "xla_gpu_reduce_scatter_combine_threshold_bytes",
            "3",
        ),
        (CompileOptions(disabled_passes=("a", "b-c")), "xla_disable_hlo_passes", "a,b-c"),
        (
            CompileOptions(flags={"xla_gpu_enable_triton_gemm": "x"}),
            "xla_gpu_enable_triton_gemm",
            "x",
        ),
        (CompileOptions(flags={"xla_other": "7"}), "xla_other", "7"),
    ],
)
def test_each_option_changes_its_flag(options: CompileOptions, flag: str, value: str) -> None:
    assert gpu_flags(options)[flag] == value
    assert gpu_flags(CompileOptions()).get(flag) != value


def test_no_pass_may_be_left_out() -> None:
    assert "xla_disable_hlo_passes" not in gpu_flags(CompileOptions(disabled_passes=()))


def test_a_tpu_takes_passes_and_flags_only() -> None:
    assert tpu_flags(CompileOptions()) == {}
    options = CompileOptions(disabled_passes=("dce",), flags={"xla_tpu_x": "1"})
    assert tpu_flags(options) == {"xla_disable_hlo_passes": "dce", "xla_tpu_x": "1"}
    for option in (
        CompileOptions(matmuls=Matmuls.CUBLAS),
        CompileOptions(double_buffered_loops=True),
    ):
        with pytest.raises(ConfigError, match="has no effect on the compiler of a TPU"):
            tpu_flags(option)


@pytest.mark.parametrize("name", ["--xla_x", "x", "xla x", ""])
def test_what_is_no_flag_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="not a flag of XLA"):
        CompileOptions(flags={name: "1"})


def test_a_value_or_a_pass_can_hide_no_other_flag() -> None:
    with pytest.raises(ConfigError, match="has a space"):
        CompileOptions(flags={"xla_x": "1 --xla_y=2"})
    with pytest.raises(ConfigError, match="not the name of a pass"):
        CompileOptions(disabled_passes=("a b",))
