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
from hespas.frontend.partitioned import load_program_per_device, load_source_per_device
from hespas.frontend.stablehlo import NO_OPTIONS, LoadOptions
from hespas.program.attrs import CaseAttrs, CustomCallAttrs, WhileAttrs
from hespas.program.program import Program, all_ops

log = logging.getLogger("hespas")


def read_program(path: Path, *, options: LoadOptions = NO_OPTIONS) -> Program:
    """Read a program; errors name its file, where they name no place of their own."""
    try:
        program = load_program_per_device(path, options=options)
    except HespasError as error:
        if not error.location:
            error.location = str(path)
        raise
    log.info("read %s", program.source)
    return program


def parsed(source: Source, options: LoadOptions) -> Program:
    """Return the program of a source, with notes on what was done to it before."""
    try:
        program = load_source_per_device(source.content, name=source.name, options=options)
    except HespasError as error:
        if not error.location:
            error.location = source.name
        raise
    log.info("read %s", program.source)
    if not source.notes:
        return program
    return msgspec.structs.replace(program, assumptions=(*source.notes, *program.assumptions))


def check_told(program: Program, settings: Settings, source: Source) -> None:
    """Raise `ConfigError` for what the user says of something that the program lacks."""
    options = settings.load_options
    if "" in options.trip_counts and not _asks_for_count(settings, source):
        raise _idle("--trip-count", "no loop whose count can't be read", program)
    if "" in options.branch_weights and not _has_branch(program):
        raise _idle("--branch-weights", "no branch", program)
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


def _has_branch(program: Program) -> bool:
    return any(isinstance(op.attrs, CaseAttrs) for op in all_ops(program))


def _idle(flag: str, lack: str, program: Program) -> ConfigError:
    return ConfigError(
        f"{flag} has no effect: there is {lack}", location=program.source, hint="drop it"
    )


def _asks_for_count(settings: Settings, source: Source) -> bool:
    """Tell whether a count for every loop reaches one: it is for those without their own."""
    options = settings.load_options
    lines = {line: count for line, count in options.trip_counts.items() if line}
    untold = parsed(source, replace(options, trip_counts=lines))
    loops = (op.attrs for op in all_ops(untold) if isinstance(op.attrs, WhileAttrs))
    return any(attrs.trip_count is None for attrs in loops)
