from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from hespas.errors import MeasurementError
from hespas.evidence.validate.measurements import chosen, read_rows, read_steps


def table(directory: Path, *lines: str) -> Path:
    path = directory / "steps.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_every_published_row_can_be_read_and_names_its_source() -> None:
    rows = read_rows()
    assert len(rows) > 80
    assert all(row.source and row.published_s > 0 and row.framework_year for row in rows)
    twice = [
        key
        for key, count in Counter(
            (row.workload, str(row.options), row.node, row.devices, row.source) for row in rows
        ).items()
        if count > 1
    ]
    assert {key[0] for key in twice} <= {"gpt3", "llama31_405b", "maxtext:base.yml"}


def test_the_steps_of_validate_are_among_the_rows() -> None:
    rows = {(row.workload, row.system): row.published_s for row in read_rows()}
    assert all(rows[step.workload, step.system] == step.step_s for step in read_steps())


def test_ones_own_table_needs_a_workload_a_system_and_a_time(tmp_path: Path) -> None:
    path = table(tmp_path, "workload,system,step_s", "dir/mine.mlir,16xH100_80GB,0.5")
    (row,) = read_rows(path)
    assert (row.family, row.node, row.devices, row.scale) == ("mine.mlir", "H100_80GB", 16, "tens")
    assert row.published_s == 0.5
    assert row.framework_year is None
    assert row.location == f"{path}:2"


def test_a_throughput_becomes_a_time(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        "workload,options,system,tflops_per_device,model_tflop_per_device",
        "maxtext:base.yml,a=1;b=x=2,8xH100_80GB,400,600",
    )
    (row,) = read_rows(path)
    assert row.published_s == 1.5
    assert row.options == {"a": "1", "b": "x=2"}


def test_a_system_may_stand_beside_the_table() -> None:
    row = next(row for row in read_rows() if row.devices == 32)
    assert Path(row.system).is_dir()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("workload,system", "a,8xH100_80GB"), r"steps.csv:2: the step has no time, or two"),
        (("workload,step_s", "a,1"), r"csv:1: the table has no column 'system'; known columns"),
        (("workload,system,step_s,colour", "a,b,1,red"), r":1: the table has a column 'colour'"),
        (("workload,system,step_s", "a,8xH100_80GB"), r":2: the step has no time, or two"),
        (("workload,system,step_s", "a,8xH100_80GB,1,2"), r":2: the line has 4 cells under 3"),
        (("workload,system,step_s", "a,8xH100_80GB,fast"), r":2: step_s is 'fast'; give a number"),
        (("workload,system,step_s", "a,8xH100_80GB,0"), r":2: step_s is '0'; give a number above"),
        (("workload,system,step_s", "a,8xH100_81GB,1"), r":2: .*did you mean 'H100_80GB'"),
        (("workload,system,step_s,options", "a,8xH100_80GB,1,b"), r":2: options: 'b' has no value"),
        (
            ("workload,system,step_s,options", "a,8xH100_80GB,1,b=1;b=2"),
            r":2: options: 'b=2' stands twice",
        ),
        (
            ("workload,system,tflops_per_device", "a,8xH100_80GB,400"),
            r":2: the step has no time, or two; give step_s, or tflops_per_device and",
        ),
    ],
)
def test_a_table_with_a_mistake_is_refused_with_the_line(
    tmp_path: Path, lines: tuple[str, ...], message: str
) -> None:
    with pytest.raises(MeasurementError, match=message):
        read_rows(table(tmp_path, *lines))


def test_groups_are_families_parts_and_scales_by_their_beginnings() -> None:
    rows = read_rows()
    assert {row.node for row in chosen(rows, ["tpuv5"])} == {"TPUv5e", "TPUv5p"}
    assert {row.scale for row in chosen(rows, ["Thousands"])} == {"thousands"}
    both = chosen(rows, ["resnet", "h200"])
    assert {row.family for row in both} == {"resnet", "llama3.1-70b (MaxText)"}
    assert chosen(rows, []) == rows


@pytest.mark.parametrize("group", ["resnot", ""])
def test_a_group_without_a_step_is_refused(group: str) -> None:
    with pytest.raises(MeasurementError, match="no published step is in the group"):
        chosen(read_rows(), [group])
