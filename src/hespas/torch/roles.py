"""What storages are for: parameters, gradients, states of optimisers, buffers, inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp._fully_shard._fsdp_state import _get_module_fsdp_state

from hespas.torch.places import Places, clean_name
from hespas.torch.replicas import Replicas
from hespas.torch.tape import Tape

PARAMETER, GRADIENT, OPTIMIZER_STATE = "parameter", "gradient", "optimizer_state"
GATHERED = "gathered_parameter"
BUFFER, INPUT = "buffer", "input"


def mark_gradients(tape: Tape, places: Places, optimizer: Any) -> None:
    """Mark the gradients that an optimiser is about to read."""
    names = _parameter_names(places)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            _mark(tape, parameter.grad, GRADIENT, names.get(id(parameter), ""))


def mark_lasting(tape: Tape, places: Places) -> None:
    """Mark storages held at a step's end and those from before it."""
    names = _parameter_names(places)
    for _, path, module in places.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            _mark(tape, parameter, PARAMETER, clean_name(f"{path}.{name}".removeprefix(".")))
            _mark(tape, parameter.grad, GRADIENT, names.get(id(parameter), ""))
        for name, buffer in module.named_buffers(recurse=False):
            _mark(tape, buffer, BUFFER, clean_name(f"{path}.{name}".removeprefix(".")))
        _mark_parallel(tape, module, path)
    for optimizer in list(places.optimizers):
        for parameter, state in optimizer.state.items():
            for value in state.values():
                _mark(tape, value, OPTIMIZER_STATE, names.get(id(parameter), ""))
    for record in tape.storages:
        if record.allocated is None and not record.role:
            record.role = INPUT


def _mark_parallel(tape: Tape, module: Any, path: str) -> None:
    """Mark buckets of gradients, and whole parameters that FSDP2 gathers and frees again."""
    if isinstance(module, Replicas):
        for buffer in module.bucket_buffers():
            _mark(tape, buffer, GRADIENT, "DistributedDataParallel's bucket")
    state = _get_module_fsdp_state(module)
    group = None if state is None else state._fsdp_param_group
    for parameter in () if group is None else group.fsdp_params:
        for output in parameter.all_gather_outputs:
            name = clean_name(parameter._param_fqn or path)
            _mark(tape, output, GATHERED, name)


def _parameter_names(places: Places) -> dict[int, str]:
    return {
        id(parameter): clean_name(f"{path}.{name}".removeprefix("."))
        for _, path, module in places.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
    }


def _mark(tape: Tape, value: Any, role: str, name: str) -> None:
    if not isinstance(value, torch.Tensor):
        return
    record = tape.held(value)
    if record is not None and not record.role:
        record.role, record.name = role, name
