"""Format help texts.

Options stand in groups, with one spelling each. Every command and option is a `Command` or a
`Flag`. Colour goes to terminals alone;
``NO_COLOR`` and ``FORCE_COLOR`` are respected.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, cast

import click

from hespas.base.fields import Group
from hespas.base.suggest import nearest, other_names

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

WIDEST = 110
"""The most characters in a line of help, however wide the terminal is."""
_FIRST_COLUMN = 30
_SPACING = 2
_NARROWEST = 20
_FLAGS = re.compile(r"(?<![\w\[-])--?(?:\[no-\])?[a-z][\w-]*")


def wants_colour(environment: Mapping[str, str]) -> bool | None:
    """Return whether to write in colour; None for terminals alone.

    >>> wants_colour({}), wants_colour({"NO_COLOR": "1"}), wants_colour({"FORCE_COLOR": "1"})
    (None, False, True)
    """
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR", "0") not in {"", "0"}:
        return True
    return False if environment.get("TERM") == "dumb" else None


class Flag(click.Option):
    """An option with its group, and the option it needs."""

    def __init__(
        self, *args: Any, group: Group = Group.MAIN, needs: str = "", **settings: Any
    ) -> None:
        super().__init__(*args, **settings)
        self.group = group
        self.needs = needs

    @property
    def spellings(self) -> tuple[str, ...]:
        """The spellings in help: the first long one, and letters.

        The others are documented elsewhere, and work as well.
        """
        short = tuple(name for name in self.opts if not name.startswith("--"))
        return (*short, *self.first_long)

    @property
    def first_long(self) -> tuple[str, ...]:
        """The main long spelling, and the opposite of a switch."""
        names = next(((name,) for name in self.opts if name.startswith("--")), ())
        return (*names, *self.secondary_opts)

    def record(self, context: click.Context) -> tuple[str, str]:
        """Return the names and help, without the needed option."""
        names = ", ".join(self.spellings)
        if self.secondary_opts and self.first_long[0].startswith("--"):
            names = self.first_long[0].replace("--", "--[no-]", 1)
            if self.secondary_opts[0] != self.first_long[0].replace("--", "--no-", 1):
                names = " / ".join(self.first_long)
        elif not self.is_flag:
            names = f"{names} {self.make_metavar(context)}"
        text = self.help or ""
        return names, f"{text}  [required]" if self.required else text

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the names and help in commands without groups."""
        if self.hidden:
            return None
        names, text = self.record(ctx)
        return names, _with_need(text, self.needs)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Have the parser keep each value that is given."""
        repeats, self.multiple = self.multiple, True
        super().add_to_parser(parser, ctx)
        self.multiple = repeats

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the value; refuse an option that is given with two."""
        given: Sequence[Any] = opts.get(self.name or "", ())
        if given and not self.multiple:
            others = [value for value in given if value != given[0]]
            if others:
                raise click.UsageError(self._given_twice(given[0], others[0]), ctx)
            opts = {**opts, self.name or "": given[0]}
        return super().consume_value(ctx, opts)

    def _given_twice(self, one: object, other: object) -> str:
        names = self.first_long or tuple(self.opts)
        if self.secondary_opts:
            return f"both {names[0]} and {names[1]} are given; keep one"
        # An option whose value may be left out has no text for that.
        shown = [f"as {it}" if isinstance(it, str) else "without a value" for it in (one, other)]
        return f"{names[0]} is given twice, {' and '.join(shown)}; keep one"

    def get_error_hint(self, ctx: click.Context | None) -> str:  # noqa: ARG002 - click's signature
        """Return the names in errors: those with dashes."""
        return " or ".join(f"'{name}'" for name in self.opts if "_" not in name)


def _with_need(text: str, needs: str) -> str:
    return f"{text.rstrip('.')}; needs {needs}." if needs else text


class Formatter(click.HelpFormatter):
    """Writes coloured help, which `click.echo` makes plain if unwanted."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the line that shows how the command is called."""
        written = len(self.buffer)
        super().write_usage(prog, args, prefix)
        self.buffer[written] = self.buffer[written].replace("Usage:", _heading("Usage:"), 1)

    def write_heading(self, heading: str) -> None:
        """Write a heading."""
        self.write(f"{'':>{self.current_indent}}{_heading(f'{heading}:')}\n")

    def write_rows(self, rows: Sequence[tuple[str, str]], column: int) -> None:
        """Write names, and their descriptions in a column.

        The descriptions start after ``column`` characters; longer names have a line of their own.
        """
        margin = " " * self.current_indent
        gap = " " * (self.current_indent + column + _SPACING)
        for names, text in rows:
            width = max(self.width - len(gap), _NARROWEST)
            wrapped = wrap(text, width, break_on_hyphens=False, break_long_words=False)
            lines = [gap + line for line in wrapped]
            name_line = margin + _coloured(names)
            if len(names) <= column and lines:
                first = lines.pop(0).removeprefix(gap)
                name_line += " " * (column - len(names) + _SPACING) + first
            self.write("".join(f"{line}\n" for line in [name_line, *lines]))


def _coloured(names: str) -> str:
    """Colour an option's spellings or a command's name."""
    if not names.startswith("-"):
        return _name(names)
    return _FLAGS.sub(lambda match: _name(match[0]), names)


def _heading(text: str) -> str:
    return click.style(text, bold=True)


def _name(text: str) -> str:
    return click.style(text, fg="cyan")


class _Context(click.Context):
    formatter_class = Formatter

    def make_formatter(self) -> click.HelpFormatter:
        return Formatter(width=self.terminal_width, max_width=WIDEST)


class Command(click.Command):
    """A command with an example, and grouped options."""

    context_class = _Context

    def __init__(self, *args: Any, example: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.example = example

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's description, and the example."""
        super().format_help_text(ctx, formatter)
        if self.example:
            write_example("Example", self.example, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, group by group."""
        format_groups(self.get_params(ctx), ctx, cast("Formatter", formatter))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return a shell's completions, with help's spellings only."""
        hidden = {
            name
            for flag in self.params
            if isinstance(flag, Flag)
            for name in flag.opts
            if name not in flag.spellings
        }
        completions = super().shell_complete(ctx, incomplete)
        return [completion for completion in completions if completion.value not in hidden]


class Commands(click.Group):
    """A group of commands with sections and a first example."""

    context_class = _Context
    start = ""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the group's description, and a first command to try."""
        super().format_help_text(ctx, formatter)
        write_example("Start with", self.start, formatter)

    def listed(self) -> Mapping[str, Mapping[str, str]]:
        """Return the commands' descriptions by name, under headings."""
        raise NotImplementedError

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, then the few options."""
        commands = self.listed()
        options = [parameter.get_help_record(ctx) for parameter in self.get_params(ctx)]
        sections = [(heading, [*summaries.items()]) for heading, summaries in commands.items()]
        sections.append((Group.MAIN.value, [row for row in options if row is not None]))
        column = max(len(name) for _, rows in sections for name, _ in rows)
        for heading, rows in sections:
            with formatter.section(heading):
                cast("Formatter", formatter).write_rows(rows, column)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the named command; an error suggests the closest one."""
        command_name = args[0]
        command_names = self.list_commands(ctx)
        if command_name in command_names or command_name.startswith("-"):
            return super().resolve_command(ctx, args)
        hint = _suggestion(nearest(command_name, command_names))
        root = ctx.find_root()
        group = root.command
        if not hint and ctx is root:
            hint = f"; to predict a program: {ctx.command_path} run {command_name}"
        elif not hint and isinstance(group, click.Group):
            is_there = command_name in group.list_commands(root)
            hint = f"; did you mean {root.command_path} {command_name}?" if is_there else ""
        raise click.UsageError(f"there is no command {command_name!r}{hint}", ctx)


def usage_message(error: click.UsageError) -> str:
    """Return the error of a command's call, with help."""
    context = error.ctx
    text = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption) and context is not None:
        names = [
            name
            for parameter in context.command.params
            if isinstance(parameter, Flag)
            for name in parameter.first_long[:1]
        ]
        own = own_option(error.option_name, names)
        near = [own] if own else nearest(error.option_name.replace("_", "-"), names)
        text = f"there is no option {error.option_name!r}{_suggestion(near)}"
    if text.startswith("Got unexpected extra argument") and context is not None:
        text = _unexpected(text, context.command)
    return text if context is None else f"{text}; see {context.command_path} --help"


def options_by_other_name() -> Mapping[str, Sequence[str]]:
    """Return our options for other tools' names, likeliest first.

    Names have no dashes.
    """
    rows = other_names()["options"]
    return {name: row["here"] for row in rows for name in row["others"]}


def own_option(option: str, names: Collection[str]) -> str | None:
    """Return our option for another tool's, among ``names``.

    >>> own_option("--tensor-parallel-size", ["--mesh", "--rate"])
    '--mesh tp=N'
    >>> own_option("--dp", ["--mesh"]), own_option("--dp", ["--mesh", "--replicas"])
    ('--mesh data=N', '--replicas N')
    >>> own_option("--dp", ["--rate"])
    """
    name = option.lstrip("-").replace("_", "-").casefold()
    lines = options_by_other_name().get(name, ())
    return next((line for line in lines if line.split(" ")[0] in names), None)


def _unexpected(text: str, command: click.Command) -> str:
    """Return the error for arguments that the command doesn't take.

    click's ``text`` lists them.
    """
    first = text.partition("(")[2].rstrip(")").split()[0]
    takes_settings = any("--set" in parameter.opts for parameter in command.params)
    is_setting = takes_settings and "=" in first
    setting = f"; settings are given as --set {first}" if is_setting else ""
    return f"nothing takes the argument {first!r}{setting}"


def _suggestion(near: Sequence[str]) -> str:
    return f"; did you mean {' or '.join(near)}?" if near else ""


def write_example(heading: str, line: str, formatter: click.HelpFormatter) -> None:
    """Write a command line unwrapped, to be copied."""
    with formatter.section(heading):
        formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def format_groups(
    params: Iterable[click.Parameter], context: click.Context, formatter: Formatter
) -> None:
    """Write options under the headings of their groups.

    An option that all options of a group need stands beside the heading, and not with each.
    """
    groups = grouped(params)
    records = {
        group: [
            option.record(context)
            if isinstance(option, Flag)
            else option.get_help_record(context) or ("", "")
            for option in options
        ]
        for group, options in groups.items()
    }
    widths = [len(names) for rows in records.values() for names, _ in rows]
    column = max((width for width in widths if width <= _FIRST_COLUMN), default=0)
    for group, options in groups.items():
        need = _common_need(options)
        rows = [
            (names, text if _needs(option) == need else _with_need(text, _needs(option)))
            for (names, text), option in zip(records[group], options, strict=True)
        ]
        with formatter.section(f"{group.value} (with {need})" if need else group.value):
            formatter.write_rows(rows, column)


def grouped(params: Iterable[click.Parameter]) -> dict[Group, list[click.Option]]:
    """Return the options that help shows, by group, in order."""
    groups: dict[Group, list[click.Option]] = {group: [] for group in Group}
    for parameter in params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            groups[parameter.group if isinstance(parameter, Flag) else Group.LOGGING].append(
                parameter
            )
    return {group: options for group, options in groups.items() if options}


def _needs(option: click.Option) -> str:
    return option.needs if isinstance(option, Flag) else ""


def _common_need(options: Sequence[click.Option]) -> str:
    """Return the option that a whole group needs, or ""."""
    needs = {_needs(member) for member in options} - {""}
    if len(needs) != 1:
        return ""
    need = needs.pop()
    free = [member for member in options if not _needs(member) and need not in member.opts]
    return "" if free else need
