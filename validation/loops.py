"""Compare models with their layers in a loop and written out: compiled computation, and kernels.

    python validation/loops.py               write src/hespas/sources/loops.json anew

It needs hespas[gpu], and compiles for some minutes where the cache has not what it needs.
`validation/pages.py` writes the file into docs/evidence/kernels.md, and answers about models quote
its range.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hespas.evidence.validate.measurements import MeasuredStep
from hespas.evidence.validate.recompute import Sources
from hespas.prediction import composition, machines
from hespas.prediction.options import (
    CompileChoice,
    EstimateOptions,
    Fidelity,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.prediction.result import Prediction
from hespas.price.driver import Priced, Rounds, Step

ROOT = Path(__file__).resolve().parents[1]
LOOPS = ROOT / "src" / "hespas" / "sources" / "loops.json"

_MODELS = {"llama3-100m": 4, "llama3-1b": 4, "llama3-8b": 8}
"""The devices that share each model's parameters."""
_NODES = {"H100": "H100_80GB", "A100": "A100_SXM_40GB"}
_EXPLAINED = 0.05
"""Differences above this part are divided among kernels."""
_SHOWN = 0.004
"""Kernels are shown that differ by more than this part of the computation written out."""

_WHY = {
    "dynamic_update_slice": "activations and gradients are written into stacks of all layers",
    "dynamic_slice": "a layer's parameters and activations are copied out of the stacks",
    "broadcast": "stacks are filled with zeros before the loop",
    "wrapped_concatenate": "operands of combined collectives",
    "exponential_reduce": "softmax reads the mask from memory, one for every head",
    "add_reduce": "the optimiser's update runs over whole stacks",
    "convert_reduce": "the optimiser's update runs over whole stacks",
    "input_reduce": "row maxima of masked scores, among other reductions",
    "transpose": "other layouts, not followed further",
}
"""What kernels are, by a part of their names, the first that fits; others are not followed."""

_NUMBERED = re.compile(r"[._](\d|clone|double|remat|peeled).*")


def measured() -> Iterator[Mapping[str, Any]]:
    """Yield what each model takes on each part, both ways."""
    sources = Sources(cache_dir=None)
    for workload, devices in _MODELS.items():
        for gpu, node in _NODES.items():
            ways = {
                name: _way(workload, devices, node, is_loop=is_loop, sources=sources)
                for name, is_loop in (("unrolled", False), ("loop", True))
            }
            print(workload, gpu, {name: way["compute_s"] for name, way in ways.items()})
            yield {"model": workload, "gpu": gpu, "devices": devices, **ways}


def _way(
    workload: str, devices: int, node: str, *, is_loop: bool, sources: Sources
) -> Mapping[str, Any]:
    system = f"{devices}x{node}"
    step = MeasuredStep(
        workload=workload,
        options={
            "mesh": f"fsdp={devices}",
            "scan": str(is_loop).lower(),
            "attention": "unfused",
            "state_dtype": "bf16",
        },
        node=node,
        system=system,
        step_s=0.0,
        resolution_s=0.0,
        profiled_compute_s=None,
        line=0,
    )
    options = PredictOptions(
        program=ProgramOptions(file=Path(workload)),
        compile=CompileChoice(fidelity=Fidelity.COMPILED),
        estimate=EstimateOptions(node=node),
        network=NetworkOptions(system=system),
    )
    prepared = composition.prepare(options, source=sources.source(step))
    estimates = composition.price(prepared, options, store=machines.store_of(options.estimate))
    prediction = composition.finish(prepared, estimates, options)
    return {
        "compute_s": prediction.compute_s,
        "flops": estimates.total.total.flops,
        "bytes": estimates.total.total.bytes_moved,
        "kernels": _kernels(prediction),
    }


def _kernels(prediction: Prediction) -> Mapping[str, Any]:
    """Return launches, bytes and time of the kernels of each name, without its number."""
    found: dict[str, list[float]] = {}
    for region in prediction.graph.compute_regions:
        for step, count in _launched(prediction.steps(region) or (), 1):
            is_product = step.op.kind == "custom_call"
            name = "products" if is_product else _NUMBERED.sub("", step.op.instruction)
            sums = found.setdefault(name, [0.0, 0.0, 0.0])
            sums[0] += count
            sums[1] += count * step.cost.bytes_moved
            sums[2] += count * step.cost.time_s
    return {
        name: {"launches": launches, "bytes": size_bytes, "time_s": time_s}
        for name, (launches, size_bytes, time_s) in sorted(found.items())
        if time_s
    }


def _launched(steps: Iterable[Step], count: int) -> Iterator[tuple[Priced, int]]:
    for step in steps:
        match step:
            case Priced():
                yield step, count
            case Rounds():
                yield from _launched(step.body, count * step.count)


def table(file: Path = LOOPS) -> str:
    """Return the page's table: computation both ways."""
    entries = json.loads(file.read_text())["models"]
    lines = [
        "| model | GPU | unrolled, ms | loop, ms | difference | unrolled, GB | loop, GB |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in entries:
        unrolled, loop = each["unrolled"], each["loop"]
        lines.append(
            f"| {each['model']} | {each['gpu']} | {1e3 * unrolled['compute_s']:.1f} "
            f"| {1e3 * loop['compute_s']:.1f} | {100 * _excess(each):+.1f} % "
            f"| {unrolled['bytes'] / 1e9:.1f} | {loop['bytes'] / 1e9:.1f} |"
        )
    lines += ["", f"FLOPs are equal within {100 * max(map(_flops, entries)):.2f} %."]
    return "\n".join([*lines, ""])


def explained(entries: Iterable[Mapping[str, Any]]) -> str:
    """Return the kernels of the models whose two ways differ by more than 5 %."""
    large = [each for each in entries if abs(_excess(each)) > _EXPLAINED]
    return "\n\n".join("\n".join(_explained(each)) for each in large)


def _excess(entry: Mapping[str, Any]) -> float:
    return entry["loop"]["compute_s"] / entry["unrolled"]["compute_s"] - 1


def _flops(entry: Mapping[str, Any]) -> float:
    return abs(entry["loop"]["flops"] / entry["unrolled"]["flops"] - 1)


def _explained(entry: Mapping[str, Any]) -> Iterator[str]:
    yield f"| {entry['model']} on {entry['gpu']} | unrolled | loop | difference, ms | why |"
    yield "|---|---|---|---|---|"
    unrolled, loop = entry["unrolled"], entry["loop"]
    names = sorted({*unrolled["kernels"], *loop["kernels"]})
    more_s = {name: _time_s(loop, name) - _time_s(unrolled, name) for name in names}
    least_s = _SHOWN * unrolled["compute_s"]
    for name in sorted(names, key=lambda name: -more_s[name]):
        if abs(more_s[name]) < least_s:
            continue
        why = next((why for part, why in _WHY.items() if part in name), "not followed further")
        cells = f"{_cell(unrolled, name)} | {_cell(loop, name)} | {1e3 * more_s[name]:+.1f}"
        yield f"| `{name}` | {cells} | {why} |"
    others_s = sum(each for each in more_s.values() if abs(each) < least_s)
    yield f"| all others | | | {1e3 * others_s:+.1f} | |"


def _time_s(way: Mapping[str, Any], name: str) -> float:
    return way["kernels"].get(name, {"time_s": 0.0})["time_s"]


def _cell(way: Mapping[str, Any], name: str) -> str:
    kernels = way["kernels"].get(name)
    if kernels is None:
        return "none"
    size, time = kernels["bytes"] / 1e9, 1e3 * kernels["time_s"]
    return f"{kernels['launches']:.0f}, {size:.1f} GB, {time:.1f} ms"


def _shortened(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a comparison whose kernels are left out where nothing has to be explained."""
    if abs(_excess(entry)) > _EXPLAINED:
        return entry
    none: Mapping[str, Any] = {}
    ways = {way: {**entry[way], "kernels": none} for way in ("unrolled", "loop")}
    return {**entry, **ways}


def main() -> None:
    """Compare, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--json", type=Path, default=LOOPS, help="the file to write")
    given = parser.parse_args()
    entries = [_shortened(each) for each in measured()]
    excesses = [_excess(each) for each in entries]
    found = {"least": min(excesses), "most": max(excesses), "models": entries}
    given.json.write_text(json.dumps(found, indent=1) + "\n")
    print(table(given.json))
    print(explained(entries))


if __name__ == "__main__":
    main()
