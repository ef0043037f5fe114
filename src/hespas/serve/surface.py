"""Predict iterations of an engine: prefill and decode at chosen sizes.

Between them `StepTimes` is linear along physical axes. What a sequence attends to is taken from two
contexts of one batch, and what a prompt attends to from two ways to cut the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import pairwise
from typing import Any

import msgspec

from hespas.base.cache import ContentCache, installed_state
from hespas.base.frozen import frozen
from hespas.base.home import cache_home
from hespas.errors import ConfigError
from hespas.models.language import LanguageModel
from hespas.prediction.figures.schema import EnergyParts, RunReport
from hespas.prediction.workload import source_of
from hespas.serve.depth import Depths, deepened, depths_of
from hespas.serve.load import PICOSECONDS
from hespas.serve.step_times import StepTimes, pairs_within
from hespas.sources.source import ModelSource
from hespas.study.entry import entry_of
from hespas.study.executor import Ending, ExecutorOptions, Phase, Task, executor_of
from hespas.study.keys import CLUSTER, WORKLOAD, Scalar
from hespas.study.space import Candidate

SHORT, LONG = 512, 4096
"""Contexts of decoding sequences."""
DECODED, ATTENDED = (1, 8, 64, 256), (1, 64, 256)
"""Batches of decoding sequences; those of the latter with both contexts."""
ROUTED = (16, 32)
"""More batches, of a model with experts: how many of these are read is not linear in the batch."""
PROMPTS = (1024, 4096, 8192)
"""Tokens of a prompt."""
_CUT = 8
"""In at most as many prompts the longest is cut, to tell products from attention."""
_FUSED = "stablehlo.custom_call"
"""The operation that is fused attention."""
_MARK = b"hespas serving steps 1\n"


@frozen
class ServedModel:
    """What is served on one replica, as a study's candidate says it.

    ``cluster`` is of the devices of one replica. A model ``routes`` that has experts;
    attention over a longer cache reads ``selected`` tokens, where it is not all, or a ``window`` in
    some layers. Iterations run ``in_halves`` where one half computes while tokens of the other
    travel to experts. A device has ``state_bytes`` for each sequence beside keys and values. A
    ``stage`` of a pipeline computes its ``layers`` from ``first_layer`` on.
    """

    name: str
    cluster: str
    mesh: tuple[tuple[str, int], ...]
    settings: Mapping[str, Scalar]
    values: Mapping[str, Scalar]
    routes: bool = False
    selected: int = 0
    window: Window | None = None
    in_halves: bool = False
    state_bytes: int = 0
    stage: str = "whole"
    layers: int | None = None
    first_layer: int = 0

    def candidate(self, size: Size, *, layers: int | None = None) -> Candidate:
        """Return the prediction of one size, of as many ``layers`` or all."""
        shape: dict[str, Scalar] = {"batch": size.batch}
        settings = dict(self.settings)
        if self.stage != "whole":
            settings |= {"stage": self.stage, "first_layer": self.first_layer}
        if (count := self.layers if layers is None else layers) is not None:
            settings["layers"] = count
        if size.is_prompt:
            shape |= {"prefill": True, "sequence": size.tokens}
        else:
            shape |= {"decode": True}
            settings["context"] = size.tokens
        return Candidate(
            values={WORKLOAD: self.name, CLUSTER: self.cluster, **self.values, **shape},
            settings=settings,
            mesh=self.mesh,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Attention of ``layers`` to the last ``tokens``, beside ``full_layers``.

    Layers with a window have ``cached_share`` of what is cached of a token.
    """

    tokens: int
    layers: int
    full_layers: int
    cached_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A step: ``batch`` prompts of ``tokens``, or sequences decoding with such context."""

    batch: int
    tokens: int
    is_prompt: bool = False

    @property
    def new_tokens(self) -> int:
        """The tokens that the step computes."""
        return self.batch * (self.tokens if self.is_prompt else 1)

    @property
    def pairs(self) -> int:
        """How many pairs of a token and an attended one prompts have."""
        return self.pairs_within(self.tokens)

    def pairs_within(self, window: int) -> int:
        """Return the pairs of prompts within a window."""
        return self.batch * pairs_within(window, self.tokens)


def sizes(
    *,
    longest: int | None = None,
    routes: bool = False,
    selected: int = 0,
    window: int = 0,
) -> tuple[Size, ...]:
    """Return the steps that are predicted; contexts stay below the model's ``longest``.

    Where attention reads ``selected`` tokens, both contexts and what the longest prompt is cut in
    are longer than them: what it takes grows by the index alone from there. Of a longer ``window``
    than the short context there is one context more: there some layers stop to read more.
    """
    contexts = [SHORT, LONG]
    if selected:
        contexts = [2 * selected, 4 * selected]
    elif window > SHORT:
        contexts = [SHORT, window, max(LONG, 4 * window)]
    short, *longer = dict.fromkeys(min(tokens, longest or tokens) for tokens in contexts)
    prompts = sorted({min(tokens, longest or tokens) for tokens in PROMPTS})
    batches = sorted((*DECODED, *ROUTED)) if routes else DECODED
    decoded = [Size(batch=batch, tokens=short) for batch in batches]
    attended = [Size(batch=batch, tokens=long) for long in longer for batch in ATTENDED]
    prompts_of_one = [Size(batch=1, tokens=tokens, is_prompt=True) for tokens in prompts]
    parts = min(_CUT, max(2, prompts[-1] // (2 * selected))) if selected else _CUT
    cut = Size(batch=parts, tokens=prompts[-1] // parts, is_prompt=True)
    return (*decoded, *attended, *prompts_of_one, cut)


@frozen
class CacheMemory:
    """A device's bytes: weights, workspace and cache.

    A token takes ``kv_bytes_per_token``, beyond a window ``kv_bytes_beyond``; a sequence has
    ``state_bytes`` beside its tokens.
    """

    weights_bytes: int
    workspace_bytes: int
    kv_bytes_per_token: float
    kv_bytes_beyond: float
    state_bytes: int


@dataclass(frozen=True, kw_only=True)
class Surface:
    """Step times of one replica, and its devices' memory.

    ``most_decoded`` is the largest batch that decodes; those beyond are of prompts. ``power_w`` is
    that of a device by new tokens; None where it is not known. ``idle_w`` is what a device and its
    share of the machine draw while it waits, 0 where that is not known. ``reports`` are the
    predicted steps, of the ``depths``' layers where not all are predicted.
    """

    times: StepTimes
    most_decoded: int
    memory: CacheMemory
    parts: int
    power_w: tuple[tuple[int, float], ...] | None
    idle_w: float
    reports: Mapping[Size, RunReport]
    depths: Depths | None

    def report_near(self, size: int, *, is_prompt: bool) -> RunReport:
        """Return the predicted step of the nearest batch or prompt."""
        near = [size_of for size_of in self.reports if size_of.is_prompt == is_prompt]
        if is_prompt:
            return self.reports[
                min(near, key=lambda size_of: abs(size_of.batch * size_of.tokens - size))
            ]
        return self.reports[min(near, key=lambda size_of: abs(size_of.batch - size))]


class Surfaces:
    """Surfaces predicted or read once, for answers about one model."""

    def __init__(self) -> None:
        self._surfaces: dict[str, Surface] = {}

    def of(
        self,
        model: ServedModel,
        *,
        fidelity: Phase,
        executor: ExecutorOptions,
        longest: int | None = None,
    ) -> Surface:
        """Return the surface of a model, as `surface_of` does."""
        key = f"{model} {fidelity} {longest}"
        if key not in self._surfaces:
            self._surfaces[key] = surface_of(
                model, fidelity=fidelity, executor=executor, longest=longest
            )
        return self._surfaces[key]


def surface_of(
    model: ServedModel, *, fidelity: Phase, executor: ExecutorOptions, longest: int | None = None
) -> Surface:
    """Return the surface of a model's steps, predicted or cached.

    Raises `ConfigError` with the reason where one of them can't be predicted.
    """
    designed = sizes(
        longest=longest,
        routes=model.routes,
        selected=model.selected,
        window=model.window.tokens if model.window else 0,
    )
    settings = settings_of(model, designed[0])
    depths = depths_of(settings.kinds) if isinstance(settings, LanguageModel) else None
    reports = _reports(model, designed, depths, partial(_predicted, fidelity, executor))
    return surface(
        reports,
        parts=settings.parts,
        depths=depths,
        in_halves=model.in_halves,
        window=model.window,
        state_bytes=model.state_bytes,
    )


def surface(
    reports: Mapping[Size, RunReport],
    *,
    parts: int,
    depths: Depths | None = None,
    in_halves: bool = False,
    window: Window | None = None,
    state_bytes: int = 0,
) -> Surface:
    """Return the surface through predicted steps of `sizes`.

    An iteration ``in_halves`` takes two steps of half its size, and no less than tokens travel.
    """
    halves = 2 if in_halves else 1
    steps_s = {
        size: halves * report.compute_s if in_halves else report.step_time_s
        for size, report in reports.items()
    }
    # A recurrence takes longer along a longer sequence too: attention alone counts there.
    prompts_s = {
        size: halves * report.per_op[_FUSED].time_s if state_bytes else steps_s[size]
        for size, report in reports.items()
        if size.is_prompt and (_FUSED in report.per_op or not state_bytes)
    }
    attending = _attending(steps_s, prompts_s, halves, window)
    decoded = [size for size in reports if not size.is_prompt]
    short = min(size.tokens for size in decoded)
    tokens_s: list[tuple[int, float]] = []
    for size in (size for size in decoded if size.tokens == short):
        batch = size.batch * halves
        attended_ps = attending.attended_ps(batch, batch * short, 1)[0]
        tokens_s.append((batch, steps_s[size] - attended_ps / PICOSECONDS))
    for size in (size for size in reports if size.is_prompt and size.batch == 1):
        attended_s = attending.pairs_ps(0, size.tokens) * halves / PICOSECONDS
        tokens_s.append((size.tokens * halves, steps_s[size] - attended_s))
    exchange_s = {
        halves * size.new_tokens: halves * report.communication_s
        for size, report in reports.items()
        if size.batch == 1 or size.tokens == short
    }
    power_w = dict[int, float]()
    for size, report in reports.items():
        if report.energy_j is not None:
            elapsed_s = max(steps_s[size], halves * report.communication_s)
            power_w[halves * size.new_tokens] = halves * report.energy_j / elapsed_s
    memory = _memory(reports, window, state_bytes)
    return Surface(
        times=replace(
            attending,
            tokens_s=tuple(tokens_s),
            exchange_s=tuple(sorted(exchange_s.items())) if in_halves else (),
        ),
        most_decoded=halves * max(size.batch for size in decoded),
        memory=replace(memory, workspace_bytes=halves * memory.workspace_bytes),
        parts=parts,
        power_w=tuple(sorted(power_w.items())) or None,
        idle_w=_idle_w(next(iter(reports.values())).energy),
        reports=reports,
        depths=depths,
    )


def _idle_w(parts: EnergyParts | None) -> float:
    """Return what a device and its machine draw beside work.

    >>> _idle_w(None)
    0.0
    """
    if parts is None:
        return 0.0
    board_j = parts.compute_j + parts.memory_j + parts.idle_j
    beside_j = parts.idle_j + (parts.node_j or 0.0) + (parts.network_j or 0.0) + parts.facility_j
    # Parts are of the step that was predicted, which may have fewer layers than the model.
    return parts.device_w * beside_j / board_j


def _attending(
    steps_s: Mapping[Size, float],
    prompts_s: Mapping[Size, float],
    halves: int,
    window: Window | None,
) -> StepTimes:
    """Return the times of attended tokens and pairs.

    ``prompts_s`` differ by what pairs take; without any they take nothing.
    """
    decoded = [size for size in steps_s if not size.is_prompt]
    short, *longer = sorted({size.tokens for size in decoded})
    slopes: list[list[tuple[int, float]]] = []
    for before, after in pairwise((short, *longer)):
        batches = [size.batch for size in decoded if size.tokens == after]
        taken_s = [
            (steps_s[Size(batch=batch, tokens=after)] - steps_s[Size(batch=batch, tokens=before)])
            / ((after - before) * batch * halves)
            for batch in batches
        ]
        pairs = zip(batches, taken_s, strict=True)
        slopes.append([(batch * halves, max(0.0, time_s)) for batch, time_s in pairs])
    context_s = slopes[-1]
    within = zip(slopes[0], context_s, strict=True) if len(slopes) > 1 else ()
    prompts = [size for size in steps_s if size.is_prompt]
    cut = next(size for size in prompts if size.batch > 1)
    longest = max((size for size in prompts if size.batch == 1), key=lambda size: size.tokens)
    longer_s = max(0.0, prompts_s.get(longest, 0.0) - prompts_s.get(cut, 0.0)) / halves
    pairs = longest.pairs - cut.pairs
    if window is None:
        return StepTimes(tokens_s=(), context_s=tuple(context_s), pair_s=longer_s / pairs)
    seen = longest.pairs_within(window.tokens) - cut.pairs_within(window.tokens)
    # A pair takes as long in each layer.
    of_layer_s = longer_s / (window.full_layers * pairs + window.layers * seen)
    return StepTimes(
        tokens_s=(),
        context_s=tuple(context_s),
        pair_s=window.full_layers * of_layer_s,
        window=window.tokens,
        window_s=tuple((batch, max(0.0, all_s - full_s)) for (batch, all_s), (_, full_s) in within),
        window_pair_s=window.layers * of_layer_s,
    )


def _memory(
    reports: Mapping[Size, RunReport], window: Window | None, state_bytes: int
) -> CacheMemory:
    """Return what weights, the largest workspace, and what sequences cache take."""
    decoded = [size for size in reports if not size.is_prompt]
    short, *longer = sorted({size.tokens for size in decoded})
    most = max(size.batch for size in decoded if size.tokens == longer[-1])
    peaks = {size.tokens: reports[size].peak_memory_bytes for size in decoded if size.batch == most}
    slopes = [
        (peaks[after] - peaks[before]) / ((after - before) * most)
        for before, after in pairwise((short, *longer))
    ]
    within = beyond = slopes[-1]
    if len(slopes) > 1:
        within = slopes[0]
    elif window is not None and window.tokens <= short and window.cached_share < 1:
        within /= 1 - window.cached_share

    def cached(size: Size) -> float:
        seen = size.tokens if window is None else min(size.tokens, window.tokens)
        return size.batch * (seen * within + (size.tokens - seen) * beyond + state_bytes)

    without = [report.peak_memory_bytes - round(cached(size)) for size, report in reports.items()]
    return CacheMemory(
        weights_bytes=min(without),
        workspace_bytes=max(without) - min(without),
        kv_bytes_per_token=within,
        kv_bytes_beyond=beyond,
        state_bytes=state_bytes,
    )


_ANY = Size(batch=1, tokens=SHORT)


def settings_of(model: ServedModel, size: Size = _ANY) -> Any:
    """Return the settings of a served model."""
    candidate = model.candidate(size)
    source = source_of(candidate.options())
    if not isinstance(source, ModelSource):
        raise ConfigError(
            "only models can be served", location=model.name, hint="hespas models lists them"
        )
    return source.settings


def _reports(
    model: ServedModel,
    designed: Sequence[Size],
    depths: Depths | None,
    predicted: Callable[[Sequence[Candidate]], list[RunReport]],
) -> dict[Size, RunReport]:
    """Return the reports of steps, whole or from two depths."""
    if depths is None:
        reports = predicted([model.candidate(size) for size in designed])
        return dict(zip(designed, reports, strict=True))
    both = (depths.shallow, depths.deep)
    reports = predicted(
        [model.candidate(size, layers=layers) for layers in both for size in designed]
    )
    pairs = zip(reports[: len(designed)], reports[len(designed) :], strict=True)
    grown = [deepened(shallow, deep, depths) for shallow, deep in pairs]
    return dict(zip(designed, grown, strict=True))


def _predicted(
    phase: Phase, executor: ExecutorOptions, candidates: Sequence[Candidate]
) -> list[RunReport]:
    cache = ContentCache(
        directory=cache_home() / "serving",
        suffix=".step",
        mark=_MARK,
        content_name="serving steps",
        optional=True,
    )
    tasks = [_task(candidate, phase, number) for number, candidate in enumerate(candidates)]
    reports: dict[str, RunReport] = {}
    for task in tasks:
        report = cache.value(task.key, RunReport)
        if report is not None:
            reports[task.key] = report
    missing = [task for task in tasks if task.key not in reports]
    if missing:
        for key, report in _run(missing, executor):
            reports[key] = report
            cache.keep(key, report)
    return [reports[task.key] for task in tasks]


def _task(candidate: Candidate, phase: Phase, number: int) -> Task:
    entry = entry_of(number, candidate)
    key = sha256(f"{entry.key(phase)} {installed_state()}".encode()).hexdigest()
    return Task(
        key=key,
        candidate=candidate.to_dict(),
        phase=phase,
        with_report=True,
        with_tables=False,
        may_stay=True,
    )


def _run(tasks: Sequence[Task], options: ExecutorOptions) -> Iterator[tuple[str, RunReport]]:
    with executor_of(options) as executor:
        for task, outcome in executor.outcomes(tasks):
            if outcome.ending is not Ending.DONE:
                name = str(task.candidate[WORKLOAD])
                raise ConfigError(outcome.reason.removeprefix(f"{name}: "), location=name)
            yield task.key, msgspec.json.decode(outcome.report, type=RunReport)
