"""Print HLO's attributes as MLIR prints StableHLO's.

A table says from which fields of an instruction an opcode's attributes are printed;
`hespas.frontend.attributes` reads the typed attributes from the texts, as for StableHLO.

Source of the names: openxla/xla, ``xla/hlo/ir/hlo_opcode.h``; of the spellings of groups:
``xla/hlo/ir/replica_group.h``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any

import msgspec

from hespas.errors import ProgramError, UnsupportedError
from hespas.frontend.attributes import attrs_of
from hespas.frontend.hlo.config import collective_kernel
from hespas.frontend.mesh import AxisPart, Mesh, axis_groups
from hespas.program.attrs import (
    NO_ATTRS,
    Attrs,
    CollectiveAttrs,
    PermuteAttrs,
    dot_algorithm_text,
)
from hespas.program.groups import FoldedGroups, GroupMode, ListedGroups, ReplicaGroups
from hespas.program.text import array_text, rows_text
from hespas.xla.hlo.schema import enum_names

Attributes = tuple[tuple[str, str], ...]
"""Names and MLIR texts, sorted by name."""
Text = Callable[[Any], str]
"""Prints an attribute of an ``xla.HloInstructionProto``, "" if it has none."""
Reading = tuple[Attrs, Attributes]
Reader = Callable[[Any], Reading]


def integer_text(number: int) -> str:
    """Print a 64-bit number."""
    return f"{number} : i64"


def instructions_of(message: Any) -> Iterator[Any]:
    """Yield the instructions of all computations of a module."""
    for computation in message.computations:
        yield from computation.instructions


@lru_cache(maxsize=256)
def string_text(text: str) -> str:
    r"""Print a string as ASCII on one line.

    >>> print(string_text('{"n":"32"}'))
    "{\22n\22:\2232\22}"
    """

    def printed(char: str) -> str:
        is_plain = " " <= char <= "~" and char not in '"\\'
        return char if is_plain else "".join([f"\\{byte:02X}" for byte in char.encode()])

    return f'"{"".join(map(printed, text))}"'


def listed(texts: dict[str, str]) -> Attributes:
    """Return attributes sorted by name."""
    return tuple(sorted(texts.items()))


# Printers of fields; paths are those of `operator.attrgetter`.


def _array(path: str) -> Text:
    return lambda instruction: array_text(tuple(attrgetter(path)(instruction)))


def _member_array(path: str, field: str, default: int = 0) -> Text:
    """Print a field of list members; ``default`` replaces 0."""

    def text(instruction: Any) -> str:
        members = attrgetter(path)(instruction)
        return array_text(tuple([getattr(member, field) or default for member in members]))

    return text


def _number(path: str) -> Text:
    return lambda instruction: integer_text(attrgetter(path)(instruction))


def _flag(path: str) -> Text:
    return lambda instruction: str(attrgetter(path)(instruction)).lower()


def _text_enum(path: str, printed: str) -> Text:
    """Print an enumeration stored as text; empty text stays empty."""

    def text(instruction: Any) -> str:
        value = attrgetter(path)(instruction)
        return f"#stablehlo<{printed} {value}>" if value else ""

    return text


def _enum(path: str, enum: str, printed: str, prefix: str = "") -> Text:
    def text(instruction: Any) -> str:
        value = enum_names(enum)[attrgetter(path)(instruction)]
        return f"#stablehlo<{printed} {value.removeprefix(prefix)}>"

    return text


def _single_dimension(instruction: Any) -> str:
    if len(instruction.dimensions) != 1:
        raise ProgramError(f"{instruction.opcode} has {len(instruction.dimensions)} dimensions")
    return integer_text(instruction.dimensions[0])


def _dimension_numbers(path: str, printed: str, *fields: str) -> Text:
    """Print a gather's or scatter's dimension numbers."""

    def text(instruction: Any) -> str:
        numbered = attrgetter(path)(instruction)
        parts = [f"{name} = {list(getattr(numbered, name))}" for name in fields]
        parts = [part for part in parts if not part.endswith("[]")]
        parts.append(f"index_vector_dim = {numbered.index_vector_dim}")
        return f"#stablehlo.{printed}<{', '.join(parts)}>"

    return text


_DOT_DIMENSIONS = {
    "lhs_batching_dimensions": "lhs_batch_dimensions",
    "rhs_batching_dimensions": "rhs_batch_dimensions",
    "lhs_contracting_dimensions": "lhs_contracting_dimensions",
    "rhs_contracting_dimensions": "rhs_contracting_dimensions",
}


def _dot_dimensions(path: str) -> Text:
    def text(instruction: Any) -> str:
        numbered = attrgetter(path)(instruction)
        lists = {name: list(getattr(numbered, field)) for name, field in _DOT_DIMENSIONS.items()}
        parts = [f"{name} = {numbers}" for name, numbers in lists.items() if numbers]
        return f"#stablehlo.dot<{', '.join(parts)}>"

    return text


def precisions(instruction: Any) -> tuple[str, ...]:
    """Return each operand's precision; empty if all are the default."""
    names = enum_names("xla.PrecisionConfig.Precision")
    precision = tuple([names[number] for number in instruction.precision_config.operand_precision])
    return precision if set(precision) - {"DEFAULT"} else ()


def _precision_config(instruction: Any) -> str:
    names = [f"#stablehlo<precision {name}>" for name in precisions(instruction)]
    return f"[{', '.join(names)}]" if names else ""


def _algorithm(instruction: Any) -> str:
    algorithms = enum_names("xla.PrecisionConfig.Algorithm")
    return dot_algorithm_text(algorithms[instruction.precision_config.algorithm])


def _convolution_dimensions(instruction: Any) -> str:
    """Print a convolution's dimensions as MLIR does.

    The text has the form ``[b, 0, f]x[0, i, o]->[b, 0, f]``. Raises `ProgramError` if two
    dimensions of an operand have the same position.
    """
    numbers = instruction.convolution_dimension_numbers
    sides = [
        _letters(
            side,
            getattr(numbers, f"{side}_spatial_dimensions"),
            {letter: getattr(numbers, f"{side}_{name}_dimension") for letter, name in names},
        )
        for side, *names in _CONVOLUTION_LETTERS
    ]
    return "#stablehlo.conv<[{}]x[{}]->[{}]>".format(*sides)


_CONVOLUTION_LETTERS = (
    ("input", ("b", "batch"), ("f", "feature")),
    ("kernel", ("i", "input_feature"), ("o", "output_feature")),
    ("output", ("b", "batch"), ("f", "feature")),
)


def _letters(side: str, spatial: Sequence[int], position_of: dict[str, int]) -> str:
    positions = (*position_of.values(), *spatial)
    if sorted(positions) != list(range(len(positions))):
        raise ProgramError(f"dimensions of a convolution's {side} lie at {positions}")
    letters = dict(zip(positions, (*position_of, *map(str, range(len(spatial)))), strict=True))
    return ", ".join(letters[position] for position in sorted(letters))


def _padding(instruction: Any) -> str:
    sides = instruction.window.dimensions
    return rows_text([(side.padding_low, side.padding_high) for side in sides])


def _group_count(path: str) -> Text:
    return lambda instruction: integer_text(attrgetter(path)(instruction) or 1)


def _reversal(instruction: Any) -> str:
    reversals = [side.window_reversal for side in instruction.window.dimensions]
    values = ", ".join([str(value).lower() for value in reversals])
    return f"array<i1: {values}>" if any(reversals) else ""


_WINDOW_TEXTS: dict[str, Text] = {
    "base_dilations": _member_array("window.dimensions", "base_dilation", 1),
    "padding": _padding,
    "window_dilations": _member_array("window.dimensions", "window_dilation", 1),
    "window_dimensions": _member_array("window.dimensions", "size"),
    "window_strides": _member_array("window.dimensions", "stride", 1),
}
_CONVOLUTION_TEXTS: dict[str, Text] = {
    "batch_group_count": _group_count("batch_group_count"),
    "dimension_numbers": _convolution_dimensions,
    "feature_group_count": _group_count("feature_group_count"),
    "lhs_dilation": _member_array("window.dimensions", "base_dilation", 1),
    "padding": _padding,
    "precision_config": _precision_config,
    "rhs_dilation": _member_array("window.dimensions", "window_dilation", 1),
    "window_strides": _member_array("window.dimensions", "stride", 1),
}
_DOT_TEXTS: dict[str, Text] = {
    "algorithm": _algorithm,
    "dot_dimension_numbers": _dot_dimensions("dot_dimension_numbers"),
    "precision_config": _precision_config,
}
_FORWARD = ("CONVOLUTION_KIND_UNSET", "CONVOLUTION_KIND_FPROP")


def convolution_reading(instruction: Any) -> Reading:
    """Read a convolution, including cuDNN's."""
    return _reading(instruction, kind="convolution", texts=_CONVOLUTION_TEXTS)


def _convolution(instruction: Any) -> Reading:
    """Read a forward convolution; other kinds raise `UnsupportedError`."""
    kind = enum_names("xla.ConvolutionKind")[instruction.conv_kind]
    if kind not in _FORWARD:
        raise UnsupportedError(f"a convolution of the kind {kind.lower()} is not known")
    attrs, texts = convolution_reading(instruction)
    reversal = _reversal(instruction)
    return attrs, listed({**dict(texts), "window_reversal": reversal}) if reversal else texts


def _reading(instruction: Any, *, kind: str, texts: dict[str, Text]) -> Reading:
    printed = [(name, text(instruction)) for name, text in texts.items()]
    attributes = tuple([pair for pair in printed if pair[1]])
    return attrs_of(kind, attributes), attributes


def _no_reading(_: Any) -> Reading:
    return NO_ATTRS, ()


# Collectives.

COLLECTIVE_PREFIXES = ("all-", "collective-", "reduce-scatter", "ragged-all-to-all")
"""The beginnings of opcodes of collectives."""
_REPLICAS_AND_PARTITIONS = frozenset({"all-gather", "all-reduce", "reduce-scatter"})
"""With a channel, their groups are of replicas and partitions; all others' are of partitions."""


def replica_groups(instruction: Any) -> ReplicaGroups:
    """Read a collective's groups: a list, a folded iota, or mesh axes."""
    if instruction.HasField("mesh_axes_replica_group_list"):
        return _mesh_axes(instruction.mesh_axes_replica_group_list)
    if instruction.HasField("iota_collective_device_list"):
        folded = instruction.iota_collective_device_list
        size = folded.num_devices_per_group
        dimensions = tuple(folded.iota_reshape_dims) or (folded.num_replica_groups, size)
        return _folded(dimensions, folded.iota_transpose_perm, size)
    groups = instruction.collective_device_list.replica_groups or instruction.replica_groups
    return ListedGroups(groups=tuple([tuple(group.replica_ids) for group in groups]))


def _folded(dimensions: tuple[int, ...], permutation: Sequence[int], size: int) -> FoldedGroups:
    order = tuple(permutation) or tuple(range(len(dimensions)))
    return FoldedGroups(dimensions=dimensions, permutation=order, group_size=size)


def _mesh_axes(message: Any) -> ReplicaGroups:
    axes: tuple[tuple[str, int], ...] = tuple(
        [(axis.name, axis.size) for axis in message.mesh.axes]
    )
    mesh = Mesh(axes=axes, device_ids=_device_ids(message.mesh))
    parts: list[AxisPart] = []
    for reference in message.axes:
        index: int = reference.mesh_axis_index
        if not 0 <= index < len(axes):
            raise ProgramError(f"mesh axis {index} is not defined")
        name, size = axes[index]
        before = 1
        if reference.HasField("sub_axis_info"):
            before, size = reference.sub_axis_info.pre_size, reference.sub_axis_info.size
        parts.append(AxisPart(name=name, before=before, size=size))
    return axis_groups(mesh, parts)


def _device_ids(mesh: Any) -> tuple[int, ...] | None:
    if mesh.device_ids:
        return tuple(mesh.device_ids)
    if not mesh.HasField("iota_transform"):
        return None
    transform = mesh.iota_transform
    folded = _folded(tuple(transform.reshape_dims), transform.transpose_perm, 1)
    return tuple([row[0] for row in folded.listed()])


def _group_mode(instruction: Any, opcode: str) -> GroupMode:
    """Return the meaning of the numbers in the groups.

    Source: openxla/xla, ``GetCollectiveOpGroupMode``, and the StableHLO specification, section
    "Process groups".
    """
    if instruction.use_global_device_ids:
        return GroupMode.FLATTENED_IDS
    if instruction.channel_id <= 0:
        return GroupMode.CROSS_REPLICA
    if opcode in _REPLICAS_AND_PARTITIONS:
        return GroupMode.CROSS_REPLICA_AND_PARTITION
    return GroupMode.CROSS_PARTITION


def channel_of(instruction: Any) -> int | None:
    """Return a collective's channel, or None."""
    return instruction.channel_id if instruction.channel_id > 0 else None


_DIMENSION_NAMES = {
    "all-gather": "all_gather_dim",
    "all-to-all": "split_dimension",
    "reduce-scatter": "scatter_dimension",
}


def _collective(instruction: Any, opcode: str) -> Reading:
    dimensions = instruction.dimensions if opcode in _DIMENSION_NAMES else ()
    return collective_of(instruction, opcode, dimensions[0] if dimensions else None)


def collective_of(
    instruction: Any, opcode: str, dimension: int | None
) -> tuple[CollectiveAttrs, Attributes]:
    """Read a collective; ``opcode`` is without ``-start``."""
    groups, mode = replica_groups(instruction), _group_mode(instruction, opcode)
    attrs = CollectiveAttrs(
        groups=groups,
        mode=mode,
        channel=channel_of(instruction),
        dimension=dimension,
        kernel=collective_kernel(instruction.backend_config) if opcode == "all-reduce" else "",
    )
    texts = {"replica_groups": _groups_text(groups)}
    if dimension is not None:
        texts[_DIMENSION_NAMES[opcode]] = integer_text(dimension)
    if opcode == "all-to-all" and dimension is not None:
        texts["concat_dimension"] = integer_text(dimension)
        texts["split_count"] = integer_text(groups.group_size)
    if mode is GroupMode.FLATTENED_IDS:
        texts["use_global_device_ids"] = "unit"
    return attrs, listed(texts)


def _groups_text(groups: ReplicaGroups) -> str:
    """Print groups; folded groups stay folded."""
    if isinstance(groups, FoldedGroups):
        dimensions, permutation = list(groups.dimensions), list(groups.permutation)
        return f'"{dimensions}T{permutation} in {groups.group_size}"'
    width = groups.group_size
    padded = [(*group, *(-1,) * (width - len(group))) for group in groups.groups]
    return rows_text(padded, width)


def _permute(instruction: Any) -> Reading:
    pairs = tuple([(pair.source, pair.target) for pair in instruction.source_target_pairs])
    mode = _group_mode(instruction, "collective-permute")
    attrs = PermuteAttrs(pairs=pairs, mode=mode, channel=channel_of(instruction))
    return attrs, (("source_target_pairs", rows_text(pairs)),)


# Opcodes.


class Opcode(msgspec.Struct, frozen=True, kw_only=True):
    """An opcode's operation and the reader of its attributes."""

    dialect: str
    kind: str
    read: Reader


# Spelled as in StableHLO, except for hyphens.
_STABLEHLO_KINDS = (
    "abs add after-all and atan2 batch-norm-grad batch-norm-inference batch-norm-training "
    "bitcast-convert cbrt ceil clamp complex convert cosine count-leading-zeros divide "
    "dynamic-update-slice exponential exponential-minus-one floor imag infeed is-finite log "
    "log-plus-one logistic maximum minimum multiply negate not or outfeed partition-id popcnt "
    "power real remainder replica-id reshape round-nearest-afz round-nearest-even rsqrt select "
    "shift-left shift-right-arithmetic shift-right-logical sign sine sqrt subtract tan tanh xor"
)
# StableHLO lacks these.
_XLA_ONLY = (
    "acos acosh add-dependency asin asinh atanh copy cosh dynamic-reshape erf recv-done send-done "
    "sinh stochastic-convert"
)
_MHLO = frozenset(_XLA_ONLY.split()) | {
    "ragged-all-to-all",
    "ragged-dot",
    "rng-get-and-update-state",
    "scaled-dot",
}
_RENAMED_KINDS = {
    "broadcast": "broadcast_in_dim",
    "dot": "dot_general",
    "opt-barrier": "optimization_barrier",
    "rng-get-and-update-state": "xla.rng_get_and_update_state",
}

_DIMENSIONS = _array("dimensions")
# The attributes of each opcode, sorted by name.
_TEXTS: dict[str, dict[str, Text]] = {
    "broadcast": {"broadcast_dimensions": _DIMENSIONS},
    "cholesky": {"lower": _flag("cholesky_options.lower")},
    "compare": {
        "compare_type": _text_enum("comparison_type", "comparison_type"),
        "comparison_direction": _text_enum("comparison_direction", "comparison_direction"),
    },
    "concatenate": {"dimension": _single_dimension},
    "dot": _DOT_TEXTS,
    "dynamic-slice": {"slice_sizes": _array("dynamic_slice_sizes")},
    "fft": {
        "fft_length": _array("fft_length"),
        "fft_type": _enum("fft_type", "xla.FftType", "fft_type"),
    },
    "gather": {
        "dimension_numbers": _dimension_numbers(
            "gather_dimension_numbers",
            "gather",
            "offset_dims",
            "collapsed_slice_dims",
            "operand_batching_dims",
            "start_indices_batching_dims",
            "start_index_map",
        ),
        "indices_are_sorted": _flag("indices_are_sorted"),
        "slice_sizes": _array("gather_slice_sizes"),
    },
    "get-dimension-size": {"dimension": _single_dimension},
    "iota": {"iota_dimension": _single_dimension},
    "map": {"dimensions": _DIMENSIONS},
    "opt-barrier": {},
    "pad": {
        f"{side}_padding{end}": _member_array("padding_config.dimensions", f"{side}_padding{end}")
        for side, end in (("edge", "_high"), ("edge", "_low"), ("interior", ""))
    },
    "ragged-dot": {
        "algorithm": _algorithm,
        "dot_dimension_numbers": _dot_dimensions(
            "ragged_dot_dimension_numbers.dot_dimension_numbers"
        ),
        "lhs_ragged_dimensions": _array("ragged_dot_dimension_numbers.lhs_ragged_dimensions"),
        "precision_config": _precision_config,
        "rhs_group_dimensions": _array("ragged_dot_dimension_numbers.rhs_group_dimensions"),
    },
    "recv": {"channel_id": _number("channel_id")},
    "reduce": {"dimensions": _DIMENSIONS},
    "reduce-precision": {
        "exponent_bits": _number("exponent_bits"),
        "mantissa_bits": _number("mantissa_bits"),
    },
    "reduce-window": _WINDOW_TEXTS,
    "reverse": {"dimensions": _DIMENSIONS},
    "rng": {
        "rng_distribution": _enum(
            "distribution", "xla.RandomDistribution", "rng_distribution", "RNG_"
        )
    },
    "rng-bit-generator": {
        "rng_algorithm": _enum("rng_algorithm", "xla.RandomAlgorithm", "rng_algorithm", "RNG_")
    },
    "rng-get-and-update-state": {"delta": _number("delta")},
    "scaled-dot": _DOT_TEXTS,
    "scatter": {
        "indices_are_sorted": _flag("indices_are_sorted"),
        "scatter_dimension_numbers": _dimension_numbers(
            "scatter_dimension_numbers",
            "scatter",
            "update_window_dims",
            "inserted_window_dims",
            "input_batching_dims",
            "scatter_indices_batching_dims",
            "scatter_dims_to_operand_dims",
        ),
        "unique_indices": _flag("unique_indices"),
    },
    "select-and-scatter": _WINDOW_TEXTS,
    "send": {"channel_id": _number("channel_id")},
    "set-dimension-size": {"dimension": _single_dimension},
    "slice": {
        "limit_indices": _member_array("slice_dimensions", "limit"),
        "start_indices": _member_array("slice_dimensions", "start"),
        "strides": _member_array("slice_dimensions", "stride", 1),
    },
    "sort": {"dimension": _single_dimension, "is_stable": _flag("is_stable")},
    "transpose": {"permutation": _DIMENSIONS},
    "triangular-solve": {
        "left_side": _flag("triangular_solve_options.left_side"),
        "lower": _flag("triangular_solve_options.lower"),
        "transpose_a": _enum(
            "triangular_solve_options.transpose_a",
            "xla.TriangularSolveOptions.Transpose",
            "transpose",
        ),
        "unit_diagonal": _flag("triangular_solve_options.unit_diagonal"),
    },
}
_COLLECTIVES = (
    "all-gather all-reduce all-to-all collective-broadcast ragged-all-to-all reduce-scatter"
)
_READERS: dict[str, Reader] = {
    **{opcode: partial(_collective, opcode=opcode) for opcode in _COLLECTIVES.split()},
    "collective-permute": _permute,
    "convolution": _convolution,
}


def _opcode(opcode: str) -> Opcode:
    kind, texts = _RENAMED_KINDS.get(opcode, opcode.replace("-", "_")), _TEXTS.get(opcode)
    read = _READERS.get(opcode)
    if read is None:
        read = partial(_reading, kind=kind, texts=texts) if texts else _no_reading
    return Opcode(dialect="mhlo" if opcode in _MHLO else "stablehlo", kind=kind, read=read)


OPCODES = {
    opcode: _opcode(opcode)
    for opcode in (*f"{_STABLEHLO_KINDS} {_XLA_ONLY}".split(), *_TEXTS, *_READERS)
}
"""The opcodes that are one operation, with its name and the reader of its attributes."""

GAPS = {
    "domain": "it is a note of the partitioner, which is gone in a program for one device",
    "scan": "it is a loop that compilers replace before they schedule",
}
"""Opcodes that a `Program` cannot hold, and why."""
