"""Two results side by side: differences that add up, whatever a table leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.errors import ConfigError
from hespas.prediction.figures.schema import SCHEMA_VERSION, RunReport
from hespas.report.compare import (
    Comparison,
    TimeRow,
    compared,
    comparison_text,
    read_report,
)
from step_reports import EMPTY_RESULT

_TIMES = st.floats(min_value=0, max_value=1e3)


def op(time_s: float) -> dict[str, Any]:
    return {"count": 1, "time_s": time_s, "flops": 0, "bytes": 0}


def layer(path: str, time_s: float) -> dict[str, Any]:
    return {**phase("", time_s), "path": path, "depth": 1, "phases": {}}


def phase(name: str, time_s: float) -> dict[str, Any]:
    return {**op(time_s), "phase": name, "share": 0, "exposed_s": 0}


def communication(axis: str, exposed_s: float) -> dict[str, Any]:
    unknown = dict.fromkeys(("bytes_per_s", "limit_bytes_per_s", "waiting_s", "waits"))
    times = {"time_s": exposed_s, "exposed_s": exposed_s, "hidden_s": 0}
    return {
        **unknown,
        **times,
        "kind": "all-reduce",
        "axis": axis,
        "dimension": "",
        "devices": 2,
        "count": 1,
        "bytes": 0,
    }


def result(
    compute_s: float = 1.0, exposed_s: float = 0.0, straggler_s: float = 0.0, **more: Any
) -> RunReport:
    return msgspec.convert(
        EMPTY_RESULT
        | {
            "schema_version": SCHEMA_VERSION,
            "step_time_s": compute_s + exposed_s + straggler_s,
            "compute_s": compute_s,
            "exposed_communication_s": exposed_s,
            "straggler_s": straggler_s,
            **more,
        },
        RunReport,
    )


def comparison(a: RunReport, b: RunReport) -> Comparison:
    return compared(a, b, names=("a.json", "b.json"))


def differences(rows: list[TimeRow]) -> dict[str, float]:
    return {row.name: row.difference_s for row in rows}


_RESULTS = st.builds(
    result,
    compute_s=st.floats(min_value=10, max_value=1e3),
    exposed_s=_TIMES,
    straggler_s=st.floats(min_value=-10, max_value=10),
    per_op=st.dictionaries(st.sampled_from("abc"), st.builds(op, _TIMES)),
    phases=st.dictionaries(st.sampled_from("fb"), _TIMES).map(
        lambda times: [phase(name, t) for name, t in times.items()]
    ),
    layers=st.dictionaries(st.sampled_from(["m", "m/x", "m/x/y", "n"]), _TIMES).map(
        lambda times: [layer(path, t) for path, t in sorted(times.items())]
    ),
    communication=st.dictionaries(st.sampled_from(["data", "model"]), _TIMES).map(
        lambda times: [communication(axis, t) for axis, t in times.items()]
    ),
)  # fmt: skip


@given(_RESULTS, _RESULTS)
def test_every_table_adds_up(a: RunReport, b: RunReport) -> None:
    found = comparison(a, b)
    step_s, parts = found.step.difference_s, differences(found.parts)
    assert sum(parts.values()) == pytest.approx(step_s, abs=1e-9)
    for rows in (found.phases, found.layers, found.kinds):
        if rows:
            assert sum(differences(rows).values()) == pytest.approx(parts["compute"], abs=1e-9)
    if found.communication:
        whole = sum(differences(found.communication).values())
        assert whole == pytest.approx(parts["exposed communication"], abs=1e-9)


@given(_RESULTS)
def test_nothing_differs_from_itself(a: RunReport) -> None:
    found = comparison(a, a)
    tables = (found.parts, found.phases, found.layers, found.kinds, found.communication)
    assert not any(row.difference_s for rows in tables for row in rows)
    assert not found.figures
    assert not found.settings


@given(_RESULTS, _RESULTS)
def test_the_other_way_round_the_signs_change(a: RunReport, b: RunReport) -> None:
    there, back = comparison(a, b), comparison(b, a)
    assert differences(there.kinds) == {
        name: -difference for name, difference in differences(back.kinds).items()
    }


def test_the_largest_difference_stands_first() -> None:
    a = result(per_op={"a": op(0.5), "b": op(0.5)})
    b = result(compute_s=0.8, per_op={"a": op(0.6), "b": op(0.2)})
    assert list(differences(comparison(a, b).kinds)) == ["b", "a"]


def test_what_is_only_in_one_is_compared_with_nothing() -> None:
    a, b = result(per_op={"gemm": op(1.0)}), result(per_op={"attention": op(1.0)})
    assert differences(comparison(a, b).kinds) == {"attention": 1.0, "gemm": -1.0}


def test_layers_are_compared_by_their_paths() -> None:
    a = result(layers=[layer("m", 0.3), layer("m/x", 0.7)])
    b = result(compute_s=0.6, layers=[layer("m", 0.3), layer("m/x", 0.3)])
    assert differences(comparison(a, b).layers) == pytest.approx({"m/x": -0.4, "m": 0.0})


def test_what_a_table_leaves_out_has_a_row() -> None:
    a = result(per_op={"a": op(0.9)})
    b = result(compute_s=2.0, per_op={"a": op(0.9)})
    assert differences(comparison(a, b).kinds) == pytest.approx({"not in the table": 1.0, "a": 0.0})


def test_what_rounding_leaves_out_has_no_row() -> None:
    a, b = result(per_op={"a": op(1.0 - 1e-9)}), result(per_op={"a": op(1.0 + 3e-9)})
    assert list(differences(comparison(a, b).kinds)) == ["a"]


def test_a_table_that_one_lacks_is_named() -> None:
    a, b = result(phases=[phase("forward", 1.0)]), result()
    assert comparison(a, b).missing == ["phases: not compared, b.json has none"]


def test_options_and_versions_that_differ_are_listed() -> None:
    a = result(node="A100", options={"node": "A100", "merge": True}, versions={"hespas": "1"})
    b = result(node="H100", options={"node": "H100"}, versions={"hespas": "2"})
    assert [(row.name, row.a, row.b) for row in comparison(a, b).settings] == [
        ("node", "A100", "H100"),
        ("option merge", True, None),
        ("version of hespas", "1", "2"),
    ]


def test_steps_of_other_work_are_said_to_be() -> None:
    a = result(1.0, tokens_per_s=1000.0)
    b = result(0.8, tokens_per_s=625.0)
    found = compared(a, b, names=("a.json", "b.json"))
    assert found.work == (
        "the steps are not of the same work: 1,000 tokens of a, 500 of b; "
        "b makes 37.5 % fewer tokens/s"
    )
    assert found.work in comparison_text(found)
    more = compared(b, a, names=("b.json", "a.json")).work
    assert more.endswith("500 tokens of a, 1,000 of b; b makes 60 % more tokens/s")


def test_images_are_work_where_there_are_no_tokens() -> None:
    a = result(1.0, samples_per_s=64.0, samples="images")
    b = result(0.5, samples_per_s=64.0, samples="images")
    assert "64 images of a, 32 of b; b makes as many images/s" in (
        compared(a, b, names=("a", "b")).work
    )


def test_steps_of_the_same_work_or_of_unknown_have_no_note() -> None:
    a, b = result(1.0, tokens_per_s=1000.0), result(0.8, tokens_per_s=1250.0)
    assert compared(a, b, names=("a", "b")).work == ""
    assert compared(a, result(0.8), names=("a", "b")).work == ""
    assert compared(result(1.0), result(0.8), names=("a", "b")).work == ""


def test_the_text_has_the_step_first_and_says_what_is_missing() -> None:
    kinds = {f"kind {at:02}": op(0.05) for at in range(20)}
    a, b = result(per_op=kinds), result(compute_s=0.5, per_op={"kind 00": op(0.5)})
    text = comparison_text(comparison(a, b))
    assert "-500 ms" in text.splitlines()[4]
    assert "10 others" in text


def test_no_figure_is_shown_with_two_signs() -> None:
    text = comparison_text(comparison(result(), result()))
    assert "+0.0" not in text
    assert "-0.0" not in text


# Files.


def written(tmp_path: Path, value: object) -> Path:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(value))
    return file


PLAIN = EMPTY_RESULT | {
    "schema_version": SCHEMA_VERSION,
    "step_time_s": 1.0,
    "compute_s": 1.0,
    "exposed_communication_s": 0.0,
}


def test_keys_that_are_not_known_are_left_aside(tmp_path: Path) -> None:
    assert read_report(written(tmp_path, PLAIN | {"new": 1})).step_time_s == 1.0


def test_a_directory_has_its_result_in_run_json(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(PLAIN))
    assert read_report(tmp_path).compute_s == 1.0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"kernels": []}, "this is no result of a run"),
        ([], "this is no result of a run"),
        (PLAIN | {"compute_s": "1"}, "this is no result of a run: .*compute_s"),
        (PLAIN | {"schema_version": 0}, "schema version 0, this hespas reads"),
        ({"step_time_s": 1.0, "compute_s": 1.0}, "no schema version"),
        (
            {key: value for key, value in PLAIN.items() if key != "flops"},
            "this is no result of a run: .*flops",
        ),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_report(written(tmp_path, value))
    assert "hespas run" in (caught.value.hint or "")


def test_a_directory_without_a_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the directory has no run\.json"):
        read_report(tmp_path)


def test_waiting_for_stages_is_no_exposed_communication() -> None:
    found = comparison(result(exposed_s=0.5), result(exposed_s=0.25, stage_wait_s=0.25))
    assert differences(found.parts)["exposed communication"] == -0.25
    assert differences(found.parts)["waiting for stages"] == 0.25
