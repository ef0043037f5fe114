"""Examples and figures in the pages are what commands print and what docs/data/ holds.

``python validation/pages.py`` writes them anew: look at the difference before you commit.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest
from msgspec import Struct
from msgspec.structs import fields

import pages
from hespas.cli.commands import command_named, commands
from hespas.hardware.device import RooflineHardware
from hespas.hardware.presets import load_device, load_system
from hespas.prediction.configuration import configuration_form

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
COMMANDS = (DOCS / "reference" / "commands.md").read_text()
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize(
    "page", [page for page in pages.PAGES if pages.has_examples(page)], ids=name_of
)
def test_a_page_shows_what_commands_print(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages.make_workspace(tmp_path)
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    assert pages.executed(text, pages.printed) == text


@pytest.mark.parametrize("page", pages.PAGES, ids=name_of)
def test_a_page_shows_what_was_recorded(page: Path) -> None:
    text = page.read_text()
    assert pages.recorded(text, pages.from_file()) == text
    assert pages.with_figures(text, json.loads(pages.ACCURACY.read_text())) == text
    assert pages.with_sentences(text) == text


SHOWN = "```console\n$ hespas run x\n{}```\n"


@pytest.mark.parametrize(
    ("shown", "now"),
    [
        ("old\n", "a\nb  1\n\nc  2\nd\n"),
        ("old\n...\n", "a\n...\n"),
        ("...\nb  0\n...\n", "...\nb  1\n...\n"),
        ("old\n...\nb  0\n\n...\nd\n", "a\n...\nb  1\n\n...\nd\n"),
        ("...\nc  0\n", "...\nc  2\nd\n"),
    ],
)
def test_dots_stand_for_lines_that_are_not_shown(shown: str, now: str) -> None:
    made = pages.executed(SHOWN.format(shown), lambda _: "a\nb  1\n\nc  2\nd\n")
    assert made == SHOWN.format(now)


def test_a_line_that_is_no_longer_printed_is_an_error() -> None:
    with pytest.raises(SystemExit, match="begins with 'gone'"):
        pages.executed(SHOWN.format("...\ngone  1\n"), lambda _: "a\n")


def test_a_sentence_that_contradicts_what_its_page_shows_is_written_anew() -> None:
    run = "$ hespas run {}.mlir --node H100_80GB --system H100_80GB_8GPU_4\nStep time {} ms\n"
    blocks = "".join(
        f"```console\n{run.format(name, step)}```\n"
        for name, step in (("fsdp", 40), ("mixed", 50), ("replicated", 80))
    )
    text = f"{blocks}It is ahead by <!-- shown tutoriallead -->7 %<!-- end -->.\n"
    assert "ahead by <!-- shown tutoriallead -->20 and 50 %<!-- end -->." in pages.with_sentences(
        text
    )


@pytest.mark.parametrize("name", commands.list_commands(click.Context(commands)))
def test_every_command_has_its_row_and_section(name: str) -> None:
    assert f"\n| [`hespas {name}`](#{name}) | " in COMMANDS
    assert f"\n## {name}\n" in COMMANDS
    assert command_named(name).help


@pytest.mark.parametrize("form", [configuration_form(), RooflineHardware])
def test_every_key_is_documented(form: type[Struct]) -> None:
    text = (DOCS / "reference" / "configuration.md").read_text()
    for field in fields(form):
        assert f"| `{field.encode_name}` |" in text


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_the_root_folder_lead_somewhere(name: str) -> None:
    for target in _LINK.findall((ROOT / name).read_text()):
        assert (ROOT / target).exists(), target


def test_the_files_of_the_architecture_page_are_there() -> None:
    text = (DOCS / "architecture.md").read_text()
    files = re.findall(r"^\| \d+\. `([^`]+)`", text, re.MULTILINE)
    assert 10 <= len(files) <= 15
    for name in files:
        assert (ROOT / "src" / "hespas" / name).is_file(), name
    listed = re.findall(r"`([a-z_]+/|[a-z_]+\.py)`", text[: text.index("## Which values")])
    here = {path.name for path in (ROOT / "src" / "hespas").iterdir()}
    there = {name.rstrip("/") for name in listed}
    assert here - there <= {"__init__.py", "__pycache__", "configs", "py.typed"}


def test_the_examples_of_own_hardware_are_valid(tmp_path: Path) -> None:
    text = (DOCS / "how-to" / "own-hardware.md").read_text()
    blocks = re.findall(r"^```(?:json|yaml)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    names = ("config.json", "node.json", "network.yml", "system.json", "remote_memory.json")
    for name, block in zip(names, blocks, strict=True):
        (tmp_path / name).write_text(block)
    device = load_device(tmp_path)
    assert device.per_datatype_flops == {"bf16": 200e12, "f32": 20e12}
    assert device.memory_capacity_bytes == 64 * 2**30
    assert load_system(tmp_path).device_count == 8
