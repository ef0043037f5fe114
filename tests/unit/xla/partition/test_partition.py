"""Sharded programs become what one device runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from hespas.errors import ProgramError
from hespas.frontend.load import load_per_device, load_source
from hespas.program.program import is_communication_op
from hespas.xla.mlir.module import BYTECODE_MAGIC, parse_mlir, printed
from hespas.xla.partition.partition import Partitioner, partition, partition_cache, partition_module
from workloads import workload

SHARDY = """module attributes {{mhlo.num_partitions = {devices} : i32}} {{
  sdy.mesh @mesh = <["x"={devices}]>
  func.func @main(
      %a: tensor<65536x65536xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}},
      %b: tensor<65536x64xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}})
      -> (tensor<65536x64xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}}) {{
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] :
      (tensor<65536x65536xf32>, tensor<65536x64xf32>) -> tensor<65536x64xf32>
    return %0 : tensor<65536x64xf32>
  }}
}}"""
# One result has a sharding, the other, a sum of what is divided otherwise, has none.
MIXED = """module attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%a: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
      -> (tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<f32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.tanh %a : tensor<64x64xf32>
    %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0, 1] :
      (tensor<64x64xf32>, tensor<f32>) -> tensor<f32>
    return %0, %1 : tensor<64x64xf32>, tensor<f32>
  }
}"""
GSPMD = """module attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%a: tensor<64x64xf32> {mhlo.sharding = "{devices=[1,4]<=[4]}"},
                  %b: tensor<64x64xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"})
      -> (tensor<64x64xf32> {mhlo.sharding = "{replicated}"}) {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] :
      (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    return %0 : tensor<64x64xf32>
  }
}"""
# Work beside shard_map, and shard_map over one of two axes.
MANUAL = """module attributes {mhlo.num_partitions = 8 : i32} {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  func.func @main(%a: tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
      -> tensor<64x32xf32> {
    %0 = stablehlo.tanh %a : tensor<64x32xf32>
    %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"x"}, {}]>]
        out_shardings=[<@mesh, [{"x"}, {}]>] manual_axes={"x"} (%p: tensor<32x32xf32>) {
      %2 = "stablehlo.collective_permute"(%p) <{source_target_pairs =
        dense<[[0, 4], [4, 0], [1, 5], [5, 1], [2, 6], [6, 2], [3, 7], [7, 3]]> : tensor<8x2xi64>,
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>}> :
        (tensor<32x32xf32>) -> tensor<32x32xf32>
      sdy.return %2 : tensor<32x32xf32>
    } : (tensor<64x32xf32>) -> tensor<64x32xf32>
    return %1 : tensor<64x32xf32>
  }
}"""


def collectives(text: bytes) -> Counter[str]:
    program = load_source(text, name="partitioned")
    return Counter(op.kind for op in program.main.body.operations if is_communication_op(op))


@pytest.mark.parametrize("devices", [4, 65536])
def test_a_contracting_dimension_is_summed(devices: int) -> None:
    partitioned = partition(SHARDY.format(devices=devices).encode(), name="a")
    assert (partitioned.devices, partitioned.partitioner) == (devices, Partitioner.XLA_SHARDY)
    assert collectives(partitioned.text) == {"all_reduce": 1}
    program = load_source(partitioned.text, name="a")
    assert program.declared_devices == devices
    assert str(program.main.body.arguments[0].type) == f"tensor<65536x{65536 // devices}xf32>"


def test_a_result_needs_no_sharding_where_another_has_one() -> None:
    partitioned = partition(MIXED.encode(), name="a")
    assert collectives(partitioned.text) == {"all_reduce": 1}
    assert b"tensor<16x64xf32>" in partitioned.text
    assert b"FuncResultSharding" not in partitioned.text


def test_annotations_of_gspmd_are_applied() -> None:
    partitioned = partition(GSPMD.encode(), name="a")
    assert partitioned.partitioner is Partitioner.XLA_GSPMD
    assert collectives(partitioned.text) == {"all_reduce": 1}


def test_shard_map_beside_other_work() -> None:
    partitioned = partition(MANUAL.encode(), name="a")
    assert collectives(partitioned.text) == {"collective_permute": 1}
    assert b"mhlo.copy" not in partitioned.text


def test_stages_partition_first_and_say_so() -> None:
    program = load_per_device(GSPMD.encode(), name="a.mlir").program
    assert program.assumptions == (
        (
            "the program came sharded, not partitioned: XLA's partitioner, with GSPMD's "
            "propagation divided it over 4 devices"
        ),
    )


def test_bytes_are_the_same_each_time() -> None:
    source = SHARDY.format(devices=4).encode()
    assert partition(source, name="a").text == partition(source, name="b").text


def test_a_program_with_locations_is_divided_as_bytecode_that_reads_as_its_text() -> None:
    source = SHARDY.format(devices=4).encode()
    parsed = parse_mlir(source, name="a")
    partitioned = partition(printed(parsed.handle, with_locations=True), name="a")
    assert partitioned.content.startswith(BYTECODE_MAGIC)
    read, printed_and_read = (
        [
            (op.kind, op.results[0].type, op.attributes, op.scope, op.source_location)
            for op in load_source(content, name="a").main.body.operations[:-1]
        ]
        for content in (partitioned.content, partitioned.text)
    )
    assert read
    assert read == printed_and_read
    assert not partition(source, name="a").content.startswith(BYTECODE_MAGIC)


@pytest.mark.parametrize(
    "source",
    [
        "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> }",
        """module attributes {mhlo.num_partitions = 4 : i32, mhlo.spmd_output_sharding = ""} {
        func.func @main(%a: tensor<4xf32> {mhlo.sharding = "{replicated}"}) -> tensor<4xf32> {
        return %a : tensor<4xf32> } }""",
    ],
)
def test_nothing_is_left_to_partition(source: str) -> None:
    with pytest.raises(ProgramError, match="nothing to partition"):
        partition(source.encode(), name="a")


def test_a_number_of_devices_is_needed() -> None:
    source = GSPMD.replace("mhlo.num_partitions = 4 : i32", "")
    with pytest.raises(ProgramError, match="doesn't say over how many devices"):
        partition(source.encode(), name="a")


def test_what_xla_refuses_is_reported() -> None:
    source = GSPMD.replace("devices=[1,4]<=[4]", "devices=[1,8]<=[8]").encode()
    with pytest.raises(ProgramError, match=r"a: XLA's partitioner refuses it"):
        partition(source, name="a")


def test_the_products_of_a_training_step_stay() -> None:
    text = partition(workload("tiny_8dev_fsdp4tp2.unpartitioned.mlir"), name="tiny").text
    assert collectives(text) == collectives(workload("tiny_8dev_fsdp4tp2.mlir"))
    program = load_source(text, name="tiny")
    assert sum(op.kind == "dot_general" for op in program.main.body.operations) == 61


def test_what_was_partitioned_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = partition_cache(tmp_path)
    module = parse_mlir(GSPMD.encode(), name="a.mlir")
    first = partition_module(module, GSPMD.encode(), cache=cache)

    def refuse(command: Sequence[str], **settings: object) -> None:
        raise AssertionError(command)

    monkeypatch.setattr("hespas.base.question.run_program", refuse)
    assert partition_module(module, GSPMD.encode(), cache=cache) == first
    with pytest.raises(AssertionError):
        partition_module(module, GSPMD.encode())
    with pytest.raises(AssertionError):
        partition_module(module, GSPMD.encode() + b"\n", cache=cache)
