from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from msgspec.structs import replace as replace_struct

import hespas
from hespas.hardware.presets import load_device
from hespas.price.driver import OperationMethod
from hespas.price.kernel import (
    FEWEST_IN_GRAPHS,
    LOOP,
    Writer,
    is_served,
    kernel_of,
    kind_of,
    runs_in_graphs,
)
from hespas.price.methods import EstimatorSpec, default_method
from hespas.work.expand import Leaf, expand
from hlo_programs import entry_op, read_hlo
from scheduled import kernel, loop, scheduled, sync

ADD = """
add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT r = f32[] add(x, y)
}
"""


def fused(body: str, kind: str = "kLoop", result: str = "f32[8,8]", operands: str = "") -> str:
    program = read_hlo(
        f"""HloModule m
{ADD}
fused {{
  p = f32[8,8] parameter(0)
{body}
}}

ENTRY main {{
  a = f32[8,8] parameter(0)
{operands}  ROOT f = {result} fusion(a), kind={kind}, calls=fused
}}
"""
    )
    (op,) = (op for op in program.main.body.operations if op.kind == "fusion")
    return kind_of(op)


@pytest.mark.parametrize(
    ("body", "result", "kind"),
    [
        ("  ROOT t = f32[8,8] tanh(p)", "f32[8,8]", "elementwise fusion"),
        (
            "  z = f32[] constant(0)\n  ROOT r = f32[8] reduce(p, z), dimensions={1}, to_apply=add",
            "f32[8]",
            "reduction fusion",
        ),
        (
            "  ROOT t = f32[8,8] transpose(p), dimensions={1,0}",
            "f32[8,8]",
            "transpose fusion",
        ),
        (
            ("  t = f32[8,8] transpose(p), dimensions={1,0}\n  ROOT h = f32[8,8] tanh(t)"),
            "f32[8,8]",
            "transposing elementwise fusion",
        ),
        (
            (
                "  i = s32[] constant(0)\n  u = f32[1,8] slice(p), slice={[0:1], [0:8]}\n"
                "  ROOT d = f32[8,8] dynamic-update-slice(p, u, i, i)"
            ),
            "f32[8,8]",
            "in-place update fusion",
        ),
        (
            "  ROOT c = f32[16,8] concatenate(p, p), dimensions={0}",
            "f32[16,8]",
            "data movement fusion",
        ),
        (
            ("  ROOT d = f32[8,8] dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}"),
            "f32[8,8]",
            "matrix product, fused",
        ),
    ],
)
def test_a_fusion_is_called_after_what_it_does(body: str, result: str, kind: str) -> None:
    assert fused(body, result=result) == kind


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("  a = f32[8,8] parameter(0)\n  ROOT r = f32[8,8] tanh(a)", "elementwise"),
        ("  a = f32[8,8] parameter(0)\n  ROOT r = f32[8,8] copy(a)", "copy"),
        (
            "  a = f32[8,8] parameter(0)\n  ROOT r = f32[8,8] transpose(a), dimensions={1,0}",
            "transpose",
        ),
        (
            (
                "  a = f32[8,8] parameter(0)\n  ROOT r = f32[8,8] dot(a, a), "
                "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
            ),
            "matrix product",
        ),
        (
            (
                "  a = f32[8,8] parameter(0)\n"
                '  ROOT r = f32[8,8] custom-call(a), custom_call_target="mine"'
            ),
            "custom call mine",
        ),
        (
            "  a = f32[8,8] parameter(0)\n  ROOT r = f32[4,8] slice(a), slice={[0:4], [0:8]}",
            "slice",
        ),
    ],
)
def test_an_operation_alone(body: str, kind: str) -> None:
    assert kind_of(entry_op(body)) == kind


FUSIONS = """HloModule m, is_scheduled=true
fused {
  p = f32[4096,4096] parameter(0)
  q = f32[4096,4096] parameter(1)
  a = f32[4096,4096] add(p, q)
  ROOT t = f32[4096,4096] tanh(a)
}
product {
  p = bf16[4096,4096] parameter(0)
  q = bf16[4096,4096] parameter(1)
  d = bf16[4096,4096] dot(p, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT t = bf16[4096,4096] tanh(d)
}
ENTRY main {
  a = f32[4096,4096] parameter(0)
  b = f32[4096,4096] parameter(1)
  c = bf16[4096,4096] parameter(2)
  f = f32[4096,4096] fusion(a, b), kind=kLoop, calls=fused
  g = bf16[4096,4096] fusion(c, c), kind=kCustom, calls=product
  ROOT r = (f32[4096,4096], bf16[4096,4096]) tuple(f, g)
}
"""
HESPAS = Path(hespas.__file__).parent


def files_executed(run: Callable[[], object]) -> set[str]:
    """Return the files of hespas whose functions run, those of the program's values left out.

    A class's constructor counts as little as one that the standard library makes.
    """
    executed = set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(HESPAS):
            executed.add(file.relative_to(HESPAS).as_posix())

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return {file for file in executed if not file.startswith(("program/", "base/frozen.py"))}


def test_a_kernel_that_is_classified_is_priced_by_few_files() -> None:
    program, device = read_hlo(FUSIONS), load_device("H100_80GB")
    method = default_method(program, device)
    assert method.name == "measured"
    estimator = method.estimator(EstimatorSpec(device=device))
    assert isinstance(estimator, OperationMethod)
    leaves = [cost for cost in expand(program.main.body.operations) if isinstance(cost, Leaf)]
    for leaf in [leaf for leaf in leaves if leaf.op.kind == "fusion"]:
        estimator.price(leaf, is_kernel=True)
        files = files_executed(lambda leaf=leaf: estimator.price(leaf, is_kernel=True))
        assert len(files) <= 8, sorted(files)


def test_a_kernel_is_made_once() -> None:
    (loop, product) = [
        kernel_of(op) for op in read_hlo(FUSIONS).main.body.operations if op.kind == "fusion"
    ]
    assert kernel_of(loop.op) is loop
    assert (loop.category, loop.writer, loop.is_of_library) == (LOOP, Writer.COMPILER, False)
    assert [each.n for each in product.products] == [4096]
    assert product.is_of_library


@pytest.mark.parametrize(
    ("count", "in_graphs"),
    [(FEWEST_IN_GRAPHS - 1, False), (FEWEST_IN_GRAPHS, True)],
    ids=["few kernels", "many kernels"],
)
def test_many_kernels_of_one_gpu_run_in_graphs(count: int, in_graphs: bool) -> None:
    rows = [kernel(f"k{at}", "a") for at in range(count)]
    program = scheduled(*rows)
    assert runs_in_graphs(program) is in_graphs
    assert not runs_in_graphs(replace_struct(program, is_of_libraries=True))
    assert not runs_in_graphs(scheduled(*rows, sync("r", "a")))


def test_engines_serve_steps_without_gradients() -> None:
    program = replace_struct(scheduled(kernel("k", "a")), is_of_libraries=True)
    assert is_served(program)
    (op, *rest) = program.main.body.operations
    trained = replace_struct(op, scope="jit(step)/transpose(jvp(layer))")
    body = replace_struct(program.main.body, operations=(trained, *rest))
    main = replace_struct(program.main, body=body)
    trains = replace_struct(program, functions={**program.functions, program.main.name: main})
    assert not is_served(trains)


def test_kernels_of_loops_count_as_often_as_they_run() -> None:
    function, lines = loop("l", "a", kernel("w", "v"))
    rows = [kernel(f"k{at}", "a") for at in range(FEWEST_IN_GRAPHS - 6)]
    # The counter and the fusion run three times.
    assert runs_in_graphs(scheduled(*lines, *rows, functions=function))
    assert not runs_in_graphs(scheduled(*lines, *rows[1:], functions=function))
