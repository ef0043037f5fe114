"""The question to the process that times steps.

It is answered as `hespas.base.question` says.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hespas.xla.compile.messages import MemoryAnalysis


class Processes(msgspec.Struct, frozen=True, kw_only=True):
    """One of several processes, as ``jax.distributed.initialize`` takes it.

    Without a ``coordinator`` (``host:port``) JAX asks the cluster's own environment.
    """

    coordinator: str | None = None
    count: int | None = None
    own: int | None = None


class StepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A program to run.

    ``steps`` are timed after ``warm_up`` uncounted ones. ``platform`` is JAX's name of a platform
    (``cpu``, ``gpu``, ``tpu``), or "" for the best available. ``devices`` is for a program that
    doesn't say how many. ``flags`` are XLA's, by name.
    """

    name: str
    platform: str
    devices: int | None
    steps: int
    warm_up: int
    flags: Mapping[str, str] = {}
    processes: Processes | None = None


class StepAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The durations of the timed steps, in order.

    ``memory`` is the compiler's analysis of one device; ``free_bytes`` the free memory of one
    before the first step, None if the platform doesn't say. ``made_inputs`` counts inputs that a
    step used up and no output replaced.
    """

    durations_s: tuple[float, ...]
    compile_s: float
    devices: int
    processes: int
    platform: str
    device_kind: str
    memory: MemoryAnalysis
    free_bytes: int | None
    made_inputs: int
    versions: Mapping[str, str]
    notes: tuple[str, ...]
