"""Additions and activations that cuDNN does before it writes a convolution.

A convolution that only an addition reads adds it itself: a number for each feature, and then
another value of the result's size. A ReLU that alone reads what comes of these is the library's,
too. Depthwise convolutions have no such kernel.

Source: openxla/xla, ``CudnnFusedConvRewriter``
(xla/service/gpu/transforms/cudnn_fused_conv_rewriter.cc, Apache License 2.0).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from hespas.lower.blocks import tensor_of
from hespas.lower.kinds import BROADCASTS
from hespas.lower.order import times_read
from hespas.program.attrs import (
    CONVOLUTION_BIAS_ACTIVATION,
    CONVOLUTION_FORWARD,
    ConstantAttrs,
    ConvolutionAttrs,
    CustomCallAttrs,
    DimensionsAttrs,
)
from hespas.program.program import Op, Value
from hespas.program.rewrite import plain_op
from hespas.program.types import TensorType


def with_epilogues(operations: Sequence[Op], results: Iterable[Value]) -> list[Op]:
    """Return operations in which cuDNN's forward convolutions do what follows them.

    ``results`` are those of the block.
    """
    walk = _Walk(readers=times_read(operations, results))
    for op in operations:
        walk.op(op)
    return [each for each in walk.made if each is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A convolution whose result has been read by nothing yet, and where it stands.

    ``bias`` and ``side`` are what it adds, ``operands`` image and kernel.
    """

    at: int
    op: Op
    attrs: ConvolutionAttrs
    bias: Value | None = None
    side: Value | None = None


@dataclass(slots=True, kw_only=True)
class _Walk:
    """One pass over a block, forwards; what a later operation does is None in ``made``."""

    readers: Counter[Value]
    made: list[Op | None] = field(default_factory=list[Op | None])
    calls: dict[Value, _Call] = field(default_factory=dict[Value, _Call])
    producer: dict[Value, Op] = field(default_factory=dict[Value, Op])

    def op(self, op: Op) -> None:
        """Add an operation, or have the convolution before it do the same."""
        self.producer.update(dict.fromkeys(op.results, op))
        match op:
            case Op(kind="custom_call", attrs=CustomCallAttrs(target=target)) if (
                target == CONVOLUTION_FORWARD
            ):
                self._convolution(op)
            case Op(kind="add"):
                self._add(op)
            case Op(kind="maximum"):
                self._maximum(op)
            case _:
                self.made.append(op)

    def _convolution(self, op: Op) -> None:
        attrs = op.attrs.convolution if isinstance(op.attrs, CustomCallAttrs) else None
        if attrs is not None and not _is_depthwise(op, attrs):
            self.calls[op.results[0]] = _Call(at=len(self.made), op=op, attrs=attrs)
        self.made.append(op)

    def _add(self, op: Op) -> None:
        for value, other in (op.operands, op.operands[::-1]):
            call = self._alone(value)
            if call is None or value is other:
                continue
            bias = None if call.bias else self._bias(other, call.attrs.output_feature)
            if bias is not None:
                self._replaced(op, call, bias=bias, side=call.side, activation="kNone")
                return
            if call.side is None:
                self._replaced(op, call, bias=call.bias, side=other, activation="kNone")
                return
        self.made.append(op)

    def _maximum(self, op: Op) -> None:
        for value, other in (op.operands, op.operands[::-1]):
            call = self._alone(value)
            if call is not None and self._is_zero(other):
                self._replaced(op, call, bias=call.bias, side=call.side, activation="kRelu")
                self.calls.pop(op.results[0])
                return
        self.made.append(op)

    def _alone(self, value: Value) -> _Call | None:
        """Return the convolution that makes a value, if only one operation reads that."""
        return self.calls.get(value) if self.readers[value] == 1 else None

    def _bias(self, value: Value, feature: int) -> Value | None:
        """Return what a value repeats for each feature alone; None if it is no such."""
        match self.producer.get(value):
            case Op(kind="broadcast_in_dim", attrs=DimensionsAttrs(dimensions=at)) as maker:
                (source,) = maker.operands
                shape = tensor_of(source).shape
                named = [place for place, size in zip(at, shape, strict=True) if size > 1]
                return source if named == [feature] else None
            case _:
                return None

    def _is_zero(self, value: Value) -> bool:
        maker = self.producer.get(value)
        while maker is not None and maker.kind in BROADCASTS:
            maker = self.producer.get(maker.operands[0])
        return (
            maker is not None and isinstance(maker.attrs, ConstantAttrs) and maker.attrs.value == 0
        )

    def _replaced(
        self, op: Op, call: _Call, *, bias: Value | None, side: Value | None, activation: str
    ) -> None:
        """Put a convolution with what it does more in the place of an operation."""
        self.made[call.at] = None
        first = self._nothing(op, call.attrs.output_feature) if bias is None else bias
        added = (first,) if side is None else (first, side)
        config = _CONFIG % (activation, int(side is not None))
        before = call.op.attrs
        assert isinstance(before, CustomCallAttrs)  # noqa: S101 - it is a call of cuDNN
        attrs = replace(before, target=CONVOLUTION_BIAS_ACTIVATION, backend_config=config)
        made = replace(
            call.op,
            operands=(*call.op.operands[:2], *added),
            results=op.results,
            attrs=attrs,
            attributes=(("call_target_name", f'"{CONVOLUTION_BIAS_ACTIVATION}"'),),
        )
        self.calls[op.results[0]] = _Call(
            at=len(self.made), op=made, attrs=call.attrs, bias=bias, side=side
        )
        self.made.append(made)

    def _nothing(self, op: Op, feature: int) -> Value:
        """Return zeros for each feature, which the library adds where nothing else is."""
        kind = tensor_of(op.results[0])
        value = Value(type=TensorType(element=kind.element, shape=(kind.shape[feature],)))
        self.made.append(plain_op(op, "constant", (), value))
        return value


_CONFIG = '{"cudnn_conv_backend_config":{"activation_mode":"%s","side_input_scale":%d}}'


def _is_depthwise(op: Op, attrs: ConvolutionAttrs) -> bool:
    features = tensor_of(op.operands[0]).shape[attrs.input_feature]
    return attrs.feature_group_count > 1 and attrs.feature_group_count == features
