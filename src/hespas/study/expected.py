"""Estimate a candidate's step time from sizes alone.

A study predicts the most promising candidates first. An estimate takes half a millisecond, where a
prediction takes seconds; it decides the order of predictions and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from hespas.base.frozen import frozen
from hespas.hardware.device import Device
from hespas.hardware.interconnect import Dimension
from hespas.hardware.system import System, interconnect_of
from hespas.models.language import LanguageModel
from hespas.models.model import TYPE_BYTES, MeshAxes
from hespas.models.parameters import local_elements, local_weights
from hespas.models.runs import Training


@frozen
class Crossed:
    """A network dimension that a group's messages cross.

    ``number`` counts from the nearest dimension; ``nearer`` devices of the group are on this side.
    """

    number: int
    dimension: Dimension
    nearer: int

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """The bandwidth of a device's link, in one direction."""
        return self.dimension.bandwidth_bytes_per_s


def dimensions_of(system: System | None) -> tuple[Dimension, ...]:
    """Return the dimensions of a system's network, nearest first."""
    return () if system is None else interconnect_of(system).dimensions


def crossed_by(
    mesh: MeshAxes, system: System | None, axes: Sequence[str]
) -> tuple[int, tuple[Crossed, ...]]:
    """Return a group's number of devices, and what it crosses.

    >>> from hespas.study.space import system_named
    >>> mesh = MeshAxes(axes=(("data", 4), ("tp", 16)))
    >>> devices, crossed = crossed_by(mesh, system_named("64xH100_80GB"), ("tp",))
    >>> devices, [(dimension.number, dimension.nearer) for dimension in crossed]
    (16, [(0, 1), (1, 8)])
    """
    members, stride = [0], 1
    for axis, size in reversed(mesh.axes):
        if axis in axes:
            members = [member + index * stride for index in range(size) for member in members]
        stride *= size
    reach, crossed = 1, list[Crossed]()
    for number, dimension in enumerate(dimensions_of(system)):
        nearer = sum(member < reach for member in members)
        reach *= dimension.size
        if sum(member < reach for member in members) > nearer:
            crossed.append(Crossed(number=number, dimension=dimension, nearer=nearer))
    return len(members), tuple(crossed)


_ROWS_MOVED, _CHOSEN_ROWS_MOVED = 16, 8
"""Arrays of rows that a layer reads and writes in a pass, beside products.

Norms, residuals, rotation and activations are counted, and for each chosen expert the kernels that
send rows to it and back.
"""
_ALL_REDUCE = 2
"""An all-reduce moves as much as a reduce-scatter and an all-gather."""


LIKELY_MEMORY = 1.5
"""A step's memory over its bound: gradients of several types, temporaries."""


@frozen
class Expected:
    """A step's estimated time and memory."""

    time_s: float
    memory_bytes: float


def expected_s(
    settings: LanguageModel, device: Device, system: System | None, computing_s: float
) -> float:
    """Estimate a step's time; no part of it hides another.

    ``computing_s`` is the time of the FLOPs that every program needs. Collectives along the mesh's
    axes, memory traffic of weights and rows, and recomputation by ``remat`` are added. Exchanges of
    divided sequences, and sums of gradients that experts' devices share, are not counted.
    """
    run = settings.run
    is_trained = isinstance(run, Training)
    is_repeated = isinstance(run, Training) and run.remat == "full"
    passes = (3 if is_trained else 1) + is_repeated
    rows = local_elements(settings, ("batch", "sequence", "row"), settings.sizes, settings.axes)
    step = _Step(
        settings=settings,
        system=system,
        passes=passes,
        crossings=2 * (1 + is_trained + is_repeated),
        rows_bytes=rows * settings.accumulation * settings.layers * TYPE_BYTES[settings.dtype],
    )
    repeated_s = computing_s / 3 if is_repeated else 0.0
    moved_s = step.moved_bytes() / device.memory_bandwidth_bytes_per_s
    return computing_s + repeated_s + moved_s + step.communicating_s()


@frozen
class _Step:
    """A step's passes over its layers, with one device's rows.

    ``crossings`` counts how often a layer's rows are summed over ``tp``, or go to experts or back.
    """

    settings: LanguageModel
    system: System | None
    passes: int
    crossings: int
    rows_bytes: int

    @property
    def gathered_bytes(self) -> int:
        """The gathered weights of all rounds on a device."""
        settings = self.settings
        elements = local_weights(settings, {**settings.axes, **settings.sharded(())})
        return elements * TYPE_BYTES[settings.dtype] * settings.accumulation

    def moved_bytes(self) -> int:
        """Return the memory traffic: weights, rows, and states twice."""
        settings, routing = self.settings, self.settings.routing
        chosen = 0 if routing is None else routing.chosen
        arrays = _ROWS_MOVED + _CHOSEN_ROWS_MOVED * chosen
        moved = self.passes * (self.gathered_bytes + arrays * self.rows_bytes)
        if not isinstance(settings.run, Training):
            return moved
        states = 3 * local_weights(settings, settings.state_axes)
        return moved + 2 * states * TYPE_BYTES[settings.state_dtype]

    def communicating_s(self) -> float:
        """Return the time of all collectives, one after another."""
        settings, axes = self.settings, self.settings.axes
        chosen = 0 if settings.routing is None else settings.routing.chosen
        summed_bytes = _ALL_REDUCE * self.crossings * self.rows_bytes
        communicating_s = self._ring_s(("tp",), summed_bytes)
        sent_bytes = chosen * self.crossings * self.rows_bytes
        communicating_s += self._exchange_s(axes.get("experts", ()), sent_bytes)
        if not isinstance(settings.run, Training):
            return communicating_s
        # Weights are gathered for the passes forward and backward, and their gradients scattered.
        gathering = axes["embedding"]
        communicating_s += self._ring_s(gathering, 3 * self.gathered_bytes)
        replicated = [axis for axis in axes["batch"] if axis not in {*gathering, "expert"}]
        gradients = local_weights(settings, axes) * TYPE_BYTES[settings.state_dtype]
        return communicating_s + self._ring_s(replicated, _ALL_REDUCE * gradients)

    def _ring_s(self, axes: Sequence[str], size_bytes: int) -> float:
        """Return the time of a gather, with neighbours' links shared."""
        count, crossed = crossed_by(self.settings.mesh, self.system, axes)
        share = size_bytes * (count - 1) / count
        return max(
            (share / (dimension.bandwidth_bytes_per_s * dimension.nearer) for dimension in crossed),
            default=0.0,
        )

    def _exchange_s(self, axes: Sequence[str], size_bytes: int) -> float:
        """Return the time to send each device an equal part."""
        count, crossed = crossed_by(self.settings.mesh, self.system, axes)
        return max(
            (
                size_bytes * (count - dimension.nearer) / count / dimension.bandwidth_bytes_per_s
                for dimension in crossed
            ),
            default=0.0,
        )
