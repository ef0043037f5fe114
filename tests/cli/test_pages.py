"""The examples in the pages are what the commands print.

``python tests/cli/test_pages.py`` writes the outputs anew: look at the difference before you
commit.
"""

from __future__ import annotations

import os
import re
import shlex
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import pytest
from msgspec import Struct
from msgspec.structs import fields

from hespas.cli.commands import command_named, commands, run
from hespas.config.wire import RooflineWire, RunWire

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "reference/commands",
    "reference/configuration",
    "reference/output",
    "reference/estimation-methods",
    "reference/memory",
)
_BLOCK = re.compile(r"```console\n(.*?)```\n", re.DOTALL)
_STAGES = {
    "hespas_chakra_gen": "trace",
    "hespas_mlir_splitter": "split",
    "hespas_mlir_analyzer": "analyze",
}


def page(name: str) -> Path:
    return ROOT / "docs" / f"{name}.md"


def rendered(text: str) -> str:
    """Return a page with the output of each command as it is now.

    Where the output shown ends in "...", its first lines are.
    """
    return _BLOCK.sub(lambda match: f"```console\n{_block(match[1])}```\n", text)


def _block(text: str) -> str:
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return "".join(f"$ {_example(part)}" for part in parts)


def _example(text: str) -> str:
    match = re.match(r"(?:.*\\\n)*.*\n", text)
    assert match is not None
    command, shown = match[0], text[match.end() :].splitlines()
    lines = _output(command).splitlines()
    if shown[-1:] == ["..."]:
        lines = [*lines[: len(shown) - 1], "..."]
    return command + "".join(f"{line}\n" for line in lines)


def _output(command: str) -> str:
    name, *words = shlex.split(command.replace("\\\n", " "))
    found = command_named(_STAGES[name]) if name in _STAGES else commands
    with redirect_stdout(StringIO()) as shown:
        assert run(found, name, words) == 0
    return shown.getvalue()


def make_workplace(directory: Path) -> None:
    """Make a directory look like the root of the repository, to write beside the examples."""
    for name in ("examples", "configs"):
        (directory / name).symlink_to(ROOT / name)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_commands_print(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_workplace(tmp_path)
    monkeypatch.chdir(tmp_path)
    text = page(name).read_text()
    assert rendered(text) == text


def test_every_flag_is_documented() -> None:
    text = page("reference/commands").read_text().replace("_", "-")
    for name in commands.list_commands(click.Context(commands)):
        for parameter in command_named(name).params:
            for flag in parameter.opts:
                if flag.startswith("--"):
                    assert flag.replace("_", "-") in text, f"{name} {flag}"


@pytest.mark.parametrize("name", commands.list_commands(click.Context(commands)))
def test_every_command_has_its_row_and_section(name: str) -> None:
    text = page("reference/commands").read_text()
    assert f"\n| [`hespas {name}`](#{name}) | " in text
    assert f"\n## {name}\n" in text


@pytest.mark.parametrize("form", [RunWire, RooflineWire])
def test_every_key_is_documented(form: type[Struct]) -> None:
    text = page("reference/configuration").read_text()
    for field in fields(form):
        assert f"| `{field.encode_name}` |" in text


if __name__ == "__main__":
    for each in PAGES:
        with TemporaryDirectory() as location:
            make_workplace(Path(location))
            os.chdir(location)
            page(each).write_text(rendered(page(each).read_text()))
            os.chdir(ROOT)
