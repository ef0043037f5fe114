"""Describe fused attention, whose scores stay on chip."""

from __future__ import annotations

from dataclasses import replace

from hespas.base.frozen import frozen
from hespas.errors import CostError
from hespas.program.attrs import (
    FLASH_BACKWARD,
    FLASH_FORWARD,
    FLASH_MLA,
    FLASH_MLA_SPARSE,
    INDEX_SCORES,
    CustomCallAttrs,
)
from hespas.program.operations.contraction import multiplier_of
from hespas.program.operations.traits import operand
from hespas.program.program import Op
from hespas.program.types import TensorType, tensors
from hespas.work.library_config import attention_config, flash_config

_PREFIX = "__cudnn$fmha"
_MASKS = {"NO_MASK": False, "PADDING": False, "CAUSAL": True, "PADDING_CAUSAL": True}
"""cuDNN's masks, and whether they are causal."""
_KEYS_PER_QUERY = 64
"""The fewest keys per query at which attention counts as decoding."""


@frozen
class Attention:
    """``softmax(q k^T) v`` per batch and head, or its gradients.

    ``key_heads`` are fewer than ``heads`` if queries share keys. ``head_size`` is the length of a
    query or key, ``value_size`` of a value. ``window`` is the number of keys up to its own position
    that a query sees, 0 for all; ``attended`` is the share of all pairs that another mask leaves.
    ``multiplied`` is a key of `Work.flops`. ``segments`` is the most packed sequences in a row,
    ``is_paged`` says that tables name the pages of keys and values, ``element_bytes`` is the size
    of one of their numbers. With ``shares_values`` the values are the first numbers of the keys.
    Each query of attention that ``is_of_chosen`` has keys of its own, chosen among more.
    ``kernel`` names the implementation if the call requires one.
    """

    batch: int
    heads: int
    key_heads: int
    query_length: int
    key_length: int
    head_size: int
    value_size: int
    multiplied: str
    is_causal: bool = False
    is_backward: bool = False
    has_bias: bool = False
    dropout_rate: float = 0.0
    window: int = 0
    attended: float = 1.0
    segments: int = 1
    is_paged: bool = False
    element_bytes: float = 2.0
    shares_values: bool = False
    is_of_chosen: bool = False
    kernel: str = ""

    @property
    def is_decoding(self) -> bool:
        """Whether few queries read many keys, so reading dominates."""
        return not self.is_backward and _KEYS_PER_QUERY * self.query_length <= self.key_length

    @property
    def only_rates(self) -> bool:
        """Whether the result is scores summed over heads, without values."""
        return self.value_size == 0

    @property
    def cache_bytes(self) -> int:
        """The bytes of the keys and values that queries see."""
        seen = min(self.key_length, self.window or self.key_length)
        if self.is_of_chosen:
            seen *= self.query_length
        values = 0 if self.shares_values else self.value_size
        token_bytes = self.key_heads * (self.head_size + values) * self.element_bytes
        return round(self.batch * seen * token_bytes)

    @property
    def scores(self) -> int:
        """The unmasked query-key pairs of all batches and heads.

        Query i sees keys 0 to i under a causal mask, and the last ``window`` of those.
        """
        seen = self.query_length * self.key_length
        if self.is_causal or self.window:
            # Each query sees one key more than the one before it, until the mask allows no more.
            most_keys = min(self.key_length, self.window or self.key_length)
            growing_rows = min(self.query_length, most_keys)
            seen = (
                growing_rows * (growing_rows + 1) // 2
                + (self.query_length - growing_rows) * most_keys
            )
        return round(self.batch * self.heads * seen * self.attended)

    @property
    def flops(self) -> int:
        """2 FLOPs per multiply-accumulate of the matrix products.

        Forward: ``q k^T`` and ``p v``. Backward: ``q k^T`` again, then ``dv = p^T do``,
        ``dp = do v^T``, ``dq = ds k`` and ``dk = ds^T q``.
        Source: Dao, "FlashAttention-2", 2023, section 2.3.
        """
        if self.is_backward:
            return 2 * self.scores * (3 * self.head_size + 2 * self.value_size)
        return 2 * self.scores * (self.head_size + self.value_size)


def attentions(op: Op) -> tuple[Attention, ...]:
    """Return an operation's fused attention, if any.

    Raises `CostError` where its configuration cannot be read or its operands are not queries,
    keys and values of four dimensions.
    """
    if not isinstance(op.attrs, CustomCallAttrs):
        return ()
    target = op.attrs.target
    if target in {FLASH_FORWARD, FLASH_BACKWARD}:
        return (_flash(op, is_backward=target == FLASH_BACKWARD),)
    if target in {FLASH_MLA, FLASH_MLA_SPARSE}:
        return (_flash_mla(op, is_of_chosen=target == FLASH_MLA_SPARSE),)
    if target == INDEX_SCORES:
        return (_index_scores(op),)
    return (_cudnn(op, target),) if target.startswith(_PREFIX) else ()


def _cudnn(op: Op, target: str) -> Attention:
    config = attention_config(op)
    dimensions = config.intermediate_tensor_shape.dimensions
    query, key, value = (_four_dimensional(op, position) for position in range(3))
    if len(dimensions) != 4:
        raise CostError("its scores do not have four dimensions", location=op.location)
    if config.mask_type not in _MASKS:
        raise CostError(
            f"mask {config.mask_type} of cuDNN's attention has no model",
            location=op.location,
            hint=f"masks are {', '.join(_MASKS)}",
        )
    batch, heads, query_length, key_length = dimensions
    if config.is_paged_attention:
        # The tables say how many pages there are; the configuration's length is one page.
        pages = _four_dimensional(op, len(op.operands) - 1).shape[2]
        key_length = pages * key.shape[3 - config.head_axis]
    return Attention(
        batch=batch,
        heads=heads,
        key_heads=key.shape[config.head_axis],
        query_length=query_length,
        key_length=key_length,
        head_size=query.shape[3],
        value_size=value.shape[3],
        is_causal=_MASKS[config.mask_type],
        is_backward="Backward" in target,
        has_bias="ScaleBias" in target,
        dropout_rate=config.dropout_rate,
        window=config.sliding_window_length,
        multiplied=multiplier_of(query.element, key.element).type_name,
        segments=config.max_seg_per_batch,
        is_paged=config.is_paged_attention,
        element_bytes=key.element.bits / 8,
    )


def _flash(op: Op, *, is_backward: bool) -> Attention:
    """Describe a FlashAttention call; arrays are (batch, length, heads, size)."""
    config = flash_config(op)
    query, key, value = (_four_dimensional(op, position) for position in range(3))
    batch, query_length, heads, head_size = query.shape
    return Attention(
        batch=batch,
        heads=heads,
        key_heads=key.shape[2],
        query_length=query_length,
        key_length=key.shape[1],
        head_size=head_size,
        value_size=value.shape[3],
        is_causal=config.is_causal,
        is_backward=is_backward,
        window=config.window,
        attended=config.attended,
        multiplied=multiplier_of(query.element, key.element).type_name,
        element_bytes=key.element.bits / 8,
        kernel=config.kernel,
    )


def _flash_mla(op: Op, *, is_of_chosen: bool) -> Attention:
    """Describe a FlashMLA call.

    The cache has the keys. Where each query has tokens of its own, their places are (batch, new,
    chosen).
    """
    described, (attended,) = _of_one_key_head(op), tensors(op.results[0].type)
    chosen = tensors(op.operands[2].type)[0].shape[2] if is_of_chosen else described.key_length
    return replace(
        described,
        key_length=chosen,
        value_size=attended.shape[-1],
        shares_values=True,
        is_of_chosen=is_of_chosen,
    )


def _index_scores(op: Op) -> Attention:
    """Describe an index' ratings: a whole prompt rates earlier tokens alone."""
    described = _of_one_key_head(op)
    return replace(described, is_causal=described.query_length == described.key_length)


def _of_one_key_head(op: Op) -> Attention:
    """Describe queries (batch, new, heads, size) with keys (batch, 1, tokens, size)."""
    query, key = (_four_dimensional(op, position) for position in range(2))
    batch, new, heads, size = query.shape
    return Attention(
        batch=batch,
        heads=heads,
        key_heads=1,
        query_length=new,
        key_length=key.shape[2],
        head_size=size,
        value_size=0,
        multiplied=multiplier_of(query.element, key.element).type_name,
        element_bytes=key.element.bits / 8,
    )


def _four_dimensional(op: Op, index: int) -> TensorType:
    kind = operand(op, index) if index < len(op.operands) else None
    if kind is None or kind.rank != 4:
        raise CostError(f"operand {index} should have four dimensions", location=op.location)
    return kind
