"""Typed attributes of operations, one struct for each family.

Printing uses the attributes' own text (`Op.attributes`); these are what the stages read.
"""

from __future__ import annotations

from typing import TypeGuard

import msgspec

from hespas.errors import UnsupportedError
from hespas.program.groups import GroupMode, ReplicaGroups

CONVOLUTION_FORWARD = "__cudnn$convForward"
CONVOLUTION_BACKWARD_INPUT = "__cudnn$convBackwardInput"
CONVOLUTION_BACKWARD_FILTER = "__cudnn$convBackwardFilter"
CONVOLUTION_BIAS_ACTIVATION = "__cudnn$convBiasActivationForward"
"""cuDNN's convolutions, as XLA calls them: the last one adds and applies an activation."""

FLASH_FORWARD, FLASH_BACKWARD = "__flash_attention$forward", "__flash_attention$backward"
"""FlashAttention: `hespas.xla.flash` says which buffers the two calls have."""

FLASH_MLA = "__flash_mla$decode"
"""FlashMLA: new tokens over a cache of latent vectors (`hespas.xla.flash`)."""

FLASH_MLA_SPARSE, INDEX_SCORES = "__flash_mla$sparse", "__deep_gemm$mqa_logits"
"""FlashMLA to the vectors that an index rates highest, and its ratings (`hespas.xla.flash`)."""

MOSAIC = "tpu_custom_call"
"""A TPU's kernel that its author wrote, in Pallas."""

PARTITIONER_MARKERS = frozenset(
    {
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "Sharding",
        "xla.sdy.FuncResultSharding",
        "xla.sdy.GlobalToLocalShape",
        "xla.sdy.LocalToGlobalShape",
    }
)
"""Calls that state or change the sharding of their operand."""

TOP_K, TOP_K_OF_GPUS = "TopK", "__gpu$TopK"
"""The top-k calls of XLA's compilers: largest elements of each row and their indices."""


class NoAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """The operation has no attributes that a stage needs."""


class DotAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """``dot_general`` and ``dot``: which dimensions are batched and contracted.

    ``precision`` holds one name per operand (``DEFAULT``, ``HIGH``, ``HIGHEST``); empty means
    default. ``algorithm`` is the text of a ``dot_algorithm``, empty where none is set. For a
    ``ragged_dot``, ``ragged`` is the dimension of the first operand that the groups divide, and
    ``is_divided`` says that it is contracted, each group separately. ``group_rows`` are the rows of
    each group, empty if unknown: then the groups fill the whole operand.
    """

    lhs_batching: tuple[int, ...]
    rhs_batching: tuple[int, ...]
    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]
    precision: tuple[str, ...] = ()
    algorithm: str = ""
    is_divided: bool = False
    ragged: int | None = None
    group_rows: tuple[int, ...] = ()


class ConvolutionAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """``convolution``: positions of dimensions, and the spatial window.

    ``*_spatial`` give positions in the operand's or result's shape, in window order;
    ``padding`` is (low, high) per spatial dimension and may be negative.
    """

    input_batch: int
    input_feature: int
    input_spatial: tuple[int, ...]
    kernel_input_feature: int
    kernel_output_feature: int
    kernel_spatial: tuple[int, ...]
    output_batch: int
    output_feature: int
    output_spatial: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    feature_group_count: int
    batch_group_count: int
    precision: tuple[str, ...] = ()


class CollectiveAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """``all_gather``, ``all_reduce``, ``reduce_scatter``, ``all_to_all``, broadcast.

    ``dimension`` is the gathered, scattered or split dimension, None where there is none.
    ``imbalance``, for a ``ragged_all_to_all``, is the token count of the busiest device divided by
    the mean. ``kernel`` is the algorithm of the compiler's own ``all_reduce`` kernel (``one_shot``,
    ``two_shot``), empty if a library runs it.
    """

    groups: ReplicaGroups
    mode: GroupMode
    channel: int | None
    dimension: int | None = None
    imbalance: float = 1.0
    kernel: str = ""


class PermuteAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """``collective_permute``: (source, target) pairs, numbered as ``mode`` says.

    With an ``end``, ``send`` or ``receive``, the program is one of several: it has that end of the
    messages, and others have the other one.
    """

    pairs: tuple[tuple[int, int], ...]
    mode: GroupMode
    channel: int | None
    end: str = ""


class DimensionsAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """A list of dimensions: reduce, transpose, broadcast_in_dim, reverse, broadcast."""

    dimensions: tuple[int, ...]


class SliceAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """``slice``: bounds and strides, one per dimension."""

    start: tuple[int, ...]
    limit: tuple[int, ...]
    strides: tuple[int, ...]


class GatherAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """``gather`` and ``dynamic_slice``: the shape of one slice."""

    slice_sizes: tuple[int, ...]


class WindowAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """``reduce_window`` and ``select_and_scatter``: the window, one entry per dimension."""

    size: tuple[int, ...]
    strides: tuple[int, ...]
    base_dilation: tuple[int, ...]
    window_dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]


class DimensionAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """A single dimension: sort, concatenate, iota."""

    dimension: int


class CompareAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """``compare``: the direction, as StableHLO spells it (``LT``, ``LE``, ...)."""

    direction: str


class ConstantAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """``constant``: its value if scalar or splat, else None."""

    value: int | float | bool | None


class FftAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """``fft``: the kind (``FFT``, ``IFFT``, ``RFFT``, ``IRFFT``) and transformed lengths."""

    kind: str
    lengths: tuple[int, ...]


class EinsumAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """``einsum`` and ``unary_einsum``: the equation, ``ij,jk->ik``."""

    equation: str


class CallAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """``call``, ``composite`` and ``async_start``: the function that is called."""

    callee: str


class InPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A result that overwrites an operand, both by position."""

    result: int
    operand: int


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """An operand that is an integer constant, in row-major order."""

    operand: int
    numbers: tuple[int, ...]


class DeviceTables(msgspec.Struct, frozen=True, kw_only=True):
    """The tables of a call on ``devices`` devices (0: all)."""

    tables: tuple[Table, ...]
    devices: int = 0


class CustomCallAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """``custom_call``: its target and configuration, and the functions it names.

    ``convolution`` is set for a call of a library's convolution: its operands are named as XLA
    names them, whatever the direction. ``precision`` is as in `DotAttrs`. ``tables`` are those of a
    TPU kernel, for each kind of device; ``group_rows`` are as in `DotAttrs`, for a grouped product.
    """

    target: str
    backend_config: str = ""
    called_functions: tuple[str, ...] = ()
    convolution: ConvolutionAttrs | None = None
    precision: tuple[str, ...] = ()
    in_place: tuple[InPlace, ...] = ()
    tables: tuple[DeviceTables, ...] = ()
    group_rows: tuple[int, ...] = ()


def is_of_pallas(attrs: object) -> TypeGuard[CustomCallAttrs]:
    """Return whether attributes are those of Pallas's TPU kernels."""
    return isinstance(attrs, CustomCallAttrs) and attrs.target == MOSAIC


class FusionAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """``fusion``: XLA's kind (``kLoop``, ``kInput``, ``kOutput``, ``kCustom``).

    ``backend_kind`` says what generates a ``kCustom`` fusion (``__triton``, ``__cudnn$fusion``),
    and ``backend_config`` is the compiler's configuration of it as JSON; both may be empty.
    """

    kind: str
    backend_kind: str = ""
    backend_config: str = ""
    in_place: tuple[InPlace, ...] = ()


class BitcastAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """``bitcast``: minor-to-major layouts; None is the default."""

    source_layout: tuple[int, ...] | None
    result_layout: tuple[int, ...] | None


class WhileAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """``while``: the trip count; None if unknown."""

    trip_count: int | None


class CaseAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """``case`` and ``if``: the user's branch weights.

    They add to 1.
    """

    weights: tuple[float, ...] | None


class KernelAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels that are known by the bytes they move.

    ``launches`` of them run one after another. ``label`` is their name in reports. ``kernel`` names
    an author's kernel with PTX; ``grids`` has the blocks of each of its configurations; both are
    empty elsewhere. ``is_reduction`` says that they reduce rows. ``is_known`` is False if no rule
    exists and the bytes are those of all tensors. A kernel with ``rounds`` has blocks of threads
    that each go through as many dependent steps, ``blocks`` side by side, with ``flops`` in all by
    type.
    """

    bytes_read: int
    bytes_written: int
    launches: int = 1
    label: str = "elementwise"
    kernel: str = ""
    grids: tuple[tuple[int, int, int], ...] = ()
    is_reduction: bool = False
    is_known: bool = True
    flops: tuple[tuple[str, int], ...] = ()
    rounds: int = 0
    blocks: int = 0


class EventAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """``record_event`` and ``wait_event``: the number of the event."""

    event: int


class HostWaitAttrs(msgspec.Struct, frozen=True, kw_only=True):
    """``host_wait``: the event or the stream to wait for; None for all streams."""

    stream: int | None = None
    event: int | None = None


Attrs = (
    NoAttrs
    | DotAttrs
    | ConvolutionAttrs
    | CollectiveAttrs
    | PermuteAttrs
    | DimensionsAttrs
    | SliceAttrs
    | GatherAttrs
    | WindowAttrs
    | DimensionAttrs
    | CompareAttrs
    | ConstantAttrs
    | FftAttrs
    | EinsumAttrs
    | CallAttrs
    | CustomCallAttrs
    | FusionAttrs
    | BitcastAttrs
    | WhileAttrs
    | CaseAttrs
    | KernelAttrs
    | EventAttrs
    | HostWaitAttrs
)

NO_ATTRS = NoAttrs()

# The type of the multiplication, the type of the sum, and the number of products.
# Source: openxla/xla, ``PrecisionConfig.Algorithm`` in xla/xla_data.proto (Apache License 2.0).
_DOT_ALGORITHMS = {
    "ALG_DOT_F16_F16_F16": ("f16", "f16", 1),
    "ALG_DOT_F16_F16_F32": ("f16", "f32", 1),
    "ALG_DOT_BF16_BF16_BF16": ("bf16", "bf16", 1),
    "ALG_DOT_BF16_BF16_F32": ("bf16", "f32", 1),
    "ALG_DOT_BF16_BF16_F32_X3": ("bf16", "f32", 3),
    "ALG_DOT_BF16_BF16_F32_X6": ("bf16", "f32", 6),
    "ALG_DOT_BF16_BF16_F32_X9": ("bf16", "f32", 9),
    "ALG_DOT_TF32_TF32_F32": ("tf32", "f32", 1),
    "ALG_DOT_TF32_TF32_F32_X3": ("tf32", "f32", 3),
    "ALG_DOT_F32_F32_F32": ("f32", "f32", 1),
    "ALG_DOT_F64_F64_F64": ("f64", "f64", 1),
}
# These multiply the operands' own types.
_OPERAND_TYPED = frozenset(
    {
        "",
        "ALG_UNSET",
        "ALG_DOT_ANY_F8_ANY_F8_F32",
        "ALG_DOT_ANY_F8_ANY_F8_F32_FAST_ACCUM",
    }
)


def dot_algorithm_text(name: str) -> str:
    """Return StableHLO's ``dot_algorithm`` for XLA's name.

    The text is empty if the operands' types decide.

    Raises `UnsupportedError` for an unknown name.

    >>> dot_algorithm_text("ALG_UNSET")
    ''
    >>> dot_algorithm_text("ALG_DOT_BF16_BF16_F32_X3").split(", ")[-2]
    'num_primitive_operations = 3'
    """
    if name in _OPERAND_TYPED:
        return ""
    if name not in _DOT_ALGORITHMS:
        raise UnsupportedError(f"dot algorithm {name} is not known")
    multiplied, summed, products = _DOT_ALGORITHMS[name]
    return (
        f"#stablehlo.dot_algorithm<lhs_precision_type = {multiplied}, rhs_precision_type = "
        f"{multiplied}, accumulation_type = {summed}, lhs_component_count = 1, "
        f"rhs_component_count = 1, num_primitive_operations = {products}, "
        "allow_imprecise_accumulation = false>"
    )
