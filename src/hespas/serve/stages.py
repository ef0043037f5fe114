"""Cut layers into a pipeline's stages, and time these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class MoreLayers(Enum):
    """Which stages have a layer more than others."""

    MIDDLE = "middle"
    """The last but one, and others before it (vLLM, get_pp_indices of distributed/utils.py)."""
    LAST = "last"
    """The last ones (SGLang, get_pp_indices of srt/distributed/utils.py)."""
    FIRST = "first"
    """The first ones (TensorRT-LLM, Mapping.pp_layers of mapping.py)."""


def layers_of_stages(layers: int, stages: int, more: MoreLayers) -> tuple[int, ...]:
    """Return how many layers each stage has.

    >>> [layers_of_stages(30, 4, more) for more in MoreLayers]
    [(7, 8, 8, 7), (7, 7, 8, 8), (8, 8, 7, 7)]
    """
    fewest, remainder = divmod(layers, stages)
    match more:
        case MoreLayers.MIDDLE:
            longer = range(stages - 1 - remainder, stages - 1)
        case MoreLayers.LAST:
            longer = range(stages - remainder, stages)
        case MoreLayers.FIRST:
            longer = range(remainder)
    return tuple(fewest + (stage in longer) for stage in range(stages))


@dataclass(slots=True, kw_only=True)
class StageClock:
    """When each stage of a pipeline is free, in ps."""

    free_ps: list[int]

    def through(self, ready_ps: int, times_ps: Sequence[int]) -> int:
        """Return when a batch leaves the last stage.

        >>> clock = StageClock(free_ps=[0, 0])
        >>> clock.through(0, (5, 5)), clock.through(0, (5, 5)), clock.through(12, (5, 5))
        (10, 15, 22)
        """
        for stage, time_ps in enumerate(times_ps):
            ready_ps = max(ready_ps, self.free_ps[stage]) + time_ps
            self.free_ps[stage] = ready_ps
        return ready_ps
