"""Shared experts beside all-to-alls: what moves, what does not, and that nothing else changes."""

from __future__ import annotations

from functools import cache

import pytest

import hespas
from hespas.errors import ConfigError
from hespas.frontend.load import load_source
from hespas.lower.beside import ASSUMPTION, STAYING, with_experts_beside
from hespas.lower.fused import fused
from hespas.prediction.figures.step import run_report
from hespas.prediction.result import Prediction
from hespas.program.collectives import CollectiveKind
from hespas.program.program import Op, Program
from hespas.program.scopes import Phase, read_scope
from hespas.split.regions import Compute, operations_of
from hespas.tasks.build import regions_of_tasks
from hespas.tasks.graph import CollectiveTask, ComputeTask
from programs import main_function, on_devices

KIND = "tensor<64x64xbf16>"
FORWARD = "jit(step)/jvp(layers_00)/mlp"


def exchange(result: str, operand: str, scope: str, channel: int) -> str:
    return (
        f'{result} = "stablehlo.all_to_all"({operand}) <{{split_dimension = 0, concat_dimension = '
        "0, split_count = 4, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, "
        f"channel_handle = #stablehlo.channel_handle<handle = {channel}, type = 1>}}> : "
        f'({KIND}) -> {KIND} loc("{scope}/all_to_all")'
    )


def product(result: str, left: str, right: str, scope: str) -> str:
    return (
        f"{result} = stablehlo.dot_general {left}, {right}, contracting_dims = [1] x [0] : "
        f'({KIND}, {KIND}) -> {KIND} loc("{scope}/dot_general")'
    )


def layer(shared_input: str, *, scope: str = FORWARD) -> str:
    return "\n".join(
        (
            exchange("%sent", "%x", f"{scope}/dispatch", 1),
            product("%made", "%sent", "%w", f"{scope}/experts"),
            exchange("%back", "%made", f"{scope}/combine", 2),
            f'%summed = stablehlo.tanh %back : {KIND} loc("{scope}/combine/tanh")',
            product("%up", shared_input, "%v", f"{scope}/shared"),
            f'%active = stablehlo.tanh %up : {KIND} loc("{scope}/shared/tanh")',
            product("%down", "%active", "%u", f"{scope}/shared"),
            f"return %summed, %down : {KIND}, {KIND}",
        )
    )


def program(body: str) -> Program:
    names = ", ".join(f"%{name}: {KIND}" for name in ("x", "w", "v", "u"))
    text = main_function(body, arguments=names, results=f"{KIND}, {KIND}")
    return fused(load_source(on_devices(text).encode(), name="test.mlir"))


def kernels(made: Program) -> list[str]:
    return [_name(op) for op in made.main.body.operations if not op.traits.runs_nothing]


def _name(op: Op) -> str:
    module = read_scope(op.scope).path[-1]
    return f"{module} {op.kind.removeprefix('async_')}" if "async" in op.kind else module


def test_products_of_shared_experts_stand_beside_the_exchanges() -> None:
    before = program(layer("%x"))
    after = with_experts_beside(before)
    assert kernels(after) == [
        *("dispatch start", "shared", "shared", "dispatch done", "experts"),
        *("combine start", "shared", "combine done", "combine"),
    ]
    assert set(after.main.results) == set(before.main.results)
    assert after.assumptions == (*before.assumptions, ASSUMPTION)


def test_what_waits_for_an_exchange_stays() -> None:
    before = program(layer("%back"))
    after = with_experts_beside(before)
    assert kernels(after) == kernels(before)
    assert after.assumptions[-1] == STAYING


def test_experts_of_another_layer_or_phase_stay() -> None:
    for other in ("jit(step)/jvp(layers_01)/mlp", "jit(step)/transpose(jvp(layers_00))/mlp"):
        text = layer("%x").replace(f"{FORWARD}/shared", f"{other}/shared")
        before = program(text)
        assert kernels(with_experts_beside(before)) == kernels(before)


SMALL = {"layers": "5", "embedding": "512", "experts": "16", "heads": "8", "mlp": "1024"}


@cache
def step(*, on: bool, mesh: str = "expert=4", fidelity: str = "fused", **more: str) -> Prediction:
    return hespas.predict(
        "deepseek-v3",
        cluster="4xH100_80GB" if "," not in mesh else "8xH100_80GB",
        mesh=mesh,
        sequence=1024,
        settings={**SMALL, "vocabulary": "4096", **more},
        fidelity=fidelity,
        overlap={"experts": on},
    )


def _exchanged_ps(prediction: Prediction) -> int:
    """Return how long a device waits for all-to-alls."""
    assert prediction.timeline is not None
    exposed = prediction.timeline.slowest.exposed_ps
    return sum(
        exposed.get(task.id, 0)
        for task in prediction.tasks.tasks
        if isinstance(task, CollectiveTask) and task.kind is CollectiveKind.ALL_TO_ALL
    )


def _shared_ps(prediction: Prediction) -> int:
    """Return how long a device computes shared experts."""
    regions = regions_of_tasks(prediction.graph, prediction.tasks)
    return sum(
        task.duration_ps
        for task in prediction.tasks.tasks
        if isinstance(task, ComputeTask)
        and isinstance(region := regions[task.id], Compute)
        and "shared" in read_scope(operations_of(region)[0].scope).path
    )


@pytest.mark.parametrize(("mesh", "scan"), [("expert=4", "false"), ("expert=4,tp=2", "true")])
def test_exposed_exchanges_fall_by_at_most_the_time_of_shared_experts(mesh: str, scan: str) -> None:
    off, on = (step(on=each, mesh=mesh, scan=scan) for each in (False, True))
    gain = _exchanged_ps(off) - _exchanged_ps(on)
    assert 0 < gain <= _shared_ps(off) == _shared_ps(on)
    assert off.timeline is not None
    assert on.timeline is not None
    assert on.timeline.slowest.compute_ps == off.timeline.slowest.compute_ps
    assert on.timeline.slowest.communication_ps == pytest.approx(
        off.timeline.slowest.communication_ps, rel=1e-3
    )
    assert on.step_time_s < off.step_time_s
    assert run_report(on, with_tables=False).flops == run_report(off, with_tables=False).flops


def test_off_is_the_default() -> None:
    default = hespas.predict(
        "deepseek-v3",
        cluster="4xH100_80GB",
        mesh="expert=4",
        sequence=1024,
        settings={**SMALL, "vocabulary": "4096"},
        fidelity="fused",
    )
    assert default.step_time_s == step(on=False).step_time_s
    assert default.assumptions == step(on=False).assumptions


def test_both_passes_hide_exchanges() -> None:
    program = step(on=True).graph.program
    beside: set[Phase | None] = set()
    loops = [op for op in program.main.body.operations if op.kind == "while"]
    for block in [program.main.body, *(region for op in loops for region in op.regions)]:
        in_flight = 0
        for op in block.operations:
            if op.kind.startswith("async") and "all_to_all" in op.instruction:
                in_flight += 1 if op.kind == "async_start" else -1
            elif in_flight and "shared" in read_scope(op.scope).path:
                beside.add(read_scope(op.scope).phase)
    assert {Phase.FORWARD, Phase.BACKWARD} <= beside


@pytest.mark.parametrize(
    ("model", "mesh", "fidelity", "message"),
    [
        ("llama3-8b", "fsdp=4", "fused", "llama3-8b has no shared experts"),
        ("mixtral-8x7b", "expert=4", "fused", "mixtral-8x7b has no shared experts"),
        ("deepseek-v3", "fsdp=4", "fused", "deepseek-v3 has no all-to-alls without an axis expert"),
        ("deepseek-v3", "expert=4", "exported", "overlap anyway"),
    ],
)
def test_what_has_nothing_to_hide_is_refused(
    model: str, mesh: str, fidelity: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        hespas.predict(
            model, cluster="4xH100_80GB", mesh=mesh, fidelity=fidelity, overlap={"experts": True}
        )


def test_names_are_checked() -> None:
    with pytest.raises(ConfigError, match="is 'expert'") as caught:
        hespas.predict("llama3-8b", cluster="4xH100_80GB", overlap={"expert": True})
    assert "experts" in caught.value.hint


def test_other_names_need_stages() -> None:
    with pytest.raises(ConfigError, match="overlap has no effect without stages"):
        hespas.predict("llama3-8b", cluster="4xH100_80GB", overlap={"tp": True})


def test_a_program_without_shared_experts_is_refused() -> None:
    with pytest.raises(ConfigError, match="no module of the program has both"):
        hespas.predict(
            "examples/attention_block.mlir",
            "A100_SXM_40GB",
            "A100_SXM_40GB_4GPU",
            fidelity="fused",
            overlap={"experts": True},
        )
