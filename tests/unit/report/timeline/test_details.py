"""What the program says of a step's tasks, in a prediction's chart."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from msgspec import structs

import hespas
from charts import ReadChart, ReadSlice, read_chart
from hespas.frontend.load import load_per_device
from hespas.hardware.cluster import Cluster
from hespas.prediction import composition
from hespas.prediction.options import (
    AS_GIVEN,
    EstimateOptions,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.prediction.result import Prediction
from hespas.program.program import Program
from hespas.program.recorded import CollectiveCall, encode_recorded
from hespas.report.answers import full_report
from hespas.report.timeline.details import program_details
from hespas.report.timeline.step import step_chart
from hespas.report.timeline.write import Chart, Track, write_chart
from hespas.simulate.options import Model
from recorded_steps import COMMUNICATION, Recorder
from scheduled import done, kernel, loop, scheduled, start, sync

LLAMA = Path("examples/llama3_100m_fsdp4.mlir")
SYSTEM = "H100_80GB_4GPU"


def predicted(
    program: Program | None = None,
    *,
    cluster: Cluster | None = None,
    most_slices: int = 10**6,
    model: Model | None = None,
) -> tuple[Prediction, Chart]:
    options = PredictOptions(
        program=ProgramOptions(file=LLAMA),
        compile=AS_GIVEN,
        estimate=EstimateOptions(node="H100_80GB"),
        network=NetworkOptions(system=SYSTEM, imperfect=cluster, model=model),
    )
    prepared = composition.prepare(options, program=program)
    prediction = composition.finish(
        prepared, composition.price(prepared, options, store=None), options
    )
    assert prediction.timeline is not None
    details = program_details(prediction)
    return prediction, step_chart(prediction.timeline, details, most_slices=most_slices)


def track(chart: Chart, name: str, process: int = 0) -> Track:
    (found,) = [each for each in chart.processes[process].tracks if each.name == name]
    return found


def many_rounds(count: int = 80) -> Program:
    function, rounds = loop("r", "k0", kernel("u", "v"), kernel("w", "u"), count=count)
    lines = [kernel("k0", "a"), start("s", "k0"), *rounds, done("d", "s")]
    return scheduled(*lines, kernel("last", "d"), functions=function)


@pytest.fixture(scope="module")
def exported() -> tuple[Prediction, Chart]:
    return predicted()


def test_kernels_fill_their_region(exported: tuple[Prediction, Chart], tmp_path: Path) -> None:
    prediction, chart = exported
    write_chart(chart, tmp_path / "t.pftrace")

    compute = read_chart(tmp_path / "t.pftrace").tracks["devices 0-3", "compute"]
    outer = [each for each in compute if each.depth == 0]
    inner = [each for each in compute if each.depth == 1]
    assert [each.name for each in outer] == [
        task.name for task in prediction.tasks.tasks if task.name.startswith("region")
    ]
    assert len(inner) > 4 * len(outer)
    assert {"dot_general", "add", "transpose"} <= {each.name for each in inner}
    within = sum(each.end_ns - each.start_ns for each in inner)
    assert within == pytest.approx(sum(each.end_ns - each.start_ns for each in outer), rel=1e-6)


def test_the_compute_track_is_the_time_of_computation(exported: tuple[Prediction, Chart]) -> None:
    prediction, chart = exported
    regions = [each for each in track(chart, "compute").slices if "id" in each.arguments]
    assert prediction.timeline is not None
    total_ps = sum(each.end_ps - each.start_ps for each in regions)
    slower_ps = prediction.timeline.slowest.slowed_ps
    assert total_ps - slower_ps == prediction.timeline.slowest.compute_ps
    assert (total_ps - slower_ps) * 1e-12 == pytest.approx(prediction.compute_s, rel=1e-7)
    assert max(each.end_ps for each in chart.slices) == prediction.timeline.finish_ps


def test_a_slice_says_what_it_does_and_what_decides_its_time(
    exported: tuple[Prediction, Chart],
) -> None:
    products = [each for each in exported[1].slices if each.name == "dot_general"]
    told = products[0].arguments
    assert told["operation"] == "stablehlo.dot_general"
    assert "llama3_100m_fsdp4.mlir:" in str(told["source"])
    assert isinstance(told["flops"], int)
    assert told["flops"] > 1e6
    assert {each.arguments["limit"] for each in products} <= {"compute 100 %", "memory 100 %"}


def test_names_inside_are_those_of_the_region_itself(exported: tuple[Prediction, Chart]) -> None:
    """Though equal regions are priced once."""
    lines = [each.arguments["source"] for each in exported[1].slices if each.name == "dot_general"]
    assert len(set(lines)) == len(lines)


def test_kernels_take_longer_in_proportion_on_a_slow_device() -> None:
    _, chart = predicted(cluster=Cluster(compute_scales={2: 1.5}), model=Model.ASTRA_SIM)

    names = [each.name for each in chart.processes]
    fast, slow = (
        {
            str(each.arguments["source"]): each
            for each in track(chart, "compute", names.index(name)).slices
            if each.category == "operation" and each.end_ps - each.start_ps > 10_000
        }
        for name in ("device 0", "device 2")
    )
    assert len(fast) > 1000
    assert fast.keys() <= slow.keys()
    for source, one in fast.items():
        longer = (one.end_ps - one.start_ps) * 1.5
        assert slow[source].end_ps - slow[source].start_ps == pytest.approx(longer, abs=3)


def test_phases_and_layers_are_nested_slices() -> None:
    _, chart = predicted(named_program())

    layers = [(each.name, each.start_ps, each.end_ps) for each in track(chart, "layers").slices]
    kernels = {each.name: each for each in track(chart, "compute").slices}
    k0, k1, k2, k3 = (kernels[f"k{at}"] for at in range(4))
    assert layers == [
        ("layers_0", k0.start_ps, k2.end_ps),
        ("attention", k0.start_ps, k1.end_ps),
        ("mlp", k2.start_ps, k2.end_ps),
        ("layers_1", k3.start_ps, k3.end_ps),
    ]
    phases = [(each.name, each.start_ps, each.end_ps) for each in track(chart, "phases").slices]
    assert phases == [
        ("forward", k0.start_ps, k2.end_ps), ("backward", k3.start_ps, k3.end_ps)
    ]  # fmt: skip
    assert k0.arguments["scope"] == "jit(f)/jvp(layers_0)/attention/dot"


def named_program() -> Program:
    scopes = (
        "jit(f)/jvp(layers_0)/attention/dot",
        "jit(f)/jvp(layers_0)/attention/add",
        "jit(f)/jvp(layers_0)/mlp/dot",
        "jit(f)/transpose(jvp(layers_1))/dot",
    )
    operands = ("a", "k0", "k1", "k2")
    lines = [
        f'{kernel(f"k{at}", operand)}, metadata={{op_name="{scope}"}}'
        for at, (operand, scope) in enumerate(zip(operands, scopes, strict=True))
    ]
    return scheduled(*lines)


def nested(found: ReadChart, name: str) -> list[ReadSlice]:
    return [each for each in found.tracks["devices 0-3", "compute"] if each.name.startswith(name)]


def test_a_long_loop_shows_its_first_and_last_round_and_a_summary(tmp_path: Path) -> None:
    write_chart(predicted(many_rounds())[1], tmp_path / "t.json")

    found = read_chart(tmp_path / "t.json")
    (whole,) = nested(found, "out_r")
    assert whole.depth == 0
    rounds = nested(found, "round")
    assert [each.name for each in rounds] == [
        "round 1 of 80", "rounds 2 to 79, each as the first", "round 80 of 80"
    ]  # fmt: skip
    assert rounds[0].start_ns == whole.start_ns
    assert rounds[-1].end_ns == whole.end_ns
    each_ns = rounds[0].end_ns - rounds[0].start_ns
    assert rounds[1].end_ns - rounds[1].start_ns == pytest.approx(78 * each_ns, abs=78)
    inside = [each.depth for each in nested(found, "u") if each.category == "kernel"]
    assert inside == [2, 2]


def test_a_loop_that_communicates_is_shown_round_by_round() -> None:
    function, rounds = loop("r", "k0", kernel("u", "v"), sync("w", "u"), count=4)
    program = scheduled(kernel("k0", "a"), *rounds, kernel("last", "r"), functions=function)

    _, chart = predicted(program)

    whole, *each = track(chart, "loops").slices
    kernels = [one for one in track(chart, "compute").slices if one.name.startswith("next")]
    assert whole.name == "out_r"
    assert (whole.start_ps, whole.end_ps) == (kernels[0].start_ps, each[-1].end_ps)
    assert [one.name for one in each] == [f"round {number} of 4" for number in range(1, 5)]
    assert [one.start_ps for one in each] == [one.start_ps for one in kernels]
    assert all(before.end_ps <= after.start_ps for before, after in pairwise(each))


def test_a_short_loop_shows_all_rounds() -> None:
    _, chart = predicted(many_rounds(3))
    rounds = [each.name for each in chart.slices if each.category == "round"]
    assert rounds == ["round 1 of 3", "round 2 of 3", "round 3 of 3"]


def test_memory_is_a_counter_with_the_peak_of_the_report() -> None:
    prediction, chart = predicted(many_rounds())

    (counter,) = chart.processes[0].counters
    assert all(before[0] < after[0] for before, after in pairwise(counter.points))
    peak = max(value for _, value in counter.points)
    assert peak == prediction.memory.peak_bytes - prediction.memory.gap_bytes


def test_memory_of_kernels_behind_which_communication_starts_early_is_shown() -> None:
    """The second product is launched before the gather, and starts after it."""
    step = Recorder()
    given = step.tensor(8192, 8192, is_given=True)
    step.product(given, given)
    step.product(given, given)
    step.storages[-1] = structs.replace(step.storages[-1], freed=len(step.calls))
    shard, whole = step.tensor(1024), step.tensor(8192)
    ranks = tuple(range(8))
    step.calls.append(
        CollectiveCall(
            kind="all_gather", ranks=ranks, inputs=(shard,), outputs=(whole,), stream=COMMUNICATION
        )
    )
    program = load_per_device(encode_recorded(step.step()), name="step.json").program

    report = full_report(hespas.predict(program, cluster="8xH100_80GB"))
    assert report.memory is not None
    shown = [point.bytes for point in report.memory.points]
    assert max(shown) == report.live_memory_bytes
    assert shown[-1] < max(shown)


def test_what_is_inside_of_tasks_is_left_out_first() -> None:
    _, chart = predicted(most_slices=2000)

    assert {each.category for each in chart.slices} == {
        "compute", "communication", "exposed", "wait"
    }  # fmt: skip
    assert chart.notes == (
        "what is inside of tasks of devices 0-3 is not shown: a timeline has up to 2,000 slices",
    )
