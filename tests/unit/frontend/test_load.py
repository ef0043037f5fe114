from __future__ import annotations

from pathlib import Path

import pytest

from hespas.errors import ProgramError, UnpartitionedError
from hespas.frontend import load
from hespas.frontend.load import load_per_device, load_program, load_source
from hespas.frontend.overrides import LoadOptions
from hespas.xla.mlir.module import MlirModule, parse_mlir
from programs import VECTOR, on_devices, vector_main


def test_a_file_is_named_in_locations(tmp_path: Path) -> None:
    path = tmp_path / "step.mlir"
    path.write_text(vector_main(f"%r = stablehlo.tanh %a : {VECTOR}"))
    program = load_program(path)
    assert program.source == str(path)
    assert program.main.body.operations[0].location == f"{path}:2:6: stablehlo.tanh"


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"none\.mlir: no such file; check the path"):
        load_program(tmp_path / "none.mlir")


def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="cannot be read: Is a directory"):
        load_program(tmp_path)


def test_hlo_text_is_reported_apart(tmp_path: Path) -> None:
    path = tmp_path / "a.mlir"
    path.write_text(
        "\nHloModule step, num_partitions=2\nENTRY e {\n"
        "  p = f32[8] parameter(0)\n  ROOT r = f32[8] tanh(p)\n}\n"
    )

    program = load_program(path)

    assert [op.name for op in program.main.body.operations] == ["stablehlo.tanh", "func.return"]
    assert program.declared_devices == 2


def _argument(sharding: str) -> str:
    return f"""func.func @main(%a: {VECTOR} {{{sharding}}}) -> {VECTOR} {{
      %r = stablehlo.tanh %a : {VECTOR}
      return %r : {VECTOR}
    }}"""


@pytest.mark.parametrize(
    "sharding",
    [
        'mhlo.sharding = "{devices=[4]<=[4]}"',
        'sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>',
    ],
)
@pytest.mark.parametrize("attributes", ["", "attributes {mhlo.num_partitions = 4 : i32}"])
def test_sharded_arguments_without_collectives_are_refused(
    tmp_path: Path, sharding: str, attributes: str
) -> None:
    mesh = 'sdy.mesh @mesh = <["x"=4]>'
    text = f"module {attributes} {{ {mesh}\n {_argument(sharding)} }}"
    with pytest.raises(UnpartitionedError, match="not yet partitioned"):
        load_source(text.encode(), name="a.mlir")


def test_a_sharded_program_is_parsed_once_and_its_partitioned_text_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[str] = []

    def counting(source: bytes, *, name: str) -> MlirModule:
        parsed.append(name)
        return parse_mlir(source, name=name)

    monkeypatch.setattr(load, "parse_mlir", counting)
    monkeypatch.setattr("hespas.xla.partition.partition.parse_mlir", counting)
    sharding = 'sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>'
    mesh = 'sdy.mesh @mesh = <["x"=4]>'

    loaded = load_per_device(f"module {{ {mesh}\n {_argument(sharding)} }}".encode(), name="a.mlir")

    assert parsed == ["a.mlir", "a.mlir (partitioned)"]
    assert loaded.program.declared_devices == 4
    assert loaded.program.assumptions[0].startswith("the program came sharded, not partitioned")


def test_options_name_lines_of_the_partitioned_text() -> None:
    text = f"""module {{ sdy.mesh @mesh = <["x"=4]>
    func.func @main(%a: {VECTOR} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}]>}},
        %n: tensor<i32>) -> {VECTOR} {{
      %r:2 = stablehlo.while(%i = %n, %x = %a) : tensor<i32>, {VECTOR} cond {{
        %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      }} do {{
        %y = stablehlo.tanh %x : {VECTOR}
        %j = stablehlo.multiply %i, %i : tensor<i32>
        stablehlo.return %j, %y : tensor<i32>, {VECTOR}
      }}
      return %r#1 : {VECTOR}
    }} }}"""
    (assumption,) = load_per_device(
        text.encode(), name="a.mlir", options=LoadOptions(trip_counts={"": 3})
    ).program.assumptions[1:]
    line = assumption.split(":")[1]
    assert line != "4"

    loaded = load_per_device(
        text.encode(), name="a.mlir", options=LoadOptions(trip_counts={line: 5})
    )

    assert loaded.used.trip_counts == {line}


@pytest.mark.parametrize(
    ("sharding", "attributes"),
    [
        ('mhlo.sharding = "{replicated}"', "mhlo.num_partitions = 4 : i32"),
        ('mhlo.sharding = "{maximal device=0}"', "mhlo.num_partitions = 4 : i32"),
        ("sdy.sharding = #sdy.sharding<@mesh, [{}]>", "mhlo.num_partitions = 4 : i32"),
        ('mhlo.sharding = "{devices=[4]<=[4]}"', "mhlo.num_partitions = 1 : i32"),
        (
            'mhlo.sharding = "{devices=[4]<=[4]}"',
            'mhlo.num_partitions = 4 : i32, mhlo.spmd_output_sharding = "{devices=[4]<=[4]}"',
        ),
    ],
)
def test_annotations_that_divide_nothing_any_more_are_accepted(
    tmp_path: Path, sharding: str, attributes: str
) -> None:
    path = tmp_path / "a.mlir"
    mesh = 'sdy.mesh @mesh = <["x"=4]>'
    path.write_text(f"module attributes {{{attributes}}} {{ {mesh}\n {_argument(sharding)} }}")
    assert len(load_source(path.read_bytes(), name="a.mlir").main.body.operations) == 2


def test_a_partitioned_program_may_keep_the_shardings_of_its_arguments(tmp_path: Path) -> None:
    path = tmp_path / "a.mlir"
    sharding = 'mhlo.sharding = "{devices=[4]<=[4]}"'
    reduce = f"""func.func @main(%a: {VECTOR} {{{sharding}}}) -> {VECTOR} {{
      %r = "stablehlo.all_reduce"(%a) <{{replica_groups = dense<[[0, 1, 2, 3]]> : \
tensor<1x4xi64>}}> ({{
      ^bb0(%l: tensor<f32>, %m: tensor<f32>):
        %s = stablehlo.add %l, %m : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }}) : ({VECTOR}) -> {VECTOR}
      return %r : {VECTOR}
    }}"""
    path.write_text(on_devices(reduce))
    assert load_source(path.read_bytes(), name="a.mlir").partitions == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func.func @other() { return }", r"no function named main; .*\(found other\)"),
        ("module {}", "found no functions"),
        ("func.func private @main()", "function @main has no body"),
        (
            "func.func private @f()\nfunc.func @main() { call @f() : () -> ()\nreturn }",
            "function @f has no body",
        ),
        (
            "func.func @main(%a: tensor<?xf32>) -> tensor<?xf32> { return %a : tensor<?xf32> }",
            r"a.mlir:1:1: function @main: dynamic shape tensor<\?xf32>; .* static shapes",
        ),
        (
            f"""func.func @main(%a: {VECTOR}, %n: tensor<1xi32>) -> {VECTOR} {{
              %0 = stablehlo.dynamic_iota %n, dim = 0 : (tensor<1xi32>) -> tensor<?xf32>
              return %a : {VECTOR}
            }}""",
            r"a.mlir:2:20: stablehlo.dynamic_iota: dynamic shape tensor<\?xf32>",
        ),
    ],
)
def test_programs_that_cannot_be_run(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.mlir"
    path.write_text(text)
    with pytest.raises(ProgramError, match=message):
        load_program(path)
