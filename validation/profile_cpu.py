"""The times of regions that are run by themselves, against that of the whole step, on this CPU.

    python validation/profile_cpu.py            print the table
    python validation/profile_cpu.py --write    put it into docs/how-to/time-on-this-machine.md

The step is a training step of a small multilayer perceptron on one device. Every row is
`hespas.stages.estimate(..., method="xla")` of the same program, cut otherwise; the whole step is
also timed through JAX alone, without hespas.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp

from hespas.backends.profiling import machine_name
from hespas.frontend.load import load_source
from hespas.price.cache import MemoryStore
from hespas.price.graph import estimate_graph
from hespas.price.methods import EstimatorSpec, estimator
from hespas.split.modules import region_modules
from hespas.split.strategies import split_options, split_program

PAGE = Path("docs/how-to/time-on-this-machine.md")
LAYERS, WIDTH, ROWS = 6, 512, 1024
RUNS = 20
_TABLE = re.compile(r"<!-- table -->\n.*?<!-- end -->", re.DOTALL)
Arrays = list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way to cut the step: how many regions, how many distinct, and their times' sum."""

    name: str
    regions: int
    distinct: int
    sum_s: float


def step(weights: Arrays, inputs: Any, targets: Any) -> tuple[Arrays, Any]:
    """Train one step: squared error, plain gradient descent."""

    def loss(weights: Arrays) -> Any:
        hidden = inputs
        for weight in weights:
            hidden = jnp.tanh(hidden @ weight)
        return jnp.mean((hidden - targets) ** 2)

    value, gradients = jax.value_and_grad(loss)(weights)
    changed = [weight - 0.1 * each for weight, each in zip(weights, gradients, strict=True)]
    return changed, value


def arguments() -> tuple[Arrays, Any, Any]:
    """Return zeros, as the profiler has them."""
    weights = [jnp.zeros((WIDTH, WIDTH), jnp.float32) for _ in range(LAYERS)]
    rows = jnp.zeros((ROWS, WIDTH), jnp.float32)
    return weights, rows, rows


def measured_s() -> float:
    """Return the fastest of some runs of the whole step, through JAX."""
    compiled = jax.jit(step).lower(*arguments()).compile()
    given = arguments()
    durations: list[float] = []
    for _ in range(RUNS):
        begin = perf_counter()
        jax.block_until_ready(compiled(*given))
        durations.append(perf_counter() - begin)
    return min(durations)


def rows() -> list[Row]:
    """Estimate the step, cut in several ways."""
    text = jax.jit(step).lower(*arguments()).as_text()
    program = load_source(text.encode(), name="step.mlir")
    cuts = [
        ("whole (`linear_split`)", split_options()),
        ("`linear_split`, `block_lim` 16", split_options(block_limit=16)),
        ("`linear_split`, `block_lim` 4", split_options(block_limit=4)),
        ("`individual_split`", split_options(strategy="individual_split")),
    ]
    profiler = estimator("xla", EstimatorSpec())
    found: list[Row] = []
    for name, options in cuts:
        graph = split_program(program, options)
        modules = region_modules(graph)
        result = estimate_graph(graph, modules, profiler, store=MemoryStore())
        found.append(
            Row(
                name=name,
                regions=len(graph.regions),
                distinct=len(modules.modules),
                sum_s=result.total.time_s,
            )
        )
    return found


def table() -> str:
    """Return the table as Markdown."""
    whole_s = measured_s()
    found = rows()
    lines = [
        f"Measured on {machine_name()}: the step through JAX alone takes {whole_s * 1e3:.1f} ms.",
        "",
        "| cut | regions | distinct | sum of regions, ms | sum / step |",
        "|---|---|---|---|---|",
        *(
            f"| {row.name} | {row.regions} | {row.distinct} | {row.sum_s * 1e3:.1f} "
            f"| {row.sum_s / whole_s:.2f} |"
            for row in found
        ),
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    text = table()
    if not parser.parse_args().write:
        print(text)
        return
    page = PAGE.read_text()
    PAGE.write_text(_TABLE.sub(lambda _: f"<!-- table -->\n{text}\n<!-- end -->", page))


if __name__ == "__main__":
    main()
