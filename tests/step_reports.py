"""Reports of steps for tests of pages: as `hespas run --json` writes them."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

import hespas
from hespas.prediction.figures.schema import BoundShares, RunReport
from hespas.prediction.goodput import GoodputOptions


@cache
def step_json() -> dict[str, Any]:
    """Return the answer for four devices that train a small Llama, with names of its modules."""
    return hespas.predict(
        "llama3-100m", mesh="fsdp=4", cluster="4xH100_80GB", scan=True, fidelity="fused"
    ).to_dict()


def step_report(**changed: Any) -> RunReport:
    """Return it as a value, with what is changed."""
    return msgspec.convert({**step_json(), **changed}, RunReport)


@cache
def pipeline_json() -> dict[str, Any]:
    """Return the answer for two stages that train a small Llama, and for a long run of it."""
    return hespas.predict_pipeline(
        "llama3-100m",
        "4xH100_80GB",
        mesh="pipe=2,data=2",
        global_batch=8,
        sequence=1024,
        settings={"layers": "4"},
        fidelity="fused",
        long_run=GoodputOptions(goodput=True, train_tokens=1e12),
    ).to_dict()


def pipeline_step(**changed: Any) -> RunReport:
    """Return it as a value, with what is changed."""
    return msgspec.convert({**pipeline_json(), **changed}, RunReport)


EMPTY_RESULT: dict[str, Any] = {
    **dict.fromkeys(("program", "node", "method", "samples"), ""),
    "fidelity": "exported",
    **dict.fromkeys(("devices", "communication_s", "host_transfer_s", "straggler_s"), 0),
    **dict.fromkeys(("exposed_host_transfer_s", "flops", "memory_traffic_bytes"), 0),
    **dict.fromkeys(("peak_memory_bytes", "host_memory_bytes", "host_transfer_bytes"), 0),
    **dict.fromkeys(("system", "tokens_per_s", "tokens_per_s_per_device", "samples_per_s"), None),
    **dict.fromkeys(("mfu", "hardware_utilisation", "flops_utilisation"), None),
    **dict.fromkeys(("memory_utilisation", "energy_j", "energy", "memory_capacity_bytes"), None),
    **dict.fromkeys(("kinds", "phases", "layers", "communication", "explain"), ()),
    **dict.fromkeys(("assumptions", "assumption_groups", "warnings"), ()),
    "bound": dict.fromkeys(BoundShares.__struct_fields__, 0.0),
    **{name: {} for name in ("per_op", "options", "versions")},
}
"""A result of ``hespas run --json`` without its times and its schema version."""
