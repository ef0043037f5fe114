"""`DistributedDataParallel` on tensors without data, whose own reducer reads their memory.

Buckets are filled, reduced and emptied as ``torch/csrc/distributed/c10d/reducer.cpp`` does it:
after the first step they are in the order in which gradients are ready, the first of 1 MiB.
"""

# pyright: reportUntypedFunctionDecorator=false

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import parallel
from torch.nn.parallel import distributed

from hespas.errors import UnsupportedError

_MIB = 2**20
_FIRST_BUCKET_BYTES = _MIB
_BUCKET_MIB = 25


@dataclass(slots=True, eq=False)
class _Bucket:
    """Gradients that are reduced together, one after the other in one buffer."""

    parameters: list[Any]
    buffer: Any
    ready: int = 0
    work: Any = None
    views: dict[int, Any] = field(default_factory=dict[int, Any])


class Replicas(distributed.DistributedDataParallel):
    """Stands for ``torch.nn.parallel.DistributedDataParallel``."""

    def __init__(
        self,
        module: Any,
        *_devices: Any,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        broadcast_buffers: bool = True,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        **options: Any,
    ) -> None:
        torch.nn.Module.__init__(self)
        del options
        self._given: dict[str, Any] = {
            "process_group": process_group,
            "bucket_cap_mb": bucket_cap_mb,
            "broadcast_buffers": broadcast_buffers,
            "gradient_as_bucket_view": gradient_as_bucket_view,
            "static_graph": static_graph,
        }
        self.module = module
        self.process_group = process_group or dist.group.WORLD
        self.bucket_bytes_cap = int((bucket_cap_mb or _BUCKET_MIB) * _MIB)
        self.broadcast_buffers = broadcast_buffers
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.static_graph = static_graph
        self.require_backward_grad_sync = True
        self._buckets: list[_Bucket] = []
        self._order: list[Any] = []
        self._is_queued = False
        parameters = [each for each in module.parameters() if each.requires_grad]
        self._fill(list(reversed(parameters)), limits=[])
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._ready)

    def __deepcopy__(self, memo: dict[int, Any]) -> Replicas:
        """Return replicas of a copy of the module."""
        return Replicas(deepcopy(self.module, memo), **self._given)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Run the module."""
        inputs, options = self._pre_forward(*inputs, **options)
        with self._inside_ddp_forward():
            return self.module(*inputs, **options)

    def _pre_forward(self, *inputs: Any, **options: Any) -> Any:
        """Give buffers what those of rank 0 hold, and return the arguments."""
        buffers = [each for each in self.module.buffers() if each.is_floating_point()]
        if buffers and self.broadcast_buffers and self.require_backward_grad_sync:
            flat = torch.cat([each.detach().reshape(-1) for each in buffers])
            dist.broadcast(flat, 0, group=self.process_group)
            sizes = [each.numel() for each in buffers]
            for buffer, part in zip(buffers, flat.split(sizes), strict=True):
                buffer.detach().copy_(part.view_as(buffer))
        return inputs, options

    def _post_forward(self, output: Any) -> Any:
        """Return the result as it is."""
        return output

    def bucket_buffers(self) -> list[Any]:
        """Return the buffers of the buckets."""
        return [bucket.buffer for bucket in self._buckets]

    def train(self, mode: bool = True) -> Any:
        """Set the module's mode."""
        return torch.nn.Module.train(self, mode)

    def register_comm_hook(self, state: object, hook: object) -> None:
        """Raise `UnsupportedError`: a hook may compute anything."""
        del state, hook
        raise UnsupportedError(
            "a communication hook of DistributedDataParallel is not recorded",
            hint="leave it out, or use FSDP2",
        )

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        """Return what the reducer has logged."""
        return {}

    def _fill(self, parameters: Sequence[Any], *, limits: list[int]) -> None:
        """Make buckets for parameters in the order of their gradients; without limits one."""
        groups: list[list[Any]] = [[]]
        size = 0
        for parameter in parameters:
            limit = limits[min(len(groups), len(limits)) - 1] if limits else None
            if groups[-1] and (
                (limit is not None and size >= limit) or groups[-1][0].dtype != parameter.dtype
            ):
                groups.append([])
                size = 0
            groups[-1].append(parameter)
            size += parameter.numel() * parameter.element_size()
        self._buckets = []
        for group in filter(None, groups):
            count = sum(each.numel() for each in group)
            buffer = torch.empty(count, dtype=group[0].dtype, device=group[0].device)
            bucket = _Bucket(list(group), buffer)
            parts = buffer.split([each.numel() for each in group])
            for parameter, part in zip(group, parts, strict=True):
                bucket.views[id(parameter)] = part.view_as(parameter)
            self._buckets.append(bucket)

    @torch.no_grad()
    def _ready(self, parameter: Any) -> None:
        """Copy a gradient into its bucket, and reduce the bucket when it is full."""
        if not self.require_backward_grad_sync:
            return
        if not self._is_queued:
            self._is_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._order.append(parameter)
        bucket = next(each for each in self._buckets if id(parameter) in each.views)
        view = bucket.views[id(parameter)]
        share = 1.0 / self.process_group.size()
        if parameter.grad is view:
            view.mul_(share)
        else:
            torch.mul(parameter.grad, share, out=view)
        if self.gradient_as_bucket_view:
            parameter.grad = view
        bucket.ready += 1
        if bucket.ready == len(bucket.parameters):
            bucket.work = dist.all_reduce(bucket.buffer, group=self.process_group, async_op=True)

    @torch.no_grad()
    def _finish(self) -> None:
        """Wait for all buckets, copy them back; rebuild them after step one."""
        for bucket in self._buckets:
            if bucket.work is None:
                bucket.work = dist.all_reduce(
                    bucket.buffer, group=self.process_group, async_op=True
                )
            bucket.work.wait()
            if not self.gradient_as_bucket_view:
                for parameter in bucket.parameters:
                    if parameter.grad is not None:
                        parameter.grad.copy_(bucket.views[id(parameter)])
            bucket.work, bucket.ready = None, 0
        if len(self._buckets) == 1 and self._order:
            self._fill(self._order, limits=[_FIRST_BUCKET_BYTES, self.bucket_bytes_cap])
        self._order = []
        self._is_queued = False


def install_replicas() -> None:
    """Let `DistributedDataParallel` be `Replicas`, also for ``replicate``."""
    import_module("torch.distributed._composable.replicate").DistributedDataParallel = Replicas
    parallel.DistributedDataParallel = Replicas
    distributed.DistributedDataParallel = Replicas
