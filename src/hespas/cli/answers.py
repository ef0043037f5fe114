"""Answers of commands, written as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hespas.base.files import check_file, json_bytes, write_file
from hespas.base.frozen import frozen
from hespas.cli import flags
from hespas.cli.help import Command
from hespas.errors import OutputError


@frozen
class Answer:
    """The text, JSON and exit code of an answer."""

    text: Callable[[], str]
    json: Callable[[], object] = lambda: None
    code: int = 0


def answering(
    name: str,
    *,
    example: str = "",
    has_json: bool = True,
    has_log: bool = True,
    checks_target: bool = False,
) -> Callable[[Callable[..., Answer | int]], Command]:
    """Make a command of a function, with common options.

    The function returns an `Answer`, or an exit code if it wrote everything itself. A file for JSON
    that can't be written is refused before the work; a command that ``checks_target`` gets the
    ``json_file`` and refuses it itself.
    """

    def decorate(function: Callable[..., Answer | int]) -> Command:
        def command(
            json_file: str | None = None,
            log_level: str | None = None,
            log_path: Path | None = None,
            **values: Any,
        ) -> int:
            flags.start_logging(log_level, log_path)
            if checks_target:
                values["json_file"] = json_file
            else:
                check_targets(json_file)
            answer = function(**values)
            if isinstance(answer, int):
                return answer
            if json_file is not None:
                write_json(json_file, answer.json())
            if json_file != "-" and (text := answer.text()):
                click.echo(text)
            return answer.code

        command.__doc__ = function.__doc__
        command.__name__ = name
        extra_options = [flags.json_option] if has_json else []
        flags.combined(*extra_options, flags.common if has_log else flags.debug)(command)
        # click lists parameters from the last one on.
        command.__dict__["__click_params__"] += getattr(function, "__click_params__", [])
        return click.command(name, cls=Command, example=example)(command)

    return decorate


def check_targets(
    json_file: str | None, *, made_later: Path | None = None, **files: Path | None
) -> None:
    """Refuse unwritable files before the work.

    ``files`` are by the names of their options; no file may be named for two of them. Raises
    `OutputError`.
    """
    targets = {"json": None if json_file in (None, "-") else Path(json_file), **files}
    flag_of: dict[Path, str] = {}
    for name, target in targets.items():
        if target is None:
            continue
        check_file(target, made_later=made_later)
        own, earlier = flags.flag(name), flag_of.get(target.absolute())
        if earlier is not None:
            raise OutputError(
                f"is named for both {earlier} and {own}",
                location=str(target),
                hint="name two files",
            )
        flag_of[target.absolute()] = own


def write_json(target: str, value: object) -> None:
    """Write JSON to a file, or standard output ("-")."""
    content = json_bytes(value)
    if target == "-":
        click.echo(content.decode(), nl=False)
    else:
        write_file(Path(target), content)
