"""Run a study: bounds, screening, compilation.

The study and earlier results decide the evaluations and their order. The number of workers, their
ends and interruptions change nothing but the time: an evaluation that is stored is not repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isinf
from pathlib import Path
from statistics import median
from time import monotonic

from hespas.base.figures import whole_number
from hespas.base.home import cache_home
from hespas.errors import ConfigError, HespasError, OutputError
from hespas.sources.source import find_source
from hespas.study.entry import Entry, entry_of, versions
from hespas.study.executor import (
    Ending,
    Executor,
    ExecutorOptions,
    Outcome,
    Phase,
    Task,
    executor_of,
)
from hespas.study.goal import FIGURES, Value, ordered
from hespas.study.keys import WORKLOAD
from hespas.study.rows import Row, Status, flat, in_order
from hespas.study.space import GENERATION, candidates_of, sampler_of
from hespas.study.store import OutcomeCache, Store, opened, reading
from hespas.study.study import Study, StudyFidelity, study_of

_FIRST_WAVE, _WAVE = 4, 16
"""Candidates that are screened before the others are sorted and pruned again."""
_MOST_COMPILED = 2
"""The most compilations, as a multiple of the requested count; some of the best drop out."""
Listener = Callable[[Sequence[Row]], None]
"""Called with all rows whenever one changed."""
_PREDICTED = (Status.SCREENED, Status.DONE)
_PhaseAndStatus = tuple[Phase, Status]


@dataclass(slots=True, kw_only=True)
class _Run:
    """The state of a run, with its current rows."""

    study: Study
    store: Store
    executor: Executor
    listener: Listener
    end_s: float
    cache: OutcomeCache | None = None
    rows: dict[int, Row] = field(default_factory=dict[int, Row])
    entries: dict[int, Entry] = field(default_factory=dict[int, Entry])

    def report(self) -> None:
        self.listener(list(self.rows.values()))

    def prune(self, numbers: Sequence[int], reason: str) -> None:
        for number in numbers:
            self.rows[number] = replace(self.rows[number], status=Status.PRUNED, reason=reason)


def run_study(
    study: Study,
    store: Store,
    executor: Executor,
    listener: Listener,
    *,
    cache: OutcomeCache | None = None,
) -> list[Row]:
    """Evaluate the candidates, and return all rows.

       Evaluations that the store or ``cache`` has are not repeated.
    Rows are in the candidates' order. Raises `ConfigError` without a candidate that can be run,
       `OutputError` for the store of another study.
    """
    minutes = study.budget.minutes
    end_s = inf if minutes is None else monotonic() + 60 * minutes
    run = _Run(
        study=study, store=store, executor=executor, listener=listener, end_s=end_s, cache=cache
    )
    _bound(run)
    store.keep_study(study.to_dict(), versions())
    store.keep_rows(run.rows.values())
    run.report()
    if study.fidelity is StudyFidelity.COMPILED:
        _evaluate(run, _waiting(run), lambda _: (Phase.COMPILE, Status.DONE))
    else:
        _screen(run)
        _compile(run, _ranked(run, Status.SCREENED))
    rows = list(run.rows.values())
    store.keep_rows(rows)
    return rows


def _bound(run: _Run) -> None:
    _check_models(run.study)
    for number, candidate in enumerate(candidates_of(run.study)):
        row = Row(number=number, candidate=candidate.to_dict())
        try:
            entry = entry_of(number, candidate)
        except HespasError as error:
            reason = " ".join(str(error).split())
            run.rows[number] = replace(row, status=Status.PRUNED, reason=reason)
            continue
        run.entries[number] = entry
        run.rows[number] = _apply_bounds(run, row, entry)
    reasons = {row.reason for row in run.rows.values()}
    if not run.entries and len(reasons) == 1:
        raise ConfigError(f"no candidate can be run: {reasons.pop()}", location=run.study.location)


def _check_models(study: Study) -> None:
    """Raise errors of workloads, which concern no single candidate."""
    for name in map(str, study.search[WORKLOAD]):
        if ":" in name:
            continue
        try:
            find_source(name)
        except HespasError as error:
            error.location = error.location or study.location
            raise


def _apply_bounds(run: _Run, row: Row, entry: Entry) -> Row:
    least_bytes, capacity_bytes = entry.bounds.memory_bytes, entry.capacity_bytes
    figures = {
        "devices": entry.devices,
        "memory_capacity_bytes": capacity_bytes,
        "least_step_time_s": entry.bounds.time_s or None,
        "least_memory_bytes": least_bytes or None,
    }
    row = replace(row, figures=_in_columns(figures))
    fits_not = capacity_bytes is not None and least_bytes > capacity_bytes
    if _holds(run, entry, {"memory.fits": False} if fits_not else {}) is not False:
        return row
    needed, capacity_gb = least_bytes / 1e9, (capacity_bytes or 0) / 1e9
    reason = f"memory: at least {needed:.4g} GB of {capacity_gb:.4g} GB a device"
    return replace(row, status=Status.PRUNED, reason=reason)


def _screen(run: _Run) -> None:
    waiting = _promising(_waiting(run), run)
    budget, sampling = run.study.budget.evaluations, run.study.sampling
    if budget is not None and sampling is not None and len(waiting) > sampling.past:
        _sample(run, waiting, budget, sampling.seed)
        return
    if budget is not None:
        run.prune(waiting[budget:], f"budget: {budget} evaluations")
        waiting = waiting[:budget]
    size = _FIRST_WAVE
    while waiting:
        wave, waiting = waiting[:size], waiting[size:]
        slower = _too_slow(run, wave)
        for number in slower:
            least_s = run.entries[number].bounds.time_s
            count = run.study.compiled_count
            run.prune([number], f"time: at least {least_s:.4g} s, and {count} others take less")
        _evaluate(
            run,
            [candidate for candidate in wave if candidate not in slower],
            lambda candidate: _phase_and_status(run, candidate),
        )
        waiting, size = _promising(waiting, run), _WAVE


def _waiting(run: _Run) -> list[int]:
    return [number for number, row in run.rows.items() if row.status is Status.WAITING]


def _promising(numbers: Sequence[int], run: _Run) -> list[int]:
    """Sort candidates, the most promising first.

    Those that are likely too large are last: memory is expected to exceed the estimates as much as
    that of the candidates predicted so far.
    """
    ratios = [
        peak_bytes / expected_bytes
        for number, row in run.rows.items()
        if (peak_bytes := row.figures.get("peak_memory_bytes"))
        and (expected_bytes := run.entries[number].expected.memory_bytes)
    ]
    ratio = median(ratios) if ratios else 1.0

    def promise(number: int) -> tuple[bool, tuple[float, ...], float, int]:
        entry = run.entries[number]
        capacity_bytes, expected = entry.capacity_bytes, entry.expected
        is_large = capacity_bytes is not None and ratio * expected.memory_bytes > capacity_bytes
        figures = entry.completed({"step_time_s": expected.time_s}, run.study.prices)
        return is_large, run.study.goal.keys(figures), expected.time_s, number

    return sorted(numbers, key=promise)


def _sample(run: _Run, waiting: Sequence[int], budget: int, seed: int) -> None:
    candidates = {number: run.entries[number].candidate for number in waiting}
    sampler = sampler_of(candidates, run.study.goal, seed=seed)
    while budget > 0 and (generation := sampler.ask(min(budget, GENERATION))):
        budget -= len(generation)
        _evaluate(run, generation, lambda candidate: _phase_and_status(run, candidate))
        for number in generation:
            row = run.rows[number]
            holds = row.status in _PREDICTED and _holds_as_screened(run, number)
            sampler.tell(number, row.figures if holds else None)
    reason = f"sampling: {len(sampler.values_of)} of {len(waiting)} candidates were chosen"
    run.prune([number for number in waiting if number not in sampler.values_of], reason)


def _phase_and_status(run: _Run, number: int) -> _PhaseAndStatus:
    entry = run.entries[number]
    match run.study.fidelity:
        case StudyFidelity.FUSED:
            return Phase.SCREEN, Status.DONE
        case StudyFidelity.LIBRARY:
            return Phase.LIBRARY, Status.DONE
        case StudyFidelity.EXPORTED:
            return Phase.EXPORTED, Status.DONE
        case _ if not entry.is_model:
            return Phase.AS_FOUND, Status.DONE
        case _ if entry.is_of_libraries:
            return Phase.LIBRARY, Status.DONE
        case _:
            return Phase.SCREEN, Status.SCREENED if entry.compiles else Status.DONE


def _too_slow(run: _Run, numbers: Sequence[int]) -> frozenset[int]:
    """Return the candidates whose bound is too slow to compile."""
    goal, count = run.study.goal, run.study.compiled_count
    follows_time = goal.is_single and FIGURES[goal.metrics[0][0]].follows_time
    if not follows_time or run.study.fidelity is not StudyFidelity.AUTO:
        return frozenset()
    best = [number for number in _ranked(run, *_PREDICTED) if _holds_as_screened(run, number)]
    if len(best) < count:
        return frozenset()
    worst = goal.keys(run.rows[best[count - 1]].figures)
    slow: set[int] = set()
    for number in numbers:
        entry = run.entries[number]
        bound = entry.completed({"step_time_s": entry.bounds.time_s}, run.study.prices)
        least = goal.keys(bound)
        is_known = entry.bounds.time_s > 0 and not any(map(isinf, least))
        if is_known and least > worst:
            slow.add(number)
    return frozenset(slow)


def _ranked(run: _Run, *statuses: Status) -> list[int]:
    """Return candidates in the goal's order, likely satisfying ones first."""
    rows = [row for row in run.rows.values() if row.status in statuses]
    best = [row.number for row in ordered(rows, run.study.goal, lambda row: row.figures)]
    return sorted(best, key=lambda number: not _holds_as_screened(run, number))


def _holds_as_screened(run: _Run, number: int) -> bool:
    row = run.rows[number]
    return _holds(run, run.entries[number], _fields(row)) is not False


def _compile(run: _Run, candidates: Sequence[int]) -> None:
    uncompiled, requested = list(candidates), run.study.compiled_count
    most_compiled = _MOST_COMPILED * requested
    while uncompiled and most_compiled > 0:
        done = sum(
            row.status is Status.DONE and row.fidelity == Phase.COMPILE.value
            for row in run.rows.values()
        )
        count = min(requested - done, most_compiled)
        if count <= 0:
            return
        wave, uncompiled = uncompiled[:count], uncompiled[count:]
        most_compiled -= count
        _evaluate(run, wave, lambda _: (Phase.COMPILE, Status.DONE))


def _evaluate(run: _Run, numbers: Sequence[int], how: Callable[[int], _PhaseAndStatus]) -> None:
    tasks: dict[str, Task] = {}
    rows_of_key: dict[str, list[tuple[int, Status]]] = {}
    for number in numbers:
        phase, status = how(number)
        entry = run.entries[number]
        key = entry.key(phase)
        rows_of_key.setdefault(key, []).append((number, status))
        tasks[key] = Task(
            key=key,
            candidate=entry.candidate.to_dict(),
            phase=phase,
            # A report with tables takes several times as long as the prediction: only the best get
            # one.
            with_report=phase is Phase.COMPILE and run.study.fidelity is StudyFidelity.AUTO,
            versions=entry.versions(phase),
            may_stay=phase in {Phase.SCREEN, Phase.LIBRARY} and not entry.runs_operations,
        )
    pending, resumed = dict(tasks), list[int]()
    for key, task in tasks.items():
        stored = run.store.outcome(key)
        if stored is not None:
            del pending[key]
            _settle(run, rows_of_key[key], task, stored)
            resumed += [number for number, _ in rows_of_key[key]]
            continue
        entry = run.entries[rows_of_key[key][0][0]]
        cached = None if run.cache is None else run.cache.read(entry, task)
        if cached is not None:
            del pending[key]
            _keep(run, rows_of_key[key], task, cached)
    # The table of a resumed study shows its earlier results at once.
    run.store.keep_rows([run.rows[number] for number in resumed])
    if pending and monotonic() < run.end_s:
        for task, outcome in run.executor.outcomes(list(pending.values())):
            if outcome.ending is Ending.REFUSED:
                raise OutputError(
                    f"the study cannot go on: {outcome.reason}",
                    location=str(run.store.directory),
                    hint="what is done is kept; put that right, and run the study again",
                )
            _keep(run, rows_of_key[task.key], task, outcome)
            if run.cache is not None:
                run.cache.write(run.entries[rows_of_key[task.key][0][0]], task, outcome)
            del pending[task.key]
            run.report()
            if monotonic() > run.end_s:
                break
    unfinished = {number for key in pending for number, _ in rows_of_key[key]}
    waiting = [number for number in _waiting(run) if number in unfinished]
    run.prune(waiting, f"budget: {run.study.budget.minutes:g} minutes" if waiting else "")


def _keep(
    run: _Run, keyed_rows: Sequence[tuple[int, Status]], task: Task, outcome: Outcome
) -> None:
    _settle(run, keyed_rows, task, outcome)
    rows = [run.rows[number] for number, _ in keyed_rows]
    run.store.keep_outcome(task, outcome, task.versions, rows)


def _settle(
    run: _Run, keyed_rows: Sequence[tuple[int, Status]], task: Task, outcome: Outcome
) -> None:
    for number, status in keyed_rows:
        run.rows[number] = _evaluated_row(run, run.rows[number], status, task, outcome)


def _evaluated_row(run: _Run, row: Row, status: Status, task: Task, outcome: Outcome) -> Row:
    entry = run.entries[row.number]
    row = replace(row, evaluation=task.key)
    if outcome.ending is not Ending.DONE:
        return replace(row, status=Status.FAILED, reason=outcome.reason)
    figures = {**row.figures, **entry.completed(outcome.figures, run.study.prices)}
    if row.status is Status.SCREENED:
        for name in ("step_time_s", "peak_memory_bytes"):
            figures[f"screened_{name}"] = row.figures.get(name)
    row = replace(row, status=status, fidelity=outcome.fidelity, figures=_in_columns(figures))
    if status is not Status.DONE:
        return row
    holds = _holds(run, entry, _fields(row))
    if holds:
        return row
    where = run.study.where.text
    reason = f"where: {where}" if holds is False else f"where: {where}: a field is not known"
    return replace(row, status=Status.PRUNED, reason=reason)


def _in_columns(figures: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: figures[name] for name in FIGURES if figures.get(name) is not None}


def _fields(row: Row) -> dict[str, Value]:
    fields: dict[str, Value] = dict(row.figures)
    peak, capacity = (
        row.figures.get(f"{name}_bytes") for name in ("peak_memory", "memory_capacity")
    )
    if peak is not None:
        fields["memory.peak_bytes"] = peak
    if capacity is not None:
        fields["memory.capacity_bytes"] = capacity
    if peak is not None and capacity is not None:
        fields |= {"memory.fits": peak <= capacity, "memory.free_bytes": capacity - peak}
    return fields


def _holds(run: _Run, entry: Entry, fields: Mapping[str, Value]) -> bool | None:
    axes = {f"mesh.{axis.name}": 1 for meshes in run.study.meshes for axis in meshes}
    return run.study.where.holds({**axes, **entry.candidate.fields(), **fields})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Studied:
    """A study with its rows, in the goal's order."""

    study: Study
    rows: tuple[Row, ...]

    @property
    def best(self) -> Row | None:
        """The best fully predicted candidate, if any."""
        return next((row for row in self.rows if row.status is Status.DONE), None)

    def table(self) -> list[dict[str, object]]:
        """Return a dictionary for each row."""
        return [flat(row) for row in self.rows]

    def __repr__(self) -> str:
        from hespas.study.rows import counts_text, table_text  # noqa: PLC0415 - for people alone

        return f"{counts_text(self.rows)}\n{table_text(self.rows, self.study.goal)}"


def studied(
    study: Study,
    directory: Path,
    *,
    executor: ExecutorOptions | None = None,
    listener: Listener = lambda _: None,
) -> Studied:
    """Run or resume a study in a directory.

    Raises `ConfigError` without candidates, `OutputError` for a directory of another study, or in
    use.
    """
    with opened(directory) as store:
        store.check_study(study.to_dict())
        with executor_of(executor or ExecutorOptions()) as runner:
            cache = OutcomeCache(directory=cache_home() / "studied")
            rows = run_study(study, store, runner, listener, cache=cache)
    return Studied(study=study, rows=tuple(in_order(rows, study.goal)))


def study_in(directory: Path) -> Study:
    """Return the study of a directory."""
    with reading(directory) as store:
        description = store.study()
    if description is None:
        raise OutputError("holds no study yet", location=str(directory), hint="run one")
    return study_of(description, location=str(directory))


def table_of(directory: Path) -> Studied:
    """Return a study's current table, even while it runs."""
    study = study_in(directory)
    with reading(directory) as store:
        rows = store.rows()
    decided = [row for row in rows if row.status is not Status.WAITING]
    return Studied(study=study, rows=tuple(in_order(decided, study.goal)))


def row_named(studied: Studied, name: str) -> Row:
    """Return a row by its place in the table.

    Places count from 1. Raises `ConfigError` for others.
    """
    number = whole_number(name)
    if number is None or not 1 <= number <= len(studied.rows):
        raise ConfigError(
            f"there is no row {name!r}", hint=f"give 1 to {len(studied.rows)}, as the table counts"
        )
    return studied.rows[number - 1]
