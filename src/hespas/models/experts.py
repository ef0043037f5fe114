"""What is known of the experts of a model: how many tokens each takes, and which take all."""

from __future__ import annotations

from hespas.frontend.experts import Capacity
from hespas.models.catalogue import Experts
from hespas.models.language import LanguageModel, Routing


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


def has_shared_experts(settings: object) -> bool:
    """Return whether a model has experts that take all tokens.

    >>> from hespas.models.catalogue import model_named
    >>> [has_shared_experts(model_named(name).settings) for name in ("deepseek-v3", "mixtral-8x7b")]
    [True, False]
    """
    match settings:
        case LanguageModel(routing=Routing(shared_experts=count)):
            return count > 0
        case _:
            return False
