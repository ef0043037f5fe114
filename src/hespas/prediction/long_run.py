"""Play a long run for many seeds, failure by failure.

All seeds are played at once, event by event: a superposition of Poisson processes gives the next
candidate, which is an interruption unless a thinning draw drops it (infant mortality that faded, a
node that is in repair). Causes strike only while the run runs, restarts included. What a run has
trained counts once a checkpoint of it can be loaded, so that progress is never taken back, but for
silent corruption. Every event of every seed takes the same draws whatever the spares, intervals and
times are: two plans are compared under the same failures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil, inf, sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hespas.base.frozen import frozen
from hespas.base.units import DAY_S
from hespas.errors import ConfigError, option
from hespas.prediction.goodput import LongRun
from hespas.prediction.hazards import Cause, Hazards

Floats: TypeAlias = NDArray[np.floating[Any]]
Flags: TypeAlias = NDArray[np.bool_]
CATEGORIES = ("productive", "saving", "lost", "starting", "loading", "waiting")
_BATCH_CELLS = 4_000_000
"""Cells of the largest array of a batch of seeds: nodes that differ, or nodes in repair."""
_MOST_CELLS, _LEAST_CELLS = 100_000_000, 300
"""Interruptions of all seeds that are played at most, and seeds that take as long as one."""


@frozen
class PlayedRuns:
    """Each seed's outcome: seconds by category, and strikes by cause.

    ``worst`` is the share of nodes' failures by the unequal nodes, None where all are equal.
    """

    run_s: float
    seconds: Mapping[str, Floats]
    struck: Mapping[str, Floats]
    worst: Floats | None

    @property
    def goodput(self) -> Floats:
        """Each seed's share of productive time."""
        return self.seconds["productive"] / self.run_s

    def share(self, category: str) -> float:
        """Return the mean share of a category."""
        return float(self.seconds[category].mean()) / self.run_s


def played(run: LongRun, hazards: Hazards, *, run_s: float, seeds: int, seed: int) -> PlayedRuns:
    """Play a run for ``seeds`` seeds from ``seed`` on.

    The run takes ``run_s`` seconds; the hazards replace its ``failure_interval_s``.
    """
    run = replace(run, save_s=run.save_s + _validation_s(run, hazards.causes))
    wide = max(1, _lemons(hazards), _most_away(run, hazards))
    size = max(1, min(seeds, _BATCH_CELLS // wide))
    batches = [
        _Batch(
            run=run,
            hazards=hazards,
            run_s=run_s,
            random=np.random.default_rng((seed, first)),
            seeds=min(size, seeds - first),
        )
        for first in range(0, seeds, size)
    ]
    for batch in batches:
        batch.play()

    def joined(arrays: Sequence[Floats]) -> Floats:
        return np.concatenate(arrays)

    worst = [batch.worst() for batch in batches]
    return PlayedRuns(
        run_s=run_s,
        seconds={name: joined([batch.seconds[name] for batch in batches]) for name in CATEGORIES},
        struck={
            cause.name: joined([batch.struck[number] for batch in batches])
            for number, cause in enumerate(hazards.causes)
        },
        worst=None if hazards.unequal is None else joined(worst),
    )


def best_spares(
    run: LongRun, hazards: Hazards, *, run_s: float, seeds: int, seed: int
) -> tuple[int, float]:
    """Return the spares that maximise training per node, and goodput."""

    @cache
    def goodput(spares: int) -> float:
        plan = replace(run, spares=spares)
        return played(plan, hazards, run_s=run_s, seeds=seeds, seed=seed).share("productive")

    def worth(spares: int) -> float:
        return goodput(spares) * hazards.nodes / (hazards.nodes + spares)

    low, high = 0, 1
    while high < hazards.nodes and worth(high) > worth(high // 2):
        low, high = high // 2, 2 * high
    while high - low > 2:
        third = (high - low) // 3
        if worth(low + third) < worth(high - third):
            low += third
        else:
            high -= third
    best = max(range(low, high + 1), key=worth)
    return best, goodput(best)


def check_playable(hazards: Hazards, *, run_s: float, seeds: int) -> None:
    """Refuse runs of too many failures to play.

    Raises `ConfigError`.
    """
    peak = 1.0 if hazards.infant is None else hazards.infant.factor
    failures = peak * run_s / hazards.interval_s
    # An event of all seeds takes as long as one of some hundred.
    if failures * max(seeds, _LEAST_CELLS) > _MOST_CELLS:
        raise ConfigError(
            f"{seeds:,} runs of {run_s / DAY_S:,.4g} days with about {failures:,.3g} interruptions "
            "each are too long to play",
            hint=f"give fewer {option('run_days')} or {option('run_seeds')}",
        )


def _validation_s(run: LongRun, causes: Sequence[Cause]) -> float:
    """Return the validation time of an interval of training."""
    if run.interval_s == inf:
        return 0.0
    return sum(
        cause.validation_s * run.interval_s / cause.validation_every_s
        for cause in causes
        if cause.validation_every_s is not None
    )


def _most_nodes(causes: Sequence[Cause]) -> int:
    return max((cause.nodes for cause in causes), default=0)


def _most_away(run: LongRun, hazards: Hazards) -> int:
    """Return the number of nodes in repair to remember.

    A run that goes on without them needs all: the mean and six deviations more.
    """
    count = (run.spares or 0) + max(1, _most_nodes(hazards.causes))
    if run.elastic_nodes is None:
        return count
    peak = 1.0 if hazards.infant is None else hazards.infant.factor
    mean = sum(cause.nodes / cause.interval_s for cause in hazards.causes) * run.repair_s * peak
    most = count + ceil(mean + 6.0 * sqrt(mean * max(1, _most_nodes(hazards.causes))))
    return min(most, max(count, hazards.nodes))


def _lemons(hazards: Hazards) -> int:
    unequal = hazards.unequal
    return 0 if unequal is None else max(1, round(unequal.nodes * hazards.nodes))


@dataclass(slots=True, kw_only=True)
class _Batch:
    """Seeds that are played at once.

    Arrays have an entry or row for each seed. ``ran_s`` is the time that a run has taken,
    ``since_s`` the time since its last restart began. A restart takes ``start_s`` to start and
    ``load_s`` to load. ``speed`` is the share of the nodes that train; at ``grows_s`` more nodes
    are back.
    """

    run: LongRun
    hazards: Hazards
    run_s: float
    random: np.random.Generator
    seeds: int
    seconds: dict[str, Floats] = field(default_factory=dict[str, Any])
    struck: Floats = field(init=False)
    now_s: Floats = field(init=False)
    ran_s: Floats = field(init=False)
    since_s: Floats = field(init=False)
    start_s: Floats = field(init=False)
    load_s: Floats = field(init=False)
    speed: Floats = field(init=False)
    grows_s: Floats = field(init=False)
    repaired_s: Floats = field(init=False)
    lemon_back_s: Floats = field(init=False)
    lemon_failures: Floats = field(init=False)
    node_failures: Floats = field(init=False)

    def play(self) -> None:
        """Play all seeds to the end of the run."""
        seeds, causes = self.seeds, self.hazards.causes
        for name in CATEGORIES:
            self.seconds[name] = np.zeros(seeds)
        for name in ("now_s", "ran_s", "since_s", "start_s", "load_s"):
            setattr(self, name, np.zeros(seeds))
        self.lemon_failures, self.node_failures = np.zeros(seeds), np.zeros(seeds)
        self.struck = np.zeros((len(causes), seeds))
        self.speed, self.grows_s = np.ones(seeds), np.full(seeds, inf)
        self.repaired_s = np.zeros((seeds, _most_away(self.run, self.hazards)))
        self.lemon_back_s = np.zeros((seeds, _lemons(self.hazards)))
        rates = np.array([1.0 / cause.interval_s for cause in causes])
        infant = self.hazards.infant
        factor = 1.0 if infant is None else infant.factor
        peak = float(rates.sum()) * factor
        share = np.cumsum(rates) / rates.sum() if peak else rates
        goes_on = np.ones(seeds, dtype=bool)
        while goes_on.any():
            draws = self.random.random((8, seeds))
            left_s = self.run_s - self.now_s
            gap_s = -np.log1p(-draws[0]) / peak if peak else np.full(seeds, inf)
            runs = goes_on
            if self.run.elastic_nodes is not None:
                # No failure comes before a copy is back; the run draws the next one from then on.
                grows = goes_on & (self.grows_s - self.now_s < np.minimum(gap_s, left_s))
                self._grow(grows)
                runs = goes_on & ~grows
            ends = gap_s >= left_s
            passed_s = np.where(runs, np.minimum(gap_s, left_s), 0.0)
            self._pass(passed_s)
            self._settle(runs & ends, saves=runs & ends)
            goes_on = goes_on & ~(runs & ends) & (self.now_s < self.run_s)
            runs = runs & goes_on
            if not peak:
                continue
            place = np.count_nonzero(np.less_equal.outer(share, draws[1]), axis=0)
            chosen = np.minimum(place, len(causes) - 1)
            hits = runs & (draws[2] * factor < self._ageing())
            hits &= self._is_there(chosen, hits, draws)
            self._interrupt(chosen, hits, draws)
            goes_on &= self.now_s < self.run_s

    def _pass(self, passed_s: Floats) -> None:
        """Let time pass in which seeds run."""
        self.now_s += passed_s
        self.ran_s += passed_s
        self.since_s += passed_s

    def worst(self) -> Floats:
        """Return the share of nodes' failures by unequal nodes."""
        return self.lemon_failures / np.maximum(1.0, self.node_failures)

    def _ageing(self) -> Floats:
        """Return the factor of early failures."""
        infant = self.hazards.infant
        if infant is None:
            return np.ones(self.seeds)
        return 1.0 + (infant.factor - 1.0) * np.exp(-self.ran_s / (infant.days * 86400.0))

    def _is_there(self, chosen: NDArray[np.intp], hits: Flags, draws: Floats) -> Flags:
        """Return the failures that hit working nodes.

        Sets when unequal nodes come back. While an unequal node is in repair an average one stands
        in, which fails less often.
        """
        unequal = self.hazards.unequal
        one_node = np.array([cause.nodes == 1 for cause in self.hazards.causes])[chosen]
        if unequal is None:
            return np.ones(self.seeds, dtype=bool)
        rows = np.arange(self.seeds)
        columns = (draws[4] * self.lemon_back_s.shape[1]).astype(int)
        is_lemon = one_node & (draws[3] < unequal.failures)
        is_away = self.lemon_back_s[rows, columns] > self.now_s
        there = ~is_lemon | ~is_away | (draws[5] < unequal.nodes / unequal.failures)
        fails = hits & is_lemon & ~is_away
        repair_s = self._repair_s(draws)
        self.lemon_back_s[rows[fails], columns[fails]] = (self.now_s + repair_s)[fails]
        self.lemon_failures += fails
        self.node_failures += hits & one_node & there
        return there

    def _repair_s(self, draws: Floats) -> Floats:
        return -np.log1p(-draws[6]) * self.run.repair_s

    def _interrupt(self, chosen: NDArray[np.intp], hits: Flags, draws: Floats) -> None:
        """Interrupt seeds until they restart."""
        causes, run = self.hazards.causes, self.run

        def of_cause(values: Sequence[float]) -> Floats:
            return np.array(values, dtype=float)[chosen]

        planned = np.array([cause.planned for cause in causes])[chosen]
        np.add.at(self.struck, (chosen[hits], np.flatnonzero(hits)), 1.0)
        self._settle(hits, planned=planned)
        self._spend("saving", np.where(planned, run.save_s + run.behind_s, 0.0), hits)
        unnoticed_s = of_cause([cause.validation_every_s or 0.0 for cause in causes])
        self._spend("lost", unnoticed_s * draws[7], hits)
        self._spend("starting", of_cause([cause.detection_s for cause in causes]), hits)
        retries = self.hazards.retries
        if retries is not None and retries.success < 1.0:
            failed = self.random.geometric(retries.success, self.seeds) - 1
            self._spend("starting", failed * retries.interval_s, hits)
        self._wait_for_spares(of_cause([cause.nodes for cause in causes]), hits, draws)
        start_s = of_cause(
            [run.start_s if cause.restart_s is None else cause.restart_s for cause in causes]
        )
        self.since_s[hits] = 0.0
        self.start_s[hits] = start_s[hits]
        self.load_s[hits] = run.load_s

    def _wait_for_spares(self, nodes: Floats, hits: Flags, draws: Floats) -> None:
        """Send nodes to repair; wait if spares are missing."""
        if self.run.spares is None:
            return
        rows = np.flatnonzero(hits & (nodes > 0))
        if not len(rows):
            return
        back_s = self.now_s + self._repair_s(draws)
        away = self.repaired_s[rows]
        if away.shape[1] > 1:
            away.sort(axis=1)
        is_struck = np.less.outer(-nodes[rows], -np.array(range(away.shape[1]), dtype=float))
        away = np.where(is_struck, np.expand_dims(back_s[rows], 1), away)
        self.repaired_s[rows] = away
        needed = away.shape[1] - self.run.spares
        until_s = away.min(axis=1) if needed == 1 else np.partition(away, needed - 1)[:, needed - 1]
        wait_s = np.zeros(self.seeds)
        wait_s[rows] = np.maximum(0.0, until_s - self.now_s[rows])
        if self.run.elastic_nodes is not None:
            shrunk = np.zeros(self.seeds, dtype=bool)
            shrunk[rows] = True
            wait_s = np.where(self._resize(shrunk), 0.0, wait_s)
        self._spend("waiting", wait_s, hits)

    def _resize(self, seeds: Flags) -> Flags:
        """Train seeds on complete copies; return those with one."""
        copy, nodes = self.run.elastic_nodes or 1, self.hazards.nodes
        is_away = self.repaired_s > np.expand_dims(self.now_s, 1)
        missing = np.maximum(0, is_away.sum(axis=1) - (self.run.spares or 0))
        speed = 1.0 - np.ceil(missing / copy) * copy / nodes
        goes_on = seeds & (speed > 0.0)
        self.speed = np.where(goes_on, speed, np.where(seeds, 1.0, self.speed))
        # The first return that completes a copy: as many as are missing from the last one.
        back_s = np.sort(np.where(is_away, self.repaired_s, inf), axis=1)
        needed = np.maximum(0, (missing - 1) % copy)
        column = np.minimum(needed, back_s.shape[1] - 1).astype(int)
        grows_s = np.take_along_axis(back_s, np.expand_dims(column, 1), axis=1)[:, 0]
        self.grows_s = np.where(
            seeds, np.where(goes_on & (missing > 0), grows_s, inf), self.grows_s
        )
        return goes_on

    def _grow(self, seeds: Flags) -> None:
        """Advance to the next complete copy, and restart."""
        self._pass(np.where(seeds, np.maximum(0.0, self.grows_s - self.now_s), 0.0))
        self._settle(seeds, planned=seeds)
        self._spend("saving", np.full(self.seeds, self.run.save_s + self.run.behind_s), seeds)
        self._resize(seeds)
        self.since_s[seeds] = 0.0
        self.start_s[seeds] = self.run.start_s
        self.load_s[seeds] = self.run.load_s

    def _settle(
        self, seeds: Flags, *, planned: Flags | None = None, saves: Flags | None = None
    ) -> None:
        """Account for the time since the last restart.

        ``planned`` stops lose nothing. A run that ends ``saves`` before that what it trained.
        """
        run, since_s, none = self.run, self.since_s, np.zeros(self.seeds, dtype=bool)
        planned, saves = none if planned is None else planned, none if saves is None else saves
        starting_s = np.minimum(since_s, self.start_s)
        loading_s = np.minimum(since_s - starting_s, self.load_s)
        worked_s = since_s - starting_s - loading_s
        cycle_s = run.interval_s + run.save_s
        saved = np.floor(np.maximum(0.0, worked_s - run.behind_s) / cycle_s)
        unsaved_s = worked_s - saved * cycle_s
        last_s = np.where(saves, np.minimum(unsaved_s, run.save_s + run.behind_s), 0.0)
        is_lost = ~(planned | saves)
        trained_s = saved * run.interval_s + np.where(is_lost, 0.0, unsaved_s - last_s)
        for name, amount_s in (
            ("starting", starting_s),
            ("loading", loading_s),
            ("productive", trained_s * self.speed),
            ("waiting", trained_s * (1.0 - self.speed)),
            ("saving", saved * run.save_s + last_s),
            ("lost", np.where(is_lost, unsaved_s, 0.0)),
        ):
            self.seconds[name] += np.where(seeds, amount_s, 0.0)

    def _spend(self, category: str, time_s: Floats, seeds: Flags) -> None:
        """Advance time without work, at most to the end."""
        passed_s = np.where(seeds, np.minimum(time_s, self.run_s - self.now_s), 0.0)
        self.now_s += passed_s
        self.seconds[category] += passed_s
