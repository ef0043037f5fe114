"""Recorded stages of a pipeline, predicted together, against closed forms."""

from __future__ import annotations

import pytest

from hespas import predict
from hespas.errors import UnsupportedError
from hespas.frontend.load import load_per_device
from hespas.prediction.explain.changes import all_changes, main_changes
from hespas.prediction.figures.long_run import goodput_report
from hespas.prediction.figures.variation import variation_report
from hespas.prediction.result import Prediction
from hespas.program.recorded import RecordedStep, encode_recorded
from recorded_stages import joined, recorded_pipeline, waiting_stages, without_first


def predicted(step: RecordedStep, **options: object) -> Prediction:
    """Predict a step on as many H100s as it has ranks."""
    program = load_per_device(encode_recorded(step), name="step.json").program
    cluster = f"{step.world_size}xH100_80GB"
    return predict(program, cluster=cluster, model="hespas", **options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (4, 16)])
def test_a_step_takes_as_long_as_micro_batches_and_the_bubble(
    schedule: str, stages: int, micro_batches: int
) -> None:
    prediction = predicted(recorded_pipeline(schedule, stages=stages, micro_batches=micro_batches))
    pass_s = prediction.compute_s / micro_batches
    expected_s = (micro_batches + stages - 1) * pass_s
    assert prediction.step_time_s >= expected_s
    assert prediction.step_time_s == pytest.approx(expected_s, rel=0.03)


def test_copies_of_stages_run_side_by_side() -> None:
    alone, copied = (predicted(recorded_pipeline(stages=2, copies=copies)) for copies in (1, 4))
    assert [stage.devices for stage in copied.stages] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert copied.step_time_s == pytest.approx(alone.step_time_s, rel=0.01)


def test_a_norm_over_all_stages_waits_for_the_last_one() -> None:
    timeline = predicted(recorded_pipeline(has_norm=True)).timeline
    assert timeline is not None
    assert len({item.finish_ps for item in timeline.classes}) == 1
    without = predicted(recorded_pipeline()).step_time_s
    assert timeline.step_time_s == pytest.approx(without, rel=0.01)


def test_memory_is_that_of_the_fullest_stage() -> None:
    first = recorded_pipeline(stages=2)
    larger = recorded_pipeline(stages=2, layer=(16384, 8192)).stages
    prediction = predicted(joined([first, *larger]))
    own = [stage.prediction.memory.peak_bytes for stage in prediction.stages]
    assert own[1] > own[0]
    assert prediction.peak_memory_bytes == own[1]


@pytest.mark.parametrize(
    ("kind", "lacks"), [("send", "receive of .* needs a send"), ("receive", "send .* needs a rec")]
)
def test_a_message_without_its_other_end_names_its_line(kind: str, lacks: str) -> None:
    first = recorded_pipeline(stages=2)
    with pytest.raises(UnsupportedError, match=f"train.py:20: a {lacks}"):
        predicted(without_first(first, kind))


def test_stages_that_wait_for_each_other_are_an_error() -> None:
    with pytest.raises(UnsupportedError, match="messages between the stages do not match"):
        predicted(waiting_stages())


def test_changes_are_those_of_all_stages() -> None:
    """Products decide all stages: twice the FLOP/s take half of the step, but what memory takes."""
    prediction = predicted(recorded_pipeline(stages=4))
    changes = {change.change: change for change in main_changes(prediction)}
    faster = changes["peak FLOP/s doubled"]
    assert 0.3 < faster.gain < 0.5
    assert faster.step_time_s == pytest.approx((1 - faster.gain) * prediction.step_time_s)
    assert abs(changes["link bandwidth doubled"].gain) < 0.02
    every = {change.change for change in all_changes(prediction)}
    assert every > set(changes)
    assert "link latency zero" in every


def test_a_checkpoint_has_the_weights_and_states_of_all_stages() -> None:
    two, four = (predicted(recorded_pipeline(stages=stages), goodput=True) for stages in (2, 4))
    saved = [goodput_report(prediction).checkpoint_bytes for prediction in (two, four)]
    assert saved[1] == 2 * saved[0] > 0


def test_unequal_devices_make_stages_wait() -> None:
    step = recorded_pipeline(stages=4, copies=2)
    equal_s = predicted(step).step_time_s
    reports = [variation_report(predicted(step, variation=name)) for name in ("none", "GPU_SC22")]
    assert [report.equal_step_s for report in reports] == [equal_s] * 2
    assert equal_s == reports[0].expected_step_s < reports[1].expected_step_s < 1.5 * equal_s
    assert set(reports[1].waiting_by_axis_s) == {"dp", "pipe"}
