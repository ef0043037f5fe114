from __future__ import annotations

from hespas.report.stages import simulation_text
from hespas.simulate.timeline import ClassTimeline, Timeline
from hespas.tasks.graph import TaskGraph


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
    assert text.endswith("... and 4 more classes of devices: see the JSON output")


def test_times_of_devices_stand_below_each_other() -> None:
    lines = simulation_text(classes(3)).splitlines()[1:]
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split() == ["device", "0", "2", "us", "1", "us", "0", "s", "1", "us", "0", "s"]
