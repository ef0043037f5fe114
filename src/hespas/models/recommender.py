"""DLRM-DCNv2: rows of tables, crossed by products of low rank.

Source: MLCommons training, ``recommendation_v2/torchrec_dlrm``; R. Wang et al., DCN V2, 2020,
section 3.2, the cross of low rank. Weights have torchrec's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hespas.base.frozen import frozen
from hespas.models.network import ROW, TABLE, Design, Input, Net, Sample


@frozen
class Dlrm(Design):
    """Products of numbers, and sums of rows of tables."""

    objective: ClassVar[str] = "clicks"
    divides: ClassVar[bool] = False
    defaults: ClassVar[Mapping[str, int]] = {"batch": 8192}  # MLPerf's, over eight devices
    absent: ClassVar[tuple[str, ...]] = ("accumulation", "attention", "remat", "scan", "zero")
    numbers: int
    embedding: int
    tables: tuple[int, ...]
    bags: tuple[int, ...]
    below: tuple[int, ...]
    above: tuple[int, ...]
    crosses: int
    rank: int

    def inputs(self, _: Any) -> tuple[Input, ...]:
        """Return what a sample is."""
        numbers = Input("numbers", (self.numbers,), is_number=False)
        return numbers, Input("rows", (sum(self.bags),))

    def looked_up(self, net: Net, sample: Sample) -> Any:
        """Return a sample's sum of rows in each table."""
        part = net["sparse_arch.embedding_bag_collection.embedding_bags"]
        tables = [
            part[f"t_cat_{index}"].weight("weight", ("", count), (TABLE, self.embedding))
            for index, count in enumerate(self.tables)
        ]
        with net.ops.scope("tables"):
            return net.ops.bags(tables, sample["rows"], self.bags)

    def forward(self, net: Net, sample: Sample) -> Any:
        """Return the logit of a click, with rows if ``looked_up``."""
        ops = net.ops
        rows = sample["looked_up"] if "looked_up" in sample else self.looked_up(net, sample)
        width = (len(self.tables) + 1) * self.embedding
        with ops.scope("below"):
            x = _layers(net["dense_arch.model._mlp"], sample["numbers"], self.below, "_linear")
        x = ops.join([x[:, None], rows], 1).reshape(x.shape[0], width)
        first, part = x, net["inter_arch.crossnet"]
        with ops.scope("cross"):
            for index in range(self.crosses):
                low = ops.contract(
                    x,
                    part.weight(f"V_kernels.{index}", (ROW, width), ("", self.rank), kind="linear"),
                    1,
                )
                wide = part.weight(
                    f"W_kernels.{index}", ("", self.rank), (ROW, width), kind="linear"
                )
                bias = part.weight(f"bias.{index}", ("", width))
                x = first * (ops.contract(low, wide, 1) + bias) + x
        with ops.scope("above"):
            *inner, last = self.above
            x = _layers(net["over_arch.model.0._mlp"], x, tuple(inner), "_linear")
            return net.linear("over_arch.model.1", x, (ROW, last))[:, 0]


def _layers(net: Net, x: Any, widths: tuple[int, ...], name: str) -> Any:
    for index, width in enumerate(widths):
        x = net.ops.activate(net.linear(f"{index}.{name}", x, (ROW, width)), "relu")
    return x
