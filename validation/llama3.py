"""Published step times of Llama-3-like models on four GPUs, against the whole pipeline.

    python validation/llama3.py             print the tables
    python validation/llama3.py --write     put them into docs/evidence/accuracy.md
    python validation/llama3.py 100m 1b     only these sizes

Every program is exported from JAX, partitioned, compiled for its GPU without having one, priced
with ``method: measured`` and simulated. Nothing is fitted to a step time. Needs hespas[gpu]; the
first run compiles for some minutes, later ones take compiled programs from the cache.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot
from pathlib import Path
from statistics import mean, median

from hespas import api
from hespas.compile.cache import CompiledCache, default_directory
from hespas.compile.compiler import compile_program
from hespas.compile.job import Layout
from hespas.cost.expand import expand
from hespas.cost.structure import Leaf
from hespas.estimate.cache import MemoryStore
from hespas.estimate.driver import is_kernel
from hespas.estimate.graph import estimate_graph
from hespas.estimate.methods import EstimatorSpec
from hespas.estimate.ptx.kernels import KernelPricer, Reading, kernel_pricer
from hespas.estimate.ptx.terms import memory_turns, terms_by_category
from hespas.estimate.roofline import Roofline
from hespas.estimate.tables.method import Measured, make
from hespas.export.exported import partitioned
from hespas.export.function import export_model
from hespas.frontend.load import load_source
from hespas.hardware.presets import load_device
from hespas.program.kernels import CompiledKernels
from hespas.program.program import Program
from hespas.split.modules import region_modules
from hespas.split.scheduled import FREE
from hespas.xla.cpu import use_cpu

PAGE = Path("docs/evidence/accuracy.md")
_TABLES = re.compile(r"<!-- llama3 -->\n.*?<!-- end -->", re.DOTALL)
NODES = {"A100": "A100_SXM_40GB", "H100": "H100_80GB"}
DEVICES = 4
ROUNDING_S = 0.005
"""Published to 0.01 s: what was measured lies within this of it."""

PUBLISHED_S: Mapping[str, Mapping[str, float]] = {
    "A100": {"100m": 0.09, "200m": 0.17, "500m": 0.39, "1b": 0.75, "2b": 1.21, "3b": 1.68},
    "H100": {"100m": 0.04, "200m": 0.07, "500m": 0.14, "1b": 0.28, "2b": 0.48, "3b": 0.65},
}
"""Step times of MaxText on 4 x A100 SXM 40 GB and 4 x H100 SXM 80 GB, one sequence of 4096 tokens a
GPU, fully sharded data parallel; published with the documents of the reference implementation."""

SIZES = tuple(PUBLISHED_S["A100"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A model as the compiler of a GPU would run it."""

    name: str
    gpu: str
    program: Program
    kernels: CompiledKernels

    @property
    def estimator(self) -> Measured:
        """The estimator of ``method: measured``."""
        return make(EstimatorSpec(device=load_device(NODES[self.gpu]), kernels=self.kernels))


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A step: its time as published and as predicted, and what of it is exposed communication."""

    name: str
    gpu: str
    published_s: float
    predicted_s: float
    exposed_s: float

    @property
    def error(self) -> float:
        """Predicted over published, less one."""
        return self.predicted_s / self.published_s - 1

    @property
    def error_beyond_rounding(self) -> float:
        """The error to the nearest time that rounds to what was published."""
        low, high = self.published_s - ROUNDING_S, self.published_s + ROUNDING_S
        nearest = min(max(self.predicted_s, low), high)
        return self.predicted_s / nearest - 1


def compiled(name: str, gpu: str, source: bytes) -> Compiled:
    """Compile a program for a GPU, or take it from the cache."""
    made = compile_program(
        source,
        name=name,
        target=NODES[gpu],
        layout=Layout(devices=DEVICES, per_host=DEVICES),
        cache=CompiledCache(directory=default_directory()),
    )
    if made.kernels is None:
        raise SystemExit(f"no kernels of {name} for {gpu}")
    program = load_source(made.hlo_proto, name=name)
    return Compiled(name=name, gpu=gpu, program=program, kernels=made.kernels)


def programs(sizes: Iterable[str]) -> list[Compiled]:
    """Return all models of these sizes for all GPUs."""
    found: list[Compiled] = []
    for size in sizes:
        exported = partitioned(export_model(f"llama3-{size}", {"mesh": f"fsdp={DEVICES}"}))
        found.extend(compiled(f"llama3-{size}", gpu, exported.text) for gpu in NODES)
    return found


def point_of(made: Compiled, published_s: float) -> Point:
    """Predict one step."""
    graph = api.split(made.program)
    estimates = estimate_graph(graph, region_modules(graph), made.estimator, store=MemoryStore())
    system = f"{NODES[made.gpu]}_{DEVICES}GPU"
    timeline = api.simulate(api.trace(graph, estimates), system, model="hespas")
    return Point(
        name=made.name,
        gpu=made.gpu,
        published_s=published_s,
        predicted_s=timeline.step_time_s,
        exposed_s=timeline.step_time_s - estimates.total.time_s,
    )


Change = Callable[[Reading], float]
"""Returns the time of a kernel as if one part of the model were another."""


def _without(**zero: float) -> Change:
    return lambda reading: replace(reading.terms, **zero).time_s


def _together(reading: Reading, combine: Callable[[Sequence[float]], float]) -> float:
    terms = reading.terms
    inside_s = max(terms.l1_s, terms.pipe_s)
    limits_s = combine((terms.memory_s, terms.l2_s, inside_s))
    return max(limits_s, terms.turnover_s) + terms.launch_s


def _without_turns(reading: Reading) -> float:
    terms, analysis = reading.terms, reading.analysis
    turns = memory_turns(analysis) if analysis is not None else 0.0
    inside_s = max(terms.l1_s, terms.pipe_s)
    limits_s = hypot(terms.memory_s / (1 + turns), terms.l2_s, inside_s)
    return max(limits_s, terms.turnover_s) + terms.launch_s


CHANGES: Mapping[str, Change] = {
    "as it is": lambda reading: reading.terms.time_s,
    "without L2 sectors": _without(l2_s=0.0),
    "without pipes and L1": _without(l1_s=0.0, pipe_s=0.0),
    "without turns of memory": _without_turns,
    "without block turnover": _without(turnover_s=0.0),
    "without launches": _without(launch_s=0.0),
    "the largest limit alone": lambda reading: _together(reading, max),
    "limits added": lambda reading: _together(reading, sum),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What each operation of a program takes: those of libraries in seconds, others as read."""

    library_s: float
    read: Sequence[tuple[Leaf, Reading]]
    pricer: KernelPricer
    roofline: Roofline

    def seconds(self, change: Change) -> float:
        """Return the sum with one part of the model changed."""
        return self.library_s + sum(change(reading) for _, reading in self.read)

    def by_kind_s(self) -> float:
        """Return the sum where no PTX is at hand."""
        bandwidth = self.pricer.device.memory_bandwidth_bytes_per_s
        return self.library_s + sum(
            terms_by_category(
                leaf.op,
                self.pricer.gpu,
                bytes_moved=leaf.work.bytes_moved,
                memory_bandwidth_bytes_per_s=bandwidth,
            ).time_s
            for leaf, _ in self.read
        )

    def streaming_s(self) -> float:
        """Return the sum where every kernel moves its bytes at the streaming efficiency."""
        gpu = self.pricer.gpu
        rate = self.pricer.device.memory_bandwidth_bytes_per_s * gpu.memory_efficiency
        moved = sum(leaf.work.bytes_moved for leaf, _ in self.read)
        return self.library_s + moved / rate + len(self.read) * gpu.launch_s


def kernels_of(made: Compiled) -> Kernels:
    """Price every kernel of a program once."""
    estimator = made.estimator
    pricer = kernel_pricer(load_device(NODES[made.gpu]), made.kernels)
    assert pricer is not None  # noqa: S101 - both GPUs are described
    leaves = expand(made.program.main.body.operations, made.program.functions)
    library_s = 0.0
    read: list[tuple[Leaf, Reading]] = []
    for leaf in leaves:
        if not isinstance(leaf, Leaf) or leaf.op.kind in FREE or leaf.op.kind.startswith("async"):
            continue
        if leaf.op.kind in {"fusion", "copy"}:
            read.append((leaf, pricer.read(leaf)))
        else:
            library_s += estimator.time(leaf, is_kernel=is_kernel(leaf.op, made.program)).time_s
    return Kernels(
        library_s=library_s, read=read, pricer=pricer, roofline=estimator.streaming.roofline
    )


def points_table(points: Sequence[Point]) -> str:
    """Return the steps as Markdown, with means."""
    lines = [
        "| system | model | published | predicted | error | beyond rounding | exposed |",
        "|---|---|---|---|---|---|---|",
    ]
    lines.extend(
        f"| 4 x {each.gpu} | {each.name} | {each.published_s:.2f} s | "
        f"{1e3 * each.predicted_s:.1f} ms | {100 * each.error:+.1f} % | "
        f"{100 * each.error_beyond_rounding:+.1f} % | {1e3 * each.exposed_s:.1f} ms |"
        for each in points
    )
    return "\n".join([*lines, "", *_means(points)])


def _means(points: Sequence[Point]) -> Iterable[str]:
    gpus = dict.fromkeys(each.gpu for each in points)
    for gpu in gpus if len(gpus) > 1 else ():
        chosen = [each for each in points if each.gpu == gpu]
        if chosen:
            yield (
                f"4 x {gpu}: mean error without signs {_percent(abs(p.error) for p in chosen)}, "
                f"beyond rounding {_percent(abs(p.error_beyond_rounding) for p in chosen)}."
            )
    yield (
        f"All: {_percent(abs(each.error) for each in points)}, beyond rounding "
        f"{_percent(abs(each.error_beyond_rounding) for each in points)}; the largest "
        f"{100 * max(abs(each.error_beyond_rounding) for each in points):.1f} %."
    )


def _percent(errors: Iterable[float]) -> str:
    return f"{100 * mean(errors):.1f} %"


def speedup_table(points: Sequence[Point]) -> str:
    """Return how much faster one system is than the other, as Markdown."""
    lines = [
        "| model | published | predicted | error | beyond rounding |",
        "|---|---|---|---|---|",
    ]
    errors: list[float] = []
    beyond: list[float] = []
    by = {(each.gpu, each.name): each for each in points}
    for name in dict.fromkeys(each.name for each in points):
        slow, fast = by["A100", name], by["H100", name]
        published = slow.published_s / fast.published_s
        predicted = slow.predicted_s / fast.predicted_s
        low = (slow.published_s - ROUNDING_S) / (fast.published_s + ROUNDING_S)
        high = (slow.published_s + ROUNDING_S) / (fast.published_s - ROUNDING_S)
        errors.append(predicted / published - 1)
        beyond.append(predicted / min(max(predicted, low), high) - 1)
        lines.append(
            f"| {name} | {published:.2f} | {predicted:.2f} | {100 * errors[-1]:+.1f} % | "
            f"{100 * beyond[-1]:+.1f} % |"
        )
    middle, rest = (100 * median(abs(error) for error in each) for each in (errors, beyond))
    told = f"Median error without signs: {middle:.1f} %, beyond rounding {rest:.1f} %."
    return "\n".join([*lines, "", told])


def ablation_table(points: Sequence[Point], kernels: Sequence[Kernels]) -> str:
    """Return what each part of the model does to the steps, as Markdown."""
    variations: dict[str, list[float]] = {
        name: [each.seconds(change) for each in kernels] for name, change in CHANGES.items()
    }
    variations["kinds of kernels, no PTX"] = [each.by_kind_s() for each in kernels]
    variations["bytes and launches alone"] = [each.streaming_s() for each in kernels]
    base = variations["as it is"]
    lines = [
        "| model of a kernel | change of the step | mean error, A100 | H100 |",
        "|---|---|---|---|",
    ]
    for name, seconds in variations.items():
        steps = [
            point.predicted_s + now - before
            for point, now, before in zip(points, seconds, base, strict=True)
        ]
        changed = mean(s / point.predicted_s - 1 for s, point in zip(steps, points, strict=True))
        errors = " | ".join(
            _percent(
                abs(s / point.published_s - 1)
                for s, point in zip(steps, points, strict=True)
                if point.gpu == gpu
            )
            for gpu in NODES
        )
        lines.append(f"| {name} | {100 * changed:+.1f} % | {errors} |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables, or write them into the page."""
    use_cpu()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", choices=[*SIZES, []], help="sizes (default all)")
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    given = parser.parse_args()
    made = programs(given.sizes or SIZES)
    points = [
        point_of(each, PUBLISHED_S[each.gpu][each.name.removeprefix("llama3-")]) for each in made
    ]
    parts = [
        points_table(points),
        speedup_table(points),
        ablation_table(points, [kernels_of(each) for each in made]),
    ]
    text = "\n\n".join(parts)
    if not given.write:
        print(text)
        return
    page = PAGE.read_text()
    PAGE.write_text(_TABLES.sub(lambda _: f"<!-- llama3 -->\n{text}\n<!-- end -->", page))


if __name__ == "__main__":
    main()
