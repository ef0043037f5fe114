"""What options of other tools are called here."""

from __future__ import annotations

import click

from hespas.cli.commands import command_named, commands
from hespas.cli.help import options_by_other_name

NAMES = commands.list_commands(click.Context(commands))


def test_every_line_begins_with_an_option_that_some_command_has() -> None:
    known = {
        name for each in NAMES for option in command_named(each).params for name in option.opts
    }
    lines = {line.split(" ")[0] for lines in options_by_other_name().values() for line in lines}
    assert lines <= known


def test_no_name_is_an_option_of_run_or_serve() -> None:
    known = {
        name
        for each in ("run", "serve", "search")
        for option in command_named(each).params
        for name in option.opts
    }
    assert {f"--{name}" for name in options_by_other_name()} & known == set()
