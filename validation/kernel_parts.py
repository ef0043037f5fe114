"""What each part of the model of kernels does to the predictions of measured steps.

    python validation/kernel_parts.py            print the table
    python validation/kernel_parts.py --write    put it into docs/evidence/accuracy.md

Each Llama-like step of docs/data/accuracy.json is compiled for its GPU, and its kernels are priced
again with one part of the model removed or replaced. Needs hespas[gpu]; the first run compiles for
some minutes, later ones take compiled programs from the cache.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot
from pathlib import Path
from statistics import mean

from hespas.base.home import cache_home
from hespas.compile.cache import CompiledCache
from hespas.compile.compiler import compile_program
from hespas.compile.job import Layout
from hespas.frontend.load import load_source
from hespas.hardware.presets import load_device
from hespas.price.driver import is_kernel
from hespas.price.kernel import kernel_of
from hespas.price.measured import Measured, make
from hespas.price.methods import EstimatorSpec
from hespas.price.ptx.categories import terms_by_category
from hespas.price.ptx.kernels import KernelPricer, Reading, kernel_pricer
from hespas.price.ptx.terms import memory_turns
from hespas.price.roofline import Roofline
from hespas.program.kernels import CompiledKernels
from hespas.program.program import Program
from hespas.sources.exported import partitioned
from hespas.sources.function import export_model
from hespas.work.expand import Leaf, expand
from hespas.xla.cpu import use_cpu

PAGE = Path("docs/evidence/accuracy.md")
ACCURACY = Path("docs/data/accuracy.json")
_TABLE = re.compile(r"<!-- parts -->\n.*?<!-- end -->", re.DOTALL)
NODES = {"A100": "A100_SXM_40GB", "H100": "H100_80GB"}
DEVICES = 4


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
    """A step: its model, its GPU, and its time as measured and as predicted."""

    name: str
    gpu: str
    measured_s: float
    predicted_s: float


def points() -> list[Point]:
    """Return the Llama-like steps as `hespas validate` predicted them."""
    steps = json.loads(ACCURACY.read_text())["steps"]
    return [
        Point(
            name=step["workload"],
            gpu=step["node"].partition("_")[0],
            measured_s=step["measured_s"],
            predicted_s=step["predicted_s"]["measured"],
        )
        for step in steps
        if step["workload"].startswith("llama3-")
    ]


def compiled(name: str, gpu: str, source: bytes) -> Compiled:
    """Compile a program for a GPU, or take it from the cache."""
    made = compile_program(
        source,
        name=name,
        target=NODES[gpu],
        layout=Layout(devices=DEVICES, per_host=DEVICES),
        cache=CompiledCache(directory=cache_home() / "compiled"),
    )
    if made.kernels is None:
        raise SystemExit(f"no kernels of {name} for {gpu}")
    program = load_source(made.hlo_proto, name=name)
    return Compiled(name=name, gpu=gpu, program=program, kernels=made.kernels)


def program_of(point: Point) -> Compiled:
    """Return the program of a step as the compiler of its GPU would run it."""
    exported = partitioned(export_model(point.name, {"mesh": f"fsdp={DEVICES}"}))
    return compiled(point.name, point.gpu, exported.content)


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
                kernel_of(leaf.op),
                self.pricer.gpu,
                category=kernel_of(leaf.op).category,
                bytes_moved=self.pricer.bytes_moved(leaf),
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
        if (
            not isinstance(leaf, Leaf)
            or leaf.op.traits.runs_nothing
            or leaf.op.kind.startswith("async")
        ):
            continue
        if leaf.op.kind in {"fusion", "copy"}:
            read.append((leaf, pricer.read(leaf)))
        else:
            library_s += estimator.time(leaf, is_kernel=is_kernel(leaf.op, made.program)).time_s
    return Kernels(
        library_s=library_s, read=read, pricer=pricer, roofline=estimator.streaming.roofline
    )


def _percent(errors: Iterable[float]) -> str:
    return f"{100 * mean(errors):.1f} %"


def table(points: Sequence[Point], kernels: Sequence[Kernels]) -> str:
    """Return what each part of the model does to the steps, as Markdown."""
    variations: dict[str, list[float]] = {
        name: [each.seconds(change) for each in kernels] for name, change in CHANGES.items()
    }
    variations["categories of kernels, no PTX"] = [each.by_kind_s() for each in kernels]
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
                abs(s / point.measured_s - 1)
                for s, point in zip(steps, points, strict=True)
                if point.gpu == gpu
            )
            for gpu in NODES
        )
        lines.append(f"| {name} | {round(100 * changed, 1) + 0.0:+.1f} % | {errors} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table, or write it into the page."""
    use_cpu()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    given = parser.parse_args()
    steps = points()
    text = table(steps, [kernels_of(program_of(each)) for each in steps])
    if not given.write:
        print(text)
        return
    page = PAGE.read_text()
    PAGE.write_text(_TABLE.sub(lambda _: f"<!-- parts -->\n{text}\n<!-- end -->", page))


if __name__ == "__main__":
    main()
