"""What layers keep is moved to the host's memory and back, where that is asked for."""

from __future__ import annotations

from functools import cache

import pytest

import hespas
from hespas.prediction.result import Prediction

TOKENS, LAYERS, BYTES = 512, 4, 2
SMALL = {
    "layers": str(LAYERS),
    "vocabulary": "1024",
    "embedding": "1024",
    "heads": "8",
    "head_size": "128",
    "mlp": "2048",
}
KEPT = {
    # Queries, keys, values and what attention makes of them; gate and up; the output product.
    "llama3-8b": ((2 * 8 + 2 * 8) * 128 + 2 * 2048) // 2 + 1024,
    "gpt3-125m": ((2 * 8 + 2 * 8) * 128 + 2048) // 2 + 1024,
}
"""The elements of a token that a layer keeps on each of two tensor-parallel devices."""


@cache
def predicted(model: str, remat: str, *, scan: bool = True, rounds: int = 1) -> Prediction:
    return hespas.predict(
        model,
        cluster="4xH100_80GB",
        mesh="fsdp=2,tp=2",
        sequence=TOKENS,
        batch=rounds,
        micro_batches=rounds,
        attention="unfused",
        remat=remat,
        scan=scan,
        settings=SMALL | {"kv_heads": "8"},
        fidelity="fused",
    )


@pytest.mark.parametrize("model", KEPT)
@pytest.mark.parametrize(
    ("scan", "rounds"), [pytest.param(True, 1, marks=pytest.mark.rest), (False, 1), (True, 2)]
)
def test_each_kept_array_goes_to_the_host_and_back_once(
    model: str, scan: bool, rounds: int
) -> None:
    offload = predicted(model, "offload", scan=scan, rounds=rounds)
    kept_bytes = KEPT[model] * TOKENS * LAYERS * BYTES
    assert offload.host_transfer_bytes == 2 * rounds * kept_bytes
    assert offload.memory.host is not None
    assert kept_bytes <= offload.memory.host.peak_bytes < 1.5 * kept_bytes


def test_offloading_computes_what_keeping_computes_in_less_memory() -> None:
    kept, offload = (predicted("llama3-8b", name) for name in ("minimal_with_context", "offload"))
    assert offload.estimates.total.total.flops == pytest.approx(
        kept.estimates.total.total.flops, rel=1e-3
    )
    assert offload.memory.peak_bytes < kept.memory.peak_bytes
    assert offload.step_time_s == pytest.approx(
        offload.compute_s + offload.exposed_communication_s + offload.exposed_host_transfer_s
    )
    assert 0 < offload.exposed_host_transfer_s <= offload.host_transfer_s
