"""Select the flags of a recipe that a compilation gets.

A flag that the compiler knows by name but does not take here, where no device is attached, is left
out with a note, as are flags that hespas itself leaves out; one that it has never heard of is an
error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby

import msgspec

from hespas.base.frozen import frozen
from hespas.base.process import Limits, scratch_directory
from hespas.base.question import ask
from hespas.base.suggest import nearest
from hespas.compile.job import Job
from hespas.compile.packages import TOOLKIT, compiler_environment, known_flags, write_toolkit
from hespas.compile.recipe import RecipeFlags
from hespas.compile.targets import GpuTarget
from hespas.errors import ConfigError
from hespas.xla.compile.messages import FlagsAnswer, FlagsQuestion

_WRITES = re.compile(r"xla_dump_\w+|\w+_(?:dir|path|file|to)")
_COMMAND_BUFFERS = "xla_gpu_enable_command_buffer"
_LIMITS = Limits(time_s=300, memory_bytes=None)


@frozen
class Settled:
    """A job with the passed flags of its recipe; notes on others."""

    job: Job
    notes: tuple[str, ...] = ()


def settled(job: Job) -> Settled:
    """Return the job with the flags that its compiler takes.

    Raises `ConfigError`, with the line of the recipe, for a flag that the compiler doesn't know,
    and for an invalid value of a flag.
    """
    recipe = job.recipe
    if recipe is None:
        return Settled(job=job)
    left_out = {name: why for name in recipe.flags if (why := _reason_left_out(name, job))}
    flags = {name: value for name, value in recipe.flags.items() if name not in left_out}
    answer = _ask_compiler(job, flags) if flags else FlagsAnswer()
    for name in answer.bad:
        raise ConfigError(
            f"{recipe.flags[name]!r} is no value of the compiler's flag {name}",
            location=recipe.location(name),
        )
    _check_known(job, recipe, answer.unknown)
    left_out |= dict.fromkeys(answer.unknown, _why_refused(job))
    passed = {name: value for name, value in flags.items() if name not in answer.unknown}
    flags = {**job.flags, **passed}
    is_gpu = isinstance(job.target, GpuTarget)
    request = msgspec.structs.replace(job.request, overrides={} if is_gpu else flags)
    return Settled(
        job=replace(job, flags=flags, request=request),
        notes=_notes(recipe, passed=len(passed), left_out=left_out),
    )


def _reason_left_out(name: str, job: Job) -> str:
    """Return why hespas itself leaves a flag out; empty if it doesn't."""
    if name in job.set_flags and job.set_flags[name] != (job.recipe and job.recipe.flags[name]):
        return "options say otherwise"
    if name == _COMMAND_BUFFERS:
        return "kernels are priced one by one"
    return "they name files" if _WRITES.fullmatch(name) else ""


def _ask_compiler(job: Job, flags: Mapping[str, str]) -> FlagsAnswer:
    """Ask the compiler about flags, which takes a second or two."""
    with scratch_directory("flags") as home:
        question = FlagsQuestion(accelerator=job.request.accelerator, flags=flags)
        is_gpu = isinstance(job.target, GpuTarget)
        if is_gpu:
            write_toolkit(home / TOOLKIT)
        return ask(
            "hespas.xla.compile.flags",
            question,
            FlagsAnswer,
            name=f"the compiler for {job.target.name}",
            directory=home,
            limits=_LIMITS,
            environment=compiler_environment(
                f"--xla_gpu_cuda_data_dir={TOOLKIT}" if is_gpu else ""
            ),
        )


def _check_known(job: Job, recipe: RecipeFlags, refused: Iterable[str]) -> None:
    """Raise `ConfigError` for a flag that no library knows."""
    names = tuple(refused)
    if not names:
        return
    library_words = known_flags(job.target)
    for name in names:
        if name not in library_words:
            close = nearest(name, library_words)[:1]
            raise ConfigError(
                f"the compiler for {job.target.name} has no flag {name}",
                location=recipe.location(name),
                hint=f"did you mean {close[0]}?" if close else "remove it",
            )


def _why_refused(job: Job) -> str:
    if isinstance(job.target, GpuTarget):
        return "this version of XLA has them no more"
    return "libtpu reads them at its start, where a device is"


def _notes(recipe: RecipeFlags, *, passed: int, left_out: Mapping[str, str]) -> tuple[str, ...]:
    outcome = "compiled with" if passed else "compiled without"
    notes = [f"{outcome} {passed or 'any'} of the {len(recipe.flags)} flags of {recipe.file}"]
    by_reason = sorted(left_out.items(), key=lambda each: each[1])
    for reason, flags in groupby(by_reason, key=lambda each: each[1]):
        names = ", ".join(name for name, _ in flags)
        notes.append(f"flags of {recipe.file} that are left out, since {reason}: {names}")
    if recipe.repeated:
        names = ", ".join(recipe.repeated)
        notes.append(f"of flags that {recipe.file} gives several values, the last counts: {names}")
    return tuple(notes)
