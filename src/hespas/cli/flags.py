"""Flags: those derived from the fields of options, and those that commands share.

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
    """A path that is not empty, as from an unset variable."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


FILE = _File()


class _Workload(_File):
    """A program or a model; shells complete both."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from hespas.models.catalogue import names  # noqa: PLC0415 - of completion alone

        models = [CompletionItem(name) for name in names() if name.startswith(incomplete)]
        return [*models, *super().shell_complete(ctx, param, incomplete)]


def _complete_preset(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,
    incomplete: str,
) -> list[CompletionItem]:
    """Complete a part, a system, or the part of ``COUNTxPART``."""
    from hespas.hardware.presets import device_names, system_names  # noqa: PLC0415 - as above

    count, times, part = incomplete.partition("x")
    if param.name == "cluster" and count.isdecimal() and times:
        choices = [f"{count}x{name}" for name in device_names() if name.startswith(part)]
    else:
        choices = [*device_names(), *system_names()]
    return [CompletionItem(name) for name in choices if name.startswith(incomplete)]


_OF_PRESETS = frozenset({"cluster", "node", "system"})
"""Options whose values name hardware."""


def combined(*decorators: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Combine decorators into one that adds all options, in order."""

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
    """Make an option; help shows its first long name and letters."""
    return click.option(*names, cls=Flag, **settings)


def both(name: str, *more: str, **settings: Any) -> Callable[[Any], Any]:
    """Make an option spelled with dashes, and with underscores as documented.

    ``more`` are further spellings: whole flags such as ``-o``, or names. Help shows the first.
    """
    names = [flag(name), f"--{name}"]
    for spelling in more:
        names += [spelling] if spelling.startswith("-") else [flag(spelling), f"--{spelling}"]
    return plain(*dict.fromkeys(names), name.replace("-", "_"), **settings)


def derived(
    section: type, *, only: Collection[str] = (), without: Collection[str] = ()
) -> Callable[[Function], Function]:
    """Return a decorator that adds the flags of an options dataclass.

    ``only`` and ``without`` are names of options. Help names the option that another needs if both
    are added.
    """
    chosen_options = [
        candidate
        for candidate in options_in(section)
        if candidate.has_flag
        and candidate.name not in without
        and (not only or candidate.name in only)
    ]
    names = {candidate.name for candidate in chosen_options}
    return combined(*(_click_option(candidate, names) for candidate in chosen_options))


def _click_option(each: Option, chosen: Collection[str]) -> Callable[[Any], Any]:
    settings: dict[str, Any] = {
        "help": spelled(each.help_text, flag),
        "group": each.group or Group.MAIN,
        "needs": flag(each.needs) if each.needs in chosen else "",
        "hidden": each.is_hidden,
    }
    if bool in each.kinds and (each.negatable or each.negated):
        switch = f"{flag(each.name)}/{flag(each.negated or f'no_{each.name}')}"
        return plain(switch, each.name, default=None, **settings)
    if bool in each.kinds:
        return both(each.name, *each.aliases, is_flag=True, default=None, **settings)
    kind: Any = None
    if each.choices:
        kind = click.Choice(each.choices)
    elif each.kinds == (Path,):
        kind = FILE
    elif each.kinds == (int,) and each.parse is None:
        kind = int
    if each.name in _OF_PRESETS:
        settings["shell_complete"] = _complete_preset
    settings |= {"type": kind, "multiple": each.repeats, "metavar": each.metavar}
    return both(each.name, *each.aliases, **settings)


def built(section: type[_T], given: Mapping[str, Any]) -> _T:
    """Build an options dataclass from flags alone, without other dataclasses.

    Raises `ConfigError` for flags that contradict each other, have no effect or can't be read.
    """
    given = with_imperfections(given)
    raw = _raw_values(section, given)
    check_effects(
        [raw], [candidate for candidate in options_in(section) if candidate.needs in {"", *given}]
    )
    return build(section, _values(section, raw).values)


def refuse(given: Mapping[str, object], reason: str, remedy: str = "") -> None:
    """Raise `ConfigError` for the first flag of ``given`` that is set.

    >>> refuse({"--nodes": False, "--group": "dense"}, "has no effect without --all", "add it")
    Traceback (most recent call last):
    hespas.errors.ConfigError: --group has no effect without --all; add it
    """
    for name, value in given.items():
        if value not in (None, (), {}) and value is not False:
            raise ConfigError(f"{name} {reason}", hint=remedy)


def _raw_values(section: type, given: Mapping[str, Any]) -> Layer:
    """Return the command line's raw values for the options of ``section``."""
    names = (candidate.name for candidate in options_in(section))
    return Layer(values={name: given[name] for name in names if given.get(name) not in (None, ())})


def _values(section: type, raw: Layer) -> Layer:
    """Parse raw values; raise `ConfigError` for a text that an option can't read."""
    return Layer(
        values={
            candidate.name: candidate.value(raw.values[candidate.name])
            for candidate in options_in(section)
            if candidate.name in raw.values
        }
    )


def requested(given: Mapping[str, Any], config_file: Path | None = None) -> PredictOptions:
    """Return the options of a prediction: flags, then the configuration, then defaults.

    ``given`` are click's values for the command. Its argument ``workload`` is a program or, without
    a ``config_file``, a configuration. Raises `ConfigError` for options that contradict each other
    or have no effect in the command.
    """
    from hespas.models.software import ARGUMENTS_PREFIX  # noqa: PLC0415 - few commands need it
    from hespas.prediction.options import PredictOptions  # noqa: PLC0415 - few need it

    argument: Path | None = given.get("workload")
    if argument is not None and config_file is None and _configures(argument):
        config_file, argument = argument, None
    if argument is not None:
        if given.get("mlir_file") is not None:
            raise ConfigError(
                "two programs are given",
                location=str(argument),
                hint=f"drop the argument or {option('mlir_file')}",
            )
        given = {**given, "mlir_file": argument}
    given = with_imperfections(given)
    all_options = options_in(PredictOptions)
    raw = _raw_values(PredictOptions, given)
    configured = Layer(values={})
    if config_file is not None:
        from hespas.prediction.configuration import read_configuration  # noqa: PLC0415 - as above

        configured = read_configuration(config_file)
    _spell_as_keys(all_options, raw, configured)
    check_effects(
        [raw, configured],
        [known_option for known_option in all_options if known_option.name in given],
    )
    values = joined([_values(PredictOptions, raw), configured], all_options)
    options = build(PredictOptions, values)
    if not str(options.program.file or "").startswith(ARGUMENTS_PREFIX):
        return options
    from hespas.prediction.megatron import with_arguments  # noqa: PLC0415 - few runs have one

    return with_arguments(options)


def with_imperfections(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace ``--cluster FILE`` by its newer spelling ``--imperfect FILE``.

    >>> with_imperfections({"cluster": "slow.yml", "imperfect": None})
    {'cluster': None, 'imperfect': 'slow.yml'}
    >>> with_imperfections({"cluster": "32xH100_80GB", "imperfect": None})
    {'cluster': '32xH100_80GB', 'imperfect': None}
    """
    cluster = given.get("cluster")
    if cluster is None or not (Path(cluster).is_file() or Path(cluster).suffix in _IMPERFECT):
        return given
    if given.get("imperfect") is not None:
        raise ConfigError(
            f"{option('cluster')} names a file of imperfections, and {option('imperfect')} another",
            location=str(cluster),
            hint=f"give {option('cluster')} a system, as in 32xH100_80GB",
        )
    return {**given, "cluster": None, "imperfect": cluster}


_IMPERFECT = (".yml", ".yaml", ".json")


def _configures(argument: Path) -> bool:
    """Return whether an argument is a prediction's configuration file."""
    if argument.suffix != ".json" or is_recorded_file(argument):
        return False
    from hespas.models.configuration import is_configuration  # noqa: PLC0415 - of few workloads

    return not is_configuration(argument)


def _spell_as_keys(known: Collection[Option], flags: Layer, configuration: Layer) -> None:
    """Let errors name options by their keys if the configuration sets them.

    The outermost context holds the spellings of options: see `hespas.cli.commands.run`.
    """
    context = click.get_current_context(silent=True)
    if context is None or not isinstance(context.obj, dict):
        return
    spelling = cast("dict[str, str]", context.obj)
    for known_option in known:
        if known_option.name in configuration.values and known_option.name not in flags.values:
            spelling[known_option.name] = known_option.key


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
    """Log from ``level`` on to a file or standard error.

    Without both nothing is logged.

    A terminal shows the progress of long stages, unless the log goes there.
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
