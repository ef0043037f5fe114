"""Inference runs an engine's kernels by default, and its experts read what they need."""

from __future__ import annotations

import pytest

from hespas import predict
from hespas.base.fields import overridden
from hespas.prediction.checks import checked
from hespas.prediction.options import Fidelity, PredictOptions
from hespas.prediction.result import Prediction

MOE = "Qwen/Qwen3-30B-A3B:decode"


def asked(model: str, cluster: str, **overrides: object) -> Fidelity | None:
    given = {"file": model, "cluster": cluster, **overrides}
    return checked(overridden(PredictOptions(), given)).compile.requested


@pytest.mark.parametrize(
    ("model", "cluster", "overrides", "fidelity"),
    [
        (MOE, "1xH100_80GB", {}, Fidelity.LIBRARY),
        ("llama3-8b-prefill", "1xMI300X", {}, Fidelity.LIBRARY),
        ("llama3-8b-decode", "1xTPUv5e", {}, Fidelity.AUTO),
        ("llama3-8b", "8xH100_80GB", {}, Fidelity.AUTO),
        ("llama3-8b-decode", "1xH100_80GB", {"fidelity": Fidelity.FUSED}, Fidelity.FUSED),
        ("llama3-8b-decode", "1xH100_80GB", {"block_limit": 4}, Fidelity.AUTO),
    ],
)
def test_what_is_predicted_by_default(
    model: str, cluster: str, overrides: dict[str, object], fidelity: Fidelity
) -> None:
    assert asked(model, cluster, **overrides) is fidelity


def test_a_token_reads_the_experts_that_it_chose() -> None:
    """8 of 128 experts of 48 layers: 3.3 B parameters of 30.5 B, of two bytes each."""
    prediction = predict(MOE, cluster="1xH100_80GB", settings={"layers": "4"})
    whole = predict(MOE, cluster="1xH100_80GB", settings={"layers": "4"}, fidelity="fused")
    assert isinstance(prediction, Prediction)
    assert isinstance(whole, Prediction)
    assert prediction.step_time_s < 0.4 * whole.step_time_s
