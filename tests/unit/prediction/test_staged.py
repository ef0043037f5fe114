"""Pipelines of several programs: laws of the whole prediction, and what is refused of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hespas.errors import HespasError
from hespas.models.placement import parse_place
from hespas.prediction.composition import predict
from hespas.prediction.cutting import cut_of, shared_layers
from hespas.prediction.figures.step import run_report
from hespas.prediction.options import (
    CompileChoice,
    Fidelity,
)
from hespas.prediction.staged import predict_pipeline
from hespas.report.run import run_text
from hespas.report.timeline.step import pipeline_chart
from hespas.tasks.pipelining.options import PipelineOptions
from hespas.tasks.pipelining.schedule import Pass
from small_pipelines import check_sums, options, predicted

SCHEDULES = ("gpipe", "1f1b", "interleaved:2", "zero-bubble")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_parts_of_a_stage_add_up_to_the_step(schedule: str) -> None:
    report = run_report(predicted(schedule))
    check_sums(report)
    assert sum(row.time_s for row in report.phases) == pytest.approx(report.compute_s, rel=1e-6)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_computes_the_same(schedule: str) -> None:
    first, other = run_report(predicted("1f1b")), run_report(predicted(schedule))
    assert other.flops == pytest.approx(first.flops, rel=0.01)
    assert other.tokens_per_s is not None
    assert other.tokens_per_s * other.step_time_s == pytest.approx(16 * 1024)


def test_equal_stages_are_priced_once() -> None:
    assert len(predicted("1f1b").costs) == 3
    assert len(predicted("interleaved:2").costs) == 3


def test_zero_bubble_waits_less_than_1f1b_and_gpipe_holds_more() -> None:
    one, zero, gpipe = (predicted(name) for name in ("1f1b", "zero-bubble", "gpipe"))
    assert zero.bubble < one.bubble
    assert gpipe.memories[0].in_flight == 8
    assert [each.in_flight for each in one.memories] == [4, 3, 2, 1]
    kept = [each.kept_bytes for each in one.memories[:3]]
    part = one.costs[one.cut.parts[1]].footprint.kept_bytes
    assert kept[1] - kept[2] == part
    assert gpipe.memories[1].kept_bytes == 8 * part


def test_the_first_stage_makes_gradients_of_inputs_as_the_others_do() -> None:
    """Layers behind the embedding need them for gradients of weights, each of the layer behind."""
    zero, one = predicted("zero-bubble"), predicted("1f1b")
    first, middle, _ = (zero.costs[part].passes for part in dict.fromkeys(zero.cut.parts))
    assert first.backward.total_ps == pytest.approx(middle.backward.total_ps, rel=0.02)
    for part, cost in zero.costs.items():
        split, whole = cost.passes, one.costs[part].passes.backward
        assert (split.backward + split.weights).total_ps == pytest.approx(whole.total_ps, rel=1e-6)
    passes = zero.times.passes[0]
    for action, (start, _) in passes.items():
        if action.kind is Pass.WEIGHTS:
            _, end = passes[action._replace(kind=Pass.BACKWARD)]
            assert end <= start


@pytest.mark.parametrize("name", ["gradients", "parameters", "messages", "accumulation"])
def test_what_is_not_hidden_takes_no_less(name: str) -> None:
    hidden, open_ = predicted("interleaved:2"), predicted("interleaved:2", **{name: "off"})
    assert open_.finish_ps >= hidden.finish_ps


def test_tensor_parallel_communication_is_hidden_in_pieces() -> None:
    mesh = "pipe=2,tp=4"
    hidden, open_ = predicted("1f1b", mesh), predicted("1f1b", mesh, tp="off")
    before, after = (each.costs[each.cut.parts[0]].passes.forward.tp_ps for each in (open_, hidden))
    assert 0 < after <= before // 4 + 1


def test_one_stage_with_kernels_of_libraries_is_a_pipeline() -> None:
    one = replace(options("pipe=1,fsdp=8"), compile=CompileChoice(fidelity=Fidelity.LIBRARY))
    assert one.is_pipeline
    found = predict_pipeline(one)
    assert found.message_ps == 0
    assert len(found.stages) == 1


def test_weights_are_gathered_a_layer_at_a_time() -> None:
    """The first pass begins before the last layer's have come, and never waits for a layer's."""
    one = replace(options("pipe=1,fsdp=8"), compile=CompileChoice(fidelity=Fidelity.LIBRARY))
    together = replace(one, pipeline=PipelineOptions(overlap={"parameters": False}))
    (begins, ends), (last, _) = (
        min(predict_pipeline(each).times.passes[0].values()) for each in (one, together)
    )
    (_, (_, gathered)) = predict_pipeline(one).stages[0].gathers[0]
    assert last == gathered
    assert 0 < begins < gathered
    layers = predict_pipeline(one).cut.parts[0].layers
    each, pass_ps = gathered // layers, (ends - begins) // layers
    for layer in range(layers):
        assert begins + layer * pass_ps >= (layer + 1) * each - layers
    report = run_report(predict_pipeline(one))
    exposed = {row.kind: row.exposed_s for row in report.communication}
    assert exposed["weights"] * 1e12 == pytest.approx(begins)
    assert "idle" not in exposed
    assert "One stage: " in run_text(report)


def test_libraries_read_and_write_sums_beside_their_products() -> None:
    one = replace(
        options("pipe=1,fsdp=8"),
        compile=CompileChoice(fidelity=Fidelity.LIBRARY),
        pipeline=PipelineOptions(),
    )
    apart = replace(one, pipeline=PipelineOptions(overlap={"accumulation": False}))
    (hidden,), (open_,) = (list(predict_pipeline(each).costs.values()) for each in (one, apart))
    plain, more = hidden.passes.backward.compute_ps, open_.passes.backward.compute_ps
    assert plain < more < 1.5 * plain


def test_one_stage_is_no_pipeline() -> None:
    one = options("pipe=1,fsdp=8")
    assert not one.is_pipeline
    alone = options("fsdp=8")
    assert predict(one).step_time_s == predict(alone).step_time_s


def test_the_report_names_the_stages_and_the_chart_has_a_track_for_each() -> None:
    prediction = predicted("interleaved:2")
    text = run_text(run_report(prediction))
    assert "Pipeline: 4 stages, interleaved:2, 8 micro-batches of 1 sequence; bubble" in text
    (process,) = pipeline_chart(prediction).processes
    stages = [track for track in process.tracks if "devices" in track.name]
    assert [track.name for track in stages][:2] == [
        "stage 0: devices 0-1",
        "stage 1: devices 2-3",
    ]
    # Two chunks, forward and backward, and the optimiser.
    assert all(len(track.slices) == 8 * 2 * 2 + 1 for track in stages)
    for track in process.tracks:
        ends = [each.end_ps for each in track.slices]
        starts = [each.start_ps for each in track.slices]
        assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))


def test_a_stage_that_does_not_fit_is_named_with_a_remedy() -> None:
    prediction = predicted("1f1b")
    assert prediction.device is not None
    small = replace(prediction.device, memory_capacity_bytes=10**8)
    large = replace(prediction, device=small)
    (warning,) = [each for each in large.warnings if each.startswith("stage")]
    assert "MB more than there is, and 3 other stages lack less; " in warning
    assert "does not fit" in run_text(run_report(large))


def test_axes_are_placed_where_they_are_asked_for() -> None:
    near = options("pipe=2,fsdp=8", cluster="16xH100_80GB")
    cut = cut_of(near)
    assert str(cut.mesh) == "pipe=2,fsdp=8"
    assert cut.devices_of(1) == tuple(range(8, 16))
    place = parse_place("pipe=0,fsdp=0+1")
    far = replace(near, network=replace(near.network, place=place))
    assert cut_of(far).devices_of(1) == tuple(range(1, 16, 2))


@pytest.mark.parametrize(
    ("mesh", "changed", "refusal"),
    [
        ("pipe=3,fsdp=2", {}, "the mesh pipe=3,fsdp=2 has 6 devices, and there are 8"),
        ("pipe=4,fsdp=2", {"batch": 15}, "15 cannot be divided over the 2 data-parallel parts"),
        (
            "pipe=4,fsdp=2",
            {"batch": 12, "schedule": "interleaved:2"},
            "6 micro-batches are not divided by the 4 stages of interleaved:2; give 4 or 8",
        ),
        ("pipe=8", {"schedule": "interleaved:3"}, "8 layers are not divided by 24 parts"),
        ("pipe=4,fsdp=2", {"stage_layers": (2, 2, 2)}, "stage_layers names 3 parts with 6 layers"),
        ("pipe=4,fsdp=2", {"stage_layers": (0, 2, 2, 4)}, "part 0 of llama3-8b has no layer"),
        ("pipe=2,tp=3", {"cluster": "6xH100_80GB"}, "heads = 8 cannot be divided by tp=3"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_exported(
    mesh: str, changed: dict[str, object], refusal: str
) -> None:
    with pytest.raises(HespasError) as error:
        cut_of(options(mesh, **changed))  # type: ignore[arg-type]
    assert refusal in str(error.value)
    assert "\n" not in str(error.value)


def test_a_schedule_of_ones_own_fits_the_mesh(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("F0 B0\nF0 B0\n")
    with pytest.raises(HespasError, match="the schedule has 2 stages, and there are 4"):
        cut_of(options(schedule=str(file)))
    with pytest.raises(HespasError, match="the schedule has 1 micro-batches, and there are 2"):
        cut_of(options("pipe=2,fsdp=4", batch=8, schedule=str(file)))
    assert cut_of(options("pipe=2,fsdp=4", batch=4, schedule=str(file))).schedule.stages == 2


def test_stages_may_be_all_of_a_mesh() -> None:
    cut = cut_of(options("pipe=8"))
    assert [cut.devices_of(stage) for stage in range(8)] == [(each,) for each in range(8)]


def test_stages_need_an_axis() -> None:
    with pytest.raises(HespasError, match="schedule has no effect without stages; drop it, or"):
        predict(options("fsdp=8", schedule="1f1b"))


def test_layers_are_shared_as_frameworks_do() -> None:
    assert shared_layers(126, 64) == (1, *[2] * 62, 1)
    assert sum(shared_layers(96, 48)) == 96
    # 61 layers, the embedding and the head are 63: three parts have one more.
    assert shared_layers(61, 4) == (15, 16, 16, 14)
    assert sum(shared_layers(61, 16)) == 61
    with pytest.raises(HespasError, match="give stage_layers 2x2,1x3"):
        shared_layers(7, 5)
    with pytest.raises(HespasError, match="take fewer stages than 5"):
        shared_layers(2, 5)
