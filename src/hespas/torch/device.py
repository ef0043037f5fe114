"""Fake NVIDIA GPUs: what ``torch.cuda`` and Triton's driver say about the device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial, wraps
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.cuda import nvtx
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp import _init_utils as fsdp_setup
from torch.distributed.fsdp._fully_shard import _fsdp_init
from torch.optim import optimizer as _optimizer
from torch.utils import _foreach_utils
from torch.utils.weak import WeakIdKeyDictionary

from hespas.torch.guard import install_fake_guard
from hespas.torch.messages import GpuDescription
from hespas.torch.streams import Streams, stream_functions

_NVTX = ("rangePushA", "rangePop", "rangeStartA", "rangeEnd", "markA")
"""What marks ranges of a program for NVIDIA's profilers."""
_CUDA_VERSION = "13.0"
"""Of the CUDA wheels of the pinned torch, where a CPU build has none."""
_NCCL_VERSION, _CUDNN_VERSION = (2, 28, 9), 91500
"""Of libraries of that time: programs ask whether they are new enough, as for bf16."""


def fake_mode() -> FakeTensorMode:
    """Return torch's fake-tensor mode, which accepts real host tensors."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def install_fake_gpus(gpu: GpuDescription, streams: Streams, *, count: int) -> SimpleNamespace:
    """Let torch see ``count`` GPUs in this process; return their properties."""
    install_fake_guard()
    of_streams = stream_functions(streams)
    properties = _properties(gpu)
    functions = {
        **_device_functions(gpu, properties, count),
        **_memory_functions(streams, properties),
        **of_streams,
    }
    parts = [module for name, module in sys.modules.items() if name.startswith("torch.cuda.")]
    for name, function in functions.items():
        setattr(torch.cuda, name, function)
        # What a part of the package has imported by name.
        for part in parts:
            if name in vars(part):
                setattr(part, name, function)
    torch.Event = of_streams["Event"]
    torch.Tensor.record_stream = lambda self, stream: None
    torch.Tensor.pin_memory = lambda self, device=None: self
    torch.tensor = _unpinned(torch.tensor)
    torch.Tensor.is_pinned = lambda self, device=None: False
    torch.Tensor.data_ptr = _address
    torch.UntypedStorage.data_ptr = _storage_address
    nvtx._nvtx = SimpleNamespace(**dict.fromkeys(_NVTX, _mark))
    torch.cuda.default_generators = tuple(_DeviceGenerator("cuda") for _ in range(count))
    torch.Generator = _Generator
    torch.version.cuda = torch.version.cuda or _CUDA_VERSION
    torch.cuda.nccl.version = lambda: _NCCL_VERSION
    torch.backends.cudnn.version = lambda: _CUDNN_VERSION
    torch._C._get_accelerator = lambda check=None: torch.device("cuda")
    torch._C._cuda_getCurrentRawStream = lambda device: 0
    torch._C._cuda_isCurrentStreamCapturing = lambda: False
    torch._C._cuda_cudaCachingAllocator_is_enabled = lambda: True
    # Torch would ask the driver whether it may be initialised.
    FakeTensorMode.avoid_device_init = property(lambda self: True)
    torch.autograd.set_multithreading_enabled(False)
    torch.nn.Module._apply = _apply_to_fake
    torch.Tensor._make_subclass = _with_fakes(torch.Tensor._make_subclass)
    torch.optim.Optimizer.add_param_group = _noted(torch.optim.Optimizer.add_param_group)
    fsdp_setup._move_module_to_device = _move_module_to_gpu
    _fsdp_init._get_managed_states = _with_moves(_fsdp_init._get_managed_states)
    # Else optimisers update one parameter after the other.
    for module in (_foreach_utils, _optimizer):
        module._foreach_supported_types.append(FakeTensor)
    _see_resizes(streams)
    return properties


def _properties(gpu: GpuDescription) -> SimpleNamespace:
    """Return what ``torch.cuda.get_device_properties`` does."""
    return SimpleNamespace(
        name=gpu.name,
        major=gpu.major,
        minor=gpu.minor,
        multi_processor_count=gpu.multiprocessors,
        total_memory=gpu.memory_bytes,
        L2_cache_size=gpu.l2_cache_bytes,
        regs_per_multiprocessor=gpu.registers_per_multiprocessor,
        max_threads_per_multi_processor=gpu.threads_per_multiprocessor,
        max_threads_per_block=1024,
        warp_size=32,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=gpu.shared_memory_per_block_bytes,
        shared_memory_per_multiprocessor=gpu.shared_memory_per_multiprocessor_bytes,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
        clock_rate=round(gpu.clock_hz / 1000),
        uuid="0",
    )


def _unpinned(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes tensors in memory that no driver pins."""

    def unpinned(*arguments: Any, pin_memory: bool = False, **options: Any) -> Any:
        del pin_memory
        return make(*arguments, **options)

    return unpinned


@dataclass(slots=True)
class _CurrentDevice:
    """The device on which tensors are made that name none, by its index."""

    index: int = 0

    def exchange(self, device: Any) -> int:
        """Make another device the current one, and return the one before."""
        before = self.index
        index = device if isinstance(device, int) else torch.device(device).index
        if index is not None and index >= 0:
            self.index = index
            # What torch asks where it is not Python.
            torch._C._accelerator_setDeviceIndex(index)
        return before


def _device_functions(
    gpu: GpuDescription, properties: SimpleNamespace, count: int
) -> Mapping[str, Callable[..., Any]]:
    current = _CurrentDevice()
    return {
        "is_available": lambda: True,
        "_is_compiled": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "device_count": lambda: count,
        "current_device": lambda: current.index,
        # Dynamo wants a function of its own for each.
        "set_device": partial(current.exchange),
        "_exchange_device": current.exchange,
        "_maybe_exchange_device": partial(current.exchange),
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (gpu.major, gpu.minor),
        "get_device_name": lambda device=None: gpu.name,
        "get_arch_list": lambda: [f"sm_{gpu.major}{gpu.minor}"],
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_tf32_supported": lambda: True,
        "get_rng_state": lambda device=None: _random_state(),
        "set_rng_state": lambda state, device=None: None,
        "is_current_stream_capturing": lambda: False,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "seed": lambda: None,
        "seed_all": lambda: None,
    }


def _mark(*_arguments: Any) -> int:
    return 0


def _memory_functions(
    streams: Streams, properties: SimpleNamespace
) -> Mapping[str, Callable[..., Any]]:
    tape = streams.tape

    def free_and_total(device: Any = None) -> tuple[int, int]:
        del device
        return properties.total_memory - tape.live_bytes, properties.total_memory

    def reset_peak(device: Any = None) -> None:
        del device
        tape.peak_bytes = tape.live_bytes

    def statistics(device: Any = None) -> dict[str, int]:
        del device
        totals = {"current": tape.live_bytes, "peak": tape.peak_bytes}
        kinds = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes")
        bytes_of = {f"{kind}.all.{name}": size for kind in kinds for name, size in totals.items()}
        return {**bytes_of, "num_alloc_retries": 0, "num_ooms": 0}

    return {
        "memory_allocated": lambda device=None: tape.live_bytes,
        "memory_reserved": lambda device=None: tape.live_bytes,
        "max_memory_allocated": lambda device=None: tape.peak_bytes,
        "max_memory_reserved": lambda device=None: tape.peak_bytes,
        "mem_get_info": free_and_total,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": reset_peak,
        "memory_stats": statistics,
    }


def _random_state() -> torch.Tensor:
    """Return what a device's generator has for its state: a seed and an offset."""
    return torch.zeros(16, dtype=torch.uint8, device="cpu")


_HostGenerator: Any = torch.Generator


class _Generator(_HostGenerator):
    """Stands for ``torch.Generator``, also of the device."""

    def __new__(cls, device: Any = "cpu") -> Any:
        kind = cls if torch.device(device).type == "cpu" else _DeviceGenerator
        return _HostGenerator.__new__(kind)


class _DeviceGenerator(_Generator):
    """Stands for a device's generator of random numbers, which makes none."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_state(self) -> Any:
        return _random_state()

    def set_state(self, new_state: Any) -> Any:
        del new_state
        return self

    def clone_state(self) -> Any:
        return _DeviceGenerator("cuda")

    def graphsafe_get_state(self) -> Any:
        return self

    def graphsafe_set_state(self, state: Any) -> None:
        del state


_read_address, _read_storage_address = torch.Tensor.data_ptr, torch.UntypedStorage.data_ptr


def _address(tensor: torch.Tensor) -> int:
    """Return a tensor's address, by which scripts tell tensors apart."""
    if not isinstance(tensor, FakeTensor):
        return _read_address(tensor)
    storage = tensor.untyped_storage()
    return _storage_address(storage) + int(tensor.storage_offset()) * tensor.element_size()


def _storage_address(storage: torch.UntypedStorage) -> int:
    """Return a storage's address; without data, one that is aligned as those of GPUs are."""
    return storage._cdata << 8 if storage.device.type == "meta" else _read_storage_address(storage)


_moved = WeakIdKeyDictionary()
"""Parameters by those that they were before `Module.to`: tied ones stay tied."""
_optimizers = WeakSet[torch.optim.Optimizer]()


def _apply_to_fake(module: Any, function: Callable[..., Any], recurse: bool = True) -> Any:
    """Convert a module's tensors (``torch.nn.Module._apply``).

    torch would swap tensors, which weak references of the fake mode forbid: parameters are new, and
    optimisers that have the former ones get them.
    """
    if recurse:
        for child in module.children():
            child._apply(function)
    replaced = dict[int, torch.nn.Parameter]()
    for name, parameter in module._parameters.items():
        if parameter is None:
            continue
        with torch.no_grad():
            converted = function(parameter)
        if converted is parameter:
            continue
        kept = _moved.get(parameter)
        if kept is None or kept.device != converted.device or kept.dtype != converted.dtype:
            is_whole = isinstance(converted, torch.nn.Parameter)
            kept = converted if is_whole else torch.nn.Parameter(converted, parameter.requires_grad)
            # What a program notes at a parameter, as that it is a shard, stays there.
            vars(kept).update({**vars(parameter), **vars(kept)})
            _moved[parameter] = kept
        module._parameters[name] = replaced[id(parameter)] = kept
    _update_optimizers(replaced)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = function(buffer)
    return module


def _with_fakes(make_subclass: Callable[..., Any]) -> Any:
    """Return what also gives a tensor without data a class of a program's, as of its weights."""
    data_of: Any = torch.Tensor.data

    def set_data(tensor: Any, data: Any) -> None:
        data_of.__set__(tensor, data)
        tensor.fake_device = data.fake_device

    members = {"data": property(data_of.__get__, set_data)}

    @cache
    def joined(kind: type[torch.Tensor]) -> type[torch.Tensor]:
        return type(kind.__name__, (kind, FakeTensor), members)

    def made(
        kind: type[torch.Tensor], data: Any, require_grad: bool = False, **options: Any
    ) -> Any:
        if not isinstance(data, FakeTensor):
            return make_subclass(kind, data, require_grad, **options)
        tensor: Any = data.detach().requires_grad_(require_grad)
        tensor.__class__ = joined(kind)
        return tensor

    return staticmethod(made)


def _update_optimizers(replaced: Mapping[int, torch.nn.Parameter]) -> None:
    for optimizer in _optimizers if replaced else ():
        for group in optimizer.param_groups:
            group["params"] = [replaced.get(id(each), each) for each in group["params"]]


def _noted(add_param_group: Callable[..., None]) -> Callable[..., None]:
    def add(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
        _optimizers.add(optimizer)
        add_param_group(optimizer, group)

    return add


def _move_module_to_gpu(
    module: Any, ignored_parameters: Any, ignored_buffers: Any, device: Any
) -> None:
    """Move a module that FSDP's first version wraps (``device_id``), but what it wrapped before.

    torch would replace the data of tensors, which those of the host that have data forbid.
    """
    ignored = {id(tensor) for tensor in (*ignored_parameters, *ignored_buffers)}

    def moved(tensor: Any) -> Any:
        return tensor if device is None or id(tensor) in ignored else tensor.to(device)

    waiting = [module]
    while waiting:
        current = waiting.pop()
        if not isinstance(current, FullyShardedDataParallel):
            _apply_to_fake(current, moved, recurse=False)
            waiting.extend(current.children())


def _with_moves(managed_states: Callable[..., Any]) -> Callable[..., Any]:
    """Let ``fully_shard`` move what its modules hold on the host.

    torch gives each tensor the data of one on the device, which one without data does not take.
    """

    @wraps(managed_states)
    def managed(modules: Sequence[Any], ignored_params: Collection[Any] | None = None) -> Any:
        ignored = {id(parameter) for parameter in ignored_params or ()}
        moved: dict[int, Any] = {}

        def on_device(tensor: Any) -> Any:
            if id(tensor) in ignored or tensor.device.type != "cpu":
                return tensor
            return moved.setdefault(id(tensor), tensor.to("cuda"))

        for module in modules:
            _apply_to_fake(module, on_device, recurse=False)
        return managed_states(modules, ignored_params)

    return managed


def _see_resizes(streams: Streams) -> None:
    """Tell the tape where storages are freed and allocated anew, as FSDP does."""
    original = torch.UntypedStorage.resize_

    def resize(storage: Any, size: int) -> Any:
        result = original(storage, size)
        streams.tape.resize(storage, size)
        return result

    torch.UntypedStorage.resize_ = resize
