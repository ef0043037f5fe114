"""Apply the user's trip counts and branch weights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isclose
from typing import TYPE_CHECKING

from hespas.base.fields import parse_pairs
from hespas.base.figures import amount
from hespas.base.frozen import frozen
from hespas.errors import ConfigError, ProgramError, UnpartitionedError, option
from hespas.program.attrs import CaseAttrs, WhileAttrs
from hespas.program.program import Program

if TYPE_CHECKING:
    from hespas.frontend.stablehlo.tail import Tail

_WEIGHT_TOLERANCE = 1e-6
_WHOLE = re.compile(r"[0-9]+")
_PLACE = re.compile(r"|[0-9]+|[A-Za-z_][A-Za-z0-9_.\-]*")
"""A line, an HLO instruction, or nothing for all."""


def parse_trip_counts(texts: Iterable[str]) -> dict[str, int]:
    """Parse ``N`` or ``LINE=N``.

    The key is the line, for HLO the instruction, or "" for every loop.

    >>> parse_trip_counts(["32", "17=4", "while.3=5"])
    {'': 32, '17': 4, 'while.3': 5}
    """
    pairs = parse_pairs(texts, name="trip_count", form="N or LINE=N", alone="every loop")
    for place, number in pairs.items():
        if not _PLACE.fullmatch(place) or not _WHOLE.fullmatch(number):
            text = f"{place}={number}" if place else number
            raise ConfigError(f"{option('trip_count')} is {text!r}", hint="write N or LINE=N")
    return {place: int(number) for place, number in pairs.items()}


def parse_branch_weights(texts: Iterable[str]) -> dict[str, tuple[float, ...]]:
    """Parse ``W,W`` or ``LINE=W,W``; weights add to 1.

    >>> parse_branch_weights(["0.9,0.1"])
    {'': (0.9, 0.1)}
    """
    form = "W,W or LINE=W,W, adding to 1"
    pairs = parse_pairs(texts, name="branch_weights", form=form, alone="every branch")
    weights: dict[str, tuple[float, ...]] = {}
    for place, weights_text in pairs.items():
        shares = [share for text in weights_text.split(",") if (share := amount(text)) is not None]
        is_whole = len(shares) == weights_text.count(",") + 1 and isclose(sum(shares), 1.0)
        if not is_whole or not _PLACE.fullmatch(place):
            text = f"{place}={weights_text}" if place else weights_text
            raise ConfigError(f"{option('branch_weights')} is {text!r}", hint=f"write {form}")
        weights[place] = tuple(shares)
    return weights


@frozen
class LoadOptions:
    """The user's trip counts and branch weights.

    ``trip_counts`` maps a loop's line (``"12"``; in HLO its instruction, ``"while.3"``) or ``""``
    (every loop of unknown count) to its iterations. ``branch_weights`` maps a branch operation's
    line or instruction, or ``""``, to the share of each branch; the shares add to 1. With
    ``false_first`` the weights of a branch on a predicate are (false, true), as in the ``case``
    that XLA compiled; a ``conditional`` of HLO has true first. With ``divides_end`` the
    elementwise end of a sharded program needs no partitioner: values before it are divided as
    those that it changes (`hespas.frontend.stablehlo.tail`), as in steps of hespas' own models.
    """

    trip_counts: Mapping[str, int] = field(default_factory=dict[str, int])
    branch_weights: Mapping[str, tuple[float, ...]] = field(
        default_factory=dict[str, tuple[float, ...]]
    )
    false_first: bool = False
    divides_end: bool = False

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


@frozen
class UsedOverrides:
    """The keys of `LoadOptions` that had an effect.

    ``""`` is in ``trip_counts`` if that count applied to at least one loop of unknown count; ``""``
    is in ``branch_weights`` if those weights applied to at least one branch. A key of `LoadOptions`
    that is missing here had no effect.
    """

    trip_counts: frozenset[str] = frozenset()
    branch_weights: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True)
class OverrideRecorder:
    """Applies `LoadOptions` during a load and records their use.

    The user names a loop or branch by its ``unit``, a line or an instruction.
    """

    options: LoadOptions
    unit: str = "line"
    assumptions: list[str] = field(default_factory=list[str])
    _loops: set[str] = field(default_factory=set[str])
    _branches: set[str] = field(default_factory=set[str])
    _used_counts: set[str] = field(default_factory=set[str])
    _used_weights: set[str] = field(default_factory=set[str])

    def loop(self, name: str, location: str, count: int | None) -> WhileAttrs:
        """Return a loop's trip count: the user's, else ``count``.

        ``count`` was read from the program. The user's count for this loop replaces it; the count
        for all loops does not.
        """
        counts = self.options.trip_counts
        self._loops.add(name)
        key = name if name in counts else ""
        if key not in counts or (count is not None and not key):
            return WhileAttrs(trip_count=count)
        self._used_counts.add(key)
        self.assumptions.append(f"{location}: the loop runs {counts[key]} times, as the user says")
        return WhileAttrs(trip_count=counts[key])

    def branch(
        self, name: str, location: str, alternatives: int, *, is_predicate: bool = False
    ) -> CaseAttrs:
        """Return the user's weights of a branch operation, if set.

        A branch on a predicate has true first. Raises `ProgramError` if the number of weights is
        not ``alternatives``.
        """
        options = self.options.branch_weights
        self._branches.add(name)
        key = name if name in options else ""
        if key not in options:
            return CaseAttrs(weights=None)
        weights = options[key]
        if len(weights) != alternatives:
            raise ProgramError(
                f"{len(weights)} branch weights are given for {alternatives} branches"
            )
        self._used_weights.add(key)
        is_turned = is_predicate and self.options.false_first
        order = ""
        if is_predicate:
            order = " (false, true)" if is_turned else " (true, false)"
        self.assumptions.append(
            f"{location}: branches are taken with weights {list(weights)}{order}, as the user says"
        )
        return CaseAttrs(weights=weights[::-1] if is_turned else weights)

    def used(self, source: str) -> UsedOverrides:
        """Return the overrides that had an effect, after the load.

        Raises `ConfigError` if the user names a loop or branch that the program does not have.
        """
        groups = (
            ("loop", self.options.trip_counts, self._loops),
            ("branch", self.options.branch_weights, self._branches),
        )
        for subject, options, names in groups:
            for name in options.keys() - names - {""}:
                numbered = sorted(
                    names - {""}, key=lambda name: (int(name) if name.isdigit() else 0, name)
                )
                available = ", ".join(numbered) or "none"
                raise ConfigError(
                    f"there is no {subject} on {self.unit} {name}",
                    location=source,
                    hint=f"{self.unit}s of a {subject}: {available}",
                )
        return UsedOverrides(
            trip_counts=frozenset(self._used_counts), branch_weights=frozenset(self._used_weights)
        )


@frozen
class Loaded:
    """One device's program and the overrides that changed it.

    An override is a trip count or a branch weight of `hespas.frontend.overrides.LoadOptions`.
    Overrides missing from ``used`` changed nothing, so a caller can refuse them without reading the
    program again. ``undivided`` is the undivided program, if the source held it.
    """

    program: Program
    used: UsedOverrides
    undivided: Program | None = None


@frozen
class Unpartitioned:
    """The reason why a source is not partitioned yet.

    ``undivided`` is the undivided program, if it was read, and ``divided`` one device's, where that
    takes no partitioner. ``tail`` is the end of a program that takes none.
    """

    message: str
    location: str
    hint: str
    undivided: Program | None = None
    divided: Loaded | None = None
    tail: Tail | None = None

    def error(self) -> UnpartitionedError:
        """Return the error for a caller that cannot partition."""
        return UnpartitionedError(self.message, location=self.location, hint=self.hint)
