"""The host launches the kernels of a recorded step one after another."""

from __future__ import annotations

import msgspec
import pytest

from hespas import predict
from hespas.frontend.load import load_per_device
from hespas.prediction.result import Prediction
from hespas.program.program import Program
from hespas.program.recorded import HostWait, RecordedStep, RecordEvent, encode_recorded
from hespas.tasks.build import regions_of_tasks
from hespas.tasks.graph import is_host_launch
from recorded_steps import Recorder, sharded_layers

LAUNCH_S = 1e-3


def program_of(step: RecordedStep, launch_s: float = LAUNCH_S) -> Program:
    """Return a step's program whose host takes long to launch."""
    program = load_per_device(encode_recorded(step), name="step.json").program
    assert program.recorded is not None
    recorded = msgspec.structs.replace(program.recorded, host_launch_s=launch_s)
    return msgspec.structs.replace(program, recorded=recorded)


def predicted(step: RecordedStep, launch_s: float = LAUNCH_S) -> Prediction:
    """Predict a step on one GPU, or on eight."""
    cluster = f"{step.world_size}xH100_80GB"
    return predict(program_of(step, launch_s), cluster=cluster, model="hespas")


def products(count: int, *, waits: bool = False) -> RecordedStep:
    """Return a step of small products, after each of which the host may wait."""
    recorder = Recorder(world_size=1)
    given = recorder.tensor(256, 256)
    for _ in range(count):
        recorder.product(given, given)
        if waits:
            recorder.calls.append(HostWait(stream=0))
    return recorder.step()


def test_a_step_of_short_kernels_takes_as_long_as_their_launches_and_the_last_one() -> None:
    prediction = predicted(products(10))
    assert prediction.step_time_s == pytest.approx(10 * LAUNCH_S + prediction.compute_s / 10)
    assert prediction.launch_wait_s == pytest.approx(
        prediction.step_time_s - prediction.compute_s, rel=1e-6
    )
    assert prediction.exposed_communication_s == pytest.approx(0, abs=1e-12)


def test_a_host_that_waits_for_each_kernel_hides_none() -> None:
    prediction = predicted(products(10, waits=True))
    assert prediction.step_time_s == pytest.approx(10 * LAUNCH_S + prediction.compute_s)


def test_a_host_that_waits_for_an_event_does_not_wait_for_later_kernels() -> None:
    def step(event: int | None) -> RecordedStep:
        recorder = Recorder(world_size=1)
        small, large = recorder.tensor(256, 256), recorder.tensor(8192, 8192)
        recorder.product(small, small)
        recorder.calls.append(RecordEvent(stream=0, event=0))
        recorder.product(large, large)
        recorder.calls.append(HostWait(event=event))
        recorder.product(small, small)
        return recorder.step()

    after_event, after_all = predicted(step(0)), predicted(step(None))
    assert after_event.step_time_s == pytest.approx(LAUNCH_S + after_event.compute_s, abs=LAUNCH_S)
    assert after_all.step_time_s == pytest.approx(
        3 * LAUNCH_S + after_all.compute_s, abs=LAUNCH_S / 2
    )
    assert after_event.launch_wait_s < after_all.launch_wait_s - 0.9 * LAUNCH_S


def test_a_host_that_is_ahead_costs_its_first_launch_alone() -> None:
    step = sharded_layers()
    at_once, launched = predicted(step, 0.0), predicted(step, 1e-6)
    assert at_once.launch_wait_s == 0
    assert launched.step_time_s == pytest.approx(at_once.step_time_s + 1e-6, rel=1e-3)


def test_parts_add_up_to_the_step() -> None:
    prediction = predicted(sharded_layers(), 200e-6)
    parts_s = prediction.compute_s + prediction.exposed_communication_s + prediction.launch_wait_s
    assert prediction.launch_wait_s > 300e-6
    assert prediction.step_time_s == pytest.approx(parts_s, rel=1e-9)


def test_regions_of_tasks_leave_launches_out() -> None:
    prediction = predicted(sharded_layers())
    regions = regions_of_tasks(prediction.graph, prediction.tasks)
    launches = [task for task in prediction.tasks.tasks if is_host_launch(task)]
    assert len(regions) == len(launches) == len(prediction.graph.regions)
    assert regions.keys().isdisjoint(task.id for task in launches)
