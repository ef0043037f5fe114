"""Turn attribute text into typed attributes.

HLO's attributes are first printed as StableHLO's (`hespas.frontend.hlo.attributes`), so one table
serves both formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

import msgspec

from hespas.errors import ProgramError
from hespas.frontend.mesh import Mesh, read_axis_groups
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
    read_pairs,
    read_rows,
    read_symbols,
)

Reader = Callable[[OpRecord], Attrs]
"""Returns an operation's typed attributes."""


def _required(record: OpRecord, name: str) -> str:
    """Return an attribute's text; `ProgramError` without one."""
    text = record.attributes.get(name)
    if text is None:
        raise ProgramError(f"attribute {name} is missing")
    return text


def _rank(record: OpRecord) -> int:
    """Return the first operand's rank; `ProgramError` without one."""
    kind = record.operands[0].type
    if not isinstance(kind, TensorType):
        raise ProgramError(f"operand 0 is {kind}, not a tensor")
    return kind.rank


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of typed attributes: source attribute, reader and default.

    ``default`` computes the value of a missing attribute from the operation; without it, a missing
    attribute is an error.
    """

    name: str
    read: Callable[[str], object]
    default: Callable[[OpRecord], object] | None = None

    def value(self, record: OpRecord) -> object:
        if self.default is not None and self.name not in record.attributes:
            return self.default(record)
        return self.read(_required(record, self.name))


def _fields_reader(make: Callable[..., Attrs], **fields: _Field) -> Reader:

    def read(record: OpRecord) -> Attrs:
        return make(**{name: field.value(record) for name, field in fields.items()})

    return read


def _last_word(text: str) -> str:
    """Read an enumeration's value.

    >>> _last_word("#stablehlo<comparison_direction LT>")
    'LT'
    """
    return text.rpartition(" ")[2].rstrip(">")


def _symbol(text: str) -> str:
    return read_symbols(text)[0]


def _default_ones(record: OpRecord) -> tuple[int, ...]:
    return (1,) * _rank(record)


def _dimensions(name: str) -> Reader:
    return _fields_reader(DimensionsAttrs, dimensions=_Field(name, read_integers))


def _dimension(name: str) -> Reader:
    return _fields_reader(DimensionAttrs, dimension=_Field(name, read_integer, lambda _: -1))


def _layout(name: str) -> _Field:
    return _Field(name, lambda text: read_dense_integers(text)[1], lambda _: None)


def _window_field(name: str) -> _Field:
    return _Field(name, read_integers, _default_ones)


_SCALAR = re.compile(r"dense<([^\[\"(]+)> : ")


def _number(text: str) -> int | float | bool | None:
    match = _SCALAR.match(text)
    if match is None:
        return None
    literal = match[1]
    if literal in ("true", "false"):
        return literal == "true"
    for kind in (int, float):
        try:
            return kind(literal)
        except ValueError:
            continue
    # 0xFF800000 and similar: bits of infinities and NaNs, which no stage computes with.
    return None


_PRECISION = re.compile(r"precision (\w+)")


def _precision(record: OpRecord) -> tuple[str, ...]:
    return tuple(_PRECISION.findall(record.attributes.get("precision_config", "")))


_DOT_DIMENSIONS = re.compile(r"([lr]hs_(?:batching|contracting))_dimensions = \[([\d, ]*)\]")
_RAGGED_DIMENSIONS = re.compile(r"lhs_ragged_dimensions = (?:\[|array<i64: )(\d+)[\]>]")


def _dot(record: OpRecord, text: str) -> DotAttrs:
    dimensions = {name: read_integers(numbers) for name, numbers in _DOT_DIMENSIONS.findall(text)}
    return DotAttrs(
        lhs_batching=dimensions.get("lhs_batching", ()),
        rhs_batching=dimensions.get("rhs_batching", ()),
        lhs_contracting=dimensions.get("lhs_contracting", ()),
        rhs_contracting=dimensions.get("rhs_contracting", ()),
        precision=_precision(record),
        algorithm=record.attributes.get("algorithm", ""),
    )


def _dot_general(record: OpRecord) -> DotAttrs:
    return _dot(record, _required(record, "dot_dimension_numbers"))


def _plain_dot(record: OpRecord) -> DotAttrs:
    contracting = {"lhs_contracting": (_rank(record) - 1,), "rhs_contracting": (0,)}
    return msgspec.structs.replace(_dot(record, ""), **contracting)


def _ragged_dot(record: OpRecord) -> DotAttrs:
    texts = record.attributes
    text = texts.get("ragged_dot_dimension_numbers", texts.get("dot_dimension_numbers", ""))
    rows = texts.get("lhs_ragged_dimensions", "")
    ragged = _RAGGED_DIMENSIONS.search(f"{text} lhs_ragged_dimensions = {rows}" if rows else text)
    if ragged is None:
        raise ProgramError("ragged_dot_dimension_numbers cannot be read")
    number, attrs = int(ragged[1]), _dot(record, text)
    is_divided = number in attrs.lhs_contracting
    return msgspec.structs.replace(attrs, ragged=number, is_divided=is_divided)


_CONVOLUTION_NUMBERS = re.compile(r"<\[([^]]*)\]x\[([^]]*)\]->\[([^]]*)\]>")


def _dimension_numbers(text: str, first: str, second: str) -> tuple[int, int, tuple[int, ...]]:
    letters = [letter.strip() for letter in text.split(",")]
    spatial = sorted(
        (int(letter), position) for position, letter in enumerate(letters) if letter.isdigit()
    )
    return letters.index(first), letters.index(second), tuple(position for _, position in spatial)


def _convolution(record: OpRecord) -> ConvolutionAttrs:
    match = _CONVOLUTION_NUMBERS.search(_required(record, "dimension_numbers"))
    if match is None:
        raise ProgramError("dimension_numbers cannot be read")
    input_batch, input_feature, input_spatial = _dimension_numbers(match[1], "b", "f")
    kernel_input, kernel_output, kernel_spatial = _dimension_numbers(match[2], "i", "o")
    output_batch, output_feature, output_spatial = _dimension_numbers(match[3], "b", "f")
    texts, rank = record.attributes, len(input_spatial)
    padding = texts.get("padding")

    def window(name: str) -> tuple[int, ...]:
        return read_integers(texts[name]) if name in texts else (1,) * rank

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
        strides=window("window_strides"),
        padding=_pairs(padding) if padding else ((0, 0),) * rank,
        lhs_dilation=window("lhs_dilation"),
        rhs_dilation=window("rhs_dilation"),
        feature_group_count=read_integer(texts.get("feature_group_count", "1")),
        batch_group_count=read_integer(texts.get("batch_group_count", "1")),
        precision=_precision(record),
    )


def _pairs(text: str) -> tuple[tuple[int, int], ...]:
    return tuple([(low, high) for low, high in read_rows(text)])


def _async_start(record: OpRecord) -> Attrs:
    text = record.attributes.get("called_computation")
    return NO_ATTRS if text is None else CallAttrs(callee=_symbol(text))


_RAGGED_ALL_TO_ALL = '"ragged_all_to_all"'


def _custom_call(record: OpRecord, meshes: Mapping[str, Mesh]) -> Attrs:
    texts, target = record.attributes, _required(record, "call_target_name")
    if target != _RAGGED_ALL_TO_ALL:
        return CustomCallAttrs(
            target=target.strip('"'),
            backend_config=texts.get("mhlo.backend_config", texts.get("backend_config", "")),
            called_functions=read_symbols(texts.get("called_computations", "")),
        )
    # JAX writes the collective's groups into the configuration.
    text = _required(record, "backend_config")
    if not text.startswith("{"):
        raise ProgramError("the backend_config of ragged_all_to_all cannot be read")
    configured = OpRecord(attributes=read_pairs(text[1:-1]))
    return _collective(configured, meshes, GroupMode.CROSS_PARTITION)


_HANDLE = re.compile(r"handle = (-?\d+)")


def _channel(record: OpRecord) -> int | None:
    text = record.attributes.get("channel_handle")
    if text is not None:
        match = _HANDLE.search(text)
        handle = int(match[1]) if match else 0
        return handle if handle > 0 else None
    return read_integer(record.attributes.get("channel_id", "0")) or None


def _collective(
    record: OpRecord, meshes: Mapping[str, Mesh], with_channel: GroupMode, dimension: str = ""
) -> CollectiveAttrs:
    # The meaning of group numbers: the StableHLO specification, "Process groups".
    channel = _channel(record)
    text = _required(record, "replica_groups")
    groups: ReplicaGroups
    mode = GroupMode.CROSS_REPLICA if channel is None else with_channel
    if not text.startswith("dense"):
        groups, mode = read_axis_groups(text, meshes), GroupMode.FLATTENED_IDS
    else:
        groups = _listed_groups(text)
        if "use_global_device_ids" in record.attributes:
            mode = GroupMode.FLATTENED_IDS
    return CollectiveAttrs(
        groups=groups,
        mode=mode,
        channel=channel,
        dimension=read_integer(_required(record, dimension)) if dimension else None,
    )


@lru_cache(maxsize=16)
def _listed_groups(text: str) -> ListedGroups:
    """Read listed groups; many collectives share a text."""
    rows = [tuple([device for device in row if device >= 0]) for row in read_rows(text)]
    return ListedGroups(groups=tuple([row for row in rows if row]))


def _permute(record: OpRecord) -> PermuteAttrs:
    channel = _channel(record)
    return PermuteAttrs(
        pairs=_pairs(_required(record, "source_target_pairs")),
        mode=GroupMode.CROSS_REPLICA if channel is None else GroupMode.CROSS_PARTITION,
        channel=channel,
    )


_GATHER = _fields_reader(GatherAttrs, slice_sizes=_Field("slice_sizes", read_integers))
_EINSUM = _fields_reader(
    EinsumAttrs, equation=_Field("einsum_config", lambda text: text.strip('"'))
)
_WINDOW = _fields_reader(
    WindowAttrs,
    size=_window_field("window_dimensions"),
    strides=_window_field("window_strides"),
    base_dilation=_window_field("base_dilations"),
    window_dilation=_window_field("window_dilations"),
    padding=_Field("padding", _pairs, lambda record: ((0, 0),) * _rank(record)),
)

READERS: Mapping[str, Reader] = {
    "async_start": _async_start,
    "bitcast": _fields_reader(
        BitcastAttrs, source_layout=_layout("source_layout"), result_layout=_layout("result_layout")
    ),
    "broadcast": _dimensions("broadcast_sizes"),
    "broadcast_in_dim": _dimensions("broadcast_dimensions"),
    "call": _fields_reader(CallAttrs, callee=_Field("callee", _symbol)),
    "collective_permute": _permute,
    "compare": _fields_reader(CompareAttrs, direction=_Field("comparison_direction", _last_word)),
    "composite": _fields_reader(CallAttrs, callee=_Field("decomposition", _symbol)),
    "concatenate": _dimension("dimension"),
    "constant": _fields_reader(ConstantAttrs, value=_Field("value", _number)),
    "convolution": _convolution,
    "dot": _plain_dot,
    "dot_general": _dot_general,
    "dynamic_slice": _GATHER,
    "einsum": _EINSUM,
    "fft": _fields_reader(
        FftAttrs, kind=_Field("fft_type", _last_word), lengths=_Field("fft_length", read_integers)
    ),
    "fusion": _fields_reader(FusionAttrs, kind=_Field("fusion_kind", _last_word, lambda _: "")),
    "gather": _GATHER,
    "get_tuple_element": _dimension("index"),
    "iota": _dimension("iota_dimension"),
    "map": _dimensions("dimensions"),
    "ragged_dot": _ragged_dot,
    "reduce": _dimensions("dimensions"),
    "reduce_window": _WINDOW,
    "reverse": _dimensions("dimensions"),
    "scaled_dot": _dot_general,
    "select_and_scatter": _WINDOW,
    "slice": _fields_reader(
        SliceAttrs,
        start=_Field("start_indices", read_integers),
        limit=_Field("limit_indices", read_integers),
        strides=_Field("strides", read_integers, _default_ones),
    ),
    "sort": _dimension("dimension"),
    "transpose": _dimensions("permutation"),
    "unary_einsum": _EINSUM,
}
"""The reader of every kind with attributes that a stage needs, except collectives."""


def attribute_readers(meshes: Mapping[str, Mesh]) -> dict[str, Reader]:
    """Return all readers for a module with ``meshes``, including collectives."""
    cross_both = partial(
        _collective, meshes=meshes, with_channel=GroupMode.CROSS_REPLICA_AND_PARTITION
    )
    cross_partition = partial(_collective, meshes=meshes, with_channel=GroupMode.CROSS_PARTITION)
    return {
        **READERS,
        "all_gather": partial(cross_both, dimension="all_gather_dim"),
        "all_reduce": cross_both,
        "all_to_all": partial(cross_partition, dimension="split_dimension"),
        "collective_broadcast": cross_partition,
        "cross-replica-sum": cross_both,
        "custom_call": partial(_custom_call, meshes=meshes),
        "reduce_scatter": partial(cross_both, dimension="scatter_dimension"),
    }


@lru_cache(maxsize=16384)
def attrs_of(kind: str, attributes: tuple[tuple[str, str], ...]) -> Attrs:
    """Return the typed attributes of printed ones, except for collectives."""
    reader = READERS.get(kind)
    return NO_ATTRS if reader is None else reader(OpRecord(attributes=dict(attributes)))
