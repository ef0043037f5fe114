"""Stages of torch.distributed.pipelining, each recorded in a process of its own."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

import hespas
from hespas.errors import HespasError, UnsupportedError
from hespas.frontend.load import load_per_device
from hespas.prediction.figures.recorded_stages import stage_rows
from hespas.prediction.figures.schema import PipelineReport
from hespas.program.recorded import RecordedStep, encode_recorded
from torch_steps import NET, bytes_after, collectives, needs_torch, peak_bytes, record

pytestmark = needs_torch

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "torch_pipeline.py"
STAGES = f"""{NET}
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

def train(
    stages: int = 2,
    schedule: str = "Schedule1F1B",
    micro_batches: int = 4,
    chunks: int = 1,
    tp: int = 1,
    sharded: bool = False,
    wrong: str = "",
):
    ranks = dist.get_world_size()
    sizes = (stages, ranks // stages // tp, tp)
    mesh = init_device_mesh("cuda", sizes, mesh_dim_names=("pp", "dp", "tp"))
    place = mesh.get_local_rank("pp")
    device = torch.device("cuda")
    blocks = [[Block(256), Block(256)] for _ in range(chunks)]
    parts = [nn.Sequential(*own).to(device, torch.bfloat16) for own in blocks]
    for part in parts:
        for block in part:
            if tp > 1:
                plan = {{"up": ColwiseParallel(), "down": RowwiseParallel()}}
                parallelize_module(block, mesh["tp"], plan)
            if sharded:
                fully_shard(block, mesh=mesh["dp"])
    group = mesh.get_group("pp")
    is_v = schedule in {{"ScheduleZBVZeroBubble", "ScheduleDualPipeV"}}
    numbers = [
        2 * stages - 1 - place if is_v and chunk else place + chunk * stages
        for chunk in range(chunks)
    ]
    own = [
        PipelineStage(part, number, chunks * stages, device, group=group)
        for number, part in zip(numbers, parts)
    ]
    if wrong == "idle" and place == 1:
        return lambda: None
    class Own(pipelining.Schedule1F1B):
        pass
    kind = Own if schedule == "Own" else getattr(pipelining, schedule)
    run = kind(own if chunks > 1 else own[0], micro_batches, loss_fn=F.mse_loss)
    parameters = [one for part in parts for one in part.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, foreach=False)
    def step():
        x = torch.randn(micro_batches, 128, 256, device="cuda", dtype=torch.bfloat16)
        given = (x,) if 0 in numbers else ()
        labels = {{"target": x}} if chunks * stages - 1 in numbers else {{}}
        run.step(*given, **labels)
        if wrong == "print" and place == 1:
            print(x)
        if wrong == "send" and place == 1:
            dist.send(x, 0)
        optimizer.step()
        optimizer.zero_grad()
    return step
"""


def of_all(step: RecordedStep) -> tuple[RecordedStep, ...]:
    """Return the steps of all stages."""
    return (step, *step.stages)


def messages(step: RecordedStep) -> list[tuple[str, tuple[int, ...]]]:
    """Return the kinds and ranks of a stage's messages."""
    return [
        (call.kind, call.ranks) for call in collectives(step) if call.kind in {"send", "receive"}
    ]


@pytest.mark.parametrize("schedule", ["ScheduleGPipe", "Schedule1F1B"])
def test_each_stage_is_recorded_with_its_messages(schedule: str) -> None:
    step = record(STAGES, devices=2, schedule=schedule)
    first, last = of_all(step)
    assert [(one.rank, one.pipeline and one.pipeline.ranks) for one in (first, last)] == [
        (0, (0, 1)),
        (1, (0, 1)),
    ]
    assert sorted(messages(first)) == [("receive", (0, 1))] * 4 + [("send", (0, 1))] * 4
    assert sorted(messages(last)) == [("receive", (1, 0))] * 4 + [("send", (1, 0))] * 4
    load_per_device(encode_recorded(step), name="step.json")


def test_the_first_stage_of_1f1b_holds_as_many_micro_batches_as_stages() -> None:
    step = record(STAGES, devices=4, stages=4, micro_batches=8)
    in_flight = [one.pipeline and one.pipeline.in_flight for one in of_all(step)]
    assert in_flight == [4, 3, 2, 1]
    kept = [peak_bytes(one) - sum(bytes_after(one).values()) for one in of_all(step)[:3]]
    assert all(first > second for first, second in pairwise(kept))


def test_gpipe_holds_all_micro_batches() -> None:
    step = record(STAGES, devices=2, schedule="ScheduleGPipe")
    assert [one.pipeline and one.pipeline.in_flight for one in of_all(step)] == [4, 4]


def test_interleaved_stages_have_several_chunks_of_one_rank() -> None:
    step = record(STAGES, devices=2, schedule="ScheduleInterleaved1F1B", chunks=2)
    first, last = of_all(step)
    assert first.pipeline is not None
    assert (first.pipeline.chunks, first.pipeline.micro_batches) == (2, 4)
    # Forward from chunk 0 and chunk 2, backward from 1 to 0 and from 3 to 2; and from 1 to 2.
    assert messages(first).count(("send", (0, 1))) == 3 * 4
    assert messages(last).count(("send", (1, 0))) == 3 * 4
    load_per_device(encode_recorded(step), name="step.json")


def test_collectives_inside_of_a_stage_are_those_of_its_ranks() -> None:
    step = record(STAGES, devices=8, sharded=True, tp=2)
    for one, ranks in zip(of_all(step), (range(4), range(4, 8)), strict=True):
        groups = {call.ranks for call in collectives(one) if call.kind != "send" and not call.group}
        assert groups == {tuple(ranks)[:2], tuple(ranks)[::2]}


def test_messages_of_a_batch_run_side_by_side() -> None:
    step = record(STAGES, devices=2)
    calls = [call for call in collectives(step) if call.group]
    # In the steady state, the first stage sends forward and receives backward at a time.
    pairs = list(pairwise(calls))
    assert sum(a.kind != b.kind and a.stream != b.stream for a, b in pairs) >= 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("print", r"train.py:\d+: the step prints a tensor"),
        ("idle", r"train.py:\d+: stage 0 waits for stage 1, which sends nothing"),
    ],
)
def test_what_one_stage_does_wrong_is_an_error_with_its_line(wrong: str, message: str) -> None:
    with pytest.raises(HespasError, match=message):
        record(STAGES, devices=2, wrong=wrong)


def test_a_send_that_no_stage_receives_names_its_line() -> None:
    step = record(STAGES, devices=2, wrong="send")
    with pytest.raises(UnsupportedError, match=r"train.py:\d+: a send of .* needs a receive"):
        load_per_device(encode_recorded(step), name="step.json")


def test_stages_that_do_not_divide_the_ranks_are_an_error() -> None:
    step = record(STAGES, devices=3)
    with pytest.raises(HespasError, match=r"train.py:\d+: .* is not one of equal groups of 3"):
        load_per_device(encode_recorded(step), name="step.json")


def test_other_schedules_are_refused_by_name() -> None:
    with pytest.raises(HespasError, match="the schedule Own is not recorded"):
        record(STAGES, devices=2, schedule="Own")


@pytest.mark.parametrize(
    ("schedule", "name"),
    [
        ("ScheduleLoopedBFS", "looped breadth-first:2"),
        ("ScheduleInterleavedZeroBubble", "interleaved zero-bubble:2"),
        ("ScheduleZBVZeroBubble", "zero-bubble V"),
        ("ScheduleDualPipeV", "DualPipeV"),
    ],
)
def test_all_schedules_compute_as_much_as_interleaved_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(STAGES)

    def rows(schedule: str) -> PipelineReport:
        settings = {"schedule": schedule, "chunks": "2", "stages": "2"}
        prediction = hespas.predict(
            "torch:train.py:train", cluster="2xH100_80GB", settings=settings
        )
        report = stage_rows(prediction)
        assert report is not None
        return report

    found, usual = rows(schedule), rows("ScheduleInterleaved1F1B")
    assert (found.schedule, found.chunks, found.micro_batches) == (name, 2, 4)
    for one, other in zip(found.stages, usual.stages, strict=True):
        assert one.forward_s == pytest.approx(other.forward_s, rel=0.1)
        assert one.compute_s == pytest.approx(other.compute_s, rel=0.1)
        assert 1 <= one.in_flight <= 8


@pytest.mark.parametrize(
    ("schedule", "chunks"), [("gpipe", "1"), ("1f1b", "1"), ("interleaved", "2")]
)
def test_the_example_runs_in_stages(schedule: str, chunks: str) -> None:
    small = {"layers": "8", "sequence": "512", "compiled": "false"}
    prediction = hespas.predict(
        f"torch:{EXAMPLE}:train",
        cluster="4xH100_80GB",
        settings={**small, "stages": "4", "schedule": schedule, "chunks": chunks},
    )
    times_s = [stage.prediction.step_time_s for stage in prediction.stages]
    assert len(times_s) == 4
    assert max(times_s) <= prediction.step_time_s
