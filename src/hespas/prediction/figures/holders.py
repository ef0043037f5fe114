"""Who holds the device's memory when most of it is live, of a recorded program."""

from __future__ import annotations

from hespas.prediction.figures.schema import HolderRow
from hespas.prediction.result import Prediction
from hespas.program.scopes import merged_layers


def live_memory_bytes(prediction: Prediction) -> int | None:
    """Return what is live at the peak; None where no allocator reserves more than that."""
    return prediction.memory.live_bytes if prediction.graph.program.is_recorded else None


def holder_rows(prediction: Prediction) -> list[HolderRow]:
    """Return rows by role and module, equal layers together, the largest first."""
    if not prediction.graph.program.is_recorded:
        return []
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for buffer in prediction.memory.held:
        key = buffer.role, "/".join(merged_layers(buffer.location.split("/")))
        count, size = found.get(key, (0, 0))
        found[key] = count + 1, size + buffer.size_bytes
    rows = [
        HolderRow(role=role, path=path, count=count, bytes=size)
        for (role, path), (count, size) in found.items()
    ]
    return sorted(rows, key=lambda row: (-row.bytes, row.role, row.path))
