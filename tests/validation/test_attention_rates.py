import pytest

from attention_rates import Scores, Step, largest_gain, table
from hespas.hardware.presets import load_device
from kernel_parts import NODES, Point

DEVICES = {gpu: load_device(node) for gpu, node in NODES.items()}


def step(gpu: str, *, measured_s: float, products_s: float = 0.5) -> Step:
    point = Point(name="llama3-500m", gpu=gpu, measured_s=measured_s, predicted_s=1.0)
    scores = Scores(
        reductions_s=0.25, reductions_bytes=1e12, products_s=products_s, computation_s=1.0
    )
    return Step(point=point, scores=scores, heads=20, flops=1e14)


def test_a_published_time_as_predicted_asks_for_the_predicted_rate() -> None:
    assert step("A100", measured_s=1.0).rate_left(1.0) == pytest.approx(1e12 / 0.25)
    assert step("A100", measured_s=1.0).rate_left(1.25) == pytest.approx(1e12 / 0.5)


@pytest.mark.parametrize(("products_s", "gain"), [(1.0, 989.4 / 312), (0.0, 3.35 / 1.555)])
def test_products_gain_what_arithmetic_does_and_all_else_what_memory_does(
    products_s: float, gain: float
) -> None:
    before = step("A100", measured_s=1.0, products_s=products_s).scores
    assert largest_gain(before, DEVICES) == pytest.approx(gain, rel=0.01)


def test_the_table_has_a_row_for_a_model_with_both_gpus() -> None:
    lines = table([step("A100", measured_s=1.0), step("H100", measured_s=0.5)]).splitlines()
    assert len(lines) == 3
    assert lines[2].startswith("| llama3-500m | 20 | 32.1 % | 20.2 % | 1.97 to 2.03 |")
