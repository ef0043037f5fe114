"""What a sharded source says of all devices: its mesh, and the types of its inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hespas.frontend.load import load_per_device
from hespas.frontend.mesh import cached_global_facts, global_facts_of_source
from hespas.program.program import GlobalFacts

SHARDED = """
module @step attributes {{mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32{more}}} {{
  {meshes}
  func.func public @main(
      %ids: tensor<16x32xi32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"data"}}, {{}}]>}},
      %w: tensor<64x64xf32>) -> tensor<64x64xf32> {{
    %0 = stablehlo.dot_general %w, %w, contracting_dims = [1] x [0]
      : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    return %0 : tensor<64x64xf32>
  }}
}}
"""
MESH = 'sdy.mesh @mesh = <["data"=2, "model"=4]>'
AXES = (("data", 2), ("model", 4))


def source(meshes: str = MESH, more: str = "") -> bytes:
    return SHARDED.format(meshes=meshes, more=more).encode()


def test_a_sharded_program_has_its_mesh_and_its_inputs() -> None:
    facts = global_facts_of_source(source(), name="step.mlir")
    assert facts.mesh == AXES
    assert [str(kind) for kind in facts.inputs] == ["tensor<16x32xi32>", "tensor<64x64xf32>"]


def test_they_stay_known_where_the_program_is_partitioned() -> None:
    program = load_per_device(source(), name="step.mlir").program
    assert str(program.main.body.arguments[0].type) == "tensor<8x32xi32>"
    assert program.global_facts == global_facts_of_source(source(), name="step.mlir")


def test_what_a_source_says_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = 'mhlo.frontend_attributes = {hespas.device_order = "[2,4]T(1,0)"}'
    sources = [source(), source(more=f", {order}"), b"module {}"]
    wholes = [global_facts_of_source(content, name="step.mlir") for content in sources]
    assert wholes[1].device_order is not None

    def cached(name: str) -> list[GlobalFacts]:
        return [cached_global_facts(content, name=name, directory=tmp_path) for content in sources]

    assert cached("step.mlir") == wholes
    monkeypatch.setattr("hespas.frontend.mesh.parse_mlir", None)
    assert cached("other.mlir") == wholes
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    monkeypatch.undo()
    assert cached("step.mlir") == wholes


def test_the_inputs_of_a_partitioned_program_are_those_of_one_device() -> None:
    partitioned = source(more=', mhlo.spmd_output_sharding = "{replicated}"')
    assert global_facts_of_source(partitioned, name="step.mlir").inputs == ()


@pytest.mark.parametrize(
    ("meshes", "axes"),
    [
        (f'{MESH}\n  sdy.mesh @small = <["data"=2]>\n  sdy.mesh @none = <[]>', AXES),
        (f'{MESH}\n  sdy.mesh @flat = <["all"=8, "one"=1]>', AXES),
        # Its devices are not numbered in order: no groups can be named by it.
        ('sdy.mesh @mesh = <["data"=2], device_ids=[1, 0]>', ()),
    ],
)
def test_the_mesh_is_the_one_that_divides_most(meshes: str, axes: tuple[object, ...]) -> None:
    assert global_facts_of_source(source(meshes), name="step.mlir").mesh == axes


@pytest.mark.parametrize("quote", ["\\22", '\\"'])
def test_jax_keeps_meshes_in_an_attribute_too(quote: str) -> None:
    listed = f"#sdy.mesh<[{quote}x{quote}=2, {quote}y{quote}=3]>"
    text = f"""
        module @m attributes {{mhlo.frontend_attributes = {{
          xla.sdy.meshes = "{{mesh = {listed}}}"}}}} {{
        func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {{ return %a : tensor<8xf32> }}
        }}"""
    assert global_facts_of_source(text.encode(), name="m.mlir").mesh == (("x", 2), ("y", 3))


HLO = """HloModule m, num_partitions=8{attributes}

add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}}

ENTRY main {{
  x = f32[64] parameter(0)
  ROOT r = f32[64] all-reduce(x), channel_id=1, use_global_device_ids=true, to_apply=add,
    replica_groups={groups}
}}
"""


@pytest.mark.parametrize(
    ("attributes", "groups", "axes"),
    [
        ("", "[2,4]<=[8]", ()),
        (
            ', frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["data"=2, "model"=4]>}}',
            "[4,2]<=[2,4]T(1,0)",
            AXES,
        ),
        ("", "mesh['data'=2,'model'=4]{'model'}", AXES),
        # XLA's own names, of a list of devices.
        ("", "mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", ()),
    ],
)
def test_hlo_names_meshes_in_an_attribute_or_in_groups(
    attributes: str, groups: str, axes: tuple[object, ...]
) -> None:
    text = HLO.format(attributes=attributes, groups=groups)
    assert global_facts_of_source(text.encode(), name="m.hlo").mesh == axes
