"""Each change on programs whose step is a closed form of what is changed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path

import pytest

import hespas
from hespas.compile.options import SLOP_FLAG, CompileOptions
from hespas.hardware.cluster import Cluster, LinkOverride
from hespas.hardware.device import Device
from hespas.hardware.faster_links import LinkFactors, with_links
from hespas.hardware.interconnect import Shape, dimension_of
from hespas.hardware.presets import load_device, load_system
from hespas.hardware.system import System, bare_system
from hespas.prediction import composition
from hespas.prediction.explain.changes import (
    ARITHMETIC_DOUBLED,
    AS_SPECIFIED,
    AT_BOOST,
    COMMUNICATION_HIDDEN,
    LAUNCHES_FREE,
    LINKS_DOUBLED,
    MEMORY_DOUBLED,
    Change,
    all_changes,
    main_changes,
)
from hespas.prediction.options import (
    AS_GIVEN,
    EstimateOptions,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.program.collectives import CollectiveKind
from hespas.simulate.options import Model
from programs import vector_main
from scheduled import HEADER, kernel, loop, sync

# 8 floats read and written at 64 B/s take 1 s; 8 additions at 16 FLOP/s take 0.5 s.
DEVICE = Device(
    name="slow",
    peak_flops=16.0,
    memory_bandwidth_bytes_per_s=64.0,
    launch_overhead_s=0.25,
)
ADD = "%r = stablehlo.add %a, %a : tensor<8xf32>"


def changes_of(
    tmp_path: Path,
    text: str,
    *,
    device: Device = DEVICE,
    system: System | None = None,
    cluster: Cluster | None = None,
    model: Model = Model.ASTRA_SIM,
    everything: bool = True,
) -> dict[str, Change]:
    file = tmp_path / "step.hlo"
    file.write_text(text)
    options = PredictOptions(
        program=ProgramOptions(file=file),
        compile=AS_GIVEN,
        estimate=EstimateOptions(node=device, method="roofline"),
        network=NetworkOptions(system=system, imperfect=cluster, model=model),
    )
    prediction = composition.predict(options)
    found = (all_changes if everything else main_changes)(prediction)
    assert list(found) == sorted(found, key=lambda each: (-each.gain, each.change))
    for each in found:
        assert each.gain == pytest.approx(1 - each.step_time_s / prediction.step_time_s)
    return {each.change: each for each in found}


def scheduled(*body: str, functions: str = "") -> str:
    return HEADER.format(
        aliases="", functions=functions, result="f32[256]", body="\n".join(f"  {b}" for b in body)
    )


def star(
    *,
    bandwidth: float = 1e3,
    latency_s: float = 0.5,
    sizes: tuple[int, ...] = (4,),
    topology: Shape = Shape.FULLY_CONNECTED,
) -> System:
    dimensions = tuple([
        dimension_of(topology, size, bandwidth, latency_s)
        for size in sizes
    ])  # fmt: skip
    rings = {CollectiveKind.ALL_REDUCE: ("ring",) * len(sizes)}
    return replace(
        bare_system("star", dimensions=dimensions), implementations=rings, endpoint_delay_s=1e-9
    )


def test_twice_the_bandwidth_halves_what_memory_bounds(tmp_path: Path) -> None:
    found = changes_of(tmp_path, vector_main(ADD))
    assert found[MEMORY_DOUBLED].gain == pytest.approx(0.5)
    assert found[ARITHMETIC_DOUBLED].gain == pytest.approx(0.0)


def test_infinite_bandwidth_leaves_the_arithmetic(tmp_path: Path) -> None:
    found = changes_of(tmp_path, vector_main(ADD))
    assert found["memory bandwidth infinite"].step_time_s == pytest.approx(8 / 16)
    assert found["peak FLOP/s infinite"].gain == pytest.approx(0.0)


def test_twice_the_peak_halves_what_arithmetic_bounds(tmp_path: Path) -> None:
    fast = Device(name="fast", peak_flops=4.0, memory_bandwidth_bytes_per_s=1e6)
    found = changes_of(tmp_path, vector_main(ADD), device=fast)
    assert found[ARITHMETIC_DOUBLED].gain == pytest.approx(0.5)
    assert found[MEMORY_DOUBLED].gain == pytest.approx(0.0)


def test_operations_of_a_program_that_is_not_compiled_launch_nothing(tmp_path: Path) -> None:
    assert LAUNCHES_FREE not in changes_of(tmp_path, vector_main(ADD))


def test_all_launches_but_one_are_taken_away(tmp_path: Path) -> None:
    text = scheduled(kernel("x", "a"), kernel("y", "x"), f"ROOT {kernel('z', 'y')}")
    found = changes_of(tmp_path, text, system=star())
    busy_s = 3 * 2 * 1024 / 64
    assert found[LAUNCHES_FREE].step_time_s == pytest.approx(busy_s + 0.25)
    assert found[LAUNCHES_FREE].gain == pytest.approx(0.5 / (busy_s + 0.75))


def test_launches_in_a_loop_are_taken_away(tmp_path: Path) -> None:
    functions, lines = loop("l", "x", kernel("w", "v"))
    text = scheduled(kernel("x", "a"), *lines[:-1], f"ROOT {lines[-1]}", functions=functions)
    found = changes_of(tmp_path, text, system=star())
    before_s = found[LAUNCHES_FREE].step_time_s / (1 - found[LAUNCHES_FREE].gain)
    # The counter of each round is a kernel too.
    launches = round((before_s - found[LAUNCHES_FREE].step_time_s) / 0.25)
    assert launches == 2 * 3


@pytest.mark.parametrize("model", Model)
def test_twice_as_fast_links_halve_what_bytes_take(tmp_path: Path, model: Model) -> None:
    text = scheduled(f"ROOT {sync('r', 'a')}")
    slow = changes_of(tmp_path, text, system=star(latency_s=1e-9), model=model)
    assert slow[LINKS_DOUBLED].gain == pytest.approx(0.5, rel=1e-3)
    assert slow["link bandwidth infinite"].gain == pytest.approx(1.0, abs=1e-3)
    assert slow["link latency zero"].gain == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("model", Model)
def test_no_latency_leaves_what_bytes_take(tmp_path: Path, model: Model) -> None:
    text = scheduled(f"ROOT {sync('r', 'a')}")
    far = changes_of(tmp_path, text, system=star(bandwidth=1e9), model=model)
    assert far["link latency zero"].gain == pytest.approx(1.0, abs=1e-3)
    assert far[LINKS_DOUBLED].gain == pytest.approx(0.0, abs=1e-3)


def test_what_is_longer_hides_the_other(tmp_path: Path) -> None:
    text = scheduled(kernel("x", "a"), f"ROOT {sync('r', 'x')}")
    found = changes_of(tmp_path, text, system=star(latency_s=0.0, bandwidth=768.0))
    compute_s = 2 * 1024 / 64 + 0.25
    assert found[COMMUNICATION_HIDDEN].step_time_s == pytest.approx(compute_s)


def test_computation_hides_no_more_than_it_takes(tmp_path: Path) -> None:
    text = scheduled(kernel("x", "a"), f"ROOT {sync('r', 'x')}")
    found = changes_of(tmp_path, text, system=star(bandwidth=1.0))
    communication_s = found[COMMUNICATION_HIDDEN].step_time_s
    assert communication_s > 1024
    assert found[COMMUNICATION_HIDDEN].gain == pytest.approx(
        1 - communication_s / (communication_s + 2 * 1024 / 64 + 0.25)
    )


def test_a_program_that_does_not_communicate_has_no_rows_about_links(tmp_path: Path) -> None:
    assert not [name for name in changes_of(tmp_path, vector_main(ADD)) if "ink" in name]


def test_each_dimension_has_a_row(tmp_path: Path) -> None:
    system = star(sizes=(2, 2), latency_s=1e-9)
    text = scheduled(f"ROOT {sync('r', 'a')}")
    found = changes_of(tmp_path, text, system=system)
    gains = [found[f"link bandwidth doubled along dimension {at} (2 devices)"] for at in (0, 1)]
    assert sum(each.gain for each in gains) == pytest.approx(found[LINKS_DOUBLED].gain, abs=0.01)
    assert all(0 < each.gain < found[LINKS_DOUBLED].gain for each in gains)


def test_devices_as_specified_take_the_stragglers_away(tmp_path: Path) -> None:
    text = scheduled(kernel("x", "a"), f"ROOT {sync('r', 'x')}")
    cluster = Cluster(compute_scales={2: 1.5})
    found = changes_of(tmp_path, text, system=star(), cluster=cluster, everything=False)
    perfect = changes_of(tmp_path, text, system=star())
    before_s = perfect[MEMORY_DOUBLED].step_time_s / (1 - perfect[MEMORY_DOUBLED].gain)
    assert found[AS_SPECIFIED].step_time_s == pytest.approx(before_s)
    assert AS_SPECIFIED not in perfect


def test_links_as_specified_have_a_row(tmp_path: Path) -> None:
    text = scheduled(f"ROOT {sync('r', 'a')}")
    cluster = Cluster(links=(LinkOverride(link="dim0.up.0", bandwidth_scale=0.5),))
    system = star(topology=Shape.SWITCH, latency_s=1e-9)
    found = changes_of(tmp_path, text, system=system, cluster=cluster, model=Model.HESPAS)
    assert found["every link as specified"].gain == pytest.approx(0.5, rel=0.01)


def test_what_cycles_say_does_not_follow_rates(tmp_path: Path) -> None:
    file = tmp_path / "step.hlo"
    file.write_text(Path("tests/laws/tpu_v5e.hlo").read_text())
    options = PredictOptions(
        program=ProgramOptions(file=file, devices=1),
        compile=AS_GIVEN,
        estimate=EstimateOptions(node="TPUv5e", method="compiler"),
    )
    assert not main_changes(composition.predict(options))


def _small_node(directory: Path, memory_bytes: int) -> Path:
    """Return an H100 with so much memory."""
    with as_file(files("hespas") / "configs" / "nodes" / "H100_80GB") as preset:
        shutil.copytree(preset, directory)
    node = json.loads((directory / "node.json").read_text())
    node.update(memory_capacity_bytes=memory_bytes, aliases=[])
    (directory / "node.json").write_text(json.dumps(node))
    return directory


def test_overlap_that_the_scheduler_gave_up_is_a_row_and_a_warning(tmp_path: Path) -> None:
    """Of 4.6 GB the scheduler has 95 % of 3.68 less the arguments; temporaries take 3.9."""
    program, system = "examples/llama3_100m_fsdp4.mlir", "H100_80GB_4GPU"
    node = _small_node(tmp_path / "small", 4_600_000_000)
    step = hespas.predict(program, node, system, fidelity="fused")
    limit = step.graph.program.overlap
    assert limit is not None
    held_bytes = step.memory.peak_bytes - step.memory.temporary_bytes
    assert limit.limit_bytes == pytest.approx(0.95 * (0.8 * 4.6e9 - held_bytes), rel=1e-3)
    assert any(f"{SLOP_FLAG}={limit.full_factor}" in text for text in step.warnings)
    change = f"{SLOP_FLAG}={limit.full_factor}"
    row = next(each for each in all_changes(step) if each.change == change)
    raised = hespas.predict(
        program,
        node,
        system,
        fidelity="fused",
        compiler=CompileOptions(memory_limit_slop_factor=limit.full_factor),
    )
    assert row.step_time_s == raised.step_time_s < step.step_time_s
    assert "and fits" in row.note
    assert not raised.overlap_warnings
    plenty = hespas.predict(program, "H100_80GB", system, fidelity="fused")
    assert plenty.graph.program.overlap is None


@pytest.mark.parametrize("power_limit_w", [pytest.param(None, marks=pytest.mark.rest), 300.0])
def test_rows_are_what_a_run_with_that_one_thing_changed_gives(
    power_limit_w: float | None,
) -> None:
    """A limit of 300 W bites: what does more at a time then runs at a lower clock."""
    program, node, preset = "examples/llama3_100m_fsdp4.mlir", "A100_SXM_40GB", "A100_SXM_40GB_4GPU"
    run = partial(hespas.predict, program, fidelity="fused")
    device, system = load_device(node), load_system(preset)
    step = run(node, system, power_limit_w=power_limit_w)
    rows = {each.change: each.step_time_s for each in all_changes(step)}
    assert device.memory_bandwidth_bytes_per_s is not None
    twice = 2 * device.memory_bandwidth_bytes_per_s
    faster = {name: 2 * rate for name, rate in device.per_datatype_flops.items()}
    links = with_links(system, LinkFactors(bandwidth=2.0))
    changed = {
        MEMORY_DOUBLED: run(node, system, power_limit_w=power_limit_w, memory_bandwidth=twice),
        LINKS_DOUBLED: run(node, links, power_limit_w=power_limit_w),
    }
    if power_limit_w is not None:
        changed[AT_BOOST] = run(node, system, power_limit_w=1e4)
    for change, again in changed.items():
        assert rows[change] == pytest.approx(again.step_time_s, rel=1e-9), change
    # The row doubles the lanes of element-wise arithmetic, too.
    doubled = run(node, system, power_limit_w=power_limit_w, per_datatype_flops=faster)
    assert rows[ARITHMETIC_DOUBLED] == pytest.approx(doubled.step_time_s, rel=0.02)
