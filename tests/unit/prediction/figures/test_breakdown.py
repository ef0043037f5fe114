"""Where the time of JAX programs and compiled ones goes, by phase, module and kind."""

# JAX's own types are only partly known.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import pytest

from hespas import predict
from hespas.frontend.load import load_per_device
from hespas.prediction import composition
from hespas.prediction.figures.breakdown import (
    Breakdown,
    breakdown,
    kind_rows,
    layer_rows,
    phase_rows,
)
from hespas.prediction.figures.schema import IDLE, SLOWED, KindRow
from hespas.prediction.figures.step import run_report
from hespas.prediction.options import (
    EstimateOptions,
    NetworkOptions,
    PredictOptions,
    ReportOptions,
)
from hespas.prediction.result import Prediction
from hespas.report.answers import full_report
from hespas.report.run import kind_lines, layer_lines, phase_lines, run_text
from hespas.sources.function import export_function
from hespas.split.options import SplitOptions, SplitStrategy
from programs import VECTOR, all_reduce, on_devices, vector_main
from workloads import workload

MATRIX = jax.ShapeDtypeStruct((256, 256), jnp.float32)
STACKED = jax.ShapeDtypeStruct((3, 256, 256), jnp.float32)


def predicted(
    source: bytes, *, system: str | None = None, name: str = "test.mlir", **parts: Any
) -> Prediction:
    options = PredictOptions(
        estimate=parts.pop("estimate", EstimateOptions(node="A100_SXM_40GB")),
        network=NetworkOptions(system=system),
        **parts,
    )
    return composition.predict(options, program=load_per_device(source, name=name).program)


def exported(function: Callable[..., Any], *arguments: Any) -> bytes:
    return export_function(function, *arguments).content


def layer(weights, x):
    with jax.named_scope("mlp"):
        return jnp.tanh(x @ weights)


def unrolled(weights, x):
    again = jax.checkpoint(layer)
    for at in range(3):
        with jax.named_scope(f"layers_{at}"):
            x = again(weights[at], x)
    with jax.named_scope("loss"):
        return jnp.sum(x * x)


def looped(weights, x):
    with jax.named_scope("layers"):
        x = jax.lax.scan(lambda c, w: (jax.checkpoint(layer)(w, c), None), x, weights)[0]
    with jax.named_scope("loss"):
        return jnp.sum(x * x)


def stepped(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(weights, x):
        value, gradient = jax.value_and_grad(loss)(weights, x)
        return weights - 1e-3 * gradient, value

    return step


def check(found: Breakdown, prediction: Prediction) -> None:
    """Check that every table adds up to the computation, and FLOPs and bytes to the total."""
    total = prediction.estimates.total.total
    tables = (
        phase_rows(found),
        kind_rows(found),
        layer_rows(found, depth=1, each_layer=False),
        layer_rows(found, depth=2, each_layer=False),
        layer_rows(found, depth=9, each_layer=True),
    )
    for rows in tables:
        assert sum(row.time_s for row in rows) == pytest.approx(prediction.compute_s, rel=1e-9)
        assert sum(row.flops for row in rows) == pytest.approx(total.flops, rel=1e-9)
        assert sum(row.bytes for row in rows) == pytest.approx(total.bytes_moved, rel=1e-9)
        assert sum(row.share for row in rows) == pytest.approx(1)


@pytest.mark.parametrize("loss", [unrolled, looped])
@pytest.mark.parametrize("strategy", SplitStrategy)
def test_tables_add_up_to_the_computation(
    loss: Callable[..., Any], strategy: SplitStrategy
) -> None:
    source = exported(stepped(loss), STACKED, MATRIX)
    prediction = predicted(source, split=SplitOptions(strategy=strategy))
    check(breakdown(prediction), prediction)


@pytest.mark.parametrize("loss", [unrolled, looped])
def test_phases_and_layers_of_a_training_step(loss: Callable[..., Any]) -> None:
    found = breakdown(predicted(exported(stepped(loss), STACKED, MATRIX)))
    phases = {row.phase: row for row in phase_rows(found)}
    product = 3 * 2 * 256**3
    # The gradient of a product is two products; the last layer's is needed for the weights alone,
    # except in a loop, which does the same in all rounds.
    assert phases["forward"].flops == pytest.approx(product, rel=0.02)
    assert phases["recomputation"].flops == pytest.approx(product, rel=0.02)
    assert phases["backward"].flops in (
        pytest.approx(2 * product, rel=0.02),
        pytest.approx(product * 5 / 3, rel=0.02),
    )
    assert phases["optimiser"].time_s > 0
    paths = {row.path: row for row in layer_rows(found, depth=2, each_layer=False)}
    assert paths["layers/mlp"].flops > 3.5 * product
    assert paths["layers/mlp"].phases.keys() >= {"forward", "recomputation", "backward"}
    assert sum(paths["layers/mlp"].phases.values()) == pytest.approx(paths["layers/mlp"].time_s)
    assert paths["sub"].phases == {"optimiser": paths["sub"].time_s}


def test_equal_layers_are_one_row_or_each_has_its_own() -> None:
    """They are priced once, as regions that are equal but for names."""
    prediction = predicted(
        exported(stepped(unrolled), STACKED, MATRIX),
        split=SplitOptions(strategy=SplitStrategy.INDIVIDUAL),
    )
    found = breakdown(prediction)
    (together,) = (
        row for row in layer_rows(found, depth=1, each_layer=False) if row.path == "layers"
    )
    each = [
        row for row in layer_rows(found, depth=1, each_layer=True) if row.path.startswith("layers_")
    ]
    assert {row.path for row in each} == {"layers_0", "layers_1", "layers_2"}
    assert sum(row.time_s for row in each) == pytest.approx(together.time_s)
    assert len(prediction.modules.modules) < len(prediction.graph.compute_regions)


def test_a_loop_counts_all_of_its_rounds() -> None:
    times = [
        {
            row.path: row.time_s
            for row in layer_rows(
                breakdown(predicted(exported(looped, shape, MATRIX))), depth=2, each_layer=False
            )
        }
        for shape in (STACKED, jax.ShapeDtypeStruct((6, 256, 256), jnp.float32))
    ]
    assert times[1]["layers/mlp"] == pytest.approx(2 * times[0]["layers/mlp"])


def test_caches_and_names_do_not_matter() -> None:
    source = exported(stepped(unrolled), STACKED, MATRIX)
    cached = breakdown(predicted(source))
    uncached = breakdown(
        predicted(source, estimate=EstimateOptions(node="A100_SXM_40GB", disable_cache=True))
    )
    assert phase_rows(cached) == phase_rows(uncached)
    with_names = predicted(source)
    without = predicted(jax.jit(stepped(unrolled)).lower(STACKED, MATRIX).as_text().encode())
    assert with_names.step_time_s == without.step_time_s
    assert kind_rows(breakdown(with_names)) == kind_rows(breakdown(without))


def test_without_names_the_tables_say_so() -> None:
    prediction = predicted(jax.jit(looped).lower(STACKED, MATRIX).as_text().encode())
    report = run_report(prediction)
    check(breakdown(prediction), prediction)
    assert [row.phase for row in report.phases] == ["(no name)"]
    assert [row.path for row in report.layers] == ["(no name)"]
    assert "the program has no names" in phase_lines(report)[0]
    assert layer_lines(report) == []


def test_regions_that_are_measured_whole_are_divided_by_bytes() -> None:
    prediction = replace(
        predicted(exported(stepped(looped), STACKED, MATRIX)), steps=lambda _region: None
    )
    check(breakdown(prediction), prediction)


def test_exposed_communication_has_its_layer() -> None:
    body = (
        f'%0 = stablehlo.tanh %a : {VECTOR} loc("jit(f)/first/tanh")\n'
        f'{all_reduce("%1", "%0")} loc("jit(f)/second/psum")\n'
        f'%r = stablehlo.tanh %1 : {VECTOR} loc("jit(f)/third/tanh")'
    )
    prediction = predicted(on_devices(vector_main(body)).encode(), system="A100_SXM_40GB_4GPU")
    found = breakdown(prediction)
    check(found, prediction)
    exposed = {row.path: row.exposed_s for row in layer_rows(found, depth=2, each_layer=False)}
    assert exposed == {
        "first": 0.0,
        "second": pytest.approx(prediction.exposed_communication_s),
        "third": 0.0,
    }
    (forward,) = phase_rows(found)
    assert forward.exposed_s == pytest.approx(prediction.exposed_communication_s)


def test_a_moment_in_which_several_collectives_run_counts_once() -> None:
    report = full_report(
        predict(
            "llama3-8b",
            cluster="8xH100_80GB",
            mesh="fsdp=4,tp=2",
            software="megatron",
            batch=1,
            sequence=1024,
            settings={"layers": "4", "vocabulary": "4096"},
        )
    )
    others_s = sum(row.exposed_s for row in report.communication if row.kind in {IDLE, SLOWED})
    assert others_s > 0
    for rows in (report.phases, report.layers):
        exposed_s = sum(row.exposed_s for row in rows)
        assert exposed_s + others_s == pytest.approx(report.exposed_communication_s, rel=1e-6)


COMPILED = ["llama3_100m_h100_4.hlo", "llama8b_h100_64.scan.hlo"]


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_programs_add_up(name: str) -> None:
    source = workload(name)
    system = {"llama3_100m_h100_4.hlo": "H100_80GB_4GPU"}.get(name, "64xH100_80GB")
    estimate = EstimateOptions(node="H100_80GB", method="roofline")
    prediction = predicted(source, name=name, system=system, estimate=estimate)
    found = breakdown(prediction)
    check(found, prediction)
    phases = {row.phase: row for row in phase_rows(found)}
    assert phases["backward"].flops > 1.5 * phases["forward"].flops
    assert phases["optimiser"].time_s > 0
    kinds = {row.kind: row for row in kind_rows(found)}
    assert "mhlo.fusion" not in kinds
    assert sum(row.flops for kind, row in kinds.items() if "product" in kind) > 0.9 * sum(
        row.flops for row in kinds.values()
    )


def test_depth_is_counted_in_the_module_that_has_the_layers() -> None:
    def model(weights, x):
        with jax.named_scope("model"):
            with jax.named_scope("embedding"):
                x = x @ weights
            for number in range(2):
                with jax.named_scope(f"layers.{number}"), jax.named_scope("mlp"):
                    x = jnp.tanh(x @ weights)
        with jax.named_scope("head"), jax.named_scope("out"), jax.named_scope("product"):
            return x @ weights

    found = breakdown(predicted(exported(model, MATRIX, MATRIX)))
    rows = layer_rows(found, depth=2, each_layer=False)
    assert {row.path for row in rows} == {"model/layers/mlp", "model/embedding", "head/out"}


def test_depth_is_an_option() -> None:
    source = exported(unrolled, STACKED, MATRIX)
    report = run_report(predicted(source, report=ReportOptions(depth=1, each_layer=True)))
    assert {row.path for row in report.layers} >= {"layers_0", "layers_1", "layers_2", "loss"}


def test_rows_beyond_the_first_ten_are_joined() -> None:
    report = run_report(predicted(exported(unrolled, STACKED, MATRIX)))
    kinds = [
        KindRow(kind=f"kind {at}", count=1, time_s=1.0, share=1 / 12, flops=0.0, bytes=0.0)
        for at in range(12)
    ]
    lines = kind_lines(msgspec.structs.replace(report, kinds=kinds, compute_s=12.0))
    assert len(lines) == 12
    assert lines[-1].split() == ["2", "other", "kinds", "2", "s", "16.7", "%"]


def test_the_text_has_the_three_tables() -> None:
    text = run_text(run_report(predicted(exported(stepped(unrolled), STACKED, MATRIX))))
    for title in ("The computation, by kind of kernel", "By phase", "By module"):
        assert title in text
    assert "layers/mlp" in text
