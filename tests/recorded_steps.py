"""Recorded steps of PyTorch, built by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from hespas.program.recorded import (
    Call,
    CollectiveCall,
    KernelCall,
    KernelConfiguration,
    Operation,
    RecordedKernel,
    RecordedStep,
    RecordedTensor,
    RecordEvent,
    Scalar,
    Storage,
    WaitEvent,
)

_BYTES = {"bfloat16": 2, "float32": 4, "int64": 8, "float8_e4m3fn": 1, "int32": 4}
COMPUTE, COMMUNICATION = 0, 7
"""The streams of kernels, and of the one group."""


def rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a tensor whose last dimension is fastest."""
    return tuple([prod(shape[at + 1 :]) for at in range(len(shape))])


@dataclass(kw_only=True)
class Recorder:
    """Builds a step call by call; every tensor has a storage of its own."""

    world_size: int = 8
    calls: list[Call] = field(default_factory=list[Call])
    storages: list[Storage] = field(default_factory=list[Storage])
    kernels: list[RecordedKernel] = field(default_factory=list[RecordedKernel])
    events: int = 0
    scope: str = ""
    phase: str = "forward"

    def tensor(
        self, *shape: int, dtype: str = "bfloat16", role: str = "", is_given: bool = False
    ) -> RecordedTensor:
        """Return a tensor with memory of its own, from the next call on or from before the step."""
        self.storages.append(
            Storage(
                size_bytes=prod(shape) * _BYTES[dtype],
                allocated=None if is_given else len(self.calls),
                role=role,
                scope=self.scope,
            )
        )
        return RecordedTensor(
            storage=len(self.storages) - 1, shape=shape, strides=rows(shape), dtype=dtype
        )

    def operation(
        self,
        name: str,
        inputs: tuple[RecordedTensor, ...],
        *outputs: RecordedTensor,
        stream: int = COMPUTE,
        **arguments: Scalar,
    ) -> None:
        """Append a call of an operation."""
        self.calls.append(
            Operation(
                name=name,
                inputs=inputs,
                outputs=outputs,
                arguments=arguments,
                stream=stream,
                scope=self.scope,
                phase=self.phase,
                place="train.py:10",
            )
        )

    def product(self, left: RecordedTensor, right: RecordedTensor) -> RecordedTensor:
        """Append ``mm`` and return its result."""
        made = self.tensor(left.shape[0], right.shape[1], role="activation")
        self.operation("aten::mm.default", (left, right), made)
        return made

    def kernel(
        self,
        name: str,
        reads: tuple[RecordedTensor, ...],
        writes: tuple[RecordedTensor, ...],
        configurations: tuple[KernelConfiguration, ...],
    ) -> None:
        """Append a launch of a Triton kernel, of which every configuration has as many blocks."""
        self.kernels.append(RecordedKernel(name=name, configurations=configurations))
        blocks = max(1, prod(writes[0].shape) // 1024)
        self.calls.append(
            KernelCall(
                kernel=name,
                reads=reads,
                writes=writes,
                grids=((blocks, 1, 1),) * len(configurations),
                scope=self.scope,
                phase=self.phase,
            )
        )

    def collective(
        self,
        kind: str,
        given: RecordedTensor,
        made: RecordedTensor,
        ranks: tuple[int, ...] | None = None,
        splits: tuple[int, ...] = (),
    ) -> int:
        """Append a collective on its stream, after what is there; return the event of its end."""
        before, after = self.events, self.events + 1
        self.events += 2
        self.calls += [
            RecordEvent(stream=COMPUTE, event=before),
            WaitEvent(stream=COMMUNICATION, event=before),
            CollectiveCall(
                kind=kind,
                ranks=ranks or tuple(range(self.world_size)),
                inputs=(given,),
                outputs=(made,),
                splits=splits,
                stream=COMMUNICATION,
                scope=self.scope,
                phase=self.phase,
            ),
            RecordEvent(stream=COMMUNICATION, event=after),
        ]
        return after

    def message(
        self, kind: str, tensor: RecordedTensor, peer: int, group: tuple[int, ...] | None = None
    ) -> None:
        """Append a message of rank 0 to a peer, or from it, on the stream of communication."""
        self.calls.append(
            CollectiveCall(
                kind=kind,
                ranks=(0, peer),
                inputs=(tensor,) if kind == "send" else (),
                outputs=(tensor,) if kind == "receive" else (),
                group=tuple(range(self.world_size)) if group is None else group,
                stream=COMMUNICATION,
            )
        )

    def wait(self, event: int, *, stream: int = COMPUTE) -> None:
        """Have a stream wait for an event."""
        self.calls.append(WaitEvent(stream=stream, event=event))

    def step(self) -> RecordedStep:
        """Return the step so far."""
        return RecordedStep(
            name="step",
            target="sm_90a",
            world_size=self.world_size,
            calls=tuple(self.calls),
            storages=tuple(self.storages),
            kernels=tuple(self.kernels),
            mesh=(("dp", self.world_size),) if self.world_size > 1 else (),
            versions={"torch": "2.13.0"},
            tokens=self.world_size * 8192,
        )


def sharded_layers(*, layers: int = 2, world_size: int = 8, size: int = 4096) -> RecordedStep:
    """Return a step of linear layers whose weights are gathered, one layer ahead.

    Each has an elementwise function; backward recomputes nothing, and gradients are reduced and
    scattered; a fused AdamW ends the step.
    """
    step = Recorder(world_size=world_size)
    shards = [
        step.tensor(size // world_size, size, role="parameter", is_given=True)
        for _ in range(layers)
    ]
    hidden = step.tensor(8192, size, role="input", is_given=True)
    whole: list[RecordedTensor] = []
    gathered: list[int] = []
    kept: list[RecordedTensor] = []

    def gather(layer: int) -> None:
        step.scope = f"layers.{layer}"
        whole.append(step.tensor(size, size, role="gathered parameter"))
        gathered.append(step.collective("all_gather", shards[layer], whole[layer]))

    gather(0)
    for layer in range(layers):
        if layer + 1 < layers:
            gather(layer + 1)
        step.scope = f"layers.{layer}.wq"
        step.wait(gathered[layer])
        kept.append(hidden)
        made = step.product(hidden, whole[layer])
        hidden = step.tensor(8192, size, role="activation")
        step.operation("aten::silu.default", (made,), hidden)
    step.phase = "backward"
    reduced: list[RecordedTensor] = []
    events: list[int] = []
    gradient = hidden
    for layer in reversed(range(layers)):
        step.scope = f"layers.{layer}.wq"
        of_weight = step.product(
            RecordedTensor(
                storage=kept[layer].storage, shape=(size, 8192), strides=(1, size), dtype="bfloat16"
            ),
            gradient,
        )
        shard = step.tensor(size // world_size, size, role="gradient")
        events.append(step.collective("reduce_scatter", of_weight, shard))
        reduced.append(shard)
        gradient = step.product(gradient, whole[layer])
    for event in events:
        step.wait(event)
    step.phase, step.scope = "optimizer", ""
    states = [
        step.tensor(size // world_size, size, dtype="float32", role="state", is_given=True)
        for _ in range(2 * layers)
    ]
    step.operation("aten::_fused_adamw_.default", (*shards, *reversed(reduced), *states))
    return step.step()
