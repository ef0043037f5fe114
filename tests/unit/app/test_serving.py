"""A served load of the page: the same as that of the command and of Python."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from hespas.app.serving import serve_copies, serve_load
from hespas.app.worker import answer_question
from hespas.base.files import json_bytes

STATE: dict[str, Any] = {
    "model": "Qwen/Qwen3-0.6B",
    "cluster": "2xH100_80GB",
    "mesh": "tp=1",
    "rate": "2.5",
    "isl": 128,
    "osl": 16,
    "slo": "ttft=500ms,tpot=40ms",
    "requests": 30,
}


@pytest.mark.starts_jax
def test_the_page_the_command_and_the_python_answer_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies = serve_copies(STATE)
    words = copies["command"].split()[1:]
    printed = subprocess.run(
        [sys.executable, "-m", "hespas", *words, "--json"], check=True, capture_output=True
    ).stdout
    assert serve_load(STATE)["json"].encode() == printed
    found: dict[str, Any] = {}
    exec(copies["python"], found)  # noqa: S102 - what a person pastes
    assert json_bytes(msgspec.to_builtins(found["served"])) == printed


def test_a_load_that_cannot_be_read_is_words() -> None:
    for wrong, said in (({"rate": "many"}, "no number"), ({"isl": 0}, "isl")):
        answer = answer_question({"ask": "serve-copies", "about": STATE | wrong, "allowed": []})
        assert said in answer["error"]
