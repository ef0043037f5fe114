from __future__ import annotations

from hespas.compile.options import CompileOptions
from hespas.frontend.load import load_source
from hespas.lower.fused import fused
from hespas.program.program import Op, Program
from hespas.program.scopes import read_scope
from programs import VECTOR, all_reduce, main_function, on_devices

CHAIN = f"""{all_reduce("%s", "%a")}
    {all_reduce("%t", "%b", channel=2)}
    %c = stablehlo.tanh %s : {VECTOR}
    {all_reduce("%u", "%c", channel=3)}
    %d = stablehlo.exponential %b : {VECTOR}
    %r = stablehlo.multiply %u, %t : {VECTOR}
    return %r, %d : {VECTOR}, {VECTOR}"""


def program(body: str) -> Program:
    text = main_function(
        body, arguments=f"%a: {VECTOR}, %b: {VECTOR}", results=f"{VECTOR}, {VECTOR}"
    )
    return load_source(on_devices(text).encode(), name="test.mlir")


def kernels(made: Program) -> list[Op]:
    return [op for op in made.main.body.operations if not op.traits.runs_nothing]


def test_what_does_not_wait_for_each_other_is_one_collective() -> None:
    started = [op for op in kernels(fused(program(CHAIN))) if op.kind == "async_start"]
    assert [str(op.results[0].type) for op in started] == [
        "!mhlo.async_bundle<tensor<16xf32>>",
        "!mhlo.async_bundle<tensor<8xf32>>",
    ]


def test_what_is_combined_has_the_name_that_all_share() -> None:
    text = main_function(
        CHAIN, arguments=f"%a: {VECTOR}, %b: {VECTOR}", results=f"{VECTOR}, {VECTOR}"
    )
    lines = on_devices(text).splitlines()
    ends = [at for at, line in enumerate(lines) if line.lstrip().startswith("}) :")]
    for end, module in zip(ends, ("mlp", "norm", "head"), strict=True):
        lines[end] += f' loc("jit(f)/layers/{module}/psum")'
    made = fused(load_source("\n".join(lines).encode(), name="test.mlir"))
    paths = [read_scope(op.scope).path for op in kernels(made) if op.kind == "async_start"]
    assert paths == [("layers",), ("layers", "head")]


def test_nothing_is_combined_beyond_the_limit() -> None:
    limited = fused(program(CHAIN), CompileOptions(all_reduce_combine_bytes=40))
    assert [op.kind for op in kernels(limited)].count("async_start") == 3


def test_other_work_stands_between_start_and_end() -> None:
    names = [
        op.kind if op.kind != "fusion" else op.instruction for op in kernels(fused(program(CHAIN)))
    ]
    assert names.index("async_start") == 1
    assert names.index("loop_exponential_fusion") < len(names) - 1 - names[::-1].index("async_done")


def test_a_start_holds_the_collective_and_its_end_has_the_results() -> None:
    operations = kernels(fused(program(CHAIN)))
    for start in (op for op in operations if op.kind == "async_start"):
        (done,) = [op for op in operations if op.operands == start.results]
        inner = start.regions[0].operations[0]
        assert inner.kind == "all_reduce"
        assert [value.type for value in inner.results] == [value.type for value in done.results]
