"""What the process that predicts one row is asked, and what it answers, as JSON files."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

REQUEST_FILE = "row.json"
ANSWER_FILE = "answer.json"


class RowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A step to predict: ``fidelity`` is compiled or fused.

    ``cpu_limit_s`` is for each of the processes, ``memory_limit_bytes`` for what they write to.
    """

    workload: str
    options: Mapping[str, str]
    xla_flags: Mapping[str, str]
    node: str
    system: str
    fidelity: str
    method: str | None
    model: str | None
    cache_dir: str | None
    cpu_limit_s: float
    memory_limit_bytes: int


class RowAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted step, or in ``refused`` why there is none; times of all processes together."""

    refused: str = ""
    predicted_s: float = 0.0
    compute_s: float = 0.0
    exposed_s: float = 0.0
    held_by: str = ""
    bound: Mapping[str, float] = {}
    kinds: Mapping[str, float] = {}
    assumptions: tuple[str, ...] = ()
    cpu_s: float = 0.0
    memory_bytes: int = 0
    peak_bytes: int = 0
