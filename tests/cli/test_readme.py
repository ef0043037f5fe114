from __future__ import annotations

from pathlib import Path

import pytest

from hespas.cli.commands import commands, run

COMMAND = [
    "run",
    "examples/llama3_100m_fsdp4.mlir",
    "--node",
    "A100_SXM_40GB",
    "--system",
    "A100_SXM_40GB_4GPU",
]


def test_the_readme_shows_what_make_demo_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(commands, "hespas", COMMAND) == 0
    shown = Path("README.md").read_text().partition("<!-- demo -->\n```\n")[2]
    assert shown.partition("```\n<!-- end -->")[0] == capsys.readouterr().out


def test_make_demo_runs_that_command() -> None:
    makefile = Path("Makefile").read_text()
    command = f"hespas {' '.join(COMMAND)}".replace(COMMAND[1], "$(EXAMPLE)")
    assert command in makefile
    assert f"EXAMPLE := {COMMAND[1]}" in makefile
