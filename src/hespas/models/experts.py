"""What is known of the experts of a model: how many tokens each takes."""

from __future__ import annotations

from hespas.frontend.experts import Capacity
from hespas.models.catalogue import Experts


def capacity_of(settings: object) -> Capacity | None:
    """Return what each expert of a model takes; None where all take whatever they get.

    >>> capacity_of(Experts(experts=16, capacity_percent=150))
    Capacity(experts=16, factor=1.5)
    """
    match settings:
        case Experts(experts=experts, capacity_percent=percent):
            return Capacity(experts=experts, factor=percent / 100)
        case _:
            return None
