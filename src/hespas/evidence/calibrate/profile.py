"""Read JAX's profile: the times of compiled instructions.

`jax.profiler.trace` writes ``plugins/profile/<time>/<host>.trace.json.gz``, in Chrome's trace
format: complete events (``ph`` is ``X``) with a duration ``dur`` in us, whose ``args`` name the
instruction of the compiled program (``hlo_op``) and its module (``hlo_module``).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any, cast

from hespas.base.frozen import frozen
from hespas.errors import MeasurementError
from hespas.evidence.calibrate.factors import Group
from hespas.evidence.calibrate.gemm_csv import SHORTEST_KERNEL_S
from hespas.evidence.calibrate.samples import Case, check_limits
from hespas.evidence.calibrate.steps import at_clock_of, calibrated
from hespas.hardware.device import Device, at_fastest, factor_of
from hespas.price.driver import is_kernel
from hespas.price.kernel import kernel_of, runs_in_graphs
from hespas.price.measured import Measured, make
from hespas.price.methods import EstimatorSpec
from hespas.price.roofline import Roofline
from hespas.program.program import Op, Program, is_communication_op
from hespas.work.expand import Leaf, expand

_US = 1e-6
_HINT = "give a profile whose dur is in us, and the program and node that ran"


@frozen
class InstructionTime:
    """The mean time of an instruction in a run."""

    instruction: str
    time_s: float


def read_profile(path: Path) -> tuple[InstructionTime, ...]:
    """Return the instructions of a profile, sorted by name.

    The time is the mean over devices and runs of the program; a run is what most instructions do
    once. Raises `MeasurementError` for a file that is no such profile, and for invalid durations.
    """
    durations_s: dict[str, list[float]] = defaultdict(list)
    for event in _events(path):
        arguments = event.get("args")
        is_complete = event.get("ph") == "X" and isinstance(arguments, dict)
        name = cast("dict[str, Any]", arguments).get("hlo_op") if is_complete else None
        duration = event.get("dur")
        if isinstance(name, str) and isinstance(duration, int | float):
            if not isfinite(duration) or duration < 0:
                raise MeasurementError(f"{name} has the duration {duration}", location=str(path))
            durations_s[name].append(duration * _US)
    if not durations_s:
        raise MeasurementError(
            "no event names an instruction (hlo_op)",
            location=str(path),
            hint="give the trace.json.gz that jax.profiler.trace wrote on a GPU",
        )
    runs = median(len(durations) for durations in durations_s.values())
    return tuple(
        InstructionTime(instruction=name, time_s=sum(times) / runs)
        for name, times in sorted(durations_s.items())
    )


def _events(path: Path) -> Iterable[Mapping[str, Any]]:
    try:
        content = path.read_bytes()
        text = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        loaded: object = json.loads(text)
    except OSError as error:
        raise MeasurementError(
            f"the profile cannot be read: {error.strerror or error}", location=str(path)
        ) from None
    except (ValueError, EOFError, zlib.error, RecursionError) as error:
        raise MeasurementError(f"the profile is no JSON: {error}", location=str(path)) from None
    events = cast("dict[str, Any]", loaded).get("traceEvents") if isinstance(loaded, dict) else None
    if not isinstance(events, list):
        raise MeasurementError("the profile has no traceEvents", location=str(path))
    listed = cast("list[object]", events)
    return [cast("dict[str, Any]", event) for event in listed if isinstance(event, dict)]


@frozen
class _Kernel:
    """An instruction with its operations and measured time."""

    op: Op
    leaves: tuple[Leaf, ...]
    case: Case


def profile_groups(path: Path, program: Program, device: Device) -> tuple[Group, ...]:
    """Return a program's products, attention and other kernels, for factors.

    The program is compiled. Kernels are read in their PTX if the program has it, as ``hespas run
    --kernels`` does, and run at the clock that the whole program sustains. Raises
    `MeasurementError` if the profile is not of this program, and, naming the instruction, for times
    below the physical floor or far from the expected ones.
    """
    in_graphs = runs_in_graphs(program)
    alone = make(EstimatorSpec(device=device, kernels=program.kernels, in_graphs=in_graphs))
    estimator = at_clock_of(alone, program)
    kernels: dict[str, list[_Kernel]] = defaultdict(list)
    for kernel in _kernels(path, program):
        expected_s = _predicted_s(kernel, program, estimator)
        if expected_s > 0:
            floor_s = max(_floor_s(kernel, estimator), SHORTEST_KERNEL_S)
            check_limits(kernel.case, floor_s=floor_s, expected_s=expected_s, hint=_HINT)
            kernels[_factor_of(kernel.op)].append(kernel)
    return tuple(_group(name, kernels[name], program, estimator) for name in sorted(kernels))


def _group(name: str, kernels: list[_Kernel], program: Program, base: Measured) -> Group:
    def predict(device: Device) -> list[float]:
        estimator = calibrated(base, device)
        return [_predicted_s(kernel, program, estimator) for kernel in kernels]

    cases = tuple(kernel.case for kernel in kernels)
    return Group(name=name, cases=cases, predict=predict)


def _kernels(path: Path, program: Program) -> list[_Kernel]:
    times = {instruction.instruction: instruction.time_s for instruction in read_profile(path)}
    kernels = [
        _Kernel(
            op=op,
            leaves=tuple(c for c in expand(op, program.functions) if isinstance(c, Leaf)),
            case=Case(label=op.instruction, location=str(path), measured_s=times[op.instruction]),
        )
        for op in program.main.body.operations
        if op.instruction in times and not op.traits.runs_nothing and not is_communication_op(op)
    ]
    if not kernels:
        raise MeasurementError(
            f"none of its {len(times)} instructions is in {program.source or 'the program'}",
            location=str(path),
            hint="give the compiled program that was profiled (HLO)",
        )
    return kernels


def _predicted_s(kernel: _Kernel, program: Program, estimator: Measured) -> float:
    return sum(
        estimator.time(leaf, is_kernel=is_kernel(leaf.op, program)).time_s for leaf in kernel.leaves
    )


def _floor_s(kernel: _Kernel, estimator: Measured) -> float:
    """Return a kernel's roofline time, operands possibly cached.

    Types of unknown rate count as the fastest.
    """
    device = estimator.gemm.device
    roofline = Roofline(device=at_fastest(device))
    cache_bytes = estimator.gemm.part.about.cache_bytes
    bandwidth = device.memory_bandwidth_bytes_per_s
    return sum(
        max(
            roofline.at_peaks(leaf.op.name, leaf.work).compute_time_at_peak_s,
            (leaf.work.bytes_moved - cache_bytes) / bandwidth,
        )
        for leaf in kernel.leaves
    )


def _factor_of(op: Op) -> str:
    kernel = kernel_of(op)
    if kernel.attentions:
        return "attention"
    return factor_of(kernel.products[0].multiplied) if kernel.products else "kernels"
