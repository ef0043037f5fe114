from __future__ import annotations

import io
import signal
import threading
from importlib import import_module
from typing import Any

import pytest

from hespas.errors import ProgramError, UnsupportedError
from hespas.program.attrs import ConstantAttrs
from hespas.xla.mlir.module import MlirModule, parse_mlir, run_passes, signals_held
from programs import NAME, VECTOR, on_devices, only, read, text_of, vector_main

PROGRAM = on_devices(
    """
  func.func public @main(%arg0: tensor<4x8xf32>, %arg1: tensor<8x8xf32>) -> tensor<4x8xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : \
(tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    %1 = call @helper(%0) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %2 = "stablehlo.all_reduce"(%1) <{replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}> ({
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %s = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    return %2 : tensor<4x8xf32>
  }
  func.func private @helper(%arg0: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %cst = stablehlo.constant dense<0.5> : tensor<4x8xf32>
    %0 = stablehlo.multiply %arg0, %cst : tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
""",
    partitions=1,
    replicas=4,
)


def handle_of(text: str) -> Any:
    return parse_mlir(text.encode(), name=NAME).handle


def bytecode(text: str) -> bytes:
    file = io.BytesIO()
    handle_of(text).operation.write_bytecode(file)
    return file.getvalue()


def portable(text: str) -> bytes:
    stablehlo = import_module("jaxlib.mlir.dialects.stablehlo")
    artifact: bytes = stablehlo.serialize_portable_artifact(
        handle_of(text), stablehlo.get_current_version()
    )
    return artifact


def generic(text: str) -> bytes:
    printed_text: str = handle_of(text).operation.get_asm(print_generic_op_form=True)
    return printed_text.encode()


@pytest.mark.parametrize("rewritten", [bytecode, portable, generic])
def test_every_form_of_a_file_is_the_same_program(rewritten: Any) -> None:
    source: bytes = rewritten(PROGRAM)
    expected, program = read(PROGRAM), read(source)
    assert text_of(program.functions) == text_of(expected.functions)
    assert (program.replicas, program.partitions) == (4, 1)


def test_functions_need_no_module_around_them() -> None:
    bare = vector_main(f"%r = stablehlo.tanh %a : {VECTOR}")
    assert text_of(read(bare).functions) == text_of(read(f"module {{ {bare} }}").functions)
    assert read(bare).declared_devices is None


def test_the_name_and_the_counts_of_a_module() -> None:
    main = vector_main(f"%r = stablehlo.abs %a : {VECTOR}")
    program = read(f"module @step attributes {{mhlo.num_replicas = 2 : i32}} {{ {main} }}")
    assert (program.module_name, program.replicas, program.partitions) == ("step", 2, None)
    assert program.declared_devices == 2


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"", "test.mlir: the file is empty"),
        (b" \n\t", "test.mlir: the file is empty"),
        (b"\xff\xfe\x00", "neither text nor MLIR bytecode"),
        (b"ML\xefR\x01truncated", "test.mlir.*: cannot be parsed"),
        (bytecode(PROGRAM)[:200], "test.mlir.*: cannot be parsed"),
        (portable(PROGRAM)[:300], "test.mlir.*: cannot be parsed"),
        (PROGRAM.encode()[:300], r"test.mlir:\d+:\d+: cannot be parsed"),
        (b"hello", r"test.mlir:1:1: cannot be parsed: custom op 'hello' is unknown"),
        (b"func.func @main() {\n  %0 = foo.bar : i32\n  return\n}", r"test.mlir:2:\d+: .*foo"),
        (
            b"func.func @main() {\n  %0 = stablehlo.zzz : i32\n  return\n}",
            r"test.mlir:2:\d+: .*zzz",
        ),
        (
            (
                b"func.func @main(%a: tensor<2xf32>) -> tensor<3xf32> {\n"
                b"  %0 = stablehlo.add %a, %a : (tensor<2xf32>, tensor<2xf32>) -> tensor<3xf32>\n"
                b"  return %0 : tensor<3xf32>\n}"
            ),
            r"test.mlir:2:\d+: cannot be parsed",
        ),
    ],
)
def test_what_is_no_program_is_named_with_its_place(source: bytes, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        read(source)


@pytest.mark.parametrize(
    ("constant", "value"),
    [
        ("dense<3> : tensor<i32>", 3),
        ("dense<-4> : tensor<8xi64>", -4),
        ("dense<true> : tensor<i1>", True),
        ("dense<2.5> : tensor<2xbf16>", 2.5),
        ("dense<1.5> : tensor<f8E4M3FN>", 1.5),
        ("dense<0x7F800000> : tensor<f32>", None),
        ("dense<[1, 2, -3]> : tensor<3xi4>", None),
        ("dense<[1, 2]> : tensor<2xui8>", None),
        ("dense<(1.0, -2.0)> : tensor<complex<f32>>", None),
        ("dense<[(1.0, -2.0), (0.0, 1.0)]> : tensor<2xcomplex<f64>>", None),
        ("dense<> : tensor<0xf32>", None),
    ],
)
def test_constants_of_every_kind_keep_their_text(constant: str, value: float | None) -> None:
    kind = constant.partition(" : ")[2]
    body = f"%c = stablehlo.constant {constant}\nreturn %c : {kind}"
    program = read(f"func.func @main() -> {kind} {{\n{body}\n}}")
    op = only(program, "constant")
    assert op.attrs == ConstantAttrs(value=value)
    assert str(op.results[0].type) == kind
    assert text_of(program.functions) == text_of(
        read(f"module {{{text_of(program.functions)}}}".replace("private ", "")).functions
    )


def test_an_annotated_complex_constant_keeps_both_attributes() -> None:
    annotation = 'mhlo.note = "a) {b} : c"'
    text = f"""func.func @main() -> tensor<complex<f32>> {{
      %c = "stablehlo.constant"() <{{value = dense<(1.0, 2.0)> : tensor<complex<f32>>}}> \
{{{annotation}}} : () -> tensor<complex<f32>>
      return %c : tensor<complex<f32>>
    }}"""
    attributes = dict(only(read(text), "constant").attributes)
    assert attributes["value"] == "dense<(1.000000e+00,2.000000e+00)> : tensor<complex<f32>>"
    assert attributes["mhlo.note"] == '"a) {b} : c"'


def test_constants_in_resources_are_read() -> None:
    text = """func.func @main() -> tensor<2xf32> {
      %r = stablehlo.constant dense_resource<blob> : tensor<2xf32>
      return %r : tensor<2xf32>
    }
    {-# dialect_resources: { builtin: { blob: "0x080000000100000002000000" } } #-}"""
    assert only(read(text), "constant").attrs == ConstantAttrs(value=None)


def test_a_pass_that_does_not_exist_is_an_error_of_the_program() -> None:
    module = MlirModule(handle=handle_of(PROGRAM), source=NAME)
    with pytest.raises(ProgramError, match="no-such-pass"):
        run_passes(module, "builtin.module(no-such-pass)")


def test_dialects_that_hespas_does_not_know_are_named_with_the_line() -> None:
    text = """func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
      %0 = math.exp %a : tensor<2xf32>
      return %0 : tensor<2xf32>
    }"""
    with pytest.raises(UnsupportedError) as raised:
        read(text)
    assert str(raised.value) == (
        "test.mlir:2:12: math.exp: operations of dialect math are not supported; "
        "convert the program to StableHLO"
    )


def test_a_done_without_any_start_does_not_reach_the_verifier() -> None:
    bundle = "!mhlo.async_bundle<tensor<4xf32>, tensor<16xf32>>"
    text = (
        f"func.func @main(%a: {bundle}) -> tensor<16xf32> {{\n"
        f'%r = "mhlo.async_done"(%a) {{called_computation = @f}} : ({bundle}) -> tensor<16xf32>\n'
        "return %r : tensor<16xf32> }"
    )
    with pytest.raises(ProgramError, match=r"holds an mhlo\.async_done, but no mhlo\.async_start"):
        parse_mlir(text.encode(), name="test.mlir")


def test_a_signal_comes_after_what_it_would_have_interrupted() -> None:
    loaded: list[str] = []

    def load() -> None:
        with signals_held():
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            loaded.append("whole")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            load()
    finally:
        signal.signal(signal.SIGINT, before)
    assert loaded == ["whole"]
