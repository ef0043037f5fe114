"""Options of the compilers, and what they ask for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hespas.cli.options import FILE, both, combined
from hespas.compile.cache import CompiledCache, default_directory
from hespas.compile.compiler import DEFAULT_LIMITS
from hespas.compile.job import Layout
from hespas.compile.options import DEFAULT_OPTIONS, CompileOptions, Matmuls
from hespas.errors import ConfigError
from hespas.tools.process import Limits
from hespas.units import parse_quantity

layout = combined(
    both("devices", "--num_npus", "--num-npus", type=int, help="How many devices, if not said."),
    both("devices_per_host", type=int, help="GPUs of a host (default 8; 4 for GB200 and GB300)."),
    click.option("--topology", help="Chips of a TPU slice, as in 4x4 (default: by the devices)."),
)

compilation = combined(
    both(
        "disable_passes",
        "-d",
        metavar="PASS,..",
        help="Passes of XLA to leave out (default rematerialization, on GPUs).",
    ),
    click.option(
        "--matmuls",
        type=click.Choice([kind.value for kind in Matmuls]),
        help="What multiplies matrices on a GPU (default cublas).",
    ),
    click.option(
        "--latency-hiding-scheduler/--no-latency-hiding-scheduler",
        default=None,
        help="Put work between a collective's start and its end (default).",
    ),
    click.option(
        "--pipelined-collectives/--no-pipelined-collectives",
        default=None,
        help="Move collectives across iterations of loops (default).",
    ),
    click.option(
        "--double-buffered-loops/--no-double-buffered-loops",
        default=None,
        help="Unroll loops by two (default).",
    ),
    both("all_reduce_combine", metavar="SIZE", help="Combine all-reduces up to this (128MiB)."),
    both("all_gather_combine", metavar="SIZE", help="Combine all-gathers up to this (128MiB)."),
    both("reduce_scatter_combine", metavar="SIZE", help="Combine reduce-scatters to this (64MiB)."),
    both("xla_flag", multiple=True, metavar="NAME=VALUE", help="Another flag of XLA's own."),
    both("time_limit", metavar="TIME", help="How long it may take (default 3600s)."),
    both("memory_limit", metavar="SIZE", help="How much it may address (default 32GiB)."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileFlags:
    """The flags of ``layout`` and ``compilation`` as click gives them; None where not given."""

    devices: int | None = None
    devices_per_host: int | None = None
    topology: str | None = None
    disable_passes: str | None = None
    matmuls: str | None = None
    latency_hiding_scheduler: bool | None = None
    pipelined_collectives: bool | None = None
    double_buffered_loops: bool | None = None
    all_reduce_combine: str | None = None
    all_gather_combine: str | None = None
    reduce_scatter_combine: str | None = None
    xla_flag: tuple[str, ...] = ()
    time_limit: str | None = None
    memory_limit: str | None = None


def layout_of(flags: CompileFlags) -> Layout:
    """Return how many devices there are, and how they stand."""
    return Layout(devices=flags.devices, per_host=flags.devices_per_host, topology=flags.topology)


def options_of(flags: CompileFlags) -> CompileOptions:
    """Return the compiler's options; `ConfigError` for one that can't be read."""
    wishes: dict[str, Any] = {
        "matmuls": None if flags.matmuls is None else Matmuls(flags.matmuls),
        "latency_hiding_scheduler": flags.latency_hiding_scheduler,
        "pipelined_collectives": flags.pipelined_collectives,
        "double_buffered_loops": flags.double_buffered_loops,
        "all_reduce_combine_bytes": _size(flags.all_reduce_combine, "--all-reduce-combine"),
        "all_gather_combine_bytes": _size(flags.all_gather_combine, "--all-gather-combine"),
        "reduce_scatter_combine_bytes": _size(
            flags.reduce_scatter_combine, "--reduce-scatter-combine"
        ),
        "disabled_passes": _passes(flags.disable_passes),
        "flags": _named(flags.xla_flag) or None,
    }
    given = {name: value for name, value in wishes.items() if value is not None}
    return CompileOptions(**given) if given else DEFAULT_OPTIONS


def _passes(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _size(text: str | None, location: str) -> int | None:
    if text is None:
        return None
    size = parse_quantity(text, "B", location=location)
    if size < 1 or size != int(size):
        raise ConfigError(
            f"{text!r} is not a number of bytes", location=location, hint="give 1 or more"
        )
    return int(size)


def _named(texts: Iterable[str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.removeprefix("--").partition("=")
        if not equals:
            raise ConfigError(f"--xla-flag is {text!r}", hint="give NAME=VALUE")
        if name in named:
            raise ConfigError(f"--xla-flag names {name} twice", hint="keep one")
        named[name] = value
    return named


def limits_of(flags: CompileFlags) -> Limits:
    """Return how long the compiler may take, and how much it may address."""
    time_s = DEFAULT_LIMITS.time_s
    if flags.time_limit is not None:
        time_s = parse_quantity(flags.time_limit, "s", location="--time-limit")
        if time_s <= 0:
            raise ConfigError("the time limit is not positive", location="--time-limit")
    memory = _size(flags.memory_limit, "--memory-limit")
    return Limits(
        time_s=time_s, memory_bytes=DEFAULT_LIMITS.memory_bytes if memory is None else memory
    )


cache = combined(
    both("cache_dir", type=FILE, help="Where compiled programs are kept (default ~/.cache)."),
    both("disable_cache", is_flag=True, default=False, help="Compile, and keep nothing."),
)


def cache_of(*, directory: Path | None, disabled: bool) -> CompiledCache | None:
    """Return where compiled programs are kept; None for nowhere."""
    if disabled:
        if directory is not None:
            raise ConfigError("--cache-dir has no effect with --disable-cache", hint="drop one")
        return None
    return CompiledCache(directory=default_directory() if directory is None else directory)
