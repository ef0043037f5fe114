"""What a collective or a message does from its start to its end, ready to be run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from hespas.simulate.flow.patterns import Pattern
from hespas.simulate.flow.plans import Plan
from hespas.simulate.flow.rates import Demand

PIECES = 16
"""Where links are shared, equal steps in a row are taken in at most so many pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """``count`` times: ``lead_ps``, then ``work`` (rate units times ps).

    The work takes ``work_ps`` alone. ``demand`` is None where no messages go.
    """

    count: int
    lead_ps: int
    work_ps: int
    work: int
    demand: Demand | None

    @property
    def step_ps(self) -> int:
        """One time alone."""
        return self.lead_ps + self.work_ps

    @property
    def piece(self) -> int:
        """How many steps are taken at once."""
        return -(-self.count // PIECES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Legs one after the other over ``links``, all those of the legs.

    ``has_rivals`` tells that others of its kind, which it stands for, load the same links.
    ``after_ps`` gives, by leg, how long all later ones take alone.
    """

    legs: tuple[Leg, ...]
    links: tuple[int, ...]
    has_rivals: bool
    after_ps: tuple[int, ...]


def make_course(
    plan: Plan, uses: Mapping[Pattern, Sequence[tuple[int, int]]], *, has_rivals: bool
) -> Course:
    """Return the course of a plan where patterns cross the links of ``uses``."""
    legs = tuple([
        Leg(
            count=stage.count,
            lead_ps=stage.lead_ps,
            work_ps=stage.work_ps,
            work=stage.work_ps * stage.rate,
            demand=None if stage.pattern is None or not stage.work_ps
            else Demand(uses=tuple(uses[stage.pattern]), limit=stage.rate),
        )
        for stage in plan.stages
    ])  # fmt: skip
    lengths = [leg.count * leg.step_ps for leg in legs]
    after = list(accumulate(reversed(lengths), initial=0))
    links = {link for leg in legs if leg.demand is not None for link, _ in leg.demand.uses}
    return Course(
        legs=legs,
        links=tuple(sorted(links)),
        has_rivals=has_rivals,
        after_ps=tuple(reversed(after[:-1])),
    )
