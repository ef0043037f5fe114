"""Read a recorded step as the program of one device."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from hespas.errors import HespasError, ProgramError, UnsupportedError
from hespas.frontend.overrides import Loaded, UsedOverrides
from hespas.frontend.recorded.libraries import (
    FLEX_ATTENTION,
    Launch,
    Settings,
    Tensors,
    calls_of,
    template_of,
)
from hespas.frontend.recorded.messages import (
    MESSAGES,
    Exchange,
    check_matching,
    exchanges,
    is_of_stages,
    pairs_of_stages,
    sizes_of,
    type_of,
    type_on_host,
)
from hespas.frontend.recorded.traffic import host_copy_of, kernels_of
from hespas.program.attrs import (
    NO_ATTRS,
    Attrs,
    CollectiveAttrs,
    EventAttrs,
    HostWaitAttrs,
    KernelAttrs,
    PermuteAttrs,
)
from hespas.program.groups import GroupMode, groups_of_all
from hespas.program.kernels import CompiledKernels, KernelLaunch
from hespas.program.program import Function, GlobalFacts, Op, Program, Recorded, Value, returning
from hespas.program.recorded import (
    RECORDED_FORMAT,
    Call,
    CollectiveCall,
    HostWait,
    KernelCall,
    Operation,
    RecordedKernel,
    RecordedStep,
    RecordedTensor,
    RecordEvent,
    Storage,
    WaitEvent,
    decode_recorded,
)

_COLLECTIVES = {
    "all_gather": "all_gather",
    "all_reduce": "all_reduce",
    "all_to_all": "all_to_all",
    "broadcast": "collective_broadcast",
    "reduce_scatter": "reduce_scatter",
}


HOST_LAUNCH_S = 17.5e-6
"""The time eager PyTorch takes to issue a kernel, Python included.

The mean of the seven launches of validation/measurements/launches-H100_80GB_HBM3.csv whose kernels
take less time than the host: 11 us (``add_``) to 30 us (a ``Linear`` module). Measured with torch
2.11 beside an H100; backward passes, which start in C++, are not among them."""
_MEMORY = (
    "memory: what PyTorch's caching allocator reserves for the recorded storages, by its published "
    "rules; the CUDA context and NCCL's buffers are not counted"
)


def read_recorded(source: bytes, *, name: str) -> Loaded:
    """Return the program of a recorded step.

    ``name`` appears in messages.

    Raises `ProgramError` for a file of another kind, and `UnsupportedError`, naming the call, for a
    call without a model.
    """
    try:
        step = decode_recorded(source)
    except msgspec.DecodeError as error:
        raise ProgramError(
            f"is no {RECORDED_FORMAT}: {error}",
            location=name,
            hint="record it with the version of hespas that reads it",
        ) from error
    if step.world_size < 1 or not 0 <= step.rank < step.world_size:
        raise ProgramError(f"rank {step.rank} of {step.world_size} is none", location=name)
    check_matching((step, *step.stages))
    return Loaded(program=_program(step, name), used=UsedOverrides())


def _program(step: RecordedStep, name: str) -> Program:
    reader = _Reader(step=step)
    starts: list[int] = []
    for call in step.calls:
        starts.append(len(reader.operations))
        try:
            reader.add(call)
        except HespasError as error:
            error.location = error.location or _place(call)
            raise
    starts.append(len(reader.operations))
    body = returning(tuple(reader.arguments), reader.operations, (), "func")
    mesh = step.mesh or ((("rank", step.world_size),) if step.world_size > 1 else ())
    return Program(
        functions={"main": Function(name="main", body=body)},
        replicas=1,
        partitions=step.world_size,
        source=name,
        module_name=step.name,
        assumptions=tuple(_assumptions(step)),
        is_scheduled=True,
        recorded=Recorded(
            storages=tuple(reader.storages(starts)),
            host_launch_s=HOST_LAUNCH_S,
            has_expandable_segments=bool(step.settings.get("expandable_segments", False)),
            rank=step.rank,
            pipeline=step.pipeline,
            stages=tuple(_program(stage, name) for stage in step.stages),
        ),
        kernels=reader.kernels(),
        compiled_for=step.target,
        compiler_versions=step.versions,
        global_facts=GlobalFacts(mesh=mesh, tokens=step.tokens),
        warnings=tuple(_warnings(step)),
    )


def _assumptions(step: RecordedStep) -> Iterator[str]:
    yield from step.notes
    if step.storages:
        yield _MEMORY
    if any(template_of(call) for call in step.calls if isinstance(call, KernelCall)):
        yield FLEX_ATTENTION


def _warnings(step: RecordedStep) -> Iterator[str]:
    names = [call.name for call in step.calls if isinstance(call, Operation)]
    attention = [name for name in names if "_attention" in name]
    gradients = [name for name in attention if "backward" in name]
    missing = 2 * len(gradients) - len(attention)
    if missing > 0:
        yield (
            f"{len(gradients)} gradients of attention are recorded, and {missing} of their forward "
            "passes are not: the step is longer than predicted"
        )
    if step.uncompiled:
        yield (
            f"torch.compile left {', '.join(step.uncompiled)} as written, for a graph breaks in a "
            "loop there: compile the modules that are called in the loop"
        )
    is_silent = not any(isinstance(call, CollectiveCall) for call in step.calls)
    trains = any(storage.role == "gradient" for storage in step.storages)
    if step.world_size > 1 and is_silent and trains:
        yield (
            f"nothing is communicated: each of {step.world_size} devices trains a model of its "
            "own. DistributedDataParallel or fully_shard make it one"
        )
    if step.host_updates:
        yield (
            f"the host updates {step.host_updates:,} parameters of each device, and no time is "
            "counted for it: add what its processors take"
        )


def _place(call: Call) -> str:
    return "" if isinstance(call, RecordEvent | WaitEvent) else call.place


@dataclass(slots=True, kw_only=True)
class _Reader:
    """The operations of the calls read so far.

    ``values`` has each tensor's last written value; tensors never written are arguments.
    """

    step: RecordedStep
    operations: list[Op] = field(default_factory=list[Op])
    arguments: list[Value] = field(default_factory=list[Value])
    values: dict[RecordedTensor, Value] = field(default_factory=dict[RecordedTensor, Value])
    launches: list[KernelLaunch] = field(default_factory=list[KernelLaunch])
    kernels_by_name: dict[str, RecordedKernel] = field(default_factory=dict[str, RecordedKernel])
    settings: Settings = field(init=False)
    exchanges: Mapping[int, Exchange | None] = field(init=False)

    def __post_init__(self) -> None:
        self.kernels_by_name = {kernel.name: kernel for kernel in self.step.kernels}
        pipeline = self.step.pipeline
        self.exchanges = exchanges(
            call for call in self.step.calls if not is_of_stages(call, pipeline)
        )
        chosen = self.step.settings
        self.settings = Settings(
            has_tf32_products=bool(chosen.get("matmul_allow_tf32", False)),
            has_tf32_convolutions=bool(chosen.get("cudnn_allow_tf32", True)),
        )

    def add(self, call: Call) -> None:
        """Append the operations of a call."""
        match call:
            case Operation():
                self._operation(call)
            case KernelCall():
                self._kernel(call)
            case CollectiveCall():
                self._collective(call)
            case RecordEvent():
                self._order("record_event", EventAttrs(event=call.event), call.stream)
            case WaitEvent():
                self._order("wait_event", EventAttrs(event=call.event), call.stream)
            case HostWait():
                self._order("host_wait", HostWaitAttrs(stream=call.stream, event=call.event))
            case _:
                assert_never(call)

    def kernels(self) -> CompiledKernels | None:
        """Return the PTX of the launched kernels, or None."""
        if not self.launches:
            return None
        ptx = {
            _configuration(kernel.name, number): configuration.ptx
            for kernel in self.step.kernels
            for number, configuration in enumerate(kernel.configurations)
        }
        return CompiledKernels(launches=tuple(self.launches), ptx=ptx, target=self.step.target)

    def storages(self, starts: Sequence[int]) -> Iterator[Storage]:
        """Yield storages with positions of operations, ``starts`` those of calls."""
        last = len(starts) - 1
        for storage in self.step.storages:
            allocated, freed = storage.allocated, storage.freed
            yield msgspec.structs.replace(
                storage,
                allocated=None if allocated is None else starts[min(allocated, last)],
                freed=None if freed is None else starts[min(freed, last)],
                scope="/".join(_modules(storage.scope or storage.name.rpartition(".")[0])),
            )

    def _operation(self, call: Operation) -> None:
        moved = host_copy_of(call)
        if moved is not None:
            self._copy_of_host(call, moved)
            return
        calls = calls_of(call, self.settings)
        for launch in calls:
            self._append(call, launch)
        attrs = None if calls else kernels_of(call)
        if attrs is not None:
            name = call.name.removesuffix(".default")
            self._append(call, _own_kernel(name, attrs, call.inputs, call.outputs))

    def _copy_of_host(self, call: Operation, tensor: RecordedTensor) -> None:
        """Append a tensor's copy to or from the host."""
        on_host = Value(type=type_on_host(tensor))
        if call.outputs:
            self.arguments.append(on_host)
            operands, results = (on_host,), (self._written(tensor),)
        else:
            operands, results = (self._read(tensor),), (on_host,)
        self._add(call, _HOST_COPY, operands, results)

    def _kernel(self, call: KernelCall) -> None:
        attention = template_of(call)
        if attention is not None:
            for launch in calls_of(attention, self.settings):
                self._append(call, launch)
            return
        kernel = self.kernels_by_name.get(call.kernel)
        if kernel is None or len(kernel.configurations) != len(call.grids):
            has = "is not among its kernels" if kernel is None else "has other configurations"
            raise ProgramError(f"the record launches {call.kernel}, which {has}")
        labels = (text for start, text in _LABELS.items() if call.kernel.startswith(start))
        label = next(labels, "Triton")
        attrs = KernelAttrs(
            bytes_read=sizes_of(call.reads),
            bytes_written=sizes_of(call.writes),
            label=label,
            kernel=call.kernel,
            grids=call.grids,
            is_reduction=label == _REDUCTION,
        )
        launch = _own_kernel(f"triton::{call.kernel}", attrs, call.reads, call.writes)
        op = self._append(call, launch)
        for number, (configuration, grid) in enumerate(
            zip(kernel.configurations, call.grids, strict=True)
        ):
            self.launches.append(
                KernelLaunch(
                    instruction=op.instruction,
                    kernel=_configuration(kernel.name, number),
                    grid=grid,
                    block=(configuration.threads, 1, 1),
                    shared_memory_bytes=configuration.shared_memory_bytes,
                    configuration=number,
                    integers=call.integers,
                )
            )

    def _collective(self, call: CollectiveCall) -> None:
        if call.kind == "barrier":
            return
        if call.kind in MESSAGES:
            self._message(call)
            return
        kind = _COLLECTIVES.get(call.kind)
        if kind is None:
            raise UnsupportedError(
                f"a {call.kind} has no model",
                hint="use all_gather, reduce_scatter, all_reduce, all_to_all or broadcast",
            )
        groups = groups_of_all(call.ranks, world_size=self.step.world_size)
        attrs = CollectiveAttrs(
            groups=groups,
            mode=GroupMode.CROSS_PARTITION,
            channel=None,
            dimension=0,
            imbalance=_imbalance(call),
        )
        kind = "ragged_all_to_all" if call.splits and kind == "all_to_all" else kind
        self._append(
            call, Launch(kind=kind, attrs=attrs, operands=call.inputs, results=call.outputs)
        )

    def _message(self, call: CollectiveCall) -> None:
        """Append the permutation that a send and its receive are, at the later one of these."""
        if is_of_stages(call, self.step.pipeline):
            pairs, end = pairs_of_stages(call, self.step.world_size), call.kind
            operands, results = call.inputs, call.outputs
        elif id(call) in self.exchanges:
            exchange = self.exchanges[id(call)]
            if exchange is None:
                return
            pairs, end = exchange.pairs(self.step.world_size), ""
            operands, results = exchange.send.inputs, exchange.receive.outputs
        else:
            raise UnsupportedError(
                f"a {call.kind} to or from another stage has no model in the record of one rank",
                hint="record a step without pipeline stages; around a ring, send and receive "
                "as much together, as by batch_isend_irecv",
            )
        mode = GroupMode.CROSS_PARTITION
        attrs = PermuteAttrs(pairs=pairs, mode=mode, channel=None, end=end)
        launch = Launch(kind="collective_permute", attrs=attrs, operands=operands, results=results)
        self._append(call, launch)

    def _order(self, kind: str, attrs: Attrs, stream: int = 0) -> None:
        order = Op(dialect="", kind=kind, operands=(), results=(), attrs=attrs, stream=stream)
        self.operations.append(order)

    def _append(self, call: Operation | KernelCall | CollectiveCall, launch: Launch) -> Op:
        operands = tuple(map(self._read, launch.operands))
        return self._add(call, launch, operands, tuple(map(self._written, launch.results)))

    def _add(
        self,
        call: Operation | KernelCall | CollectiveCall,
        launch: Launch,
        operands: tuple[Value, ...],
        results: tuple[Value, ...],
    ) -> Op:
        name = call.kind if isinstance(call, CollectiveCall) else _short_name(call)
        op = Op(
            dialect=launch.dialect,
            kind=launch.kind,
            operands=operands,
            results=results,
            attrs=launch.attrs,
            source_location=call.place,
            scope=_scope(call.phase, call.scope, name),
            instruction=f"{name}.{len(self.operations)}",
            stream=call.stream,
        )
        self.operations.append(op)
        return op

    def _read(self, tensor: RecordedTensor) -> Value:
        value = self.values.get(tensor)
        if value is None:
            value = self._written(tensor)
            self.arguments.append(value)
        return value

    def _written(self, tensor: RecordedTensor) -> Value:
        self.values[tensor] = value = Value(type=type_of(tensor))
        return value


_HOST_COPY = Launch(kind="copy", attrs=NO_ATTRS, operands=(), results=(), dialect="")


def _own_kernel(kind: str, attrs: Attrs, operands: Tensors, results: Tensors) -> Launch:
    return Launch(kind=kind, attrs=attrs, operands=operands, results=results, dialect="")


def _short_name(call: Operation | KernelCall) -> str:
    """Return an operation's name without library and overload."""
    if isinstance(call, KernelCall):
        return call.kernel
    return call.name.rpartition("::")[2].partition(".")[0]


def _configuration(kernel: str, number: int) -> str:
    return f"{kernel}.{number}"


_REDUCTION = "Triton, reduction"
_LABELS = {
    "triton_poi_": "Triton, pointwise",
    "triton_red_": _REDUCTION,
    "triton_per_": _REDUCTION,
    "triton_for_": "Triton, foreach",
}


def _imbalance(call: CollectiveCall) -> float:
    """Return an all-to-all's busiest share over the mean."""
    if not call.splits or not sum(call.splits):
        return 1.0
    return max(call.splits) * len(call.splits) / sum(call.splits)


def _scope(phase: str, scope: str, name: str) -> str:
    """Return a name stack of phase, modules and operation.

    >>> _scope("backward", "layers.3.attention.wq", "mm")
    'torch.backward/layers.3/attention/wq/mm'
    """
    return "/".join([f"torch.{phase or 'step'}", *_modules(scope), name])


_MODULE = re.compile(r"[^.]+(?:\.+\d+(?![^.]))*")


def _modules(scope: str) -> Iterator[str]:
    """Yield a path's modules; numbers join the preceding name."""
    return (match[0] for match in _MODULE.finditer(scope))
