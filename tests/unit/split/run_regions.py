"""Run programs whole and region by region: ``python run_regions.py OUTPUT.json``.

A process of its own, because JAX counts its virtual devices when it starts. Its
``PYTHONPATH`` must hold the folder of ``programs.py``.
"""

# numpy's arrays travel through here without a type of element.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
import os
import sys
from itertools import product
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import numpy as np
from region_programs import CASES, Case

from hespas.program.program import Program, Value
from hespas.program.types import NumberKind, TensorType
from hespas.split.modules import stablehlo_text
from hespas.split.options import SplitOptions, SplitStrategy
from hespas.split.regions import RegionGraph
from hespas.split.strategies import split_program
from programs import settled
from xla_execute import Executable, compile_module, run_module

Shards = list[Any]
COMPILED: dict[tuple[str, int], Executable] = {}


def random_shards(value: Value, devices: int, generator: np.random.Generator) -> Shards:
    kind = value.type
    assert isinstance(kind, TensorType)
    assert kind.element.kind is NumberKind.FLOAT
    return [generator.standard_normal(kind.shape).astype(np.float32) for _ in range(devices)]


def run(text: str, arguments: list[Shards], devices: int) -> list[Shards]:
    key = (text, devices)
    if key not in COMPILED:
        COMPILED[key] = compile_module(text, partitions=devices)
    return run_module(COMPILED[key], arguments)


def run_graph(
    graph: RegionGraph, program: Program, given: list[Shards], devices: int
) -> list[Shards]:
    known = dict(zip(graph.arguments, given, strict=True))
    for region in graph.regions:
        text = stablehlo_text(region, program)
        made = run(text, [known[value] for value in region.inputs], devices)
        known.update(zip(region.outputs, made, strict=True))
    return [known[value] for value in graph.results]


def largest_difference(case: Case, options: SplitOptions) -> float:
    program = settled(case.text)
    graph = split_program(program, options)
    generator = np.random.default_rng(0)
    given = [random_shards(value, case.partitions, generator) for value in graph.arguments]
    whole = run(case.reference, given, case.partitions)
    parts = run_graph(graph, program, given, case.partitions)
    assert len(whole) == len(parts)
    differences = [
        np.abs(np.subtract(one, two, dtype=np.float64)).max()
        for expected, found in zip(whole, parts, strict=True)
        for one, two in zip(expected, found, strict=True)
    ]
    return float(max(differences))


def main(output: Path) -> None:
    found = {
        f"{name} {strategy.value} {merge}": largest_difference(
            case, SplitOptions(strategy=strategy, merge=merge)
        )
        for (name, case), strategy, merge in product(CASES.items(), SplitStrategy, (False, True))
    }
    output.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
