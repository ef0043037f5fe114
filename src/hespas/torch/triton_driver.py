"""Stand for Triton's driver: a GPU that is not there compiles kernels, and runs none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.tools.tensor_descriptor import TensorDescriptor

from hespas.errors import UnsupportedError
from hespas.torch.messages import GpuDescription

WARP = 32
"""Threads of a warp."""


def install_driver(gpu: GpuDescription) -> None:
    """Let Triton see the GPU, and compile for it up to PTX."""
    triton.runtime.driver.set_active(_driver(gpu))
    triton.knobs.runtime.add_stages_inspection_hook = _without_machine_code


def integers_of(
    signature: Mapping[str, str], named: Mapping[str, Any], *, has_tensor_maps: bool = False
) -> tuple[int | None, ...]:
    """Return the integer of each parameter in the PTX, None for others.

    ``signature`` has the types of all parameters: constants are none in the PTX. A descriptor of a
    tensor is several: ``has_tensor_maps`` says that the part has a type of its own for it.
    """
    return tuple(
        integer
        for name, kind in signature.items()
        if kind != "constexpr"
        for integer in _integers(named.get(name), has_tensor_maps=has_tensor_maps)
    )


def _integers(value: Any, *, has_tensor_maps: bool) -> Iterable[int | None]:
    if isinstance(value, TensorDescriptor):
        # Source: triton 3.7, backends/nvidia/driver.py, expand_signature.
        sizes = (*value.shape, *value.strides)
        return (None, *sizes) if has_tensor_maps else (None, *sizes, None, None, *sizes)
    return (value if isinstance(value, int) and not isinstance(value, bool) else None,)


def _without_machine_code(*arguments: Any) -> Any:
    """Leave out ``ptxas`` (a Triton hook): PTX is read, not run."""
    if not arguments:
        return "hespas", "hespas"
    _backend, stages, *_rest = arguments
    stages["cubin"] = lambda _source, _metadata: b""
    return None


def _driver(gpu: GpuDescription) -> Any:
    """Return what stands for Triton's driver."""
    properties = {
        "max_shared_mem": gpu.shared_memory_per_block_bytes,
        "multiprocessor_count": gpu.multiprocessors,
        "max_num_regs": gpu.registers_per_multiprocessor,
        "warpSize": WARP,
    }

    class Driver:
        """Answers as the driver of one GPU would."""

        class utils:  # noqa: N801 - Triton's name
            """What is known of the device."""

            @staticmethod
            def get_device_properties(_device: int) -> dict[str, int]:
                return properties

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", 10 * gpu.major + gpu.minor, WARP)

        def get_current_device(self) -> int:
            return 0

        def get_active_torch_device(self) -> Any:
            return torch.device("cuda", 0)

        def get_device_interface(self) -> Any:
            return torch.cuda

        def get_current_stream(self, _device: int = 0) -> int:
            return 0

        def get_benchmarker(self) -> Any:
            raise UnsupportedError("a Triton kernel wants to be timed, and there is no GPU")

    return Driver()
