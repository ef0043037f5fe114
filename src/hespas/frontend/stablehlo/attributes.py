"""From attribute text to typed attributes, one reader for each family of operations."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec

from hespas.errors import ProgramError
from hespas.frontend.meshes import Mesh, read_axis_groups
from hespas.program.attrs import (
    NO_ATTRS,
    Attrs,
    BitcastAttrs,
    CallAttrs,
    CollectiveAttrs,
    CompareAttrs,
    ConstantAttrs,
    ConvolutionAttrs,
    CustomCallAttrs,
    DimensionAttrs,
    DimensionsAttrs,
    DotAttrs,
    EinsumAttrs,
    FftAttrs,
    FusionAttrs,
    GatherAttrs,
    PermuteAttrs,
    SliceAttrs,
    WindowAttrs,
)
from hespas.program.groups import GroupMode, ListedGroups, ReplicaGroups
from hespas.program.types import TensorType
from hespas.xla.mlir.functions import OpRecord
from hespas.xla.mlir.text import (
    read_dense_integers,
    read_integer,
    read_integers,
    read_rows,
    read_symbols,
    split_list,
)

Reader = Callable[[OpRecord], Attrs]
"""Returns an operation's typed attributes."""


def _required(record: OpRecord, name: str) -> str:
    """Return the text of an attribute; `ProgramError` if it is missing."""
    text = record.attributes.get(name)
    if text is None:
        raise ProgramError(f"attribute {name} is missing")
    return text


def _integer(record: OpRecord, name: str, default: int) -> int:
    """Return an integer attribute, or the default."""
    text = record.attributes.get(name)
    return default if text is None else read_integer(text)


def _integers(record: OpRecord, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Return a list of integers, or the default."""
    text = record.attributes.get(name)
    return default if text is None else read_integers(text)


def _tensor(record: OpRecord, operand: int) -> TensorType:
    """Return the type of an operand that must be a tensor; `ProgramError` if it is not."""
    kind = record.operands[operand].type
    if not isinstance(kind, TensorType):
        raise ProgramError(f"operand {operand} is {kind}, not a tensor")
    return kind


def _precision(record: OpRecord) -> tuple[str, ...]:
    return tuple(re.findall(r"precision (\w+)", record.attributes.get("precision_config", "")))


def _padding(record: OpRecord, rank: int) -> tuple[tuple[int, int], ...]:
    text = record.attributes.get("padding")
    if text is None:
        return ((0, 0),) * rank
    return tuple((low, high) for low, high in read_rows(text))


_DOT_DIMENSIONS = re.compile(r"([lr]hs_(?:batching|contracting))_dimensions = \[([\d, ]*)\]")


def _dot_general(record: OpRecord) -> DotAttrs:
    listed = _DOT_DIMENSIONS.findall(_required(record, "dot_dimension_numbers"))
    dimensions = {name: read_integers(numbers) for name, numbers in listed}
    return DotAttrs(
        lhs_batching=dimensions.get("lhs_batching", ()),
        rhs_batching=dimensions.get("rhs_batching", ()),
        lhs_contracting=dimensions.get("lhs_contracting", ()),
        rhs_contracting=dimensions.get("rhs_contracting", ()),
        precision=_precision(record),
        algorithm=record.attributes.get("algorithm", ""),
    )


_RAGGED_DIMENSIONS = re.compile(r"lhs_ragged_dimensions = \[(\d+)\]")


def _ragged_dot(record: OpRecord) -> DotAttrs:
    text = _required(record, "ragged_dot_dimension_numbers")
    ragged = _RAGGED_DIMENSIONS.search(text)
    if ragged is None:
        raise ProgramError("ragged_dot_dimension_numbers cannot be read")
    dimensions = {name: read_integers(numbers) for name, numbers in _DOT_DIMENSIONS.findall(text)}
    contracting = dimensions.get("lhs_contracting", ())
    return DotAttrs(
        lhs_batching=dimensions.get("lhs_batching", ()),
        rhs_batching=dimensions.get("rhs_batching", ()),
        lhs_contracting=contracting,
        rhs_contracting=dimensions.get("rhs_contracting", ()),
        precision=_precision(record),
        ragged=int(ragged[1]),
        is_divided=int(ragged[1]) in contracting,
    )


def _dot(record: OpRecord) -> DotAttrs:
    return DotAttrs(
        lhs_batching=(),
        rhs_batching=(),
        lhs_contracting=(_tensor(record, 0).rank - 1,),
        rhs_contracting=(0,),
        precision=_precision(record),
        algorithm=record.attributes.get("algorithm", ""),
    )


_CONVOLUTION_NUMBERS = re.compile(r"<\[([^]]*)\]x\[([^]]*)\]->\[([^]]*)\]>")


def _dimension_numbers(text: str, first: str, second: str) -> tuple[int, int, tuple[int, ...]]:
    """Return the positions of two letters, and those of 0, 1, 2..."""
    letters = [letter.strip() for letter in text.split(",")]
    spatial = sorted((int(letter), at) for at, letter in enumerate(letters) if letter.isdigit())
    return letters.index(first), letters.index(second), tuple(at for _, at in spatial)


def _convolution(record: OpRecord) -> ConvolutionAttrs:
    match = _CONVOLUTION_NUMBERS.search(_required(record, "dimension_numbers"))
    if match is None:
        raise ProgramError("dimension_numbers cannot be read")
    input_batch, input_feature, input_spatial = _dimension_numbers(match[1], "b", "f")
    kernel_input, kernel_output, kernel_spatial = _dimension_numbers(match[2], "i", "o")
    output_batch, output_feature, output_spatial = _dimension_numbers(match[3], "b", "f")
    ones = (1,) * len(input_spatial)
    return ConvolutionAttrs(
        input_batch=input_batch,
        input_feature=input_feature,
        input_spatial=input_spatial,
        kernel_input_feature=kernel_input,
        kernel_output_feature=kernel_output,
        kernel_spatial=kernel_spatial,
        output_batch=output_batch,
        output_feature=output_feature,
        output_spatial=output_spatial,
        strides=_integers(record, "window_strides", ones),
        padding=_padding(record, len(ones)),
        lhs_dilation=_integers(record, "lhs_dilation", ones),
        rhs_dilation=_integers(record, "rhs_dilation", ones),
        feature_group_count=_integer(record, "feature_group_count", 1),
        batch_group_count=_integer(record, "batch_group_count", 1),
        precision=_precision(record),
    )


def _dimensions(name: str) -> Reader:
    def read(record: OpRecord) -> DimensionsAttrs:
        return DimensionsAttrs(dimensions=read_integers(_required(record, name)))

    return read


def _dimension(name: str) -> Reader:
    def read(record: OpRecord) -> DimensionAttrs:
        return DimensionAttrs(dimension=_integer(record, name, -1))

    return read


def _slice(record: OpRecord) -> SliceAttrs:
    start = read_integers(_required(record, "start_indices"))
    return SliceAttrs(
        start=start,
        limit=read_integers(_required(record, "limit_indices")),
        strides=_integers(record, "strides", (1,) * len(start)),
    )


def _gather(record: OpRecord) -> GatherAttrs:
    return GatherAttrs(slice_sizes=read_integers(_required(record, "slice_sizes")))


def _window(record: OpRecord) -> WindowAttrs:
    rank = _tensor(record, 0).rank
    ones = (1,) * rank
    return WindowAttrs(
        size=_integers(record, "window_dimensions", ones),
        strides=_integers(record, "window_strides", ones),
        base_dilation=_integers(record, "base_dilations", ones),
        window_dilation=_integers(record, "window_dilations", ones),
        padding=_padding(record, rank),
    )


def _compare(record: OpRecord) -> CompareAttrs:
    direction = re.search(r"comparison_direction (\w+)", _required(record, "comparison_direction"))
    return CompareAttrs(direction=direction[1] if direction else "")


_SCALAR = re.compile(r"dense<([^\[\"(]*)> : ")


def _constant(record: OpRecord) -> ConstantAttrs:
    text = _required(record, "value")
    match = _SCALAR.match(text)
    if match is None or not match[1]:
        return ConstantAttrs(value=None)
    literal = match[1]
    if literal in ("true", "false"):
        return ConstantAttrs(value=literal == "true")
    try:
        return ConstantAttrs(value=int(literal))
    except ValueError:
        pass
    try:
        return ConstantAttrs(value=float(literal))
    except ValueError:
        # 0xFF800000 and its like: bits of infinities and NaNs, which nothing here computes with.
        return ConstantAttrs(value=None)


def _fft(record: OpRecord) -> FftAttrs:
    kind = re.search(r"fft_type (\w+)", _required(record, "fft_type"))
    return FftAttrs(
        kind=kind[1] if kind else "", lengths=read_integers(_required(record, "fft_length"))
    )


def _einsum(record: OpRecord) -> EinsumAttrs:
    return EinsumAttrs(equation=_required(record, "einsum_config").strip('"'))


def _call(name: str) -> Reader:
    def read(record: OpRecord) -> CallAttrs:
        return CallAttrs(callee=read_symbols(_required(record, name))[0])

    return read


def _async_start(record: OpRecord) -> Attrs:
    text = record.attributes.get("called_computation")
    return NO_ATTRS if text is None else CallAttrs(callee=read_symbols(text)[0])


_RAGGED_ALL_TO_ALL = '"ragged_all_to_all"'


def _ragged_all_to_all(record: OpRecord, meshes: Mapping[str, Mesh]) -> CollectiveAttrs:
    """Read the groups of the collective from its configuration, where JAX writes them."""
    text = _required(record, "backend_config")
    if not text.startswith("{"):
        raise ProgramError("the backend_config of ragged_all_to_all cannot be read")
    parts = [part.partition(" = ") for part in split_list(text[1:-1])]
    fields = {name: value for name, _, value in parts}
    configured = msgspec.structs.replace(record, attributes=fields)
    groups, mode, channel = _groups(configured, meshes, GroupMode.CROSS_PARTITION)
    return CollectiveAttrs(groups=groups, mode=mode, channel=channel)


def _custom_call(meshes: Mapping[str, Mesh]) -> Reader:
    def read(record: OpRecord) -> Attrs:
        if record.attributes.get("call_target_name") == _RAGGED_ALL_TO_ALL:
            return _ragged_all_to_all(record, meshes)
        return _call_of_library(record)

    return read


def _call_of_library(record: OpRecord) -> CustomCallAttrs:
    return CustomCallAttrs(
        target=_required(record, "call_target_name").strip('"'),
        backend_config=record.attributes.get(
            "mhlo.backend_config", record.attributes.get("backend_config", "")
        ),
        called_functions=read_symbols(record.attributes.get("called_computations", "")),
    )


def _fusion(record: OpRecord) -> FusionAttrs:
    kind = re.search(r"fusion_kind (\w+)", record.attributes.get("fusion_kind", ""))
    return FusionAttrs(kind=kind[1] if kind else "")


def _bitcast(record: OpRecord) -> BitcastAttrs:
    def layout(name: str) -> tuple[int, ...] | None:
        text = record.attributes.get(name)
        return None if text is None else read_dense_integers(text)[1]

    return BitcastAttrs(
        source_layout=layout("source_layout"), result_layout=layout("result_layout")
    )


_HANDLE = re.compile(r"handle = (-?\d+)")


def _channel(record: OpRecord) -> int | None:
    text = record.attributes.get("channel_handle")
    if text is not None:
        match = _HANDLE.search(text)
        handle = int(match[1]) if match else 0
        return handle if handle > 0 else None
    return _integer(record, "channel_id", 0) or None


def _groups(
    record: OpRecord, meshes: Mapping[str, Mesh], with_channel: GroupMode
) -> tuple[ReplicaGroups, GroupMode, int | None]:
    """Read the groups and what their numbers mean (StableHLO, "Process groups")."""
    channel = _channel(record)
    text = _required(record, "replica_groups")
    if not text.startswith("dense"):
        return read_axis_groups(text, meshes), GroupMode.FLATTENED_IDS, channel
    rows = tuple(tuple(at for at in row if at >= 0) for row in read_rows(text))
    groups = ListedGroups(groups=tuple(row for row in rows if row))
    if "use_global_device_ids" in record.attributes:
        return groups, GroupMode.FLATTENED_IDS, channel
    return groups, GroupMode.CROSS_REPLICA if channel is None else with_channel, channel


def _collective(
    meshes: Mapping[str, Mesh], dimension: str | None, with_channel: GroupMode
) -> Reader:
    def read(record: OpRecord) -> CollectiveAttrs:
        groups, mode, channel = _groups(record, meshes, with_channel)
        return CollectiveAttrs(
            groups=groups,
            mode=mode,
            channel=channel,
            dimension=None if dimension is None else read_integer(_required(record, dimension)),
        )

    return read


def _permute(record: OpRecord) -> PermuteAttrs:
    channel = _channel(record)
    pairs = read_rows(_required(record, "source_target_pairs"))
    return PermuteAttrs(
        pairs=tuple((source, target) for source, target in pairs),
        mode=GroupMode.CROSS_REPLICA if channel is None else GroupMode.CROSS_PARTITION,
        channel=channel,
    )


def _collective_readers(meshes: Mapping[str, Mesh]) -> dict[str, Reader]:
    """Return the reader of every operation kind that moves data between devices."""
    both = GroupMode.CROSS_REPLICA_AND_PARTITION
    partition = GroupMode.CROSS_PARTITION
    return {
        "all_gather": _collective(meshes, "all_gather_dim", both),
        "all_reduce": _collective(meshes, None, both),
        "all_to_all": _collective(meshes, "split_dimension", partition),
        "collective_broadcast": _collective(meshes, None, partition),
        "collective_permute": _permute,
        "cross-replica-sum": _collective(meshes, None, both),
        "reduce_scatter": _collective(meshes, "scatter_dimension", both),
    }


def attribute_readers(meshes: Mapping[str, Mesh]) -> dict[str, Reader]:
    """Return the reader of every operation kind that has attributes a stage needs."""
    return _collective_readers(meshes) | {
        "async_start": _async_start,
        "bitcast": _bitcast,
        "broadcast": _dimensions("broadcast_sizes"),
        "broadcast_in_dim": _dimensions("broadcast_dimensions"),
        "call": _call("callee"),
        "compare": _compare,
        "composite": _call("decomposition"),
        "concatenate": _dimension("dimension"),
        "constant": _constant,
        "convolution": _convolution,
        "custom_call": _custom_call(meshes),
        "dot": _dot,
        "dot_general": _dot_general,
        "dynamic_slice": _gather,
        "einsum": _einsum,
        "fft": _fft,
        "fusion": _fusion,
        "gather": _gather,
        "get_tuple_element": _dimension("index"),
        "iota": _dimension("iota_dimension"),
        "ragged_dot": _ragged_dot,
        "map": _dimensions("dimensions"),
        "reduce": _dimensions("dimensions"),
        "reduce_window": _window,
        "reverse": _dimensions("dimensions"),
        "select_and_scatter": _window,
        "slice": _slice,
        "sort": _dimension("dimension"),
        "transpose": _dimensions("permutation"),
        "unary_einsum": _einsum,
    }
