"""Write a chain of operations with an all-reduce at regular distances."""

from __future__ import annotations

from pathlib import Path

_HEAD = """module @chain attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%v0: tensor<64x64xf32>) -> tensor<64x64xf32> {
"""
_REDUCE = """    %v{made} = "stablehlo.all_reduce"(%v{used}) <{{\
channel_handle = #stablehlo.channel_handle<\
handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, \
use_global_device_ids}}> ({{
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %c : tensor<f32>
    }}) : (tensor<64x64xf32>) -> tensor<64x64xf32>
"""
_ADD = "    %v{made} = stablehlo.add %v{used}, %v{used} : tensor<64x64xf32>\n"
_TAIL = """    return %v{last} : tensor<64x64xf32>
  }}
}}
"""


def write_chain(path: Path, *, operations: int, distance: int) -> None:
    """Write ``operations`` operations of which every ``distance``-th is an all-reduce."""
    lines = [
        (_REDUCE if at % distance == 0 else _ADD).format(made=at, used=at - 1)
        for at in range(1, operations + 1)
    ]
    path.write_text("".join([_HEAD, *lines, _TAIL.format(last=operations)]))
