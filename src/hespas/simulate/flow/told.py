"""The algorithms that a network or a user tells to use."""

from __future__ import annotations

from dataclasses import dataclass

from hespas.config.suggest import suggestion
from hespas.errors import ConfigError, SimulationError
from hespas.hardware.interconnect import Interconnect
from hespas.simulate.astra.options import parse_implementation
from hespas.simulate.flow.algorithms import ALGORITHMS, kinds_of

AUTO, TOLD = "auto", "told"
CHOICES = (TOLD, AUTO, *ALGORITHMS)
"""What ``--algorithm`` takes."""

_NAMES = {name.lower(): name for name in ALGORITHMS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """An algorithm by name. ``is_flat`` means all members at once, whatever the dimensions."""

    algorithm: str
    window: int | None = None
    is_flat: bool = False


def told_algorithms(interconnect: Interconnect, choice: str) -> dict[str, tuple[Told, ...]]:
    """Return, by kind of collective, what to use along each dimension.

    Kinds that aren't there, or that the chosen one can't run, take the cheapest. Raises
    `ConfigError` for an unknown name.
    """
    if choice not in CHOICES:
        message = f"the algorithm is {choice!r}"
        raise ConfigError(message, hint=suggestion(choice, CHOICES))
    if choice == AUTO:
        return {}
    if choice != TOLD:
        told = Told(algorithm=choice, is_flat=choice != "hierarchical")
        return dict.fromkeys(kinds_of(choice), (told,))
    return {
        kind: tuple([_parsed(name, interconnect.name) for name in names])
        for kind, names in interconnect.algorithms.items()
    }


def _parsed(name: str, location: str) -> Told:
    known = _NAMES.get(name.replace("_", "").lower())
    if known is not None:
        return Told(algorithm=known)
    try:
        found = parse_implementation(name)
    except SimulationError as error:
        hint = suggestion(name, ALGORITHMS)
        raise ConfigError(f"the algorithm is {name!r}", location=location, hint=hint) from error
    return Told(algorithm=found.algorithm.value, window=found.window, is_flat=found.is_one_ring)
