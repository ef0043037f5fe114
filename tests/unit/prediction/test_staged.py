"""Pipelines of several programs: laws of the whole prediction, and what is refused of it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from hespas.base.units import PS_PER_S
from hespas.errors import ConfigError, HespasError
from hespas.hardware.presets import load_device
from hespas.models.model import parse_mesh
from hespas.models.placement import parse_place
from hespas.prediction import cutting, staged
from hespas.prediction.answer import PipelinePrediction
from hespas.prediction.composition import predict
from hespas.prediction.cutting import Footprint, cut_of, least_memory, remedy, shared_layers
from hespas.prediction.figures.schema import CommunicationRow, RunReport
from hespas.prediction.figures.step import run_report
from hespas.prediction.options import (
    CompileChoice,
    Fidelity,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.prediction.staged import predict_pipeline
from hespas.program.devices import communication_ops, device_group_table
from hespas.report.run import run_text
from hespas.report.text import bound_parts, waiting_s
from hespas.report.timeline.step import pipeline_chart
from hespas.sources.options import ModelOptions
from hespas.tasks.pipelining.options import PipelineOptions
from hespas.tasks.pipelining.schedule import Pass

SMALL = {"layers": "8", "vocabulary": "4096", "mlp": "2048", "embedding": "1024", "heads": "8"}


def options(
    mesh: str = "pipe=4,fsdp=2",
    *,
    batch: int = 16,
    cluster: str = "8xH100_80GB",
    model: ModelOptions | None = None,
    **pipeline: object,
) -> PredictOptions:
    asked = replace(
        model or ModelOptions(sequence=1024, settings=SMALL),
        mesh=parse_mesh(mesh),
        global_batch=batch,
    )
    return PredictOptions(
        program=ProgramOptions(file=Path("llama3-8b"), model=asked),
        pipeline=PipelineOptions(**pipeline),  # type: ignore[arg-type]
        network=NetworkOptions(cluster=cluster),
    )


@cache
def predicted(schedule: str, mesh: str = "pipe=4,fsdp=2", **changed: str) -> PipelinePrediction:
    overlap = {name: value == "on" for name, value in changed.items()}
    return predict_pipeline(options(mesh, schedule=schedule, overlap=overlap))


SCHEDULES = ("gpipe", "1f1b", "interleaved:2", "zero-bubble")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_parts_of_a_stage_add_up_to_the_step(schedule: str) -> None:
    report = run_report(predicted(schedule))
    _check_sums(report)
    assert sum(row.time_s for row in report.phases) == pytest.approx(report.compute_s, rel=1e-6)


def _check_sums(report: RunReport) -> None:
    assert report.pipeline is not None
    for row in report.pipeline.stages:
        parts = (
            row.compute_s,
            row.exposed_communication_s,
            row.exposed_host_transfer_s,
            row.waiting_s,
            row.sums_s,
            row.end_s,
        )
        assert sum(parts) == pytest.approx(report.step_time_s, abs=1e-9)
    assert report.compute_s + report.exposed_communication_s == report.step_time_s
    exposed_s = sum(row.exposed_s for row in report.communication)
    assert exposed_s == pytest.approx(report.exposed_communication_s, rel=1e-6)
    assert 0 < waiting_s(report) < exposed_s
    assert sum(bound_parts(report).values()) == pytest.approx(1)


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
    with pytest.raises(HespasError, match="give stage_layers 2x2,1x3"):
        shared_layers(7, 5)
    with pytest.raises(HespasError, match="take fewer stages than 5"):
        shared_layers(2, 5)


PARAMETERS = 2 * 4096 * 1024 + 1024 + 8 * (2 * 1024 + 4 * 1024 * 1024 + 3 * 1024 * 2048)
"""Of `SMALL`: embedding and head, a norm, and in each layer norms, attention and three products."""


@pytest.mark.parametrize(
    ("dtype", "held"), [("f32", (2, 4, 12)), ("bf16", (2, 2, 4)), ("f16", (2, 2, 6))]
)
def test_states_are_of_the_type_asked_for(dtype: str, held: tuple[int, int, int]) -> None:
    """Bytes a parameter: weights of passes, sums of gradients; states, divided over two devices.

    In f32 18 of them, as Megatron-Core counts (6 + 12 / d, with 16-bit weights and f32 sums). In
    bf16 the weights of passes are those that AdamW changes: 6 of states and 2 of gradients.
    """
    more = SMALL | {"state_dtype": dtype}
    stages = least_memory(cut_of(options(model=ModelOptions(sequence=1024, settings=more))))
    found = (
        sum(stage.weight_bytes for stage in stages),
        sum(stage.gradient_bytes for stage in stages),
        2 * sum(stage.state_bytes for stage in stages),
    )
    assert found == pytest.approx([each * PARAMETERS for each in held], rel=1e-3)


def test_sums_of_gradients_may_have_a_type_of_their_own() -> None:
    settings = SMALL | {"gradient_dtype": "bf16"}
    stages = least_memory(cut_of(options(model=ModelOptions(sequence=1024, settings=settings))))
    summed = sum(stage.gradient_bytes for stage in stages)
    states = 2 * sum(stage.state_bytes for stage in stages)
    assert (summed, states) == pytest.approx((2 * PARAMETERS, 12 * PARAMETERS), rel=1e-3)


LEAST = [
    ("1f1b", "llama3-8b", "pipe=4,fsdp=2", SMALL),
    ("gpipe", "llama3-8b", "pipe=2,fsdp=2,tp=2", SMALL),
    ("interleaved:2", "llama3-8b", "pipe=2,context=2,tp=2", SMALL),
    ("zero-bubble", "llama3-8b", "pipe=4,fsdp=2", SMALL | {"remat": "full"}),
    ("1f1b", "llama3-8b", "pipe=2,fsdp=4", SMALL | {"state_dtype": "bf16"}),
    ("1f1b", "gpt3-125m", "pipe=2,fsdp=2,tp=2", {"layers": "4", "sequence_parallel": "true"}),
    ("1f1b", "mixtral-8x7b", "pipe=2,expert=4", SMALL | {"expert_mlp": "1024", "layers": "4"}),
    ("1f1b", "mistral-7b", "pipe=4,fsdp=2", SMALL | {"remat": "none"}),
]


@pytest.mark.parametrize(
    ("schedule", "model", "mesh", "more"),
    [
        *LEAST[3:5],
        LEAST[6],
        *(pytest.param(*LEAST[case], marks=pytest.mark.rest) for case in (0, 1, 2, 5, 7)),
    ],
    ids=str,
)
def test_no_stage_needs_less_than_its_arrays(
    schedule: str, model: str, mesh: str, more: dict[str, str]
) -> None:
    of_mesh = options(mesh, schedule=schedule, model=ModelOptions(sequence=1024, settings=more))
    asked = replace(of_mesh, program=replace(of_mesh.program, file=Path(model)))
    prediction = predict_pipeline(asked)
    for least, memory in zip(least_memory(cut_of(asked)), prediction.memories, strict=True):
        assert least.weight_bytes == memory.weight_bytes
        assert least.gradient_bytes == memory.gradient_bytes
        assert least.state_bytes == pytest.approx(memory.state_bytes, abs=64)
        assert least.in_flight == memory.in_flight
        assert 0.5 * memory.peak_bytes < least.peak_bytes <= memory.peak_bytes


def options_too_large() -> PredictOptions:
    model = ModelOptions(sequence=1024)
    asked = options("pipe=2,fsdp=4,tp=2", cluster="16xA100_SXM_40GB", model=model)
    return replace(asked, program=replace(asked.program, file=Path("llama3-70b")))


def test_a_stage_whose_arrays_exceed_the_memory_is_refused_before_anything_is_exported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staged, "load_alone", pytest.fail)
    refusal = (
        r"stage 0 needs at least .* GB of device memory, .* GB more than A100_SXM_40GB has: "
        r"weights .*, gradients .*, optimiser states .*, activations of 2 passes in flight .*; "
        r"divide its weights by \d+ or more: more stages \(2 now\), or a larger tp; "
    )
    with pytest.raises(ConfigError, match=refusal):
        predict_pipeline(options_too_large())


@pytest.mark.parametrize(
    ("schedule", "would"), [("gpipe", "--schedule 1f1b"), ("1f1b", "--remat full")]
)
def test_a_refusal_says_what_would_fit(
    monkeypatch: pytest.MonkeyPatch, schedule: str, would: str
) -> None:
    long = ModelOptions(sequence=16384, settings=SMALL)
    asked = options("pipe=2,fsdp=4", model=long, schedule=schedule)
    most = max(each.peak_bytes for each in least_memory(cut_of(asked)))
    device = replace(load_device("H100_80GB"), memory_capacity_bytes=most - 1)
    monkeypatch.setattr(cutting, "device_of_memory", Mock(return_value=device))
    with pytest.raises(ConfigError) as refused:
        predict_pipeline(asked)
    assert would in refused.value.text(lambda name: f"--{name.replace('_', '-')}")
    forced = replace(asked, pipeline=replace(asked.pipeline, ignore_memory=True))
    assert predict_pipeline(forced).step_time_s > 0


def test_states_that_are_too_large_are_to_be_divided() -> None:
    cut = cut_of(options("pipe=4,tp=2"))
    memory = Footprint(
        weight_bytes=10,
        gradient_bytes=20,
        state_bytes=60,
        kept_bytes=10,
        working_bytes=0,
        in_flight=4,
    )
    assert "fsdp" in remedy(cut, memory, 80)
    assert "divide its weights by 4 or more" in remedy(cut, memory, 25)


EXPERTS = {"layers": "8", "vocabulary": "4096", "embedding": "512", "heads": "8", "mlp": "1024"}


def _of_experts(
    mesh: str = "pipe=2,expert=4",
    *,
    schedule: str | None = "1f1b",
    fidelity: Fidelity = Fidelity.AUTO,
    **hidden: bool,
) -> PipelinePrediction:
    model = ModelOptions(sequence=1024, settings={**EXPERTS, "experts": "16"})
    asked = options(mesh, model=model, batch=32, overlap=hidden, schedule=schedule)
    file = replace(asked.program, file=Path("deepseek-v3"))
    compiled = replace(asked.compile, fidelity=fidelity)
    return predict_pipeline(replace(asked, program=file, compile=compiled))


def test_shared_experts_run_beside_all_to_alls_in_stages_too() -> None:
    off, on = (run_report(_of_experts(experts=each)) for each in (False, True))
    exchanged = [_exchanged(report) for report in (off, on)]
    assert exchanged[1].exposed_s < exchanged[0].exposed_s
    assert exchanged[1].time_s == pytest.approx(exchanged[0].time_s)
    assert on.compute_s == off.compute_s
    assert on.step_time_s < off.step_time_s


def _exchanged(report: RunReport) -> CommunicationRow:
    return next(row for row in report.communication if row.kind == "all_to_all")


def test_all_to_alls_run_beside_a_pass_of_another_micro_batch() -> None:
    """What is hidden of them is what the step becomes shorter by; parts add up with it, too."""
    off, on = (_of_experts(schedule="interleaved:2", exchanges=each) for each in (False, True))
    alone, beside = run_report(off), run_report(on)
    assert alone.pipeline is not None
    assert beside.pipeline is not None
    assert on.finish_ps < off.finish_ps
    assert _exchanged(beside).exposed_s < _exchanged(alone).exposed_s / 2
    assert _exchanged(beside).time_s == pytest.approx(_exchanged(alone).time_s)
    assert beside.compute_s == alone.compute_s
    for one, other in zip(alone.pipeline.stages, beside.pipeline.stages, strict=True):
        hidden_s = sum(on.times.hidden_ps[one.stage].values()) / PS_PER_S
        assert other.exposed_communication_s == pytest.approx(
            one.exposed_communication_s - hidden_s
        )
    _check_sums(beside)
    assert any("of the passes run beside one of another" in text for text in on.notes)


def test_what_all_devices_of_experts_hold_is_summed_once_a_step() -> None:
    """A pass sums nothing over them; the step's sum is there, and divides the states."""
    alone, wide = _of_experts("pipe=2,expert=4"), _of_experts("pipe=2,fsdp=4")
    report = run_report(alone)
    large = {row.kind for row in report.communication if row.axis == "expert" and row.bytes > 1e5}
    assert large == {"all_to_all", "gradients", "weights"}
    for one, other in zip(alone.memories, wide.memories, strict=True):
        # Experts are divided over these devices already, and over fsdp their states alone.
        assert one.weight_bytes < other.weight_bytes
        assert one.state_bytes == pytest.approx(other.state_bytes, rel=0.01)
    footprint = next(iter(alone.costs.values())).footprint
    assert 0 < footprint.expert_bytes < footprint.weight_bytes


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
def test_no_forward_pass_is_ready_beside_a_backward_pass_with_one_chunk(schedule: str) -> None:
    with pytest.raises(ConfigError, match="no forward pass is ready when a backward pass starts"):
        _of_experts(schedule=schedule, exchanges=True)


def test_one_stage_has_a_forward_pass_beside_each_backward_pass_but_the_last() -> None:
    """As Megatron-Core does without pipelining: all-to-alls run beside the other pass."""
    stage = partial(_of_experts, "pipe=1,expert=8", schedule=None, fidelity=Fidelity.LIBRARY)
    alone, beside = stage(), stage(exchanges=True)
    hidden = beside.times.hidden_ps[0]
    forwards = [action for action in hidden if action.kind is Pass.FORWARD]
    assert len(hidden) == 2 * len(forwards) > 0
    assert beside.times.finish_ps == alone.times.finish_ps - sum(hidden.values())


def test_all_to_alls_of_a_mesh_without_experts_are_not_hidden() -> None:
    with pytest.raises(ConfigError, match="no all-to-alls without an axis expert"):
        _of_experts("pipe=2,fsdp=4", schedule="interleaved:2", exchanges=True)


def test_shared_experts_of_a_model_without_any_are_refused() -> None:
    with pytest.raises(ConfigError, match="llama3-8b has no shared experts"):
        predict_pipeline(options(overlap={"experts": True}))


@cache
def _kept(remat: str, schedule: str = "1f1b", bandwidth: float | None = None) -> PipelinePrediction:
    model = ModelOptions(sequence=1024, remat=remat, settings=SMALL)
    asked = options(model=model, schedule=schedule)
    estimate = replace(asked.estimate, host_bandwidth=bandwidth)
    return predict_pipeline(replace(asked, estimate=estimate))


@pytest.mark.parametrize(
    "schedule",
    [*(pytest.param(name, marks=pytest.mark.rest) for name in ("gpipe", "1f1b")), "interleaved:2"],
)
def test_what_layers_keep_lies_in_the_hosts_memory(schedule: str) -> None:
    device, host = (_kept(remat, schedule) for remat in ("minimal_with_context", "offload"))
    for one, other in zip(device.memories, host.memories, strict=True):
        assert other.host_bytes > 0
        assert one.kept_bytes - other.kept_bytes == pytest.approx(other.host_bytes, rel=0.02)
        assert other.peak_bytes < one.peak_bytes
    report = run_report(host)
    assert report.host_memory_bytes == max(each.host_bytes for each in host.memories)
    # What goes out comes back, of every micro-batch.
    micro_batches = host.cut.schedule.micro_batches
    held = host.memories[host.busiest].host_bytes
    in_flight = host.memories[host.busiest].in_flight
    moved = 2 * micro_batches * host.cut.schedule.chunks * held / in_flight
    assert report.host_transfer_bytes == pytest.approx(moved, rel=1e-6)


def test_what_waits_for_gradients_of_weights_is_on_the_device_again() -> None:
    whole, split = _kept("offload"), _kept("offload", "zero-bubble")
    assert split.memories[-1].kept_bytes > whole.memories[-1].kept_bytes


def test_a_slow_link_to_the_host_makes_passes_wait() -> None:
    fast, slow = _kept("offload", bandwidth=1e15), _kept("offload", bandwidth=1e9)
    assert fast.exposed_host_transfer_s == 0
    kept = _kept("minimal_with_context")
    assert fast.step_time_s == pytest.approx(kept.step_time_s, rel=0.1)
    report = run_report(slow)
    parts_s = report.compute_s + report.exposed_communication_s + report.exposed_host_transfer_s
    assert parts_s == pytest.approx(report.step_time_s)
    # The rest is that stages wait for slow passes of others.
    assert report.exposed_host_transfer_s > 0.5 * (slow.step_time_s - fast.step_time_s)
    # One direction at a time is the least that the busiest stage needs.
    assert slow.step_time_s > report.host_transfer_bytes / 2 / 1e9
    assert "exposed host transfers" in run_text(report)


def test_a_link_to_the_host_that_nothing_uses_is_refused() -> None:
    with pytest.raises(ConfigError, match="host_bandwidth has no effect"):
        _kept("full", bandwidth=64e9)


def test_a_link_to_the_host_of_unknown_bandwidth_is_refused_before_anything_is_exported() -> None:
    asked = options(model=ModelOptions(sequence=1024, remat="offload", settings=SMALL))
    node = replace(load_device("H100_80GB"), host_bandwidth_bytes_per_s=None)
    unknown = replace(asked, estimate=replace(asked.estimate, node=node))
    with pytest.raises(HespasError, match="bandwidth of the link is not known"):
        cut_of(unknown)


MANY = {**SMALL, "layers": "8"}


@cache
def of_layers(
    scan: bool | None, *, accumulates: bool = True, remat: str = "minimal_with_context"
) -> PipelinePrediction:
    model = ModelOptions(sequence=1024, scan=scan, remat=remat, settings=MANY)
    mesh = "pipe=2,context=2,tp=2"
    overlap = {} if accumulates else {"accumulation": False}
    return predict_pipeline(options(mesh, model=model, overlap=overlap))


def test_layers_are_written_out_unless_a_loop_is_asked_for() -> None:
    loop, plain = of_layers(True), of_layers(None)
    assert plain.step_time_s < loop.step_time_s
    assert [each.weight_bytes for each in plain.memories] == [
        each.weight_bytes for each in loop.memories
    ]


@pytest.mark.parametrize(
    "remat", [pytest.param("full", marks=pytest.mark.rest), "minimal_with_context"]
)
def test_layers_of_a_loop_keep_as_much_as_those_written_out(remat: str) -> None:
    loop, plain = of_layers(True, remat=remat), of_layers(None, remat=remat)
    for part, cost in plain.costs.items():
        more_bytes = loop.costs[part].footprint.kept_bytes - cost.footprint.kept_bytes
        # A loop may keep a copy of what comes in.
        assert abs(more_bytes) <= loop.message_bytes


def test_gradients_of_one_layer_alone_are_there_at_a_time() -> None:
    """What gradients are made of is not kept until all layers have been passed through."""
    loop, plain = of_layers(True), of_layers(None)
    for part, cost in plain.costs.items():
        footprint, with_loop = cost.footprint, loop.costs[part].footprint
        layer_bytes = footprint.weight_bytes // part.layers
        assert footprint.working_bytes <= with_loop.working_bytes + layer_bytes


def test_gradients_that_are_added_by_kernels_of_their_own_exist_first() -> None:
    together, apart = of_layers(None), of_layers(None, accumulates=False)
    for part, cost in apart.costs.items():
        more = cost.footprint.working_bytes - together.costs[part].footprint.working_bytes
        assert more == cost.footprint.weight_bytes // part.layers


def test_what_a_step_sums_once_costs_a_pass_nothing() -> None:
    prediction = of_layers(None)
    assert not any(
        op.kind == "all_reduce" and device_group_table(op, cost.prediction.graph.program) == GROUPS
        for cost in prediction.costs.values()
        for op in communication_ops(cost.prediction.graph.program)
    )


GROUPS = ((0, 2), (1, 3))
"""Those of the axis ``context`` in a stage of ``context=2,tp=2``."""
