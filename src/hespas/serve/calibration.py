"""Measured requests: errors of their prediction, and step times fitted to them.

Iterations that decode, and those of prompts, each get a factor: so that the mean time between
tokens, and the mean time from the queue to the first token, are those of every other request. The
errors are of the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from pathlib import Path

import msgspec
import numpy as np

from hespas.base.decode import read_text
from hespas.base.frozen import frozen
from hespas.base.table import Line, read_table
from hespas.errors import ConfigError
from hespas.serve.answer import Figures, LogErrors, LogReport, Seconds, figures_of
from hespas.serve.load import PICOSECONDS, Requests
from hespas.serve.simulation import ServingPlan
from hespas.serve.step_times import StepFactors

COLUMNS = ("arrival_s", "input_tokens", "output_tokens", "queue_s", "ttft_s", "tpot_s")
FACTORS_FILE = "serving.json"
"""What a calibration by a log keeps its factors in."""
_ROUNDS = 12
_LEAST_REQUESTS = 4


class _FactorsFile(msgspec.Struct, frozen=True, kw_only=True):
    step_factors: StepFactors


def read_factors(path: Path) -> StepFactors:
    """Read the factors that a calibration kept; a directory or its file."""
    file = path / FACTORS_FILE if path.is_dir() else path
    try:
        return msgspec.json.decode(read_text(file), type=_FactorsFile).step_factors
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"holds no factors: {error}",
            location=str(file),
            hint="hespas calibrate --serving writes them",
        ) from error


@frozen
class Log:
    """Measured requests, in the order of their arrival."""

    requests: Requests
    queue_s: Seconds
    ttft_s: Seconds
    tpot_s: Seconds


def read_log(path: Path) -> Log:
    """Read a .csv of `COLUMNS`.

    Lines before the columns that begin with # are left out.
    """
    rows: list[tuple[float, ...]] = []
    for line in read_table(path, needed=COLUMNS, error=ConfigError).lines:
        rows.append(tuple(_cell(line, name) for name in COLUMNS))
        if len(rows) > 1 and rows[-1][0] < rows[-2][0]:
            raise ConfigError(
                f"arrives at {rows[-1][0]:g} s, before the request above it",
                location=line.location,
                hint="sort the file by arrival_s",
            )
    if len(rows) < _LEAST_REQUESTS:
        raise ConfigError(
            f"holds {len(rows)} requests",
            location=str(path),
            hint=f"give {_LEAST_REQUESTS} or more",
        )
    table = np.asarray(rows, dtype=np.float64)
    arrivals = np.rint((table[:, 0] - table[0, 0]) * PICOSECONDS).astype(np.int64)
    return Log(
        requests=Requests(
            arrivals_ps=tuple(arrivals.tolist()),
            prompts=tuple(table[:, 1].astype(np.int64).tolist()),
            outputs=tuple(table[:, 2].astype(np.int64).tolist()),
        ),
        queue_s=table[:, 3],
        ttft_s=table[:, 4],
        tpot_s=table[:, 5],
    )


def _cell(line: Line, name: str) -> float:
    """Return a count or time; nan for outputs of one token."""
    if name == "tpot_s" and line.text(name) == "nan":
        return nan
    return line.amount(name, least=1.0 if name.endswith("_tokens") else 0.0)


def compared(log: Log, plan_of: Callable[[StepFactors], ServingPlan]) -> LogReport:
    """Return the requests' errors, predicted and fitted."""
    used, judged = slice(0, None, 2), slice(1, None, 2)
    factors = StepFactors()

    def figures(factors: StepFactors) -> Figures:
        return figures_of(log.requests, plan_of(factors).serve(log.requests))

    plain = served = figures(factors)
    for _ in range(_ROUNDS):
        prompt_s = served.ttft_s[used].mean() - served.queue_s[used].mean()
        measured_s = log.ttft_s[used].mean() - log.queue_s[used].mean()
        decode = np.nanmean(log.tpot_s[used]) / np.nanmean(served.tpot_s[used])
        factors = StepFactors(
            decode=float(factors.decode * decode**_DAMPED),
            prompts=float(factors.prompts * (measured_s / prompt_s) ** _DAMPED),
        )
        served = figures(factors)
    return LogReport(
        requests=len(log.requests),
        predicted=_errors(log, plain, judged),
        fitted=_errors(log, served, judged),
        decode_factor=factors.decode,
        prompts_factor=factors.prompts,
    )


_DAMPED = 0.7
"""Both factors change both times a little: each round takes part of the way."""


def _errors(log: Log, figures: Figures, judged: slice) -> LogErrors:
    tpot = figures.tpot_s[judged] / np.where(log.tpot_s[judged] > 0, log.tpot_s[judged], np.nan) - 1
    queue_s = float(log.queue_s[judged].mean())
    return LogErrors(
        tpot_mean=float(np.nanmean(figures.tpot_s[judged]) / np.nanmean(log.tpot_s[judged]) - 1),
        tpot_median=float(np.nanmedian(np.abs(tpot))),
        ttft_mean=float(figures.ttft_s[judged].mean() / log.ttft_s[judged].mean() - 1),
        queue_mean=float(figures.queue_s[judged].mean() / queue_s - 1) if queue_s else None,
    )
