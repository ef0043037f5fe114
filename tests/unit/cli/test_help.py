"""Help: options in groups, one spelling of each, no wider than the terminal, in colour or not."""

from __future__ import annotations

import re
import shlex

import click
import pytest
from click.testing import CliRunner

from hespas.base.fields import Group
from hespas.cli import commands as cli
from hespas.cli.commands import command_named, commands
from hespas.cli.help import WIDEST, Command, Commands, Flag, wants_colour

NAMES = commands.list_commands(click.Context(commands))
SOME_NEED = {"--system", "--output", "--json", "--backend"}


def shown(
    *arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    assert cli.run(commands, "hespas", list(arguments)) == 0
    return capsys.readouterr().out


def options_of(name: str) -> list[Flag]:
    params = command_named(name).params
    return [each for each in params if isinstance(each, Flag) and not each.hidden]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_and_option_is_one_of_ours(name: str) -> None:
    command = command_named(name)
    assert isinstance(command, Command | Commands)
    plain = [each for each in command.params if not isinstance(each, click.Argument | Flag)]
    assert plain == []


@pytest.mark.parametrize("name", NAMES)
def test_help_shows_each_option_once_and_no_alias(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = shown(name, "--help", monkeypatch=monkeypatch, capsys=capsys)
    options = text[text.index("Options:") :]
    listed = re.findall(r"^  (?:-\w, )?(--[\w\[\]-]+)", options, re.MULTILINE)
    expected = {
        each.first_long[0].replace("--", "", 1) for each in options_of(name) if not each.hidden
    } | {"help"}
    assert {each.replace("[no-]", "").lstrip("-") for each in listed} == expected
    assert len(listed) == len(expected)
    assert not re.search(r"--\w+_", text)
    assert max(map(len, text.splitlines())) <= 80


def test_groups_stand_in_order_and_the_usual_options_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown("run", "--help", monkeypatch=monkeypatch, capsys=capsys)
    options = text[text.index("Options:") :]
    headings = re.findall(r"^([A-Z][a-z ]+)(?: \(with --\w+\))?:$", options, re.MULTILINE)
    assert headings == [each.value for each in Group if each.value in headings]
    first = text[text.index("Options:") : text.index("Workload:")]
    usual = ["--mesh", "--node", "--cluster", "--output", "--json"]
    assert [name for name in usual if name in first] == usual
    assert "Cluster and network:" in text


def test_a_wide_terminal_is_used_up_to_a_width_that_reads_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    widths: dict[str, int] = {}
    for columns in ("66", "80", "120", "300"):
        monkeypatch.setenv("COLUMNS", columns)
        text = shown("run", "--help", monkeypatch=monkeypatch, capsys=capsys)
        widths[columns] = max(map(len, text.splitlines()))
    assert widths["66"] <= 66
    assert widths["80"] <= 80
    assert 100 < widths["120"] <= WIDEST
    assert widths["300"] <= WIDEST


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "0"}, False),
        ({"NO_COLOR": ""}, False),
    ],
)
@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["run", "--nod", "x"]])
def test_colour_goes_to_terminals_and_where_it_is_forced(
    arguments: list[str],
    environment: dict[str, str],
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    cli.run(commands, "hespas", arguments)
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert ("\x1b[" in text) is expected
    assert wants_colour({"TERM": "dumb"}) is False


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rum"], "there is no command 'rum'; did you mean run?; see hespas --help"),
        (
            ["study", "report", "DIR"],
            "there is no command 'report'; did you mean hespas report?; see hespas study --help",
        ),
        (["study", "xyzzy"], "there is no command 'xyzzy'; see hespas study --help"),
        (["hardwear"], "there is no command 'hardwear'; did you mean hardware?"),
        (["step.mlir"], "to predict a program: hespas run step.mlir"),
        (["run", "--nod", "x"], "there is no option '--nod'; did you mean --node?; see hespas run"),
        (["run", "--mlir_fil", "x"], "did you mean --mlir-file?"),
        (["run", "--tp", "8"], "there is no option '--tp'; did you mean --mesh tp=N?; see hespas"),
        (["serve", "--qps", "8"], "no option '--qps'; did you mean --rate R?; see hespas serve"),
        (["run", "--zzz", "x"], "there is no option '--zzz'; see hespas run --help"),
        (["simulate", "x"], "no system is given; give --cluster or --system"),
    ],
)
def test_a_misspelled_name_gets_the_one_that_was_meant(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(commands, "hespas", arguments) == cli.ERROR_CODE
    assert said in capsys.readouterr().err


def test_documented_second_spellings_still_work(capsys: pytest.CaptureFixture[str]) -> None:
    option = next(each for each in options_of("run") if each.name == "devices")
    assert option.opts == ["--devices", "--num-npus", "--num_npus"]
    assert option.spellings == ("--devices",)


def test_a_shell_completes_the_spellings_that_help_shows() -> None:
    command = command_named("run")
    offered = command.shell_complete(click.Context(command), "--m")
    names = {each.value for each in offered}
    assert {"--mlir-file", "--model", "--memory-bandwidth"} <= names
    assert not {name for name in names if "_" in name}


def has_example(name: str) -> bool:
    command = command_named(name)
    return isinstance(command, Command) and command.example != ""


@pytest.mark.parametrize("name", [*filter(has_example, NAMES), ""])
def test_the_example_of_a_command_can_be_called_so(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(commands, "hespas", [name, "--help"] if name else ["--help"]) == 0
    text = capsys.readouterr().out
    found = re.search(r"^(?:Example|Start with):\n  hespas (\S+) (.*)$", text, re.MULTILINE)
    assert found is not None
    called = found[1]
    assert called == (name or "run")
    context = command_named(called).make_context(called, shlex.split(found[2]))
    assert context.params


@click.command(cls=Command)
@click.option("-o", "--output", "--out_put", cls=Flag)
@click.option("--json", "json_file", cls=Flag, is_flag=False, flag_value="-")
@click.option("--merge/--no-merge", cls=Flag, default=None)
@click.option("--setting", cls=Flag, multiple=True)
def printed(output: str | None, json_file: str | None, merge: bool | None, setting: str) -> None:
    click.echo(f"{output} {json_file} {merge} {setting}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-o a --out_put b", "--output is given twice, as a and as b; keep one"),
        ("--json --json b", "--json is given twice, without a value and as b; keep one"),
        ("--no-merge --merge", "both --merge and --no-merge are given; keep one"),
    ],
)
def test_an_option_with_two_values_is_refused(line: str, message: str) -> None:
    result = CliRunner().invoke(printed, line.split())
    assert result.exit_code == 2
    assert message in result.output


def test_an_option_may_repeat_its_value() -> None:
    line = "-o a --output a --json --json --merge --merge --setting a --setting b"
    assert CliRunner().invoke(printed, line.split()).output == "a - True ('a', 'b')\n"
