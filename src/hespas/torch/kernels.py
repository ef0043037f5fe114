"""Record launches of Triton kernels, then compile the kernels to PTX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from torch._inductor import async_compile
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_heuristics import get_constexprs
from triton.backends.compiler import GPUTarget
from triton.tools.tensor_descriptor import TensorDescriptor

from hespas.errors import UnsupportedError
from hespas.program.kernels import Extent
from hespas.program.recorded import KernelCall, KernelConfiguration, RecordedKernel
from hespas.torch.host import Host, tensors_in
from hespas.torch.masks import BlockMasks
from hespas.torch.messages import GpuDescription
from hespas.torch.tape import Tape


@dataclass(slots=True)
class TritonKernels:
    """The kernels of a step, by their source; each launch goes to the tape."""

    tape: Tape
    masks: BlockMasks
    host: Host
    _of_sources: dict[str, _Launcher] = field(default_factory=dict[str, "_Launcher"])

    def install(self) -> None:
        """Let Inductor take its kernels here."""

        def triton_kernel(_compiler: Any, name: str, source: str, device_str: str = "cuda") -> Any:
            del device_str
            return self.kernel(name, source)

        def host_kernel(_compiler: Any, types: Sequence[str], _source: str) -> Callable[..., None]:
            def run(*arguments: Any) -> None:
                given = zip(types, arguments, strict=False)
                written = [argument for kind, argument in given if not kind.startswith("const")]
                self.host.forget(tensors_in(written))

            return run

        async_compile.AsyncCompile.triton = triton_kernel
        async_compile.AsyncCompile.cpp_pybinding = host_kernel
        triton_helpers.set_driver_to_gpu = lambda: None

    def kernel(self, name: str, source: str) -> Any:
        """Return what stands for a kernel of Inductor's; equal sources are one."""
        if source not in self._of_sources:
            loaded = getattr(PyCodeCache.load(source), name)
            unique = self.tape.kernel_name(name)
            self._of_sources[source] = _Launcher(unique, loaded, self.tape, self.masks)
        return self._of_sources[source]

    def recorded(self, calls: Sequence[object]) -> tuple[RecordedKernel, ...]:
        """Compile the kernels that are launched by ``calls``, each with all its configurations."""
        launched = {call.kernel for call in calls if isinstance(call, KernelCall)}
        return tuple(each.recorded() for each in self._of_sources.values() if each.name in launched)


@dataclass(slots=True)
class _Launcher:
    """Stands for an autotuned kernel (``CachingAutotuner``): a launch is recorded."""

    name: str
    kernel: Any
    tape: Tape
    masks: BlockMasks

    def run(self, *arguments: Any, stream: Any = None, **options: Any) -> None:
        """Record a launch on the current stream."""
        del stream
        named = {**dict(zip(self._parameters(), arguments, strict=False)), **options}
        place = self.tape.place()
        written = [named[name] for name in named if self._is_written(name)]
        self.masks.values.forget(written)
        self.tape.add(
            KernelCall(
                kernel=self.name,
                reads=self.tape.tensors(named[name] for name in named if self._is_read(name)),
                writes=self.tape.tensors(written),
                grids=tuple(self._grid(each, arguments) for each in self._configs()),
                attended=self.masks.share_of(named.values()),
                integers=integers_of(self.kernel.triton_meta["signature"], named),
                stream=self.tape.stream,
                scope=place.scope,
                phase=place.phase,
                place=place.line,
            )
        )

    def recorded(self) -> RecordedKernel:
        """Compile the kernel with all its configurations."""
        return RecordedKernel(
            name=self.name,
            configurations=tuple(self._compiled(each) for each in self._configs()),
        )

    def _configs(self) -> Sequence[Any]:
        return self.kernel.configs

    def _parameters(self) -> Iterator[str]:
        constants = get_constexprs(self.kernel.fn)
        for position, name in enumerate(self.kernel.triton_meta["signature"]):
            if position not in constants:
                yield name
        yield from self.kernel.inductor_meta.get("extra_launcher_args", ())

    def _is_read(self, name: str) -> bool:
        return not name.startswith("out_ptr")

    def _is_written(self, name: str) -> bool:
        mutated = self.kernel.inductor_meta.get("mutated_arg_names", ())
        return name.startswith(("out_ptr", "in_out_ptr", "ws_ptr")) or name in mutated

    def _grid(self, configuration: Any, arguments: Sequence[Any]) -> Extent:
        x, y, z = self.kernel._interpret_args_grid(arguments, configuration)[1]
        return int(x), int(y), int(z)

    def _compiled(self, configuration: Any) -> KernelConfiguration:
        binary = self.kernel._precompile_config(configuration).kernel
        return KernelConfiguration(
            ptx=binary.asm["ptx"],
            threads=WARP * binary.metadata.num_warps,
            shared_memory_bytes=binary.metadata.shared,
        )


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
