"""Decode steps of batches and contexts, predicted: nothing published stands beside them.

``python validation/decode_grid.py`` predicts them and writes docs/data/decode_grid.json and the
tables of docs/evidence/serving.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hespas
from hespas.files import json_bytes, write_file

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "data" / "decode_grid.json"
PAGE = ROOT / "docs" / "evidence" / "serving.md"
_BATCHES = (1, 16, 64, 256)
_CONTEXTS = (128, 8192, 131072)
_MODELS = (("llama3-70b-decode", 8), ("mixtral-8x7b-decode", 4))
"""Models, and over how many H100 their heads are divided."""
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


_BEGIN, _END = "<!-- decode: begin -->", "<!-- decode: end -->"


def main() -> None:
    """Predict all steps, and write what was found."""
    rows: list[dict[str, Any]] = []
    for model, devices in _MODELS:
        for batch in _BATCHES:
            for context in _CONTEXTS:
                rows.append(cell(model, devices, batch, context))
                print(rows[-1], flush=True)
    write_file(DATA, json_bytes(rows))
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    write_file(PAGE, f"{before}{_BEGIN}\n\n{tables(rows)}\n\n{_END}{after}".encode())


if __name__ == "__main__":
    main()
