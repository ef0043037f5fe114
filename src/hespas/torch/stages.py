"""Pipeline stages of ``torch.distributed.pipelining``, each recorded in a process of its own.

Before its first step a stage sends the shapes of its results to the next one, and those of its
gradients back. Recordings of stages leave them for each other as files in one directory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from time import sleep
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed.pipelining import _utils as shapes
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining import stage as stages

from hespas.errors import UnsupportedError
from hespas.program.recorded import SCHEDULES, Pipeline
from hespas.torch.groups import Groups
from hespas.torch.messages import ended_file, leave, ranks_file
from hespas.torch.places import Places

_POLL_S = 0.02


class _Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The shape and type of a tensor that one stage sends to the next."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    requires_grad: bool


class _Shapes(msgspec.Struct, frozen=True, kw_only=True):
    """The shapes that a stage sends forward, or those of gradients that it sends back."""

    is_forward: bool
    tensors: list[_Shape | None]


def _meta(shape: _Shape) -> Any:
    return shapes._TensorMeta(
        shape=torch.Size(shape.shape),
        stride=shape.stride,
        dtype=getattr(torch, shape.dtype),
        requires_grad=shape.requires_grad,
    )


@dataclass(slots=True)
class Stages:
    """The recorded rank's stages; `install` makes them exchange shapes as files."""

    groups: Groups
    places: Places
    directory: Path
    ranks: tuple[int, ...] = ()
    schedule: str = ""
    micro_batches: int = 0
    chunks: int = 0
    most_in_flight: int = 0
    _in_flight: int = 0
    _counts: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def pipeline(self) -> Pipeline | None:
        """What is known of the pipeline, if there is one."""
        if not self.ranks:
            return None
        return Pipeline(
            ranks=self.ranks,
            schedule=self.schedule,
            micro_batches=self.micro_batches,
            chunks=self.chunks,
            in_flight=self.most_in_flight,
        )

    def install(self) -> None:
        """Make stages and schedules known; refuse those that are not."""
        self._note_stages()
        self._note_schedules()
        self._follow_passes()

        def send(stage: Any, meta: Any, target: int) -> None:
            is_forward = isinstance(meta, shapes._StageForwardMeta)
            metas = meta.forward_metas if is_forward else meta.backward_metas
            message = _Shapes(
                is_forward=is_forward, tensors=[self._shape(one, stage) for one in metas]
            )
            leave(self._file(stage.stage_index, target), msgspec.json.encode(message))

        def receive(stage: Any, source: int) -> Any:
            message = msgspec.json.decode(self._awaited(stage, source), type=_Shapes)
            metas = tuple(one and _meta(one) for one in message.tensors)
            if message.is_forward:
                return shapes._StageForwardMeta(forward_metas=metas)
            return shapes._StageBackwardMeta(backward_metas=metas)

        stages.PipelineStage._send_meta = send
        stages.PipelineStage._recv_meta = receive

    def _shape(self, meta: Any, stage: Any) -> _Shape | None:
        if isinstance(meta, shapes._DTensorMeta):
            raise self._refusal(
                f"a DTensor between stage {stage.stage_index} and another one",
                "let stages exchange local tensors: redistribute, then to_local()",
            )
        return meta and _Shape(
            shape=tuple(meta.shape),
            stride=tuple(meta.stride),
            dtype=str(meta.dtype).removeprefix("torch."),
            requires_grad=meta.requires_grad,
        )

    def _note_stages(self) -> None:
        original = stages._PipelineStageBase.__init__

        @wraps(original)
        def init(stage: Any, *arguments: Any, **options: Any) -> None:
            if not isinstance(stage, stages.PipelineStage):
                raise self._refusal(
                    "a stage of a traced model", "divide the model yourself, and use PipelineStage"
                )
            original(stage, *arguments, **options)
            group = stage.group or dist.distributed_c10d._get_default_group()
            self.ranks = tuple(dist.get_process_group_ranks(group))
            self.chunks += 1
            leave(ranks_file(self.directory), " ".join(map(str, self.ranks)).encode())

        stages._PipelineStageBase.__init__ = init

    def _note_schedules(self) -> None:
        base = schedules._PipelineSchedule
        original = base.__init__

        @wraps(original)
        def init(schedule: Any, *arguments: Any, **options: Any) -> None:
            name = type(schedule).__name__
            if name not in SCHEDULES:
                raise self._refusal(f"the schedule {name}", f"use {', '.join(SCHEDULES)}")
            original(schedule, *arguments, **options)
            self.schedule, self.micro_batches = name, schedule._n_microbatches

        def inferred(_schedule: Any, own: Any, _has_backward: bool, _done: bool) -> None:
            for stage in own:
                stage._inference_mode = schedules.InferenceMode.DYNAMIC

        base.__init__ = init
        base._warmup_p2p = inferred

    def _follow_passes(self) -> None:
        """Count the micro-batches between forward and backward pass.

        Where gradients of weights have a pass of their own, they are kept until then.
        """
        base: Any = stages._PipelineStageBase
        forward, backward = base.forward_one_chunk, base.backward_one_chunk
        weights = base.backward_weight_one_chunk

        @wraps(forward)
        def run_forward(stage: Any, *arguments: Any, **options: Any) -> Any:
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            return forward(stage, *arguments, **options)

        @wraps(backward)
        def run_backward(stage: Any, *arguments: Any, **options: Any) -> Any:
            self._in_flight -= bool(options.get("full_backward", True))
            with self.places.backward():
                return backward(stage, *arguments, **options)

        @wraps(weights)
        def run_weights(stage: Any, *arguments: Any, **options: Any) -> Any:
            self._in_flight -= 1
            with self.places.backward():
                return weights(stage, *arguments, **options)

        base.forward_one_chunk = run_forward
        base.backward_one_chunk = run_backward
        base.backward_weight_one_chunk = run_weights

    def _refusal(self, what: str, hint: str) -> UnsupportedError:
        line = self.groups.streams.tape.place().line
        return UnsupportedError(f"{what} is not recorded", location=line, hint=hint)

    def _file(self, source: int, target: int) -> Path:
        pair = f"{source}-{target}"
        self._counts[pair] = number = self._counts.get(pair, 0) + 1
        return self.directory / f"{pair}-{number}"

    def _awaited(self, stage: Any, source: int) -> bytes:
        target = stage.stage_index
        file = self._file(source, target)
        ended = ended_file(self.directory, stage._resolve_peer_global_rank(source))
        while not file.exists():
            if ended.exists() and not file.exists():
                raise UnsupportedError(
                    f"stage {target} waits for stage {source}, which sends nothing",
                    location=self.groups.streams.tape.place().line,
                    hint="let all ranks of the pipeline run the same schedule",
                )
            sleep(_POLL_S)
        return file.read_bytes()
