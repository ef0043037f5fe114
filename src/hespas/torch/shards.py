"""Replace tensors of the host by new ones on the device, where FSDP2 moves their data."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import wraps
from typing import Any

import torch
from torch.distributed.fsdp._fully_shard import _fsdp_init


def install_moves() -> None:
    """Let ``fully_shard`` move what its modules hold.

    torch gives each tensor the data of one on the device, which one without data does not take.
    """
    original = _fsdp_init._get_managed_states

    @wraps(original)
    def managed(modules: Sequence[Any], ignored_params: Collection[Any] | None = None) -> Any:
        ignored = {id(parameter) for parameter in ignored_params or ()}
        moved: dict[int, Any] = {}
        for module in modules:
            for tensors in (module._parameters, module._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None and id(tensor) not in ignored:
                        tensors[name] = moved.setdefault(id(tensor), _moved(tensor))
        return original(modules, ignored_params)

    _fsdp_init._get_managed_states = managed


def _moved(tensor: Any) -> Any:
    """Return a tensor of the host on the device, and others as they are."""
    if tensor.device.type != "cpu":
        return tensor
    on_device = tensor.detach().to("cuda")
    if not isinstance(tensor, torch.nn.Parameter):
        return on_device
    return torch.nn.Parameter(on_device, requires_grad=tensor.requires_grad)
