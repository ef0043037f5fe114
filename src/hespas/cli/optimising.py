"""Whether a command compiles its program first, and how, from its flags."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hespas.cli.device_flags import check_device_flags
from hespas.cli.flags import Flags
from hespas.errors import ConfigError

if TYPE_CHECKING:
    from hespas.compile.options import CompileOptions


def is_optimised(flags: Flags) -> bool:
    """Tell whether the program is compiled for the node first.

    Raises `ConfigError` for flags that have no effect on that, or on what is compiled: before
    the compiler runs, not after it.
    """
    given = {
        "--disable-passes": flags.disable_passes is not None,
        "--matmuls": flags.matmuls is not None,
        "--latency-hiding-scheduler": flags.latency_hiding_scheduler is not None,
        "--xla-flag": bool(flags.xla_flag),
    }
    for name in (name for name, is_given in given.items() if is_given):
        if not flags.optimise:
            raise ConfigError(f"{name} has no effect without --optimise", hint="add it")
    if flags.optimise and flags.method is not None:
        check_device_flags(flags, flags.method)
    return bool(flags.optimise)


def compile_options_of(flags: Flags) -> CompileOptions:
    """Return what the compiler is told."""
    from hespas.cli.compiling import CompileFlags, options_of  # noqa: PLC0415 - few compile

    return options_of(
        CompileFlags(
            disable_passes=flags.disable_passes,
            matmuls=flags.matmuls,
            latency_hiding_scheduler=flags.latency_hiding_scheduler,
            xla_flag=flags.xla_flag,
        )
    )


def compiled_directory(flags: Flags) -> Path | None:
    """Return where compiled programs are kept, and what was read of them; None for nowhere."""
    from hespas.compile.cache import default_directory  # noqa: PLC0415 - few compile

    if flags.disable_cache or flags.in_memory_only_cache:
        return None
    return flags.cache_dir or default_directory()
