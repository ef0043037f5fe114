"""Recompute published steps, one process each, with a cache.

A row is compiled if that is possible within the limits, and otherwise predicted with the fusion of
a model of the compiler; a row that can't be predicted says why. A run that was ended resumes from
its cache.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from threading import Event

import msgspec

from hespas.base.cache import ContentCache, code_digest
from hespas.base.frozen import frozen
from hespas.base.process import Limits, end_programs_on, scratch_directory
from hespas.base.question import ask
from hespas.base.version import installed_versions
from hespas.errors import ToolError
from hespas.evidence.validate.measurements import Row
from hespas.prediction.options import Fidelity
from hespas.simulate.options import Model
from hespas.sources.maxtext import PYTHON_VARIABLE

LOG = logging.getLogger("hespas.evidence.validate")


@frozen
class RowOptions:
    """The method, network model, cache directory and limits.

    None for the method is the best for the row's device, and for the model the system's own.
    ``cpu_limit_s`` is of each process: the one that compiles, in practice; ``memory_limit_bytes``
    are of the memory that they write to. ``at_once`` rows are predicted at the same time.
    """

    method: str | None = None
    model: Model | None = None
    cache_dir: str | None = None
    cpu_limit_s: float = 600.0
    memory_limit_bytes: int = 16 * 10**9
    at_once: int = 1


class RowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A step to predict, compiled, fused or of library kernels."""

    row: Row
    fidelity: Fidelity
    options: RowOptions


class RowAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted step, or why it was refused.

    Times are of all processes together.
    """

    refused: str = ""
    predicted_s: float = 0.0
    compute_s: float = 0.0
    exposed_s: float = 0.0
    held_by: str = ""
    bound: Mapping[str, float] = {}
    kinds: Mapping[str, float] = {}
    assumptions: tuple[str, ...] = ()
    cpu_s: float = 0.0
    memory_bytes: int = 0
    peak_bytes: int = 0


_MARK = b"hespas row 1\n"
_PACKAGES = ("jax", "jaxlib", "jax-cuda12-pjrt", "libtpu")
_TOO_LONG = ("SIGXCPU", "SIGKILL", "took longer than")
_TOO_LARGE = ("ran out of memory", "MemoryError", "bad_alloc", "Cannot allocate memory")
_LIMIT_REASONS = ("predicting takes more than ", "compiling takes more than ")
"""How reasons of limits begin, without and with a compiler."""
_WALL_PER_CPU = 12.0
"""The wall time allowed per CPU time: shared machines run processes slower."""


@frozen
class PredictedRow:
    """A published step and its prediction.

    ``reason`` says why there is none, or why its program is not compiled. ``cpu_s`` is the
    processor time of all its processes, at most that of the first time; ``memory_bytes`` that of
    the largest process.
    """

    row: Row
    answer: RowAnswer | None
    reason: str
    cpu_s: float
    memory_bytes: int

    @property
    def error(self) -> float | None:
        """Predicted over published, less one."""
        return None if self.answer is None else self.answer.predicted_s / self.row.published_s - 1

    @property
    def memory_error(self) -> float | None:
        """Predicted peak memory over the published one, less one."""
        published = self.row.published_peak_bytes
        if self.answer is None or published is None:
            return None
        return self.answer.peak_bytes / published - 1


class _Cost(msgspec.Struct, frozen=True, kw_only=True):
    """A row's largest cost, and the limits that stopped it."""

    cpu_s: float = 0.0
    memory_bytes: int = 0
    gave_up: str = ""
    cpu_limit_s: float = 0.0
    memory_limit_bytes: int = 0

    def stands(self, options: RowOptions) -> bool:
        """Whether it would not be compiled under these limits either."""
        has_less_time = options.cpu_limit_s <= self.cpu_limit_s
        has_less_memory = options.memory_limit_bytes <= self.memory_limit_bytes
        return bool(self.gave_up) and has_less_time and has_less_memory


def row_cache(directory: Path) -> ContentCache:
    """Return the cache of predicted rows in a directory."""
    return ContentCache(
        directory=directory, suffix=".row", mark=_MARK, content_name="predicted steps"
    )


def predict_rows(
    rows: Iterable[Row],
    options: RowOptions,
    *,
    cached: ContentCache,
    advance: Callable[[int], object],
) -> tuple[PredictedRow, ...]:
    """Predict rows, and return them in their order.

    Those of known cost go first, the cheapest ahead. Rows with the same inputs are predicted once.
    A failure is a row's ``reason``. ``advance`` is called with the number of rows that are done.
    """
    all_rows = tuple(rows)
    numbers_of: dict[str, list[int]] = {}
    for number, row in enumerate(all_rows):
        numbers_of.setdefault(row.missing or _cost_key(row), []).append(number)
    costs = {numbers[0]: _cost(cached, all_rows[numbers[0]]) for numbers in numbers_of.values()}
    order = sorted(numbers_of.values(), key=lambda equal: costs[equal[0]].cpu_s or float("inf"))
    distinct = [(all_rows[numbers[0]], costs[numbers[0]]) for numbers in order]
    done: dict[int, PredictedRow] = {}
    for position, predicted in _predict_each(distinct, options, cached):
        done |= {number: replace(predicted, row=all_rows[number]) for number in order[position]}
        advance(len(order[position]))
        answer, row = predicted.answer, predicted.row
        result = predicted.reason if answer is None else f"{answer.predicted_s:.4g} s"
        LOG.info(
            "%s on %s, %d of %d rows: %s after %.1f s of CPU time",
            *(row.name, row.system, len(done), len(all_rows), result, predicted.cpu_s),
        )
    return tuple(done[number] for number in range(len(all_rows)))


def _predict_each(
    rows: Iterable[tuple[Row, _Cost]], options: RowOptions, cached: ContentCache
) -> Iterator[tuple[int, PredictedRow]]:
    """Yield numbered rows as they finish; errors stop all."""
    interrupted = Event()
    with ThreadPoolExecutor(
        options.at_once, initializer=end_programs_on, initargs=(interrupted,)
    ) as pool:
        numbers = {
            pool.submit(_predict_row, row, options, cached, cost): number
            for number, (row, cost) in enumerate(rows)
        }
        try:
            for done in as_completed(numbers):
                yield numbers[done], done.result()
        except BaseException:
            interrupted.set()
            pool.shutdown(cancel_futures=True)
            raise


def _predict_row(row: Row, options: RowOptions, cached: ContentCache, cost: _Cost) -> PredictedRow:
    if row.missing:
        return PredictedRow(row=row, answer=None, reason=row.missing, cpu_s=0.0, memory_bytes=0)
    key = _key(row, options)
    known = cached.value(key, RowAnswer)
    reason = cost.gave_up if cost.stands(options) else ""
    if known is not None:
        return _predicted_row(row, known, reason, cost)
    answer = RowAnswer(refused=reason)
    if not reason:
        answer = _predict_apart(row, options, Fidelity(row.fidelity or Fidelity.COMPILED))
        reason = answer.refused
    if answer.refused and not row.fidelity:
        fused = _predict_apart(row, options, Fidelity.FUSED)
        answer = msgspec.structs.replace(
            fused,
            cpu_s=answer.cpu_s + fused.cpu_s,
            memory_bytes=max(answer.memory_bytes, fused.memory_bytes),
        )
        reason = answer.refused or reason
    new = _Cost(
        cpu_s=max(cost.cpu_s, answer.cpu_s),
        memory_bytes=max(cost.memory_bytes, answer.memory_bytes),
        gave_up=reason if reason.startswith(_LIMIT_REASONS) else "",
        cpu_limit_s=options.cpu_limit_s,
        memory_limit_bytes=options.memory_limit_bytes,
    )
    cached.keep(_cost_key(row), new)
    if not answer.refused and (not reason or new.gave_up):
        cached.keep(key, answer)
    return _predicted_row(row, answer, reason, new)


def _predicted_row(row: Row, answer: RowAnswer, reason: str, cost: _Cost) -> PredictedRow:
    return PredictedRow(
        row=row,
        answer=None if answer.refused else answer,
        reason=reason,
        cpu_s=cost.cpu_s,
        memory_bytes=cost.memory_bytes,
    )


def _predict_apart(row: Row, options: RowOptions, fidelity: Fidelity) -> RowAnswer:
    """Predict a row in its own process; failures are answers."""
    paths = {name: _absolute(getattr(row, name)) for name in ("workload", "node", "system")}
    own = replace(row, **paths, xla_flags=row.xla_flags if fidelity is Fidelity.COMPILED else {})
    request = RowRequest(row=own, fidelity=fidelity, options=options)
    with scratch_directory("row") as home:
        answer = _ask_worker(request, home, options)
    limit_reason = _LIMIT_REASONS[fidelity is Fidelity.COMPILED]
    if any(sign in answer.refused for sign in _TOO_LONG):
        reason = f"{limit_reason}{options.cpu_limit_s:g} s of CPU time"
        return msgspec.structs.replace(answer, refused=reason)
    if any(sign in answer.refused for sign in _TOO_LARGE):
        reason = f"{limit_reason}{options.memory_limit_bytes / 1e9:g} GB"
        return msgspec.structs.replace(answer, refused=reason)
    return answer


def _absolute(name: str) -> str:
    """Return an absolute path, or the unchanged name."""
    kind, colon, configuration = name.rpartition("maxtext:")
    path = Path(configuration)
    return f"{kind}{colon}{path.resolve()}" if path.exists() else name


def _ask_worker(request: RowRequest, home: Path, options: RowOptions) -> RowAnswer:
    try:
        return ask(
            "hespas.evidence.validate.worker",
            request,
            RowAnswer,
            name="the prediction",
            directory=home,
            limits=Limits(time_s=options.cpu_limit_s * _WALL_PER_CPU),
        )
    except ToolError as error:
        return RowAnswer(refused=error.message)


def _cost(cached: ContentCache, row: Row) -> _Cost:
    return cached.value(_cost_key(row), _Cost) or _Cost()


def _inputs_of(row: Row) -> dict[str, object]:
    path = Path(row.workload)
    content = sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    names = ("workload", "options", "xla_flags", "node", "system", "fidelity")
    return {**{name: getattr(row, name) for name in names}, "file": content}


def _cost_key(row: Row) -> str:
    return _digest({"cost": _inputs_of(row), "versions": _versions()})


def _key(row: Row, options: RowOptions) -> str:
    parts = {
        "row": _inputs_of(row),
        "options": [
            options.method,
            options.model and options.model.value,
            options.cpu_limit_s,
            options.memory_limit_bytes,
        ],
        "versions": _versions(),
        "code": code_digest(""),
    }
    return _digest(parts)


def _digest(value: Mapping[str, object]) -> str:
    return sha256(_MARK + msgspec.json.encode(value, order="deterministic")).hexdigest()


def _versions() -> dict[str, str]:
    maxtext = {PYTHON_VARIABLE: os.environ.get(PYTHON_VARIABLE, "")}
    return installed_versions(_PACKAGES) | maxtext
