"""What the user tells about a program that it doesn't tell itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hespas.errors import ConfigError, ProgramError
from hespas.program.attrs import CaseAttrs, WhileAttrs

_WEIGHT_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """What the user tells about a program that it doesn't tell itself.

    ``trip_counts`` maps a loop's line (``"12"``; in HLO its instruction, ``"while.3"``) or
    ``""`` (every loop whose count cannot be read) to how often it runs. ``branch_weights`` maps
    a branch operation's line or instruction, or ``""``, to how often each branch is taken,
    adding to 1.
    """

    trip_counts: Mapping[str, int] = field(default_factory=dict[str, int])
    branch_weights: Mapping[str, tuple[float, ...]] = field(
        default_factory=dict[str, tuple[float, ...]]
    )

    def __post_init__(self) -> None:
        for count in self.trip_counts.values():
            if count < 0:
                raise ConfigError(f"a trip count is {count}", hint="give 0 or more")
        for weights in self.branch_weights.values():
            if min(weights, default=-1) < 0 or abs(sum(weights) - 1) > _WEIGHT_TOLERANCE:
                raise ConfigError(
                    f"branch weights are {list(weights)}", hint="give shares that add to 1"
                )


NO_OPTIONS = LoadOptions()


@dataclass(slots=True, kw_only=True)
class Told:
    """The options of one load while it goes on: what they were used for, and for which loops.

    ``unit`` is how the user names a loop or branch: by its line, or by its instruction.
    """

    options: LoadOptions
    unit: str = "line"
    assumptions: list[str] = field(default_factory=list[str])
    _loops: set[str] = field(default_factory=set[str])
    _branches: set[str] = field(default_factory=set[str])

    def loop(self, name: str, location: str, count: int | None) -> WhileAttrs:
        """Return how often a loop runs: what the user says of it, or what was read."""
        told = self.options.trip_counts
        self._loops.add(name)
        if name in told and name:
            count = told[name]
        elif count is None:
            count = told.get("")
        else:
            return WhileAttrs(trip_count=count)
        if count is not None:
            self.assumptions.append(f"{location}: the loop runs {count} times, as the user says")
        return WhileAttrs(trip_count=count)

    def branch(self, name: str, location: str, alternatives: int) -> CaseAttrs:
        """Return how often each branch is taken, where the user says it."""
        told = self.options.branch_weights
        self._branches.add(name)
        weights = told.get(name) or told.get("")
        if weights is None:
            return CaseAttrs(weights=None)
        if len(weights) != alternatives:
            raise ProgramError(
                f"{len(weights)} branch weights are given for {alternatives} branches"
            )
        self.assumptions.append(
            f"{location}: branches are taken with weights {list(weights)}, as the user says"
        )
        return CaseAttrs(weights=weights)

    def check(self, source: str) -> None:
        """Raise `ConfigError` for a loop or branch that the user names and that isn't there."""
        told = (
            ("loop", self.options.trip_counts, self._loops),
            ("branch", self.options.branch_weights, self._branches),
        )
        for what, options, names in told:
            for name in options.keys() - names - {""}:
                known = ", ".join(sorted(names - {""}, key=_by_number)) or "none"
                raise ConfigError(
                    f"there is no {what} on {self.unit} {name}",
                    location=source,
                    hint=f"{self.unit}s of a {what}: {known}",
                )


def _by_number(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdigit() else (0, name)
