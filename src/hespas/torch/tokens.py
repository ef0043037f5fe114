"""Count the tokens of a step: integers that models take and look up in embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp._fully_shard._fsdp_common import DDPMeshInfo, FSDPMeshInfo
from torch.distributed.fsdp._fully_shard._fsdp_state import _get_module_fsdp_state

from hespas.program.recorded import Call, KernelCall, Operation, RecordedTensor
from hespas.torch.host import tensors_in
from hespas.torch.places import FORWARD
from hespas.torch.replicas import Replicas

_INTEGERS = (torch.int64, torch.int32)
_LOOK_UP = "embedding"
"""What operations and compiled kernels have in their names that look up embeddings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTokens:
    """The tokens of a step over all ranks, and a sentence that says where they are from."""

    count: int
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """A forward pass: sizes of the integers that it takes, and how many ranks have others.

    ``ranks`` is None where nothing says which ranks have data of their own. A pass that takes
    other numbers, too, has no sizes.
    """

    sizes: frozenset[int]
    ranks: int | None


@dataclass(slots=True)
class Passes:
    """The forward passes of models in a step that learns."""

    world_size: int
    _passes: list[_Pass] = field(default_factory=list[_Pass])

    def start(self) -> None:
        """Begin with the next pass."""
        self._passes.clear()

    def add(self, module: Any, args: Any, kwargs: Any) -> None:
        """Note a call of a module that no other one calls; those without weights are no models."""
        if not torch.is_grad_enabled() or next(module.parameters(), None) is None:
            return
        tensors = list(tensors_in((args, kwargs)))
        is_mixed = any(tensor.is_floating_point() for tensor in tensors)
        sizes = {
            tensor.numel() for tensor in tensors if tensor.dtype in _INTEGERS and tensor.dim() > 1
        }
        ranks = 1 if self.world_size == 1 else _data_ranks(module)
        self._passes.append(_Pass(sizes=frozenset() if is_mixed else frozenset(sizes), ranks=ranks))

    def tokens(self, calls: Iterable[Call]) -> StepTokens | None:
        """Return the tokens of recorded calls; None if they are not certain."""
        looked_up = set(_looked_up(calls))
        found = [each.sizes & looked_up for each in self._passes]
        ranks = {each.ranks for each in self._passes}
        if any(len(sizes) != 1 for sizes in found) or len(ranks) != 1:
            return None
        of_data = ranks.pop()
        if of_data is None:
            return None
        on_rank = sum(size for sizes in found for size in sizes)
        passes = "a forward pass" if len(found) == 1 else f"{len(found)} forward passes"
        each = f" on each of {of_data} ranks with data of its own" if of_data > 1 else ""
        origin = f"tokens: those that {passes} of the model looked up in an embedding{each}"
        return StepTokens(count=on_rank * of_data, origin=f"{origin}: {on_rank:,}")


def _data_ranks(module: Any) -> int | None:
    """Return over how many ranks gradients of the model are summed; None if nothing says."""
    for each in module.modules():
        match each:
            case Replicas():
                return each.process_group.size()
            case FullyShardedDataParallel():
                between = getattr(each, "_inter_node_pg", None)
                return each.process_group.size() * (1 if between is None else between.size())
            case _:
                state = _get_module_fsdp_state(each)
                group = None if state is None else state._fsdp_param_group
                if group is not None:
                    return _mesh_ranks(group.mesh_info)
    return None


def _mesh_ranks(info: Any) -> int:
    shards = info.shard_mesh_size if isinstance(info, FSDPMeshInfo) else 1
    return shards * (info.replicate_mesh_size if isinstance(info, DDPMeshInfo) else 1)


def _looked_up(calls: Iterable[Call]) -> Iterator[int]:
    """Yield the sizes of the integers that forward passes look up in embeddings."""
    for call in calls:
        match call:
            case Operation() if call.phase == FORWARD and _LOOK_UP in call.name:
                yield from _sizes(call.inputs)
            case KernelCall() if call.phase == FORWARD and _LOOK_UP in call.kernel:
                yield from _sizes(call.reads)
            case _:
                pass


def _sizes(tensors: Iterable[RecordedTensor]) -> Iterator[int]:
    for tensor in tensors:
        if tensor.dtype in {"int64", "int32"}:
            yield prod(tensor.shape)
