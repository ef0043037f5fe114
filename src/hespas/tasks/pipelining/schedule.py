"""A schedule of a pipeline, as values: the passes of each stage, in the order that it runs them.

A model is cut into parts, one after another. With one part a stage, part ``s`` is on stage ``s``.
With several *chunks* a stage, they take turns: chunk ``c`` of stage ``s`` is part
``c * stages + s``, as Megatron-LM interleaves them (D. Narayanan et al., Efficient Large-Scale
Language Model Training on GPU Clusters Using Megatron-LM, 2021).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Pass(Enum):
    """What a stage computes of one micro-batch; the values are the letters of texts.

    ``BACKWARD`` computes the gradients of the inputs and of the weights; in a schedule that has
    ``WEIGHTS``, it leaves the latter to that.
    """

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHTS = "W"


class Action(NamedTuple):
    """One pass of one micro-batch through one chunk of a stage.

    >>> str(Action(Pass.FORWARD, 3, 0)), str(Action(Pass.BACKWARD, 3, 1))
    ('F3', 'B3.1')
    """

    kind: Pass
    micro_batch: int
    chunk: int = 0

    def __str__(self) -> str:
        chunk = f".{self.chunk}" if self.chunk else ""
        return f"{self.kind.value}{self.micro_batch}{chunk}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The order of the passes of each stage, and over how many micro-batches and chunks they go.

    ``name`` is what it was asked for by.
    """

    name: str
    micro_batches: int
    chunks: int
    order: tuple[tuple[Action, ...], ...]

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.order)

    @property
    def parts(self) -> int:
        """The number of parts that the model is cut into."""
        return self.stages * self.chunks

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of weights are passes of their own, as in zero-bubble schedules."""
        return any(action.kind is Pass.WEIGHTS for action in self.order[0])

    def part(self, stage: int, chunk: int) -> int:
        """Return the part of the model that a chunk of a stage is."""
        return chunk * self.stages + stage

    def place(self, part: int) -> tuple[int, int]:
        """Return the stage and the chunk that a part of the model is."""
        return part % self.stages, part // self.stages

    def inputs(self, stage: int, action: Action) -> Iterator[tuple[int, Action]]:
        """Yield the passes that a pass waits for, each with its stage.

        A forward pass waits for that of the part before, a backward pass for that of the part
        behind and for the forward pass of its own part, the gradients of weights for the backward
        pass.
        """
        kind, micro_batch, chunk = action
        part = self.part(stage, chunk)
        if kind is Pass.FORWARD and part > 0:
            before, its_chunk = self.place(part - 1)
            yield before, Action(kind, micro_batch, its_chunk)
        if kind is Pass.BACKWARD:
            yield stage, Action(Pass.FORWARD, micro_batch, chunk)
            if part + 1 < self.parts:
                behind, its_chunk = self.place(part + 1)
                yield behind, Action(kind, micro_batch, its_chunk)
        if kind is Pass.WEIGHTS:
            yield stage, Action(Pass.BACKWARD, micro_batch, chunk)

    def receiver(self, stage: int, action: Action) -> int | None:
        """Return the stage that waits for what a pass makes; None where no other part does."""
        part = self.part(stage, action.chunk)
        match action.kind:
            case Pass.FORWARD if part + 1 < self.parts:
                return self.place(part + 1)[0]
            case Pass.BACKWARD if part > 0:
                return self.place(part - 1)[0]
            case _:
                return None

    def in_flight(self, stage: int) -> int:
        """Return the most chunks of micro-batches whose activations a stage holds at a time.

        They are held from the forward pass on until the last pass that reads them: the backward
        pass, or that of the weights.
        """
        last = Pass.WEIGHTS if self.splits_backward else Pass.BACKWARD
        held = most = 0
        for action in self.order[stage]:
            if action.kind is Pass.FORWARD:
                held += 1
                most = max(most, held)
            elif action.kind is last:
                held -= 1
        return most
