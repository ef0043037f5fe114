from __future__ import annotations

import io
from importlib import import_module
from typing import Any

import pytest

from hespas.program.program import Op
from hespas.program.rewrite import with_calls_opened
from hespas.split.modules import region_modules
from hespas.split.options import SplitOptions, SplitStrategy
from hespas.split.strategies import split_program
from hespas.xla.mlir.module import parse_mlir
from programs import NAME, VECTOR, on_devices, read, text_of, vector_main

FRAME = '"f"("a.py":3:4 to :9)'
TWO = f'callsite({FRAME} at "<module>"("b.py":1:1))'


def located(location: str) -> Op:
    text = vector_main(f"%r = stablehlo.tanh %a : {VECTOR} loc({location})")
    return read(text).main.body.operations[0]


@pytest.mark.parametrize(
    ("location", "scope", "source"),
    [
        ("unknown", "", ""),
        ('"a.py":3:4', "", "a.py:3:4"),
        (f'"jit(f)/tanh"({FRAME})', "jit(f)/tanh", "a.py:3:4"),
        (f'"jit(f)/tanh"({TWO})', "jit(f)/tanh", "a.py:3:4"),
        (f'"jit:"("jit(f)/tanh"({TWO}))', "jit(f)/tanh", "a.py:3:4"),
        ('"jit(f)/tanh"', "jit(f)/tanh", ""),
        (TWO, "", "a.py:3:4"),
        (FRAME, "f", "a.py:3:4"),
        (
            f'callsite("mlp/tanh"({FRAME}) at "jit(f)/layers"({TWO}))',
            "jit(f)/layers/mlp/tanh",
            "a.py:3:4",
        ),
        (f'fused["jit(f)/tanh"({FRAME}), "jit(f)/add"({TWO})]', "jit(f)/tanh", "a.py:3:4"),
        (f'fused<"kept">[unknown, "jit(f)/add"({TWO})]', "jit(f)/add", "a.py:3:4"),
    ],
)
def test_a_location_gives_the_name_stack_and_the_innermost_line(
    location: str, scope: str, source: str
) -> None:
    op = located(location)
    assert (op.scope, op.source_location) == (scope, source)


def test_without_locations_the_line_is_that_of_the_file() -> None:
    op = read(vector_main(f"%r = stablehlo.tanh %a : {VECTOR}")).main.body.operations[0]
    assert (op.scope, op.source_location) == ("", f"{NAME}:2:6")


def bytecode(text: str) -> bytes:
    file = io.BytesIO()
    parse_mlir(text.encode(), name=NAME).handle.operation.write_bytecode(file)
    return file.getvalue()


def portable(text: str) -> bytes:
    stablehlo = import_module("jaxlib.mlir.dialects.stablehlo")
    handle: Any = parse_mlir(text.encode(), name=NAME).handle
    artifact: bytes = stablehlo.serialize_portable_artifact(handle, stablehlo.get_current_version())
    return artifact


@pytest.mark.parametrize("form", [str.encode, bytecode, portable])
def test_every_form_of_a_file_keeps_the_names(form: Any) -> None:
    text = vector_main(f'%r = stablehlo.tanh %a : {VECTOR} loc("jit(f)/tanh"({TWO}))')
    op = read(form(text)).main.body.operations[0]
    assert (op.scope, op.source_location) == ("jit(f)/tanh", "a.py:3:4")


def called(first: str, second: str) -> str:
    helper = f"""
    func.func private @g(%x: {VECTOR}) -> {VECTOR} {{
      %0 = stablehlo.tanh %x : {VECTOR} loc("inner/tanh"({FRAME}))
      return %0 : {VECTOR}
    }}
    """
    return helper + vector_main(
        f'%0 = call @g(%a) : ({VECTOR}) -> {VECTOR} loc("{first}")\n'
        f'%r = call @g(%0) : ({VECTOR}) -> {VECTOR} loc("{second}")'
    )


def test_names_in_a_function_stand_behind_those_of_its_calls() -> None:
    program = read(on_devices(called("jit(f)/layers_0/jit(g)", "jit(f)/layers_1/jit(g)")))
    scopes = [op.scope for op in with_calls_opened(program).body.operations[:-1]]
    assert scopes == ["jit(f)/layers_0/jit(g)/inner/tanh", "jit(f)/layers_1/jit(g)/inner/tanh"]


def test_regions_that_differ_in_names_alone_are_one() -> None:
    options = SplitOptions(strategy=SplitStrategy.INDIVIDUAL)
    split = split_program(read(on_devices(called("jit(f)/layers_0", "jit(f)/layers_1"))), options)
    plain = split_program(read(on_devices(called("", ""))), options)
    (module,) = region_modules(split).modules
    assert [region_modules(plain).modules[0].fingerprint] == [module.fingerprint]
    assert text_of(split.program.functions) == text_of(plain.program.functions)
    (first,), (second,) = (region.operations for region in split.compute_regions)
    assert (first.scope, second.scope) == (
        "jit(f)/layers_0/inner/tanh",
        "jit(f)/layers_1/inner/tanh",
    )
