"""Compare modelled fusion with the compiler: step time, kernels and bytes of the same programs.

    python validation/fusion.py                     write docs/data/fusion.json anew
    python validation/fusion.py --modelled-alone    the same, what the compiler makes as it is there

It needs hespas[gpu], and compiles for some minutes where the cache has not what it needs. The
programs are those of the published GPU steps, and some that nobody published: the same models on
other parts, layers in a loop, two mesh axes, grouped heads. `validation/pages.py` writes the file
into docs/evidence/fusion.md. The compiled prediction is the judge here, not the measured step. All
run on ASTRA-sim's congestion-unaware network, whose times do not depend on what else runs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import Any

from hespas.evidence.validate.measurements import MeasuredStep, read_steps
from hespas.evidence.validate.recompute import Sources
from hespas.prediction import composition
from hespas.prediction.options import (
    CompileChoice,
    EstimateOptions,
    Fidelity,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.price.cache import MemoryStore
from hespas.price.estimate import LAUNCH
from hespas.simulate.options import Model

ROOT = Path(__file__).resolve().parents[1]
FUSION = ROOT / "docs" / "data" / "fusion.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A program on a system."""

    workload: str
    options: Mapping[str, str]
    node: str
    system: str
    is_published: bool = False


def points() -> Iterator[Point]:
    """Yield what is compared: what was published of GPUs, then the others."""
    published = [step for step in read_steps() if not step.node.startswith("TPU")]
    for step in published:
        yield Point(
            workload=step.workload,
            options=step.options,
            node=step.node,
            system=step.system,
            is_published=True,
        )
    h100, states = "H100_80GB", {"state_dtype": "bf16"}
    fsdp = {"mesh": "fsdp=4", "attention": "unfused"} | states
    fused_attention = {"attention": "cudnn", "scan": "true"} | states
    written_out = fused_attention | {"layers": "6", "scan": "false"}
    others: list[tuple[str, dict[str, str], str, str]] = [
        ("resnet18", {"mesh": "data=4"}, h100, "H100_80GB_4GPU"),
        ("resnet50", {"mesh": "data=4"}, h100, "H100_80GB_4GPU"),
        ("resnet50-inference", {"mesh": "data=4"}, h100, "H100_80GB_4GPU"),
        ("llama3-100m", fsdp | {"scan": "true"}, h100, "H100_80GB_4GPU"),
        ("llama3-1b", fsdp | {"scan": "true"}, h100, "H100_80GB_4GPU"),
        ("llama3-1b", fsdp, "B200_180GB", "B200_180GB_4GPU"),
        ("llama3-1b", fsdp | {"mesh": "fsdp=2,tp=2"}, h100, "H100_80GB_4GPU"),
        ("llama3-8b", fused_attention | {"mesh": "fsdp=8"}, h100, "H100_80GB_8GPU"),
        ("llama3-8b", fused_attention | {"mesh": "fsdp=8,tp=4"}, h100, "H100_80GB_8GPU_4"),
        ("llama3-8b", fsdp | {"mesh": "fsdp=8,tp=4", "scan": "true"}, h100, "H100_80GB_8GPU_4"),
        ("llama3-8b", written_out | {"mesh": "fsdp=8"}, h100, "H100_80GB_8GPU"),
        ("llama3-8b", written_out | {"mesh": "fsdp=4,tp=2"}, h100, "H100_80GB_8GPU"),
    ]
    for workload, options, node, system in others:
        yield Point(workload=workload, options=options, node=node, system=system)


def compared(
    point: Point, sources: Sources, kept: Mapping[str, Any] | None = None
) -> Mapping[str, Any]:
    """Return what the three fidelities say of a program, all but what is modelled as it is kept."""
    step = MeasuredStep(
        workload=point.workload,
        options=point.options,
        node=point.node,
        system=point.system,
        step_s=0.0,
        resolution_s=0.0,
        profiled_compute_s=None,
        line=0,
    )
    source = sources.source(step)
    each = {
        fidelity.value: _predicted(point, fidelity, source)
        if kept is None or fidelity is Fidelity.FUSED
        else kept[fidelity.value]
        for fidelity in (Fidelity.EXPORTED, Fidelity.FUSED, Fidelity.COMPILED)
    }
    return {
        "workload": point.workload,
        "options": dict(point.options),
        "node": point.node,
        "system": point.system,
        "is_published": point.is_published,
        **each,
    }


def _predicted(point: Point, fidelity: Fidelity, source: bytes) -> Mapping[str, float]:
    options = PredictOptions(
        program=ProgramOptions(file=Path(point.workload)),
        compile=CompileChoice(fidelity=fidelity),
        estimate=EstimateOptions(node=point.node),
        network=NetworkOptions(system=point.system, model=Model.ASTRA_SIM),
    )
    start_s = process_time()
    prepared = composition.prepare(options, source=source)
    elapsed_s = process_time() - start_s
    estimates = composition.price(prepared, options, store=MemoryStore())
    prediction = composition.finish(prepared, estimates, options)
    kernels = [each for name, each in estimates.total.per_op.items() if name != LAUNCH]
    print(point.workload, point.node, fidelity.value, f"{elapsed_s:.1f} s")
    return {
        "step_s": prediction.step_time_s,
        "kernels": sum(each.count for each in kernels),
        "bytes": sum(each.bytes_moved for each in kernels),
        "peak_memory_bytes": prediction.memory.peak_bytes,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the page's table."""

    cells: tuple[str, ...]
    errors: Mapping[str, float] = field(default_factory=dict[str, float])


def row_of(entry: Mapping[str, Any]) -> Row:
    """Return the line of a comparison, and the errors of what is modelled."""
    fused, compiled = entry["fused"], entry["compiled"]
    errors = {name: fused[name] / compiled[name] - 1 for name in ("step_s", "kernels", "bytes")}
    hidden = ("attention", "state_dtype")
    options = ",".join(
        f"{name}={value}" for name, value in entry["options"].items() if name not in hidden
    )
    attention = " (fused attention)" if entry["options"].get("attention") == "cudnn" else ""
    cells = (
        f"{entry['workload']}{attention} {options}",
        entry["node"].partition("_")[0],
        f"{1e3 * fused['step_s']:.1f} ms",
        f"{1e3 * compiled['step_s']:.1f} ms",
        *map(_signed, errors.values()),
    )
    return Row(cells=cells, errors=errors)


def table(file: Path = FUSION) -> str:
    """Return the page's table and the line under it."""
    entries = json.loads(file.read_text())["programs"]
    lines = [
        "| program | on | fused | compiled | step | kernels | bytes |",
        f"|{'---|' * 7}",
    ]
    rows = [row_of(entry) for entry in entries]
    lines += [f"| {' | '.join(row.cells)} |" for row in rows]
    published = [row for row, each in zip(rows, entries, strict=True) if each["is_published"]]
    means = [
        f"* {name}: {_spread(chosen)}."
        for name, chosen in (("Published steps", published), ("All", rows))
    ]
    return "\n".join([*lines, "", *means, ""])


def _spread(rows: list[Row]) -> str:
    def spread(name: str) -> str:
        errors = [abs(row.errors[name]) for row in rows]
        return f"{100 * sum(errors) / len(errors):.1f} % in the mean and {100 * max(errors):.1f} %"

    names = {"step_s": "step time", "kernels": "kernels", "bytes": "bytes"}
    parts = [f"{words} off by {spread(name)} at most" for name, words in names.items()]
    return f"{len(rows)} programs, {', '.join(parts)}"


def _signed(error: float) -> str:
    return f"{round(100 * error, 1) + 0.0:+.1f} %"


def _key_of(point: Point) -> str:
    return f"{point.workload} {sorted(point.options.items())} {point.system}"


def _kept(file: Path) -> dict[str, Mapping[str, Any]]:
    """Return the programs of a file, by the keys of their points."""
    return {
        _key_of(
            Point(
                workload=each["workload"],
                options=each["options"],
                node=each["node"],
                system=each["system"],
            )
        ): each
        for each in json.loads(file.read_text())["programs"]
    }


def main() -> None:
    """Compare, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--json", type=Path, default=FUSION, help="the file to write")
    parser.add_argument(
        "--modelled-alone", action="store_true", help="keep what the file has of the others"
    )
    given = parser.parse_args()
    sources = Sources(cache_dir=None)
    kept = _kept(FUSION) if given.modelled_alone else {}
    programs = [compared(point, sources, kept.get(_key_of(point))) for point in points()]
    given.json.write_text(json.dumps({"programs": programs}, indent=1) + "\n")
    print(table(given.json))


if __name__ == "__main__":
    main()
