"""Pipelines of several programs: what their stages hold, and where."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import pytest

from hespas.errors import ConfigError, HespasError
from hespas.hardware.presets import load_device
from hespas.prediction import cutting, part_costs
from hespas.prediction.answer import PipelinePrediction
from hespas.prediction.cutting import Footprint, cut_of, least_memory, remedy
from hespas.prediction.figures.step import run_report
from hespas.prediction.options import (
    PredictOptions,
)
from hespas.prediction.staged import predict_pipeline
from hespas.program.devices import communication_ops, device_group_table
from hespas.report.run import run_text
from hespas.sources.options import ModelOptions
from small_pipelines import SMALL, options

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
    monkeypatch.setattr(part_costs, "load_alone", pytest.fail)
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


@cache
def _kept(remat: str, schedule: str = "1f1b", bandwidth: float | None = None) -> PipelinePrediction:
    model = ModelOptions(scan=False, sequence=1024, remat=remat, settings=SMALL)
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
    assert parts_s + report.stage_wait_s == pytest.approx(report.step_time_s)
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
    loop, plain = of_layers(True), of_layers(False)
    assert plain.step_time_s < loop.step_time_s
    assert [each.weight_bytes for each in plain.memories] == [
        each.weight_bytes for each in loop.memories
    ]


@pytest.mark.parametrize(
    "remat", [pytest.param("full", marks=pytest.mark.rest), "minimal_with_context"]
)
def test_layers_of_a_loop_keep_as_much_as_those_written_out(remat: str) -> None:
    loop, plain = of_layers(True, remat=remat), of_layers(False, remat=remat)
    for part, cost in plain.costs.items():
        more_bytes = loop.costs[part].footprint.kept_bytes - cost.footprint.kept_bytes
        # A loop may keep a copy of what comes in.
        assert abs(more_bytes) <= loop.message_bytes


def test_gradients_of_one_layer_alone_are_there_at_a_time() -> None:
    """What gradients are made of is not kept until all layers have been passed through."""
    loop, plain = of_layers(True), of_layers(False)
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
        op.kind == "all_reduce" and device_group_table(op, program.passes.graph.program) == GROUPS
        for cost in prediction.costs.values()
        for program in cost.programs
        for op in communication_ops(program.passes.graph.program)
    )


GROUPS = ((0, 2), (1, 3))
"""Those of the axis ``context`` in a stage of ``context=2,tp=2``."""
