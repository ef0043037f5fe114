"""``hespas export``: models, functions and compiler dumps as StableHLO."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hespas.cli import flags
from hespas.config.groups import Group
from hespas.errors import ConfigError, OutputError, ProgramError
from hespas.files import check_file, write_file
from hespas.frontend.load import read_source
from hespas.xla.cpu import use_cpu

if TYPE_CHECKING:
    from hespas.export.exported import Exported


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What is to be exported: ``changed`` are a model's options, ``module`` is of a dump."""

    source: str
    changed: dict[str, str]
    module: str | None


_MODEL_OPTIONS = flags.combined(
    flags.plain(
        "--mesh", metavar="AXIS=N,..", group=Group.MODEL, help="The devices, as in fsdp=4,tp=2."
    ),
    flags.plain(
        "--batch",
        metavar="N",
        group=Group.MODEL,
        help="Sequences or images per data-parallel part of the mesh.",
    ),
    flags.plain("--sequence", metavar="N", group=Group.MODEL, help="Tokens in a sequence."),
    flags.plain(
        "--remat",
        metavar="POLICY",
        group=Group.MODEL,
        help="What the backward pass computes again.",
    ),
    flags.plain(
        "--scan/--unrolled",
        default=None,
        group=Group.MODEL,
        help="One loop over the layers, or none.",
    ),
    flags.plain(
        "--dtype", metavar="TYPE", group=Group.MODEL, help="The type computed in, as in bf16."
    ),
    flags.plain(
        "--set",
        "more",
        multiple=True,
        metavar="NAME=VALUE",
        group=Group.MODEL,
        help="Another option.",
    ),
)


@flags.command("export", short_help="Write a model or function as StableHLO.")
@click.argument("source", required=False)
@flags.plain("--list", "list_models", is_flag=True, help="List the models and their options.")
@flags.both("output", "-o", type=flags.FILE, metavar="FILE", help="The file to write.")
@_MODEL_OPTIONS
@flags.plain(
    "--devices", type=click.IntRange(1), metavar="N", help="Virtual devices for one's own function."
)
@flags.plain("--module", metavar="NAME", help="Part of a module's name, for a dump of several.")
@flags.plain("--unpartitioned", is_flag=True, help="Keep the annotations, and do not partition.")
@flags.common
def command(
    *,
    source: str | None,
    output: Path | None,
    list_models: bool,
    more: tuple[str, ...],
    unpartitioned: bool,
    scan: bool | None,
    devices: int | None,
    module: str | None,
    log_level: str | None,
    log_path: Path | None,
    **given: str | None,
) -> None:
    """Write SOURCE as the StableHLO of one device, or of all with --unpartitioned.

    SOURCE is a model of the zoo (--list), package.module:function, a file that jax.export
    serialised, or a directory that XLA dumped into.
    """
    flags.start_logging(log_level, log_path)
    if devices is not None and not _is_function(source):
        raise ConfigError("--devices is for a function, package.module:function", hint="drop it")
    use_cpu(devices)
    if list_models:
        _print_models()
        return
    if source is None:
        raise ConfigError("no source is given", hint="name a model; --list lists them")
    if output is None:
        raise OutputError("no output is given", hint="name a file with -o")
    check_file(output)
    changed = {name: value for name, value in given.items() if value is not None}
    if scan is not None:
        changed["scan"] = "true" if scan else "false"
    pairs = _pairs(more)
    for name in changed.keys() & pairs.keys():
        raise ConfigError(f"--{name} and --set {name} are both given", hint="keep one")
    asked = _Asked(source=source, changed=changed | pairs, module=module)
    made = _exported(asked)
    if not unpartitioned:
        made = import_module("hespas.export.exported").partitioned(made)
    write_file(output, made.text)
    click.echo(f"{output}: {source} for {made.devices} devices")
    for note in made.notes:
        click.echo(f"  {note}")


def _pairs(more: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for name, equals, value in (pair.partition("=") for pair in more):
        if not equals:
            raise ConfigError(f"--set {name} has no value", hint="write NAME=VALUE")
        if name.strip() in pairs:
            raise ConfigError(f"--set names {name.strip()} twice", hint="keep one")
        pairs[name.strip()] = value.strip()
    return pairs


def _is_function(source: str | None) -> bool:
    return source is not None and ":" in source and not Path(source).exists()


def _exported(asked: _Asked) -> Exported:
    """Export what is asked for: what it is shows in its name."""
    path = Path(asked.source)
    if path.is_dir():
        _refuse_options(asked.changed, "a dump")
        return import_module("hespas.export.dump").export_dump(path, module=asked.module)
    if asked.module is not None:
        raise ConfigError("--module is for a directory that XLA dumped into", hint="drop it")
    if path.is_file():
        _refuse_options(asked.changed, "a file")
        return _from_file(path)
    if _is_function(asked.source):
        _refuse_options(asked.changed, "a function")
        # As `python -m` does: the function is where one stands.
        sys.path.insert(0, str(Path.cwd()))
        return import_module("hespas.export.function").export_named(asked.source)
    return import_module("hespas.export.function").export_model(asked.source, asked.changed)


def _refuse_options(changed: dict[str, str], what: str) -> None:
    if changed:
        raise ConfigError(
            f"{', '.join(sorted(changed))} are for models of the zoo; {what} has none of them",
            hint="drop them",
        )


def _from_file(path: Path) -> Exported:
    functions: Any = import_module("hespas.export.function")
    source = read_source(path)
    if not functions.is_jax_export(source):
        raise ProgramError(
            "this file is not what jax.export serialises",
            location=str(path),
            hint="give a program that is sharded to `hespas partition`",
        )
    return functions.export_serialized(source, name=str(path))


def _print_models() -> None:
    for model in import_module("hespas.models.catalogue").models().values():
        click.echo(f"{model.name}: {model.summary}")
        listed = (f"{name}={value}" for name, value in model.options().items())
        click.echo(f"  {' '.join(listed)}")
