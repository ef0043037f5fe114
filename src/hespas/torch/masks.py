"""How many pairs of tokens a block mask of FlexAttention leaves to compute."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorDeviceMismatchError
from torch.nn.attention import flex_attention as flex
from torch.utils.weak import WeakIdKeyDictionary

from hespas.torch.host import DeviceValues, OnHost

_KEYS_AT_A_TIME = 2**13
_PAIRS_AT_A_TIME = 2**24


@dataclass(slots=True)
class BlockMasks:
    """The shares of all pairs that masks leave, by the storages of their indices.

    A mask is a function of positions: it runs on the host, where positions have data. It may read
    tensors of the device whose ``values`` are known.
    """

    values: DeviceValues
    _shares: Any = field(default_factory=WeakIdKeyDictionary)

    def install(self) -> None:
        """Let ``create_block_mask`` note what it makes, also where it is compiled."""
        original, compiled = flex.create_block_mask, torch.compile
        flex.create_block_mask = create = self._noting(original)

        @wraps(compiled)
        def compiling(model: Any = None, *arguments: Any, **options: Any) -> Any:
            if model is not create:
                return compiled(model, *arguments, **options)
            # In one graph, no part of it may run uncompiled.
            return self._noting(compiled(original, *arguments, **options))

        torch.compile = compiling

    def _noting(self, create: Any) -> Any:
        """Return a function that makes a mask and notes it."""
        note = torch.compiler.disable(self._note)

        @wraps(create)
        def created(*arguments: Any, **options: Any) -> Any:
            mask = create(*arguments, **options)
            note(mask)
            return mask

        return created

    def share_of(self, tensors: Iterable[Any]) -> float | None:
        """Return the share that the mask with one of these indices leaves; None if not known."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                share = self._shares.get(tensor.untyped_storage())
                if share is not None:
                    return share
        return None

    def _note(self, mask: Any) -> None:
        try:
            with OnHost(self.values):
                share = _computed_share(mask)
        except FakeTensorDeviceMismatchError:
            # It reads a tensor of the device, whose data are not known.
            share = None
        if share is None:
            return
        for indices in (
            *(mask.kv_indices, mask.full_kv_indices),
            *(mask.q_indices, mask.full_q_indices),
        ):
            if indices is not None:
                self._shares[indices.untyped_storage()] = share


def _computed_share(mask: Any) -> float | None:
    """Return the pairs of blocks that have one to attend to, as a share of all.

    A kernel computes such blocks whole. None where the mask has no data.
    """
    (rows, columns), (queries, keys) = mask.BLOCK_SIZE, mask.seq_lengths
    batches, heads = mask.kv_indices.shape[:2]
    keys_at_a_time = columns * max(1, _KEYS_AT_A_TIME // columns)
    pairs = _PAIRS_AT_A_TIME // (batches * heads * min(keys, keys_at_a_time))
    queries_at_a_time = rows * max(1, pairs // rows)
    computed = 0
    for query in range(0, queries, queries_at_a_time):
        for key in range(0, keys, keys_at_a_time):
            allowed = flex.create_mask(
                _moved(mask.mask_mod, query, key),
                batches,
                heads,
                min(queries_at_a_time, queries - query),
                min(keys_at_a_time, keys - key),
                device="cpu",
            )
            if isinstance(allowed, FakeTensor):
                return None
            computed += _blocks(allowed, rows, columns)
    return computed * rows * columns / (batches * heads * queries * keys)


def _moved(mask_mod: Any, query: int, key: int) -> Any:
    """Return the mask of positions from ``query`` and ``key`` on."""

    def allowed(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return mask_mod(b, h, q_idx + query, kv_idx + key)

    return allowed


def _blocks(allowed: torch.Tensor, rows: int, columns: int) -> int:
    """Count blocks with an allowed pair."""
    height, width = allowed.shape[-2:]
    padded = torch.nn.functional.pad(allowed, (0, -width % columns, 0, -height % rows))
    blocked = padded.unflatten(-1, (-1, columns)).unflatten(-3, (-1, rows))
    return int(blocked.any(dim=-1).any(dim=-2).sum())
