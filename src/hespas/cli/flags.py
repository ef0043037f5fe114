"""Flags of options, and flags that commands share.

`derived` makes click's options from the fields of an options dataclass, in their groups, and
`requested` turns click's values into `hespas.prediction.options.PredictOptions`: flags before the
configuration before defaults. A new option of a prediction needs no change here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from hespas.base.fields import Group, Layer, Option, build, check_effects, joined, options_in
from hespas.cli.help import Flag
from hespas.cli.progress import show_progress
from hespas.errors import ConfigError, OutputError, option, spelled
from hespas.program.recorded import is_recorded_file

if TYPE_CHECKING:
    from hespas.prediction.options import PredictOptions

_T = TypeVar("_T")
Function = TypeVar("Function", bound=Callable[..., Any])


class _File(click.Path):
    """A path; an empty one (an unset variable) is refused."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


FILE = _File()


def _complete_model(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001 - as above
    incomplete: str,
) -> list[CompletionItem]:
    from hespas.models.catalogue import names  # noqa: PLC0415 - of completion alone

    return [CompletionItem(name) for name in names() if name.startswith(incomplete)]


class _Workload(_File):
    """A program or a model; shells complete models, else files.

    Bash drops what is named beside files.
    """

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        models = _complete_model(ctx, param, incomplete) if incomplete else []
        return models or super().shell_complete(ctx, param, incomplete)


def _complete_preset(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001 - as above
    incomplete: str,
) -> list[CompletionItem]:
    """Complete a part, a system, or the part of ``COUNTxPART``."""
    from hespas.hardware.presets import device_names, system_names  # noqa: PLC0415 - as above

    count, times, part = incomplete.partition("x")
    if count.isdecimal() and times:
        choices = [f"{count}x{name}" for name in device_names() if name.startswith(part)]
    else:
        choices = [*device_names(), *system_names()]
    return [CompletionItem(name) for name in choices if name.startswith(incomplete)]


def _complete_value(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,
    incomplete: str,
) -> list[CompletionItem]:
    """Complete a value that the workload, or another package, reads."""
    from hespas.models.model import CHOICES  # noqa: PLC0415 - as above
    from hespas.models.software import SOFTWARE  # noqa: PLC0415 - as above
    from hespas.serve.engine import ENGINES  # noqa: PLC0415 - as above

    values = {**CHOICES, "software": tuple(SOFTWARE), "engine": tuple(ENGINES)}
    known = values.get(param.name or "", ())
    return [CompletionItem(value) for value in known if value.startswith(incomplete)]


_COMPLETED = {
    **dict.fromkeys(("cluster", "node", "system"), _complete_preset),
    **dict.fromkeys(("attention", "dtype", "engine", "remat", "software"), _complete_value),
}
"""What completes the values of options that have no choices of their own."""

model_argument = click.argument("model", shell_complete=_complete_model)
known_model_argument = click.argument("name", required=False, shell_complete=_complete_model)
preset_argument = click.argument("name", required=False, shell_complete=_complete_preset)
exported_argument = click.argument("source", required=False, shell_complete=_complete_model)


def combined(*decorators: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Combine decorators into one, in order."""

    def decorate(function: Function) -> Function:
        return reduce(lambda inner, add: add(inner), reversed(decorators), function)

    return decorate


def flag(name: str) -> str:
    """Return the command line's spelling of an option.

    >>> flag("trip_count")
    '--trip-count'
    """
    return f"--{name.replace('_', '-')}"


def plain(*names: str, **settings: Any) -> Callable[[Any], Any]:
    """Make an option that help shows with one spelling."""
    return click.option(*names, cls=Flag, **settings)


def both(name: str, *more: str, **settings: Any) -> Callable[[Any], Any]:
    """Make an option spelled with dashes and with underscores.

    The underscores are documented. ``more`` are further spellings: flags such as ``-o``, or names.
    Help shows the first.
    """
    names = [flag(name), f"--{name}"]
    for spelling in more:
        names += [spelling] if spelling.startswith("-") else [flag(spelling), f"--{spelling}"]
    return plain(*dict.fromkeys(names), name.replace("-", "_"), **settings)


def derived(
    section: type, *, only: Collection[str] = (), without: Collection[str] = ()
) -> Callable[[Function], Function]:
    """Return a decorator that adds an options dataclass's flags.

    ``only`` and ``without`` are names of options. Help names the option that another needs if both
    are added.
    """
    fields = [
        field
        for field in options_in(section)
        if field.has_flag and field.name not in without and (not only or field.name in only)
    ]
    names = {field.name for field in fields}
    return combined(*(_click_option(field, names) for field in fields))


def _click_option(field: Option, names: Collection[str]) -> Callable[[Any], Any]:
    settings: dict[str, Any] = {
        "help": spelled(field.help_text, flag),
        "group": field.group or Group.MAIN,
        "needs": flag(field.needs) if field.needs in names else "",
        "hidden": field.is_hidden,
    }
    if bool in field.kinds and (field.negatable or field.negated):
        switch = f"{flag(field.name)}/{flag(field.negated or f'no_{field.name}')}"
        return plain(switch, field.name, default=None, **settings)
    if bool in field.kinds:
        return both(field.name, *field.aliases, is_flag=True, default=None, **settings)
    kind: Any = None
    if field.choices:
        kind = click.Choice(field.choices)
    elif field.kinds == (Path,):
        kind = FILE
    elif field.kinds == (int,) and field.parse is None:
        kind = int
    if field.name in _COMPLETED and not field.choices:
        settings["shell_complete"] = _COMPLETED[field.name]
    settings |= {"type": kind, "multiple": field.repeats, "metavar": field.metavar}
    return both(field.name, *field.aliases, **settings)


def built(section: type[_T], flag_values: Mapping[str, Any]) -> _T:
    """Build an options dataclass from flags alone.

    Raises `ConfigError` for flags that contradict each other, have no effect or can't be read.
    """
    flag_values = with_imperfections(flag_values)
    raw = _raw_values(section, flag_values)
    check_effects(
        [raw], [field for field in options_in(section) if field.needs in {"", *flag_values}]
    )
    return build(section, _parsed_values(section, raw).values)


def refuse(flag_values: Mapping[str, object], reason: str, remedy: str = "") -> None:
    """Refuse the first of some flags that is set.

    Raises `ConfigError` with the flag, the ``reason`` and the ``remedy``.

    >>> refuse({"--nodes": False, "--group": "dense"}, "has no effect without --all", "add it")
    Traceback (most recent call last):
    hespas.errors.ConfigError: --group has no effect without --all; add it
    """
    for name, value in flag_values.items():
        if value not in (None, (), {}) and value is not False:
            raise ConfigError(f"{name} {reason}", hint=remedy)


def _raw_values(section: type, flag_values: Mapping[str, Any]) -> Layer:
    """Return the unparsed flags of an options dataclass."""
    names = (field.name for field in options_in(section))
    return Layer(
        values={
            name: flag_values[name] for name in names if flag_values.get(name) not in (None, ())
        }
    )


def _parsed_values(section: type, raw: Layer) -> Layer:
    return Layer(
        values={
            field.name: field.value(raw.values[field.name])
            for field in options_in(section)
            if field.name in raw.values
        }
    )


def requested(flag_values: Mapping[str, Any], config_file: Path | None = None) -> PredictOptions:
    """Return a prediction's options, from flags, configuration and defaults.

    ``flag_values`` are click's for the command. Its argument ``workload`` is a program or, without
    a ``config_file``, a configuration. Raises `ConfigError` for options that contradict each other
    or have no effect in the command.
    """
    from hespas.models.software import ARGUMENTS_PREFIX  # noqa: PLC0415 - few commands need it
    from hespas.prediction.options import PredictOptions  # noqa: PLC0415 - few need it

    argument: Path | None = flag_values.get("workload")
    if argument is not None and config_file is None and _is_configuration(argument):
        config_file, argument = argument, None
    if argument is not None:
        if flag_values.get("mlir_file") is not None:
            raise ConfigError(
                "two programs are given",
                location=str(argument),
                hint=f"drop the argument or {option('mlir_file')}",
            )
        flag_values = {**flag_values, "mlir_file": argument}
    flag_values = with_imperfections(flag_values)
    all_options = options_in(PredictOptions)
    raw = _raw_values(PredictOptions, flag_values)
    configured = Layer(values={})
    if config_file is not None:
        from hespas.prediction.configuration import read_configuration  # noqa: PLC0415 - as above

        configured = read_configuration(config_file)
    _spell_as_keys(all_options, raw, configured)
    check_effects([raw, configured], [field for field in all_options if field.name in flag_values])
    values = joined([_parsed_values(PredictOptions, raw), configured], all_options)
    options = build(PredictOptions, values)
    program = options.program
    if program.model.software is None and not str(program.file or "").startswith(ARGUMENTS_PREFIX):
        return options
    from hespas.prediction.frameworks import with_framework  # noqa: PLC0415 - few runs have one

    return with_framework(options)


def with_imperfections(flag_values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace ``--cluster FILE`` by its newer spelling ``--imperfect FILE``.

    >>> with_imperfections({"cluster": "slow.yml", "imperfect": None})
    {'cluster': None, 'imperfect': 'slow.yml'}
    >>> with_imperfections({"cluster": "32xH100_80GB", "imperfect": None})
    {'cluster': '32xH100_80GB', 'imperfect': None}
    """
    cluster = flag_values.get("cluster")
    if cluster is None or not (Path(cluster).is_file() or Path(cluster).suffix in _IMPERFECT):
        return flag_values
    if flag_values.get("imperfect") is not None:
        raise ConfigError(
            f"{option('cluster')} names a file of imperfections, and {option('imperfect')} another",
            location=str(cluster),
            hint=f"give {option('cluster')} a system, as in 32xH100_80GB",
        )
    return {**flag_values, "cluster": None, "imperfect": cluster}


_IMPERFECT = (".yml", ".yaml", ".json")


def _is_configuration(argument: Path) -> bool:
    """Return whether an argument is a prediction's configuration file."""
    if argument.suffix != ".json" or is_recorded_file(argument):
        return False
    from hespas.models.configuration import is_configuration  # noqa: PLC0415 - of few workloads

    return not is_configuration(argument)


def _spell_as_keys(fields: Collection[Option], flags: Layer, configuration: Layer) -> None:
    """Name configured options by their keys in errors.

    The outermost context holds the spellings of options: see `hespas.cli.commands.run`.
    """
    context = click.get_current_context(silent=True)
    if context is None or not isinstance(context.obj, dict):
        return
    spelling = cast("dict[str, str]", context.obj)
    for field in fields:
        if field.name in configuration.values and field.name not in flags.values:
            spelling[field.name] = field.key


workload_argument = click.argument("workload", type=_Workload(), required=False)

debug = plain(
    "--debug",
    is_flag=True,
    expose_value=False,
    group=Group.LOGGING,
    help="Show where errors arise (tracebacks).",
)

common = combined(
    both(
        "log_level",
        type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
        metavar="LEVEL",
        group=Group.LOGGING,
        help="How much to log: debug, info, warning or error.",
    ),
    both(
        "log_path",
        type=FILE,
        metavar="FILE",
        group=Group.LOGGING,
        help="Log to this file, and not to standard error.",
    ),
    debug,
)

timeline_option = plain(
    "--timeline",
    type=FILE,
    metavar="FILE",
    group=Group.OUTPUT,
    help="Write a timeline for ui.perfetto.dev.",
)

json_option = plain(
    "--json",
    "json_file",
    metavar="[FILE]",
    is_flag=False,
    flag_value="-",
    group=Group.MAIN,
    help="Write the results as JSON to FILE, or to standard output.",
)


estimator_times = plain(
    "--estimator-times", is_flag=True, hidden=True, help="Print what the estimator's time was."
)


def start_logging(level: str | None, path: Path | None) -> None:
    """Log to a file or standard error, from a level.

    Without a level and a file nothing is logged. A terminal shows the progress of long stages,
    unless the log goes there.
    """
    show_progress(log_is_shown=level is not None and path is None)
    logger = logging.getLogger("hespas")
    for old_handler in list(logger.handlers):
        logger.removeHandler(old_handler)
        old_handler.close()
    if level is None and path is None:
        logger.setLevel(logging.NOTSET)
        return
    try:
        handler = logging.StreamHandler() if path is None else logging.FileHandler(path)
    except OSError as error:
        raise OutputError(
            f"the log cannot be written: {error.strerror}",
            location=str(path),
            hint="check --log-path",
        ) from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    # The handler needs the level too: loggers below this one may log more for other handlers.
    handler.setLevel((level or "info").upper())
    logger.addHandler(handler)
    logger.setLevel(handler.level)
