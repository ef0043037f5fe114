from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hespas.errors import ConfigError, MeasurementError
from hespas.evidence.validate.measurements import add_step, read_steps
from hespas.hardware.presets import load_device, load_system
from hespas.models.catalogue import models

HEAD = "workload,options,node,system,step_s,resolution_s\n"


def table(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "steps.csv"
    file.write_text(text)
    return file


def test_the_published_steps_are_of_models_and_presets_that_there_are() -> None:
    steps = read_steps()
    assert len(steps) == 14
    for step in steps:
        model = models()[step.workload]
        assert model.step(dict(step.options)).mesh.device_count == 4
        assert load_device(step.node).name == step.node
        assert load_system(step.system).device_count == 4


def test_a_step_is_read_with_its_interval(tmp_path: Path) -> None:
    (step,) = read_steps(table(tmp_path, HEAD + "w,mesh=fsdp=4;batch=2,n,s,0.09,0.01\n"))
    assert step.options == {"mesh": "fsdp=4", "batch": "2"}
    assert step.interval_s == pytest.approx((0.085, 0.095))
    assert step.profiled_compute_s is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("workload,node,system\n", r"steps\.csv:1: the table has no column 'step_s'"),
        ("workload,node,system,step_s,step_ms\n", "has a column 'step_ms'"),
        ("workload,node,system,step_s,step_s\n", "has two columns 'step_s'"),
        (HEAD + "w,,n,s\n", r"steps\.csv:2: the line has 4 cells under 6"),
        (HEAD + "w,,n,s,1,1,1\n", r"steps\.csv:2: the line has 7 cells under 6"),
        (HEAD + "w,,n,s,90 ms,\n", r"steps\.csv:2: step_s is '90 ms'; give a time above 0, in sec"),
        (HEAD + "w,,n,s,0,\n", "step_s is '0'"),
        (HEAD + "w,,n,s,nan,\n", "step_s is 'nan'"),
        (HEAD + "w,mesh,n,s,1,\n", "options: 'mesh' has no value"),
        (HEAD + "w,,n,s,1,0.1\nv,,n,s,1,\nw,,n,s,1.2,0.1\n", r"1 s in line 2 and 1\.2 s in line 4"),
    ],
)
def test_a_bad_table_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(MeasurementError, match=complaint):
        read_steps(table(tmp_path, text))


def test_a_mark_of_the_byte_order_is_no_part_of_the_header(tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    file.write_text(HEAD + "w,,n,s,1,0.1\n", encoding="utf-8-sig")
    assert [step.workload for step in read_steps(file)] == ["w"]


def test_two_times_that_may_be_one_agree(tmp_path: Path) -> None:
    steps = read_steps(table(tmp_path, HEAD + "w,,n,s,1,0.1\nw,,n,s,1.1,0.1\n"))
    assert len(steps) == 2


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.csv: cannot be read"):
        read_steps(tmp_path / "no.csv")


def test_a_line_that_is_added_replaces_one_about_the_same_thing(tmp_path: Path) -> None:
    file = table(tmp_path, HEAD + "w,mesh=fsdp=4;batch=2,n,s,0.09,0.01\nother,,n,s,0.5,\n")
    first, other = read_steps(file)
    add_step(replace(first, step_s=0.08, resolution_s=0.0), file)
    read = read_steps(file)
    assert [(step.workload, step.step_s) for step in read] == [("other", 0.5), ("w", 0.08)]
    assert read[1].options == first.options
    assert read[0].key == other.key


def test_a_table_is_made_by_its_first_line(tmp_path: Path) -> None:
    (first,) = read_steps(
        table(
            tmp_path,
            HEAD
            + "w,mesh=fsdp=2,tp=2;batch=2,n,s,0.09,\n".replace(
                "mesh=fsdp=2,tp=2;batch=2", '"mesh=fsdp=2,tp=2;batch=2"'
            ),
        )
    )
    made = tmp_path / "made.csv"
    add_step(first, made)
    assert [(step.key, step.step_s) for step in read_steps(made)] == [(first.key, 0.09)]
