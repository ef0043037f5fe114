"""A recorded step becomes a program, and a prediction."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import msgspec
import pytest

from hespas import predict
from hespas.errors import ProgramError, UnsupportedError
from hespas.frontend.experts import with_expert_load
from hespas.frontend.load import load_per_device
from hespas.frontend.recorded.load import HOST_LAUNCH_S
from hespas.prediction.result import Prediction
from hespas.program.attrs import KernelAttrs
from hespas.program.program import Program
from hespas.program.recorded import RecordedStep, encode_recorded
from hespas.program.scopes import Phase, read_scope
from hespas.split.flatten import split_scheduled
from hespas.split.regions import Collective
from hespas.tasks.build import operand_bytes
from hespas.work.gemm import gemms
from recorded_steps import COMPUTE, Recorder, sharded_layers


def loaded(step: RecordedStep) -> Program:
    """Return the program of a step."""
    return load_per_device(encode_recorded(step), name="step.json").program


def predicted(step: RecordedStep, cluster: str = "8xH100_80GB") -> Prediction:
    """Predict a step on a cluster whose hosts launch in no time."""
    program = loaded(step)
    assert program.recorded is not None
    recorded = msgspec.structs.replace(program.recorded, host_launch_s=0.0)
    program = msgspec.structs.replace(program, recorded=recorded)
    return predict(program, cluster=cluster, model="hespas")


def test_a_step_is_a_scheduled_program_with_phases_and_modules() -> None:
    program = loaded(sharded_layers(layers=2))
    assert program.fidelity == "recorded"
    assert program.declared_devices == 8
    products = [gemms(op)[0] for op in program.main.body.operations if gemms(op)]
    assert {(product.m, product.n, product.k) for product in products} == {
        (8192, 4096, 4096),
        (4096, 4096, 8192),
    }
    names = [read_scope(op.scope) for op in program.main.body.operations if gemms(op)]
    assert {product.phase for product in names} == {Phase.FORWARD, Phase.BACKWARD}
    assert names[0].path == ("layers.0", "wq")
    assert program.main.body.operations[2].source_location == ""


def test_streams_wait_for_events_alone() -> None:
    step = Recorder()
    operand = step.tensor(1024, 1024)
    step.product(operand, operand)
    gathered = step.tensor(8192, 1024)
    done = step.collective("all_gather", operand, gathered)
    step.product(operand, operand)
    step.wait(done)
    step.product(operand, operand)
    graph = split_scheduled(loaded(step.step()))
    first, gather, beside, after = graph.regions
    assert isinstance(gather, Collective)
    assert graph.producers == ((), (first.id,), (first.id,), (gather.id, beside.id))
    assert after.id == 3


def test_a_collective_hides_behind_computation_that_does_not_wait_for_it() -> None:
    def step(*, waits_at_once: bool) -> RecordedStep:
        recorder = Recorder()
        operand = recorder.tensor(8192, 8192)
        gathered = recorder.tensor(8192, 8192)
        done = recorder.collective("all_gather", recorder.tensor(1024, 8192), gathered)
        if waits_at_once:
            recorder.wait(done)
        recorder.product(operand, operand)
        recorder.wait(done)
        recorder.product(operand, gathered)
        return recorder.step()

    hidden, exposed = predicted(step(waits_at_once=False)), predicted(step(waits_at_once=True))
    # Beside the collective, products have the multiprocessors that it leaves.
    assert hidden.exposed_communication_s < 0.25 * exposed.exposed_communication_s
    assert exposed.step_time_s - hidden.step_time_s == pytest.approx(
        exposed.exposed_communication_s - hidden.exposed_communication_s, rel=1e-6
    )


def test_an_operation_that_no_rule_knows_is_assumed_to_move_its_tensors_once() -> None:
    step = Recorder()
    operand, result = step.tensor(4096, 4096), step.tensor(4096, 4096)
    step.operation("mylib::strange.default", (operand,), result)
    prediction = predicted(step.step())
    assert any("mylib::strange" in text for text in prediction.assumptions)
    (op,) = [op for op in loaded(step.step()).main.body.operations if op.kind.startswith("mylib")]
    assert isinstance(op.attrs, KernelAttrs)
    assert op.attrs.bytes_read == op.attrs.bytes_written == 2 * 4096 * 4096


def test_kernels_of_another_stream_take_the_device_one_at_a_time() -> None:
    step = Recorder()
    operand = step.tensor(4096, 4096)
    result = step.product(operand, operand)
    step.operation("aten::relu.default", (operand,), step.tensor(4096, 4096), stream=3)
    step.operation("aten::relu.default", (result,), step.tensor(4096, 4096), stream=COMPUTE)
    prediction = predicted(step.step())
    assert prediction.step_time_s == pytest.approx(prediction.compute_s)


@pytest.mark.parametrize("stream", [COMPUTE, 3])
def test_copies_to_and_from_the_host_take_its_link(stream: int) -> None:
    step = Recorder()
    operand = step.tensor(32_000, 1_000_000)
    step.operation("aten::_to_copy.default", (operand,), stream=stream)
    step.operation("aten::_to_copy.default", (), step.tensor(32_000, 1_000_000), stream=stream)
    step.product(step.tensor(4096, 4096), step.tensor(4096, 4096))
    prediction = predicted(step.step())
    assert prediction.host_transfer_s == pytest.approx(2 * 64e9 / 64e9)
    hidden_s = prediction.compute_s if stream != COMPUTE else 0.0
    assert prediction.step_time_s == pytest.approx(2.0 + prediction.compute_s - hidden_s)


def test_an_irregular_group_names_its_call() -> None:
    step = Recorder()
    shard, gathered = step.tensor(8), step.tensor(24)
    step.collective("all_gather", shard, gathered, ranks=(0, 1, 3))
    with pytest.raises(UnsupportedError, match=r"ranks \[0, 1, 3\]"):
        loaded(step.step())


def test_a_pipeline_stage_is_refused() -> None:
    step = Recorder()
    step.collective("send", step.tensor(8), step.tensor(8), ranks=(0, 1))
    with pytest.raises(UnsupportedError, match="pipeline stages"):
        loaded(step.step())


def test_a_damaged_record_is_an_error_with_its_place() -> None:
    content = encode_recorded(sharded_layers())
    with pytest.raises(ProgramError, match="is no hespas recorded step") as error:
        load_per_device(content[:-5], name="step.json")
    assert error.value.location == "step.json"


def test_equal_records_give_equal_figures() -> None:
    step = sharded_layers()
    again = msgspec.structs.replace(step)
    assert encode_recorded(step) == encode_recorded(again)
    assert predicted(step).step_time_s == predicted(again).step_time_s


def test_no_step_is_faster_than_its_products_at_peak_and_its_bytes_at_bandwidth() -> None:
    prediction = predicted(sharded_layers())
    device = prediction.device
    assert device is not None
    total = prediction.estimates.total.total
    floor_s = max(
        total.flops / device.rate("bf16"), total.bytes_moved / device.memory_bandwidth_bytes_per_s
    )
    assert prediction.step_time_s > floor_s


def test_collectives_of_one_stream_keep_their_order() -> None:
    graph = split_scheduled(loaded(sharded_layers()))
    collectives = [region.id for region in graph.regions if isinstance(region, Collective)]
    for before, after in pairwise(collectives):
        assert before in graph.producers[after]


def test_gradients_of_attention_without_attention_are_a_warning() -> None:
    step = Recorder(world_size=1)
    query, statistics = step.tensor(1, 8, 512, 64), step.tensor(1, 8, 512, dtype="float32")
    name = "aten::_scaled_dot_product_cudnn_attention"
    inputs = (query, query, query, query, query, statistics)
    step.operation(f"{name}_backward.default", inputs, query, query, query)
    (warning,) = loaded(step.step()).warnings
    assert "1 gradients of attention are recorded, and 1 of their forward" in warning
    step.operation(f"{name}.default", (query, query, query), query, statistics)
    assert not loaded(step.step()).warnings


def test_what_torch_compile_left_as_written_is_a_warning() -> None:
    left = msgspec.structs.replace(Recorder().step(), uncompiled=("train.py:7 forward",))
    (warning,) = loaded(left).warnings
    assert "torch.compile left train.py:7 forward as written" in warning


def test_devices_that_train_without_communication_are_a_warning() -> None:
    step = Recorder()
    step.tensor(4096, role="gradient")
    (warning,) = loaded(step.step()).warnings
    assert "each of 8 devices trains a model of its own" in warning
    assert not loaded(sharded_layers()).warnings


def test_a_launch_takes_the_mean_of_those_that_were_measured() -> None:
    measured = Path("validation/measurements/launches-H100_80GB_HBM3.csv").read_text().splitlines()
    rows = csv.DictReader(line for line in measured if not line.startswith("#"))
    times = [(float(row["eager_us"]), float(row["kernel_us"])) for row in rows]
    of_host = [eager_us for eager_us, kernel_us in times if eager_us > 2 * kernel_us]
    assert pytest.approx(1e-6 * fmean(of_host), rel=0.01) == HOST_LAUNCH_S


def test_exchanged_rows_are_those_that_were_recorded() -> None:
    step = Recorder(world_size=2)
    rows, counts = step.tensor(64, 128), step.tensor(1, dtype="int32")
    step.collective("all_to_all", rows, step.tensor(64, 128), splits=(48, 16))
    weights = step.tensor(1, 128, 64)
    step.operation("aten::_grouped_mm.default", (rows, weights, counts), step.tensor(64, 64))
    program = loaded(step.step())
    assert with_expert_load(program, None) == program
    sent = [op for op in program.main.body.operations if op.kind == "ragged_all_to_all"]
    # A rank sends 48 of 64 rows to the busiest one.
    assert list(map(operand_bytes, sent)) == [1.5 * 64 * 128 * 2]
