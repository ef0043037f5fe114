"""Record Triton kernels that a script launches itself, in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._higher_order_ops.triton_kernel_wrap import (
    create_tma_stable_metadata,
    identify_accessed_tensors,
)
from triton.compiler.errors import CompilationError
from triton.runtime import Autotuner, JITFunction
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

from hespas.errors import UnsupportedError
from hespas.program.kernels import Extent
from hespas.program.recorded import KernelCall, KernelConfiguration, RecordedKernel
from hespas.torch.host import DeviceValues
from hespas.torch.kernels import WARP, integers_of
from hespas.torch.tape import Tape, local_tensor

_ALIGNMENT_BYTES = 16


@dataclass(frozen=True, slots=True)
class _Pointer:
    """Stands for a tensor where Triton asks for its type and its address alone."""

    dtype: torch.dtype
    offset_bytes: int

    def data_ptr(self) -> int:
        """Return an address that is aligned as the tensor's is."""
        return self.offset_bytes % _ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    """A compiled kernel, its grid, and the numbers that it is launched with.

    ``named`` has the values of all parameters. ``integers`` has the integer of each parameter in
    the PTX, None for pointers and other types.
    """

    function: Any
    named: Mapping[str, Any]
    configuration: KernelConfiguration
    grid: Extent
    integers: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernel:
    """A kernel with the names of the tensors that it reads and writes."""

    recorded: RecordedKernel
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(slots=True)
class LaunchedKernels:
    """Triton kernels that are launched outside of ``torch.compile``; launches go to the tape.

    A kernel that Triton would tune by timing is compiled with all its configurations: the fastest
    one counts.
    """

    tape: Tape
    values: DeviceValues
    shared_memory_per_block_bytes: int = 0
    _kernels: dict[tuple[str, ...], _Kernel] = field(default_factory=dict[tuple[str, ...], _Kernel])
    _tried: list[_Variant] | None = None

    def install(self, shared_memory_per_block_bytes: int) -> None:
        """Take the place of Triton's launches."""
        self.shared_memory_per_block_bytes = shared_memory_per_block_bytes
        compiled = JITFunction.run

        def run(function: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            if warmup:
                return compiled(function, *arguments, grid=grid, warmup=True, **options)
            self._launch(compiled, function, grid, arguments, options)
            return None

        def tune(tuner: Any, *arguments: Any, **options: Any) -> None:
            self._tune(tuner, arguments, options)

        JITFunction.run = run
        Autotuner.run = tune

    def recorded(self, calls: Sequence[object]) -> Iterator[RecordedKernel]:
        """Yield the kernels that are launched by ``calls``."""
        names = {call.kernel for call in calls if isinstance(call, KernelCall)}
        kernels = (kernel.recorded for kernel in self._kernels.values())
        return (kernel for kernel in kernels if kernel.name in names)

    def _launch(
        self,
        compiled: Callable[..., Any],
        function: Any,
        grid: Any,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
    ) -> None:
        """Record a launch, or try it for one that is tuned."""
        named = _named(function, arguments, options)
        kernel = compiled(
            function,
            *map(_without_data, arguments),
            grid=None,
            warmup=True,
            **{name: _without_data(value) for name, value in options.items()},
        )
        if kernel.metadata.shared > self.shared_memory_per_block_bytes:
            raise OutOfResources(
                kernel.metadata.shared, self.shared_memory_per_block_bytes, "shared memory"
            )
        variant = _Variant(
            function=function,
            named=named,
            configuration=KernelConfiguration(
                ptx=kernel.asm["ptx"],
                threads=WARP * kernel.metadata.num_warps,
                shared_memory_bytes=kernel.metadata.shared,
            ),
            grid=_grid(grid, named),
            integers=integers_of(
                kernel.src.signature, named, has_tensor_maps=bool(kernel.metadata.tensordesc_meta)
            ),
        )
        if self._tried is not None:
            self._tried.append(variant)
            return
        self._record([variant])

    def _tune(self, tuner: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Record a launch of a kernel that Triton tunes, with all configurations that fit."""
        tuner.nargs = dict(zip(tuner.arg_names, arguments, strict=False))
        configurations = tuner.prune_configs({**options})
        self._tried, refused = [], None
        try:
            for configuration in configurations:
                try:
                    tuner.fn.run(*arguments, **options, **configuration.all_kwargs())
                except (OutOfResources, CompilationError) as error:
                    refused = error
            variants = self._tried
        finally:
            self._tried = None
        if not variants:
            raise UnsupportedError(
                f"no configuration of the Triton kernel {tuner.base_fn.__name__} can be launched: "
                f"{refused}",
                location=self.tape.place().line,
                hint="give one that fits this GPU",
            )
        tuner.best_config = first = configurations[0]
        if first.pre_hook is not None:
            first.pre_hook({**tuner.nargs, **options, **first.all_kwargs()})
        self._record(variants)

    def _record(self, variants: Sequence[_Variant]) -> None:
        place, named = self.tape.place(), variants[0].named
        kernel = self._kernel(variants)
        read, written = (
            [_base(named[name]) for name in names] for names in (kernel.reads, kernel.writes)
        )
        self.values.forget(written)
        self.tape.add(
            KernelCall(
                kernel=kernel.recorded.name,
                reads=self.tape.tensors(read),
                writes=self.tape.tensors(written),
                grids=tuple(variant.grid for variant in variants),
                integers=variants[0].integers,
                stream=self.tape.stream,
                scope=place.scope,
                phase=place.phase,
                place=place.line,
            )
        )

    def _kernel(self, variants: Sequence[_Variant]) -> _Kernel:
        """Return the kernel of these variants; one that is compiled otherwise has a number."""
        first = variants[0]
        key = tuple(variant.configuration.ptx for variant in variants)
        if key not in self._kernels:
            bases = {name: _base(value) for name, value in first.named.items()}
            blocks = {
                name: create_tma_stable_metadata(value.block_shape)
                for name, value in first.named.items()
                if isinstance(value, TensorDescriptor)
            }
            accesses = identify_accessed_tensors(first.function, bases, blocks).read_writes
            # Before Hopper torch does not see all that goes through a descriptor.
            missed = frozenset(blocks) - {each.name for each in (*accesses.reads, *accesses.writes)}
            self._kernels[key] = _Kernel(
                recorded=RecordedKernel(
                    name=self.tape.kernel_name(first.function.__name__),
                    configurations=tuple(variant.configuration for variant in variants),
                ),
                reads=_tensors(bases, accesses.reads, missed),
                writes=_tensors(bases, accesses.writes, missed),
            )
        return self._kernels[key]


def _tensors(
    named: Mapping[str, Any], accessed: Iterable[Any], missed: frozenset[str]
) -> tuple[str, ...]:
    names = missed | {dependency.name for dependency in accessed}
    return tuple(name for name in named if name in names and isinstance(named[name], torch.Tensor))


def _base(value: Any) -> Any:
    """Return the tensor that a descriptor describes; other values as they are."""
    return value.base if isinstance(value, TensorDescriptor) else value


def _named(
    function: Any, arguments: Sequence[Any], options: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the values of the kernel's parameters; options of the compiler are none."""
    signature = function.signature
    bound = signature.bind(
        *arguments, **{name: options[name] for name in options if name in signature.parameters}
    )
    bound.apply_defaults()
    return bound.arguments


def _without_data(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    local = local_tensor(value)
    return _Pointer(local.dtype, int(local.storage_offset()) * local.element_size())


def _grid(grid: Any, named: Mapping[str, Any]) -> Extent:
    sizes: Any = grid(named) if callable(grid) else grid
    x, y, z = (*map(int, sizes), 1, 1)[:3]
    return x, y, z
