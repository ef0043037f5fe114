"""A profile that JAX took: how long each instruction of a compiled program ran.

`jax.profiler.trace` writes ``plugins/profile/<time>/<host>.trace.json.gz``, in Chrome's trace
format: complete events (``ph`` is ``X``) with a duration ``dur`` in us, whose ``args`` name the
instruction of the compiled program (``hlo_op``) and its module (``hlo_module``).
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

from hespas.calibrate.samples import FactorFit, Sample
from hespas.cost.attention import attentions
from hespas.cost.expand import expand
from hespas.cost.gemm import gemms
from hespas.cost.structure import Leaf
from hespas.errors import MeasurementError
from hespas.estimate.measured.estimator import Measured
from hespas.estimate.measured.gemm import table_of
from hespas.program.program import Op, Program, is_communication_op
from hespas.split.scheduled import FREE

_US = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionTime:
    """How long an instruction runs each time that the program does."""

    instruction: str
    time_s: float


def read_profile(path: Path) -> tuple[InstructionTime, ...]:
    """Return the instructions of a profile, sorted by name.

    Of several devices the mean counts, and of several runs of the program too; a run is what
    most instructions do once. Raises `MeasurementError` for a file that is no such profile.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for event in _events(path):
        arguments = event.get("args")
        is_complete = event.get("ph") == "X" and isinstance(arguments, dict)
        name = cast("dict[str, Any]", arguments).get("hlo_op") if is_complete else None
        duration = event.get("dur")
        if isinstance(name, str) and isinstance(duration, int | float) and duration > 0:
            found[name].append(duration * _US)
    if not found:
        raise MeasurementError(
            "no event names an instruction (hlo_op)",
            place=str(path),
            mend="give the trace.json.gz that jax.profiler.trace wrote on a GPU",
        )
    runs = median(len(times) for times in found.values())
    return tuple(
        InstructionTime(instruction=name, time_s=sum(times) / runs)
        for name, times in sorted(found.items())
    )


def _events(path: Path) -> Iterable[Mapping[str, Any]]:
    try:
        content = path.read_bytes()
        text = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        loaded: object = json.loads(text)
    except OSError as error:
        raise MeasurementError(
            f"the profile cannot be read: {error.strerror or error}", place=str(path)
        ) from None
    except (ValueError, EOFError) as error:
        raise MeasurementError(f"the profile is no JSON: {error}", place=str(path)) from None
    events = cast("dict[str, Any]", loaded).get("traceEvents") if isinstance(loaded, dict) else None
    if not isinstance(events, list):
        raise MeasurementError("the profile has no traceEvents", place=str(path))
    listed = cast("list[object]", events)
    return [cast("dict[str, Any]", event) for event in listed if isinstance(event, dict)]


def fit_profile(path: Path, program: Program, estimator: Measured) -> tuple[FactorFit, ...]:
    """Return factors for products, attention and all other kernels of a compiled program.

    Raises `MeasurementError` where the profile is not one of this program.
    """
    times = {each.instruction: each.time_s for each in read_profile(path)}
    samples: dict[str, list[Sample]] = defaultdict(list)
    for op in program.main.body.operations:
        if op.instruction not in times or op.kind in FREE or is_communication_op(op):
            continue
        sample = Sample(
            label=op.instruction,
            place=str(path),
            measured_s=times[op.instruction],
            predicted_s=_predicted_s(op, program, estimator),
        )
        samples[_factor_of(op)].append(sample)
    if not samples:
        raise MeasurementError(
            f"none of its {len(times)} instructions is in {program.source or 'the program'}",
            place=str(path),
            mend="give the compiled program that was profiled (HLO)",
        )
    return tuple(
        FactorFit(name=name, samples=tuple(each)) for name, each in sorted(samples.items())
    )


def _predicted_s(op: Op, program: Program, estimator: Measured) -> float:
    leaves = (cost for cost in expand(op, program.functions) if isinstance(cost, Leaf))
    return sum(estimator.time(leaf, program).time_s for leaf in leaves)


def _factor_of(op: Op) -> str:
    if attentions(op):
        return "attention"
    products = gemms(op)
    return f"gemm.{table_of(products[0].multiplied)}" if products else "kernels"
