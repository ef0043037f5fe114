"""Predict parts with measured tables as if they had none, by the tables of others.

    python validation/own_hardware.py

Each part is described as hardware of one's own is: by its rates, its memory and its target alone.
Its step is predicted by the tables of the other part that is nearest in memory bandwidth, by those
of the nearest of another generation, and at the peak rates, and compared with what its preset says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import hespas
from hespas.hardware.device import Device, MeasuredTables
from hespas.hardware.presets import load_device
from hespas.price.gemm import nearest_part
from hespas.price.tables import load_part

GENERATIONS = {
    "A100_SXM_80GB": "Ampere",
    "H100_80GB": "Hopper",
    "H200_141GB": "Hopper",
    "B200_180GB": "Blackwell",
    "B300_288GB": "Blackwell",
    "GB200_186GB": "Blackwell",
    "GB300_288GB": "Blackwell",
    "L40S_48GB": "Ada",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of a model of the zoo on one device."""

    name: str
    model: str
    mesh: str
    batch: int
    settings: Mapping[str, str]
    sequence: int | None = None
    attention: str | None = "cudnn"


STEPS = (
    Step(
        name="training",
        model="llama3-8b",
        mesh="data=1",
        batch=2,
        sequence=4096,
        settings={"layers": "2"},
    ),
    Step(
        name="small training",
        model="llama3-1b",
        mesh="data=1",
        batch=1,
        sequence=1024,
        settings={"layers": "4"},
    ),
    Step(
        name="decoding",
        model="llama3-8b-decode",
        mesh="tp=1",
        batch=8,
        settings={"layers": "4"},
        attention=None,
    ),
)


def tables_of(node: str) -> str:
    """Return the part that a preset's tables were measured on."""
    measured = load_device(node).measured
    if measured is None:
        raise LookupError(node)
    return measured.part


def nearest_of(device: Device, nodes: Iterable[str]) -> str:
    """Return the part, of those of other presets, whose tables serve a device without any."""
    return nearest_part(device, [load_part(tables_of(node)) for node in nodes]).about.part


def step_s(step: Step, device: Device, *, method: str | None = None) -> float:
    """Return how long a step takes on a device."""
    found = hespas.predict(
        step.model,
        device,
        fidelity="fused",
        mesh=step.mesh,
        batch=step.batch,
        sequence=step.sequence,
        attention=step.attention,
        settings=step.settings,
        method=method,
    )
    return found.step_time_s


def row(step: Step, node: str) -> str:
    """Return a row of the table."""
    preset = load_device(node)
    bare = replace(
        preset, measured=None, microarchitecture=None, power=None, launch_overhead_s=None
    )
    expected_s = step_s(step, preset)
    others = [other for other in GENERATIONS if other != node]
    older = [other for other in others if GENERATIONS[other] != GENERATIONS[node]]
    cells = [f"{expected_s * 1e3:.3g} ms"]
    for nodes in (others, older):
        part = nearest_of(bare, nodes)
        device = replace(bare, measured=MeasuredTables(part=part))
        cells.append(f"{step_s(step, device) / expected_s - 1:+.0%} ({part})".replace("%", " %"))
    at_peak_s = step_s(step, bare, method="roofline")
    cells.append(f"{at_peak_s / expected_s - 1:+.0%}".replace("%", " %"))
    return f"| {step.name} | {node} | {' | '.join(cells)} |"


def table() -> str:
    """Return the table."""
    head = "| step | node | preset | nearest other | nearest of another generation | peaks |"
    rows = [row(step, node) for step in STEPS for node in GENERATIONS]
    return "\n".join([head, "|---|---|---|---|---|---|", *rows])


def main() -> None:
    """Print the table."""
    print(table())


if __name__ == "__main__":
    main()
