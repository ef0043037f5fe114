"""The operation of each HLO opcode, if the two differ only in name and attributes.

Source of the names: openxla/xla, ``xla/hlo/ir/hlo_opcode.h``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from hespas.frontend.hlo import attributes
from hespas.frontend.hlo.attributes import Reader, Reading
from hespas.frontend.hlo.collectives import read_collective, read_permute
from hespas.program.attrs import NO_ATTRS


class Opcode(msgspec.Struct, frozen=True, kw_only=True):
    """The operation that an opcode stands for; ``read`` is None where it has no attributes."""

    dialect: str
    kind: str
    read: Reader | None = None


def _nothing(instruction: Any) -> Reading:  # noqa: ARG001 - every reader takes the instruction
    return NO_ATTRS, ()


# Spelled as in StableHLO, but for hyphens.
_ALIKE = (
    "abs add after-all and atan2 batch-norm-grad batch-norm-inference batch-norm-training "
    "bitcast-convert cbrt ceil clamp complex convert cosine count-leading-zeros divide "
    "dynamic-update-slice exponential exponential-minus-one floor imag infeed is-finite log "
    "log-plus-one logistic maximum minimum multiply negate not or outfeed partition-id popcnt "
    "power real remainder replica-id reshape round-nearest-afz round-nearest-even rsqrt select "
    "shift-left shift-right-arithmetic shift-right-logical sign sine sqrt subtract tan tanh xor"
)
# XLA has them, StableHLO has not.
_XLA_ONLY = (
    "acos acosh add-dependency asin asinh atanh copy cosh dynamic-reshape erf recv-done send-done "
    "sinh stochastic-convert"
)

_READ: dict[str, tuple[str, Reader]] = {
    "all-gather": ("all_gather", partial(read_collective, opcode="all-gather")),
    "all-reduce": ("all_reduce", partial(read_collective, opcode="all-reduce")),
    "all-to-all": ("all_to_all", partial(read_collective, opcode="all-to-all")),
    "broadcast": ("broadcast_in_dim", attributes.dimensions("broadcast_dimensions")),
    "cholesky": ("cholesky", attributes.cholesky),
    "collective-broadcast": (
        "collective_broadcast",
        partial(read_collective, opcode="collective-broadcast"),
    ),
    "collective-permute": ("collective_permute", partial(read_permute, opcode="")),
    "compare": ("compare", attributes.compare),
    "concatenate": ("concatenate", attributes.dimension("dimension")),
    "convolution": ("convolution", attributes.convolution),
    "dot": ("dot_general", attributes.dot),
    "dynamic-slice": ("dynamic_slice", attributes.dynamic_slice),
    "fft": ("fft", attributes.fft),
    "gather": ("gather", attributes.gather),
    "get-dimension-size": ("get_dimension_size", attributes.dimension("dimension")),
    "iota": ("iota", attributes.dimension("iota_dimension")),
    "map": ("map", attributes.dimensions("dimensions")),
    "opt-barrier": ("optimization_barrier", _nothing),
    "pad": ("pad", attributes.pad),
    "ragged-all-to-all": (
        "ragged_all_to_all",
        partial(read_collective, opcode="ragged-all-to-all"),
    ),
    "ragged-dot": ("ragged_dot", attributes.ragged_dot),
    "recv": ("recv", attributes.numbers("channel_id")),
    "reduce": ("reduce", attributes.dimensions("dimensions")),
    "reduce-precision": (
        "reduce_precision",
        attributes.numbers("exponent_bits", "mantissa_bits"),
    ),
    "reduce-scatter": ("reduce_scatter", partial(read_collective, opcode="reduce-scatter")),
    "reduce-window": ("reduce_window", attributes.window),
    "reverse": ("reverse", attributes.dimensions("dimensions")),
    "rng": ("rng", attributes.rng),
    "rng-bit-generator": ("rng_bit_generator", attributes.rng_bit_generator),
    "scaled-dot": ("scaled_dot", attributes.dot),
    "scatter": ("scatter", attributes.scatter),
    "select-and-scatter": ("select_and_scatter", attributes.window),
    "send": ("send", attributes.numbers("channel_id")),
    "set-dimension-size": ("set_dimension_size", attributes.dimension("dimension")),
    "slice": ("slice", attributes.slice_bounds),
    "sort": ("sort", attributes.sort),
    "transpose": ("transpose", attributes.dimensions("permutation")),
    "triangular-solve": ("triangular_solve", attributes.triangular_solve),
}
_MHLO = frozenset(_XLA_ONLY.split()) | {"ragged-all-to-all", "ragged-dot", "scaled-dot"}


def _named(opcode: str, kind: str, read: Reader | None) -> Opcode:
    return Opcode(dialect="mhlo" if opcode in _MHLO else "stablehlo", kind=kind, read=read)


OPCODES: dict[str, Opcode] = {
    **{
        opcode: _named(opcode, opcode.replace("-", "_"), None)
        for opcode in f"{_ALIKE} {_XLA_ONLY}".split()
    },
    **{opcode: _named(opcode, kind, read) for opcode, (kind, read) in _READ.items()},
    "rng-get-and-update-state": Opcode(
        dialect="mhlo", kind="xla.rng_get_and_update_state", read=attributes.numbers("delta")
    ),
}

# Opcodes that a `Program` cannot hold, and why.
GAPS = {
    "domain": "it is a note of the partitioner, which is gone in a program for one device",
    "scan": "it is a loop that compilers replace before they schedule",
}
