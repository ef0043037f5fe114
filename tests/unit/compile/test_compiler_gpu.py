"""What the compiler for GPUs makes of small programs; no GPU is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compilers import needs_gpu
from hespas.base.process import Limits
from hespas.compile.compiler import compile_program
from hespas.compile.job import ANY_LAYOUT, CompiledProgram, Layout
from hespas.compile.options import SLOP_FLAG, CompileOptions, Matmuls
from hespas.compile.targets import GpuTarget, find_target
from hespas.errors import UnsupportedError
from hespas.xla.compile.kernels import read_instruction_names
from programs import all_reduce, main_function, on_devices

pytestmark = needs_gpu

MATRIX = "tensor<256x256xf32>"
ONE_BYTES = 256 * 256 * 4
LOOP = main_function(
    f"""%zero = stablehlo.constant dense<0> : tensor<i32>
    %i, %r = stablehlo.while(%k = %zero, %x = %a) : tensor<i32>, {MATRIX} cond {{
      %end = stablehlo.constant dense<6> : tensor<i32>
      %more = stablehlo.compare LT, %k, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }} do {{
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %k, %one : tensor<i32>
      %m = stablehlo.dot_general %x, %b, contracting_dims = [1] x [0]
        : ({MATRIX}, {MATRIX}) -> {MATRIX}
      %t = stablehlo.tanh %m : {MATRIX}
      stablehlo.return %next, %t : tensor<i32>, {MATRIX}
    }}
    return %r : {MATRIX}""",
    arguments=f"%a: {MATRIX} {{tf.aliasing_output = 0 : i32}}, %b: {MATRIX}",
    results=MATRIX,
)
SHARDED = on_devices(
    'sdy.mesh @m = <["x"=4]>\n'
    + main_function(
        f"""%m = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
          : ({MATRIX}, {MATRIX}) -> {MATRIX}
        %r = stablehlo.add %m, %b : {MATRIX}
        return %r : {MATRIX}""",
        arguments=(
            f'%a: {MATRIX} {{sdy.sharding = #sdy.sharding<@m, [{{"x"}}, {{}}]>}}, '
            f'%b: {MATRIX} {{sdy.sharding = #sdy.sharding<@m, [{{"x"}}, {{}}]>}}'
        ),
        results=f'{MATRIX} {{sdy.sharding = #sdy.sharding<@m, [{{"x"}}, {{}}]>}}',
    )
)
WORKFLOW_PASSES = ("async-collective-conversion", "gpu-reduce-scatter-combiner", "no-such-pass")
REDUCED = on_devices(
    main_function(
        f"""%s = "stablehlo.all_reduce"(%a) <{{channel_handle = #stablehlo.channel_handle<handle
          = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>,
          use_global_device_ids}}> ({{
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
          %z = stablehlo.add %x, %y : tensor<f32>
          stablehlo.return %z : tensor<f32>
        }}) : ({MATRIX}) -> {MATRIX}
        %t = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0]
          : ({MATRIX}, {MATRIX}) -> {MATRIX}
        %r = stablehlo.multiply %s, %t : {MATRIX}
        return %r : {MATRIX}""",
        arguments=f"%a: {MATRIX}",
        results=MATRIX,
    )
)


def compiled(
    text: str,
    target: str = "H100_SXM",
    options: CompileOptions | None = None,
    layout: Layout = ANY_LAYOUT,
) -> CompiledProgram:
    return compile_program(
        text.encode(),
        name="a.mlir",
        target=target,
        layout=layout,
        options=options or CompileOptions(),
        limits=Limits(time_s=300, memory_bytes=16 * 2**30),
    )


@pytest.fixture(scope="module")
def loop() -> CompiledProgram:
    return compiled(LOOP, options=CompileOptions(double_buffered_loops=False))


def test_a_program_is_optimised_and_scheduled(loop: CompiledProgram) -> None:
    assert "is_scheduled=true" in loop.hlo_text
    assert "__cublas$lt$matmul" in loop.hlo_text
    assert '"known_trip_count":{"n":"6"}' in loop.hlo_text
    assert (loop.replicas, loop.partitions, loop.topology) == (1, 1, "1x1x1")
    assert set(loop.versions) == {"jaxlib", "jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12"}
    assert loop.flags["xla_gpu_enable_while_loop_double_buffering"] == "false"


def test_memory_is_as_xla_says(loop: CompiledProgram) -> None:
    memory = loop.memory
    assert memory.argument_bytes == 2 * ONE_BYTES
    assert memory.output_bytes == ONE_BYTES
    assert memory.alias_bytes == ONE_BYTES
    assert memory.total_bytes == 2 * ONE_BYTES + memory.temporary_bytes


def test_kernels_of_a_loop_are_tied(loop: CompiledProgram) -> None:
    assert loop.kernels is not None
    launches = loop.kernels.launches
    names = [launch.instruction for launch in launches]
    assert set(names) <= read_instruction_names(loop.hlo_text).instructions
    (tanh,) = [launch for launch in launches if "tanh" in launch.kernel]
    threads = tanh.grid[0] * tanh.block[0]
    assert ONE_BYTES // 4 % threads == 0
    assert f".visible .entry {tanh.kernel}(" in loop.kernels.ptx[tanh.kernel]
    assert set(loop.kernels.ptx) == {launch.kernel for launch in launches}


def test_the_same_program_compiles_to_the_same_bytes(loop: CompiledProgram) -> None:
    again = compiled(LOOP, options=CompileOptions(double_buffered_loops=False))
    assert (again.hlo_proto, again.hlo_text) == (loop.hlo_proto, loop.hlo_text)
    assert again.kernels == loop.kernels


def test_options_change_the_program(loop: CompiledProgram) -> None:
    other = compiled(LOOP, options=CompileOptions(matmuls=Matmuls.TRITON))
    assert "cublas" not in other.hlo_text
    assert "__triton" in other.hlo_text
    doubled = '"known_trip_count":{"n":"3"}'
    assert doubled in other.hlo_text
    assert doubled not in loop.hlo_text
    assert other.kernels is not None


def test_a_sharded_program_is_partitioned() -> None:
    made = compiled(SHARDED, "A100_SXM_40")
    assert (made.partitions, made.topology) == (4, "1x1x4")
    assert "all-gather-start" in made.hlo_text
    assert made.memory.argument_bytes == 2 * ONE_BYTES // 4
    assert made.notes == ("the program was partitioned by the compiler",)


def test_collectives_overlap_on_a_gpu_without_cost_tables() -> None:
    """The product is made between the start and the end of the all-reduce."""
    text = compiled(REDUCED, "A100_SXM_40", layout=Layout(per_host=2)).hlo_text
    entry = text[text.index("\nENTRY") :]
    order = [
        entry.index(f" {word}(") for word in ("all-reduce-start", "custom-call", "all-reduce-done")
    ]
    assert order == sorted(order)


def test_a_channel_may_be_shared_by_arrays_of_several_ranks() -> None:
    row = "tensor<256xf32>"
    body = (
        f"{all_reduce('%s', '%a', kind=MATRIX)}\n{all_reduce('%t', '%b', kind=row)}\n"
        f"%u = stablehlo.broadcast_in_dim %t, dims = [1] : ({row}) -> {MATRIX}\n"
        f"%r = stablehlo.multiply %s, %u : {MATRIX}\nreturn %r : {MATRIX}"
    )
    main = main_function(body, arguments=f"%a: {MATRIX}, %b: {row}", results=MATRIX)
    assert "all-reduce-start" in compiled(on_devices(main), "A100_SXM_40").hlo_text


def test_passes_are_left_out_as_the_documents_do() -> None:
    made = compiled(REDUCED, "A100_SXM_40", CompileOptions(disabled_passes=WORKFLOW_PASSES))
    assert re.search(r" all-reduce\(", made.hlo_text)
    assert "is_scheduled=true" in made.hlo_text
    assert made.kernels is None
    assert any("can't write it as kernels" in note for note in made.notes)
    assert "the compiler has no pass no-such-pass: leaving it out did nothing" in made.notes
    usual = compiled(REDUCED, "A100_SXM_40")
    assert made.memory.argument_bytes == usual.memory.argument_bytes
    assert made.memory.output_bytes == usual.memory.output_bytes


def test_an_operation_that_the_target_has_not_is_named() -> None:
    call = f"%r = stablehlo.custom_call @nobody_has_this(%a) : ({MATRIX}) -> {MATRIX}"
    text = main_function(f"{call}\nreturn %r : {MATRIX}", arguments=f"%a: {MATRIX}", results=MATRIX)
    with pytest.raises(UnsupportedError, match=r"a\.mlir: the compiler refuses.*nobody_has_this"):
        compiled(text)


def test_the_scheduler_s_memory_limit_is_read_and_raised(tmp_path: Path) -> None:
    """XLA has 95 % of what arguments and results leave of 80 % of the memory."""
    memory = 4_600_000_000
    target = tmp_path / "small.txt"
    described = find_target("H100_SXM")
    assert isinstance(described, GpuTarget)
    text = described.description
    target.write_text(re.sub(r"device_memory_size: \d+", f"device_memory_size: {memory}", text))
    source = Path("examples/llama3_100m_fsdp4.mlir").read_bytes()
    step = compile_program(source, name="step", target=str(target))
    limit = step.overlap
    assert limit is not None
    assert limit.is_given_up
    held = step.memory.argument_bytes + step.memory.output_bytes - step.memory.alias_bytes
    assert limit.limit_bytes == pytest.approx(0.95 * (0.8 * memory - held), rel=1e-4)
    assert limit.needed_bytes > limit.limit_bytes
    raises = CompileOptions(memory_limit_slop_factor="auto")
    raised = compile_program(source, name="step", target=str(target), options=raises)
    assert raised.overlap is not None
    assert not raised.overlap.is_given_up
    assert raised.flags[SLOP_FLAG] == str(limit.full_factor)
    assert raised.memory.total_bytes <= memory
