"""Write large Chakra traces, as PyTorch's are: some 1 KB a node, most of it shapes and names.

``python benchmarks/large_traces.py DIR --gigabytes 1`` writes DIR/dev.0.et, ... for eight devices
that train: in each layer a product, a kernel beside it, and an all-reduce that the next step waits
for. ``hespas simulate DIR --cluster 8xH100_80GB --stream`` reads them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hespas.tasks.chakra.format import SCHEMA_VERSION, NodeType, schema, varint

DEVICES = 8
LAYERS = 32


def main() -> None:
    """Write the traces, and say how many nodes they have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of all devices together")
    parser.add_argument("--distinct", action="store_true", help="no two devices' traces are equal")
    given = parser.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    each_bytes = int(given.gigabytes * 1e9 / DEVICES)
    nodes = 0
    for device in range(DEVICES):
        seed = device if given.distinct else 0
        nodes += write_trace(given.directory / f"dev.{device}.et", each_bytes, seed)
    print(f"{nodes} nodes")


def write_trace(file: Path, size_bytes: int, seed: int) -> int:
    """Write steps of one device until the file has its size, and return how many nodes it has."""
    first = schema().metadata(version=SCHEMA_VERSION).SerializeToString()
    written, number = 0, 0
    with file.open("wb", buffering=1 << 20) as stream:
        written += stream.write(varint(len(first)) + first)
        while written < size_bytes:
            for layer in range(LAYERS):
                for message in layer_nodes(number, layer, seed):
                    written += stream.write(varint(len(message)) + message)
                number += 3
    return number


def layer_nodes(first: int, layer: int, seed: int) -> list[bytes]:
    """Return a product, a kernel, and an all-reduce of what the product made."""
    before = [] if first == 0 else [first - 2]
    if layer == 0 and first:
        before.append(first - 1)
    product = schema().node(id=first, name=f"aten::mm_{layer}", type=NodeType.COMP)
    product.data_deps.extend(before)
    product.attr.add(name="duration_ns", double_val=20_000.0 + 10 * layer + seed)
    kernel = schema().node(id=first + 1, name=f"aten::gelu_{layer}", type=NodeType.COMP)
    kernel.data_deps.append(first)
    kernel.attr.add(name="duration_ns", double_val=5_000.0)
    reduction = schema().node(
        id=first + 2, name=f"nccl:all_reduce_{layer}", type=NodeType.COMM_COLL
    )
    reduction.data_deps.append(first)
    if first >= 3:
        reduction.data_deps.append(first - 1)
    reduction.attr.add(name="comm_type", int64_val=0)
    reduction.attr.add(name="comm_size", int64_val=1 << 20)
    for node in (product, kernel, reduction):
        node.attr.add(name="is_cpu_op", bool_val=False)
        shapes = "[[4096, 4096], [4096, 11008], [], [], []], " * 18
        node.attr.add(name="op_schema", string_val=f"(Tensor self, Tensor mat2) -> Tensor {shapes}")
    return [node.SerializeToString() for node in (product, kernel, reduction)]


if __name__ == "__main__":
    main()
