"""How many tokens each expert of a mixture gets: a router's choice, which no program states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """The share of the tokens that each expert gets, layer by layer; a layer's shares add to 1.

    Without layers all experts get equally many. ``source`` names the file in messages.

    >>> skewed = ExpertLoad(layers=((0.5, 0.25, 0.25, 0.0),), source="load.json")
    >>> skewed.busiest(experts=4, devices=2)
    (0.5, 0.25)
    >>> UNIFORM.busiest(experts=4, devices=2)
    (0.25, 0.25)
    """

    layers: tuple[tuple[float, ...], ...] = ()
    source: str = ""

    @property
    def experts(self) -> int | None:
        """How many experts the file lists; None where all get the same."""
        return len(self.layers[0]) if self.layers else None

    def busiest(self, *, experts: int, devices: int) -> tuple[float, ...]:
        """Return the shares of the experts on the device that has the most, largest first.

        Each device has as many experts, in order. Of several layers it is the mean, each with its
        own such device: a step waits for it in every layer.
        """
        each = experts // devices
        layers = self.layers or ((1 / experts,) * experts,)
        found = [_busiest(shares, each) for shares in layers]
        return tuple([sum(column) / len(found) for column in zip(*found, strict=True)])

    def beyond(self, share: float, *, experts: int, devices: int) -> float:
        """Return the part of all tokens that is more than ``share`` of them on any one device."""
        each = experts // devices
        layers = self.layers or ((1 / experts,) * experts,)
        total = sum(
            max(0.0, sum(shares[at : at + each]) - share)
            for shares in layers
            for at in range(0, experts, each)
        )
        return total / len(layers)


def _busiest(shares: Sequence[float], each: int) -> list[float]:
    devices = [shares[at : at + each] for at in range(0, len(shares), each)]
    return sorted(max(devices, key=sum), reverse=True)


UNIFORM = ExpertLoad()
"""Every expert gets as many tokens."""
