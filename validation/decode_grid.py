"""Decode steps of batches and contexts, predicted: nothing published stands beside them.

``python validation/decode_grid.py`` predicts them and writes docs/data/decode_grid.json and the
tables of docs/evidence/serving.md; ``--experts`` predicts only those that read experts in several
ways, and writes docs/data/decode_experts.json beside the same page.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import hespas
from hespas.base.files import json_bytes, write_file

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "data" / "decode_grid.json"
PAGE = ROOT / "docs" / "evidence" / "serving.md"
_BATCHES = (1, 16, 64, 256)
_CONTEXTS = (128, 8192, 131072)
_MODELS = (("llama3-70b-decode", 8), ("mixtral-8x7b-decode", 4))
"""Models, and over how many H100 their heads are divided."""
_EXPERTS = ROOT / "docs" / "data" / "decode_experts.json"
_OF_EXPERTS, _OVER, _TOKENS = "mixtral-8x7b-decode", 8, 8192
_SEQUENCES = (1, 4, 16)
_WAYS = (
    ("(default)", None, False),
    ("`--fidelity fused`", "fused", False),
    ("`--fidelity fused --set dropless=true`", "fused", True),
)
"""What is given, and the fidelity and the setting that it means."""
_MS = 1e3


def cell(model: str, devices: int, batch: int, context: int) -> dict[str, Any]:
    """Return the time of a step, and whether it fits."""
    found = hespas.predict(
        model,
        cluster=f"{devices}xH100_80GB",
        mesh=f"tp={devices}",
        batch=batch,
        settings={"context": str(context)},
        fidelity="fused",
    )
    capacity = found.memory_capacity_bytes or 0
    return {
        "model": model,
        "devices": devices,
        "batch": batch,
        "context": context,
        "step_time_s": found.step_time_s,
        "peak_memory_bytes": found.memory.peak_bytes,
        "fits": found.memory.peak_bytes <= capacity,
    }


def of_experts() -> list[dict[str, Any]]:
    """Return a step of each way to read experts, for each batch."""
    return [
        {"given": given, "batch": batch, **_read(fidelity, batch, dropless=dropless)}
        for given, fidelity, dropless in _WAYS
        for batch in _SEQUENCES
    ]


def _read(fidelity: str | None, batch: int, *, dropless: bool) -> dict[str, Any]:
    found = hespas.predict(
        _OF_EXPERTS,
        cluster=f"{_OVER}xH100_80GB",
        mesh=f"tp={_OVER}",
        batch=batch,
        settings={"context": str(_TOKENS), **({"dropless": "true"} if dropless else {})},
        fidelity=fidelity,
    )
    return {
        "step_time_s": found.step_time_s,
        "memory_traffic_bytes": found.estimates.total.total.bytes_moved,
    }


def experts_table(rows: list[dict[str, Any]]) -> str:
    """Return a line for each way to read experts, with what a device moves for one sequence."""
    lines = [
        f"| `{_OF_EXPERTS}`, {_OVER} H100, `tp={_OVER}`, {_TOKENS:,} tokens each | "
        + " | ".join(f"batch {batch}" for batch in _SEQUENCES)
        + " | read and written at batch 1 |",
        f"|{'---|' * (len(_SEQUENCES) + 2)}",
    ]
    for given, *_ in _WAYS:
        found = {row["batch"]: row for row in rows if row["given"] == given}
        cells = [f"{found[batch]['step_time_s'] * _MS:.1f} ms" for batch in _SEQUENCES]
        moved = f"{found[_SEQUENCES[0]]['memory_traffic_bytes'] / 1e9:.1f} GB"
        lines.append(f"| {given} | {' | '.join(cells)} | {moved} |")
    return "\n".join(lines)


def tables(rows: list[dict[str, Any]]) -> str:
    """Return a table for each model, a line for each batch."""
    return "\n\n".join(_table(model, devices, rows) for model, devices in _MODELS)


def _table(model: str, devices: int, rows: list[dict[str, Any]]) -> str:
    found = {(row["batch"], row["context"]): row for row in rows if row["model"] == model}
    lines = [
        f"| `{model}`, {devices} H100, `tp={devices}` | "
        + " | ".join(f"{context:,}" for context in _CONTEXTS)
        + " |",
        f"|{'---|' * (len(_CONTEXTS) + 1)}",
    ]
    for batch in _BATCHES:
        cells = (_cell(found[batch, context]) for context in _CONTEXTS)
        lines.append(f"| batch {batch} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    time = f"{row['step_time_s'] * _MS:.1f} ms"
    return time if row["fits"] else f"({time})"


def _write(name: str, made: str) -> None:
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = PAGE.read_text().partition(begin)
    _, _, after = rest.partition(end)
    write_file(PAGE, f"{before}{begin}\n\n{made}\n\n{end}{after}".encode())


def main() -> None:
    """Predict all steps, and write what was found."""
    experts = of_experts()
    write_file(_EXPERTS, json_bytes(experts))
    _write("experts", experts_table(experts))
    if "--experts" in sys.argv[1:]:
        return
    rows: list[dict[str, Any]] = []
    for model, devices in _MODELS:
        for batch in _BATCHES:
            for context in _CONTEXTS:
                rows.append(cell(model, devices, batch, context))
                print(rows[-1], flush=True)
    write_file(DATA, json_bytes(rows))
    _write("decode", tables(rows))


if __name__ == "__main__":
    main()
