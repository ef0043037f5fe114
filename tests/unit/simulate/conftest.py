from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from hespas.hardware.interconnect import dimension_of
from hespas.hardware.system import ASTRA_SHAPES, RemoteMemory, RemoteMemoryKind, System
from hespas.program.collectives import COMMON_KINDS

Dimension = tuple[str, int]
MakeSystem = Callable[..., System]


def _make_system(
    *shape: Dimension,
    algorithms: Sequence[str] = ("ring",),
    splits: int = 1,
    active: int = 1,
    optimization: str = "localBWAware",
    options: dict[str, object] | None = None,
) -> System:
    """Return a system of 1 B/ns and 100 ns a hop, whose reductions take no time."""
    dimensions = [dimension_of(ASTRA_SHAPES[name], count, 1e9, 100e-9) for name, count in shape]
    return System(
        name="test",
        dimensions=tuple(dimensions),
        implementations=dict.fromkeys(COMMON_KINDS, tuple(algorithms)),
        endpoint_delay_s=1e-9,
        preferred_dataset_splits=splits,
        active_chunks_per_dimension=active,
        collective_optimization=optimization,
        scheduling_policy="LIFO",
        local_memory_bandwidth_bytes_per_s=None,
        remote_memory=RemoteMemory(kind=RemoteMemoryKind.NO_MEMORY_EXPANSION),
        options=options or {},
    )


@pytest.fixture
def make_system() -> MakeSystem:
    return _make_system
