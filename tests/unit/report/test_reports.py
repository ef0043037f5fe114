from __future__ import annotations

from pathlib import Path

import pytest

import hespas
from hespas.hardware.links import link_names
from hespas.hardware.presets import device_names, system_names
from hespas.prediction import Prediction
from hespas.report.hardware import hardware_json, hardware_text, preset_details
from hespas.report.operators import count_operators
from hespas.report.run_report import run_text
from hespas.report.simulation_text import simulation_text
from hespas.report.summary import estimate_summary
from hespas.schedule.tasks import TaskGraph
from hespas.simulate.timeline import ClassTimeline, Timeline
from programs import all_reduce, on_devices, read, vector_main

KINDS = (
    "sine", "cosine", "exponential", "log", "sqrt", "tanh", "negate", "abs", "floor", "ceil",
    "sign",
)  # fmt: skip


def predicted(tmp_path: Path, text: str, system: str | None = None) -> Prediction:
    file = tmp_path / "p.mlir"
    file.write_text(text)
    return hespas.predict(file, "V100_32GB", system)


def chain(kinds: tuple[str, ...]) -> str:
    names = ["%a", *(f"%v{at}" for at in range(len(kinds) - 1)), "%r"]
    return "\n".join(
        f"{made} = stablehlo.{kind} {taken} : tensor<8xf32>"
        for kind, taken, made in zip(kinds, names, names[1:], strict=False)
    )


def test_kinds_beyond_the_first_eight_are_joined(tmp_path: Path) -> None:
    text = run_text(predicted(tmp_path, vector_main(chain(KINDS))), "device")
    assert "  3 other kinds" in text
    table = text.partition("operation")[2].partition("Per device")[0]
    assert table.count("%") == 9


def test_a_program_that_does_nothing_is_reported(tmp_path: Path) -> None:
    prediction = predicted(tmp_path, vector_main("", result="%a"))
    text = run_text(prediction, "device")
    assert "Step time" in text
    assert "0 s" in text
    summary = estimate_summary(prediction.estimates, ())
    assert "Compute Runtime Estimation: 0.000 us" in summary
    assert "proportions" not in summary


def test_small_shares_are_left_out_of_the_proportions(tmp_path: Path) -> None:
    big = "tensor<65536xf32>"
    text = vector_main(
        f"%z = stablehlo.iota dim = 0 : {big}\n%y = stablehlo.sine %z : {big}\n"
        "%r = stablehlo.cosine %a : tensor<8xf32>"
    )
    summary = estimate_summary(predicted(tmp_path, text).estimates, ())
    assert "    stablehlo.sine: 0.667" in summary
    assert "cosine" not in summary


def test_cache_lines_are_spelled_as_documented(tmp_path: Path) -> None:
    body = f"{all_reduce('%b', '%a')}\n%c = stablehlo.sine %b : tensor<8xf32>\n"
    body += f"{all_reduce('%d', '%c', channel=2)}\n%r = stablehlo.sine %d : tensor<8xf32>"
    prediction = predicted(tmp_path, on_devices(vector_main(body)), "V100_32GB_4GPU")
    lines = estimate_summary(prediction.estimates, ()).splitlines()
    assert lines[:3] == [
        "Cache hits: 1",
        "Basic block reuse rate: 0.500 (1/2)",
        "Operator reuse factor: 0.500 (1/2)",
    ]


def classes(count: int) -> Timeline:
    graph = TaskGraph(name="x", device_count=count, tasks=(), group_tables=())
    return Timeline(
        classes=tuple(
            ClassTimeline(
                devices=(device,), graph=graph, nodes={}, finish_ps=2_000_000 * (device + 1),
                compute_ps=1_000_000, communication_ps=0, overlap_ps=0, exposed_ps={},
            )
            for device in range(count)
        )
    )  # fmt: skip


def test_many_classes_of_devices_are_cut_short() -> None:
    text = simulation_text(classes(20))
    assert text.startswith("Step time: 40 us\n")
    assert text.endswith("... and 4 more classes of devices: see --json")


def test_times_of_devices_stand_below_each_other() -> None:
    lines = simulation_text(classes(3)).splitlines()[1:]
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split() == ["device", "0", "2", "us", "1", "us", "0", "s", "1", "us", "0", "s"]


def test_every_preset_is_shown() -> None:
    shown, listed = hardware_text(), hardware_json(None)
    for name in link_names():
        assert f"  {name} " in shown
        assert listed["links"][name]["source"]  # pyright: ignore[reportIndexIssue]
    assert "2, 4, 8, 16, 18, 32, 36, 64, 72" in shown
    assert listed.keys() == {"nodes", "systems", "links"}
    names = [*device_names(), *system_names()]
    assert len(names) > 30
    for name in names:
        assert f"  {name} " in shown
        assert preset_details(name).startswith(f"{name}: ")
        assert hardware_json(name)["name"] == name


@pytest.mark.parametrize("expand", [False, True])
def test_operations_are_ordered_by_count_then_name(expand: bool) -> None:
    counts = count_operators(read(vector_main(chain(KINDS))), expand=expand, signatures=False)
    assert list(counts) == sorted(counts)
    typed = count_operators(read(vector_main(chain(KINDS))), expand=expand, signatures=True)
    assert "stablehlo.sine(tensor<8xf32>)" in typed
