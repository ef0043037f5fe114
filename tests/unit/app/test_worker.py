"""What a worker answers: the same as the command line, and errors in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hespas.app.pool import MEMORY_VARIABLE, Limits, Pool
from hespas.app.state import command_of
from hespas.app.worker import answer_question

STATE: dict[str, Any] = {
    "model": "llama3-100m",
    "cluster": "4xA100_SXM_40GB",
    "mesh": {"fsdp": 4},
    "set": {"layers": 2},
    "fidelity": "fused",
}


def ask(kind: str, about: dict[str, Any], allowed: tuple[str, ...] = ()) -> dict[str, Any]:
    return answer_question({"ask": kind, "about": about, "allowed": list(allowed)})


@pytest.mark.starts_jax
def test_the_json_of_the_page_is_that_of_the_command_byte_for_byte() -> None:
    words = command_of(STATE).split()[1:]
    printed = subprocess.run(
        [sys.executable, "-m", "hespas", *words, "--json"], check=True, capture_output=True
    ).stdout
    pool = Pool(limits=Limits(processes=1, time_s=120.0, memory_bytes=32 << 30))
    try:
        # What a process keeps of other questions changes no answer.
        for mesh in ({"data": 2, "fsdp": 2}, {"fsdp": 2, "tp": 2}):
            pool.ask({"ask": "quick", "about": {**STATE, "mesh": mesh}, "allowed": []}, "")
        whole = pool.ask({"ask": "whole", "about": STATE, "allowed": []}, "")
        quick = pool.ask({"ask": "quick", "about": STATE, "allowed": []}, "")
    finally:
        pool.close()
    assert whole["json"].encode() == printed
    for name in ("title", "step_time_s", "cards", "bound", "memory", "rows"):
        assert quick["view"][name] == whole["view"][name], name


@pytest.mark.starts_jax
def test_a_worker_keeps_to_its_memory() -> None:
    pool = Pool(limits=Limits(processes=1, time_s=60.0, memory_bytes=200 << 20))
    try:
        answer = pool.ask({"ask": "quick", "about": STATE, "allowed": []}, "")
    finally:
        pool.close()
    assert answer["error"]
    assert "Traceback" not in answer["error"]


def test_errors_are_words() -> None:
    assert "did you mean" in ask("quick", {**STATE, "model": "llama3-8bb"})["error"]
    assert "device" in ask("quick", {**STATE, "mesh": {"fsdp": 3}})["error"]
    assert "there is no key" in ask("quick", {**STATE, "nonsense": 1})["error"]


def test_nonsense_ends_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nothing that can be asked" in ask("nonsense", {})["error"]
    assert "nothing" in answer_question({"ask": "quick", "about": [1], "allowed": []})["error"]

    def fail(state: object) -> dict[str, Any]:
        raise AssertionError

    monkeypatch.setattr("hespas.app.worker._QUESTIONS", {"quick": fail})
    assert "a fault of hespas" in ask("quick", STATE)["error"]


@pytest.mark.parametrize("kind", ["describe", "copies", "quick", "whole"])
def test_code_is_not_run_before_it_is_allowed(kind: str) -> None:
    answer = ask(kind, {"model": "os:abort", "cluster": "4xA100_SXM_40GB"})
    assert answer["code"] == "os:abort"
    assert answer.keys() == {"code", "elapsed_s", "cpu_s"}


def test_meshes_that_are_offered_divide_the_model() -> None:
    answer = ask("describe", {**STATE, "model": "llama3-1b", "set": {}})
    axes = [axis["name"] for axis in answer["axes"]]
    assert axes[-1] == "tp"
    assert "fsdp" in axes
    sizes = {mesh[axes.index("tp")] for mesh in answer["meshes"]}
    assert sizes == {1, 2, 4}
    # Its 9 heads have no half.
    odd = ask("describe", STATE)
    assert {mesh[axes.index("tp")] for mesh in odd["meshes"]} == {1}
    assert all(_product(mesh) == 4 for mesh in answer["meshes"])


def test_a_count_that_the_usual_mesh_does_not_divide_has_a_legal_mesh() -> None:
    answer = ask("describe", {"model": "llama3-8b", "cluster": "144xGB200_186GB"})
    legal = {axis: size for axis, size in answer["mesh"].items() if size > 1}
    assert legal == {"data": 9, "fsdp": 16}


def test_a_batch_that_divides_no_mesh_leaves_the_meshes() -> None:
    state = {"model": "llama3-8b", "cluster": "8xH100_80GB", "mesh": {"pipe": 4, "fsdp": 2}}
    answer = ask("describe", {**state, "global_batch": 7})
    assert "error" not in answer
    assert len(answer["meshes"]) > 10
    assert [8, 1, 1, 1, 1, 1] in answer["meshes"], "stages of one device each"


@pytest.mark.starts_jax
def test_where_the_step_goes_adds_up_to_the_step() -> None:
    view = ask("whole", {**STATE, "mesh": {"data": 2, "fsdp": 2}})["view"]
    assert "exposed communication" in {part["name"] for part in view["where"]}
    for parts in (view["where"], view["phases"], view["bound"]):
        assert sum(part["share"] for part in parts) == pytest.approx(1.0, abs=0.02)


@pytest.mark.starts_jax
@pytest.mark.parametrize("name", ["link_bandwidth", "memory_bandwidth", "power_limit_w"])
def test_an_applied_change_makes_the_step_that_its_row_says(name: str) -> None:
    state = {**STATE, "model": "llama3-1b", "cluster": "16xH100_80GB", "mesh": {"fsdp": 16}}
    rows = ask("whole", state)["view"]["changes"]
    (row,) = [each for each in rows if name in each["apply"]]
    changed = ask("quick", {**state, **row["apply"]})["view"]
    assert changed["cards"][0]["text"] == row["step"]


@pytest.mark.starts_jax
def test_links_that_are_changed_are_not_doubled_by_a_click() -> None:
    state = {**STATE, "link_bandwidth": "0=x2"}
    (row,) = [each for each in ask("whole", state)["view"]["changes"] if "link" in each["text"]]
    assert row["apply"] == {}


def test_an_error_has_the_option_that_answers_all_the_same() -> None:
    state = {"model": "llama3-70b", "cluster": "8xH100_80GB", "mesh": {"pipe": 8}}
    answer = ask("quick", state)
    assert "needs at least" in answer["error"]
    assert answer["apply"] == {"ignore_memory": True}
    assert not ask("quick", {**state, **answer["apply"]})["view"]["memory"]["fits"]


def _product(mesh: list[int]) -> int:
    product = 1
    for size in mesh:
        product *= size
    return product


def test_the_limit_is_named_in_the_environment_alone() -> None:
    assert MEMORY_VARIABLE not in os.environ


def test_a_network_of_switches_has_tiers_and_links_by_name(tmp_path: Path) -> None:
    wires = [("g0", "s0"), ("g1", "s0"), ("g2", "s1"), ("g3", "s1"), ("s0", "top"), ("s1", "top")]
    links = [{"from": one, "to": other, "bandwidth_bytes_per_s": 5e10} for one, other in wires]
    graph = {
        "devices": ["g0", "g1", "g2", "g3"],
        "switches": ["s0", "s1", "top"],
        "links": links,
    }
    (tmp_path / "mine" / "hespas").mkdir(parents=True)
    file = tmp_path / "mine" / "hespas" / "network.json"
    file.write_text(json.dumps({"source": "a sketch", "graph": graph}))
    answer = ask("network", {"cluster": str(tmp_path / "mine")})
    assert answer["graph"]["tiers"] == [["g0", "g1", "g2", "g3"], ["s0", "s1"], ["top"]]
    assert [set(wire["links"]) for wire in answer["graph"]["wires"]] == [
        {f"{one}->{other}", f"{other}->{one}"} for one, other in wires
    ]
    assert any("50 GB/s" in line for line in answer["lines"])
    assert ask("network", {"cluster": "16xH100_80GB"})["graph"] is None
