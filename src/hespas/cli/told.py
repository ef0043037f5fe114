"""What the user tells about a program: every word of it has an effect, or is refused."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from hespas.cli.settings import Settings
from hespas.cli.source import Source
from hespas.config.suggest import suggestion
from hespas.cost.rules.custom_call import CustomCallCost, custom_call
from hespas.errors import ConfigError, CostError, HespasError
from hespas.frontend.load import load_per_device, load_program
from hespas.frontend.loaded import Loaded
from hespas.frontend.overrides import NO_OPTIONS, LoadOptions
from hespas.program.attrs import CustomCallAttrs
from hespas.program.program import Program, all_ops

log = logging.getLogger("hespas")


def read_program(path: Path, *, options: LoadOptions = NO_OPTIONS) -> Program:
    """Read a program; errors name its file, where they name no place of their own."""
    try:
        program = load_program(path, options=options)
    except HespasError as error:
        if not error.location:
            error.location = str(path)
        raise
    log.info("read %s", program.source)
    return program


def parsed(source: Source, options: LoadOptions) -> Loaded:
    """Return the program of a source, with notes on what was done to it before."""
    try:
        loaded = load_per_device(source.content, name=source.name, options=options)
    except HespasError as error:
        if not error.location:
            error.location = source.name
        raise
    log.info("read %s", loaded.program.source)
    assumptions = (*source.notes, *loaded.program.assumptions)
    program = msgspec.structs.replace(loaded.program, assumptions=assumptions)
    return replace(loaded, program=program)


def check_told(loaded: Loaded, settings: Settings) -> None:
    """Raise `ConfigError` for what the user sets about something that the program lacks."""
    program, options = loaded.program, settings.load_options
    if "" in options.trip_counts and "" not in loaded.used.trip_counts:
        raise _idle("--trip-count", "no loop whose count can't be read", program)
    if "" in options.branch_weights and "" not in loaded.used.branch_weights:
        raise _idle("--branch-weights", "no branch without weights of its own", program)
    if settings.launch_overhead_s is not None and not program.is_scheduled:
        raise _idle("--launch-overhead", "no schedule of kernels: see --optimise", program)
    if not settings.custom_calls:
        return
    targets = {op.attrs.target for op in all_ops(program) if isinstance(op.attrs, CustomCallAttrs)}
    for target in settings.custom_calls:
        if target not in targets:
            raise ConfigError(
                f"--custom-call names {target!r}, which the program doesn't call",
                location=program.source,
                hint=suggestion(target, targets) if targets else "drop it",
            )


def check_custom_calls(program: Program, stated: Mapping[str, CustomCallCost]) -> None:
    """Raise `CostError` for a custom call of unknown work, naming the flag that states it."""
    for op in all_ops(program):
        if not isinstance(op.attrs, CustomCallAttrs):
            continue
        try:
            custom_call(op, stated)
        except CostError as error:
            target = op.attrs.target
            hint = (
                f"give --custom-call {target}=traffic to charge its operands and results, "
                f"or {target}=flops:N,type:T,bytes:N"
            )
            raise CostError(error.message, location=error.location, hint=hint) from error


def _idle(flag: str, lack: str, program: Program) -> ConfigError:
    return ConfigError(
        f"{flag} has no effect: there is {lack}", location=program.source, hint="drop it"
    )
