"""Two depths of a model give the step of all of its layers."""

from __future__ import annotations

import pytest

import hespas
from hespas.models.catalogue import model_named
from hespas.prediction.figures.schema import RunReport
from hespas.report.answers import run_report
from hespas.serve.depth import Depths, deepened, depths_of


@pytest.mark.parametrize(
    ("model", "front", "period"),
    [
        ("Qwen/Qwen3-32B", 0, 1),
        ("openai/gpt-oss-120b", 0, 2),
        ("google/gemma-3-27b-it", 0, 6),
        ("deepseek-ai/DeepSeek-V3", 3, 1),
    ],
)
def test_depths_have_the_front_of_a_model_and_whole_rounds(
    model: str, front: int, period: int
) -> None:
    settings = model_named(model).settings
    depths = depths_of(settings.kinds)
    assert depths is not None
    assert depths.shallow > front
    assert (depths.layers - depths.shallow) % period == 0
    assert (depths.deep - depths.shallow) % period == 0
    kinds = settings.kinds
    rounds = (depths.layers - depths.shallow) // period
    assert kinds[: depths.shallow] + kinds[depths.shallow - period : depths.shallow] * rounds == (
        kinds
    )
    assert settings.with_layers(depths.deep).kinds == kinds[: depths.deep]


def test_layers_without_order_are_all_predicted() -> None:
    assert depths_of([at * at % 7 for at in range(40)]) is None
    assert depths_of(range(64)) is None


def test_what_grows_by_the_same_is_grown_exactly() -> None:
    depths = Depths(shallow=4, deep=8, layers=64)
    assert depths.grown(5.0 + 4 * 0.25, 5.0 + 8 * 0.25) == 5.0 + 64 * 0.25


def step_of(layers: int, step: str) -> RunReport:
    return run_report(
        hespas.predict(
            f"Qwen/Qwen3-0.6B:{step}",
            cluster="1xH100_80GB",
            fidelity="library",
            settings={"layers": str(layers)},
            batch=8 if step == "decode" else 1,
        ),
        with_tables=False,
    )


@pytest.mark.parametrize("step", ["decode", "prefill"])
def test_a_grown_step_is_that_of_all_layers(step: str) -> None:
    depths = depths_of(model_named("Qwen/Qwen3-0.6B").settings.kinds)
    assert depths is not None
    grown = deepened(step_of(depths.shallow, step), step_of(depths.deep, step), depths)
    whole = step_of(depths.layers, step)
    assert grown.step_time_s == pytest.approx(whole.step_time_s, rel=0.005)
    assert grown.energy_j == pytest.approx(whole.energy_j, rel=0.005)
    assert grown.peak_memory_bytes == pytest.approx(whole.peak_memory_bytes, rel=0.05)
    assert sum(getattr(grown.bound, name) for name in grown.bound.__struct_fields__) == (
        pytest.approx(1.0)
    )
