"""Operations that move data between devices: each function adds one to a block."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from random_programs.blocks import MOST_ELEMENTS, Block, body


def _groups(block: Block) -> list[list[int]]:
    """Draw groups of equal size that hold each device once."""
    devices = block.settings.devices
    sizes = [size for size in (devices, 2) if devices % size == 0]
    size = block.one_of(sizes)
    order = block.draw(st.permutations(range(devices)))
    return [list(order[at : at + size]) for at in range(0, devices, size)]


def _channel(block: Block) -> str:
    number = next(block.settings.channels)
    return f"channel_handle = #stablehlo.channel_handle<handle = {number}, type = 1>"


def _table(rows: list[list[int]]) -> str:
    return f"dense<{rows}> : tensor<{len(rows)}x{len(rows[0])}xi64>"


def all_reduce(block: Block) -> None:
    operand = block.varying(lambda kind: kind.is_number)
    if operand is None:
        return
    groups, scalar = _groups(block), operand.type.shaped()
    kind = block.one_of(("add", "maximum"))
    text = (
        f'"stablehlo.all_reduce"({operand.name}) <{{{_channel(block)}, replica_groups = '
        f"{_table(groups)}, use_global_device_ids}}> {body(kind, scalar)} "
        f": ({operand.type}) -> {operand.type}"
    )
    block.emit(text, operand.type, operand)


def all_gather(block: Block) -> None:
    operand = block.varying(lambda kind: kind.rank > 0)
    if operand is None:
        return
    groups = _groups(block)
    dim = block.integer(0, operand.type.rank - 1)
    shape = list(operand.type.shape)
    shape[dim] *= len(groups[0])
    result = operand.type.shaped(*shape)
    if result.elements <= MOST_ELEMENTS:
        attributes = (
            f"all_gather_dim = {dim} : i64, {_channel(block)}, replica_groups = {_table(groups)}, "
            "use_global_device_ids"
        )
        block.generic("all_gather", (operand,), result, attributes)


def reduce_scatter(block: Block) -> None:
    groups = _groups(block)
    size = len(groups[0])
    operand = block.varying(
        lambda kind: kind.is_number and any(each % size == 0 for each in kind.shape)
    )
    if operand is None:
        return
    dim = block.one_of([at for at, each in enumerate(operand.type.shape) if each % size == 0])
    shape = list(operand.type.shape)
    shape[dim] //= size
    result, scalar = operand.type.shaped(*shape), operand.type.shaped()
    text = (
        f'"stablehlo.reduce_scatter"({operand.name}) <{{{_channel(block)}, replica_groups = '
        f"{_table(groups)}, scatter_dimension = {dim} : i64, use_global_device_ids}}> "
        f"{body('add', scalar)} : ({operand.type}) -> {result}"
    )
    block.emit(text, result, operand)


def all_to_all(block: Block) -> None:
    groups = _groups(block)
    size = len(groups[0])
    operand = block.varying(lambda kind: any(each % size == 0 for each in kind.shape))
    if operand is None:
        return
    split = block.one_of([at for at, each in enumerate(operand.type.shape) if each % size == 0])
    joined = block.integer(0, operand.type.rank - 1)
    shape = list(operand.type.shape)
    shape[split] //= size
    shape[joined] *= size
    attributes = (
        f"{_channel(block)}, concat_dimension = {joined} : i64, replica_groups = {_table(groups)}, "
        f"split_count = {size} : i64, split_dimension = {split} : i64"
    )
    block.generic("all_to_all", (operand,), operand.type.shaped(*shape), attributes)


def collective_permute(block: Block) -> None:
    operand = block.varying()
    if operand is None:
        return
    devices = block.settings.devices
    to = block.draw(st.permutations(range(devices)))
    pairs = [[source, target] for source, target in enumerate(to) if source != target]
    if pairs:
        attributes = (
            f"{_channel(block)}, source_target_pairs = dense<{pairs}> : tensor<{len(pairs)}x2xi64>"
        )
        block.generic("collective_permute", (operand,), operand.type, attributes)


COLLECTIVES: tuple[Callable[[Block], None], ...] = (
    all_reduce, all_gather, reduce_scatter, all_to_all, collective_permute,
)  # fmt: skip
