"""The options of a compilation, and the XLA flags that they set."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, ClassVar

from hespas.base.fields import Group, Use, declare, parse_pairs, refuse_unused
from hespas.base.frozen import frozen
from hespas.base.units import parse_quantity
from hespas.compile.recipe import RecipeFlags, read_recipe
from hespas.errors import ConfigError, option

_MIB = 2**20
_MOST_PERCENT = 10_000
SLOP_OPTION = "memory_limit_slop_factor"
SLOP_FLAG = "xla_gpu_memory_limit_slop_factor"
SLOP_FACTOR = 95
"""The flag's default, in per cent."""


def parse_size(text: str, *, name: str) -> int:
    """Parse a whole number of bytes from 1, as in ``64MiB``.

    >>> parse_size("64MiB", name="all_reduce_combine")
    67108864
    """
    size = parse_quantity(text, "B", location=option(name))
    if size < 1 or size != int(size):
        raise ConfigError(
            f"{text!r} is not a number of bytes", location=option(name), hint="give 1 or more"
        )
    return int(size)


FULL = "auto"
"""The slop factor that fills the device if the step then fits."""


def parse_slop_factor(text: str) -> int | str:
    """Parse per cent, or ``auto``.

    >>> parse_slop_factor("120"), parse_slop_factor("auto")
    (120, 'auto')
    """
    if text == FULL:
        return text
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= _MOST_PERCENT:
        raise ConfigError(
            f"{option(SLOP_OPTION)} is {text!r}",
            hint=f"give 1 to {_MOST_PERCENT} per cent, as in 120, or {FULL}",
        )
    return int(text)


def parse_passes(text: str) -> tuple[str, ...]:
    """Parse the names in ``PASS,PASS``.

    >>> parse_passes("rematerialization, dot-merger")
    ('rematerialization', 'dot-merger')
    """
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_flags(texts: Iterable[str]) -> dict[str, str]:
    """Parse XLA flags of the form ``NAME=VALUE``, by name.

    >>> parse_flags(["xla_gpu_autotune_level=0"])
    {'xla_gpu_autotune_level': '0'}
    """
    flags = (text.removeprefix("--") for text in texts)
    return parse_pairs(flags, name="xla_flag", form="NAME=VALUE")


_FIDELITY = (" on {}", "drop one of them")
COMPILER = Use(*_FIDELITY)
"""XLA's compiler itself."""
COMBINING = Use(*_FIDELITY)
"""XLA's compiler, or its model, which combines collectives and schedules them."""
PIPELINING = Use(*_FIDELITY)
"""XLA's compiler or its model, or the model of libraries that pipelines collectives."""
GPU = Use(" on the compiler of a TPU", "drop it, or give the TPU's flags by name")
GPU_MEMORY = Use(" on a node that is no GPU whose memory is known")


class Matmuls(Enum):
    """The kernels of matrix products: NVIDIA's library, or XLA's through Triton.

    Without a device XLA measures neither, so that Triton's kernels are not tuned.
    """

    CUBLAS = "cublas"
    TRITON = "triton"


def _combine(collective: str, *, default_text: str) -> Any:
    """Declare the option for the combined size of a collective."""
    name = f"{collective}_combine"
    return declare(
        help=f"Combine {collective.replace('_', '-')}s up to this size.",
        applies_to=(COMBINING, GPU),
        name=name,
        parse=partial(parse_size, name=name),
        metavar="SIZE",
        default_text=default_text,
    )


@frozen
class CompileOptions:
    """The options of a compilation; None means the default.

    All but ``disabled_passes`` and ``flags`` are for GPUs. ``disabled_passes`` names passes of XLA
    to leave out, ``flags`` more of its flags, by name without dashes; these win over the others.
    Raises `ConfigError` for a name that is no flag or pass.
    """

    GROUP: ClassVar[Group] = Group.COMPILATION

    disabled_passes: tuple[str, ...] | None = declare(
        help="Passes of XLA to leave out.",
        name="disable_passes",
        aliases=("-d",),
        parse=parse_passes,
        metavar="PASS,..",
        default_text="rematerialization, on GPUs",
        applies_to=(COMPILER,),
    )
    matmuls: Matmuls | None = declare(
        help="What multiplies matrices on a GPU.",
        default_text="cublas",
        applies_to=(COMPILER, GPU),
    )
    latency_hiding_scheduler: bool | None = declare(
        help="Put work between a collective's start and its end (default: on).",
        negatable=True,
        applies_to=(COMPILER, GPU),
    )
    pipelined_collectives: bool | None = declare(
        help="Move collectives across iterations of loops (default: on).",
        negatable=True,
        applies_to=(PIPELINING, GPU),
    )
    double_buffered_loops: bool | None = declare(
        help="Unroll loops by two (default: on).",
        negatable=True,
        applies_to=(COMPILER, GPU),
    )
    all_reduce_combine_bytes: int | None = _combine("all_reduce", default_text="128MiB")
    all_gather_combine_bytes: int | None = _combine("all_gather", default_text="128MiB")
    reduce_scatter_combine_bytes: int | None = _combine("reduce_scatter", default_text="64MiB")
    memory_limit_slop_factor: int | str | None = declare(
        help="Per cent that XLA's scheduler may fill, for work beside collectives, of what "
        "arguments leave of 80 % of a GPU's memory; auto fills the GPU where that is too "
        "little and the step still fits.",
        parse=parse_slop_factor,
        metavar="N|auto",
        default_text=f"{SLOP_FACTOR}",
        applies_to=(COMBINING, GPU, GPU_MEMORY),
    )
    flags: Mapping[str, str] = declare(
        help="Another flag of XLA's own.",
        name="xla_flag",
        parse=parse_flags,
        metavar="NAME=VALUE",
        repeats=True,
        default=dict,
        applies_to=(COMPILER,),
    )
    recipe: RecipeFlags | None = declare(
        help="Flags of XLA as a recipe sets XLA_FLAGS or LIBTPU_INIT_ARGS; those that the "
        "compiler doesn't take without a device are left out, and listed.",
        name="xla_flags_file",
        parse=read_recipe,
        metavar="FILE",
        applies_to=(COMPILER,),
    )

    def __post_init__(self) -> None:
        for name, value in self.flags.items():
            _check_flag(name, value)
        for name in self.disabled_passes or ():
            if not _PASS.fullmatch(name):
                raise ConfigError(f"{name!r} is not the name of a pass")

    @property
    def slop_factor(self) -> int:
        """The first factor of the scheduler's memory limit, in per cent."""
        factor = self.memory_limit_slop_factor
        return factor if isinstance(factor, int) else SLOP_FACTOR

    @property
    def fills_memory(self) -> bool:
        """Whether the limit may be raised to all memory of the device."""
        return self.memory_limit_slop_factor == FULL

    def with_slop_factor(self, factor: int) -> CompileOptions:
        """Return the options with another factor, which no flag overrides."""
        flags = {name: value for name, value in self.flags.items() if name != SLOP_FLAG}
        return replace(self, memory_limit_slop_factor=factor, flags=flags)


DEFAULT_OPTIONS = CompileOptions()
WORKFLOW_DISABLES = ("rematerialization",)
"""The passes that the documented workflow leaves out."""

_PIPELINED = tuple(
    f"xla_gpu_enable_pipelined_{kind}" for kind in ("all_gather", "reduce_scatter", "all_reduce")
)
_PASS = re.compile(r"[\w-]+")
_FLAG = re.compile(r"(?:xla|jax|tpu)_\w+")


def _check_flag(name: str, value: str) -> None:
    if not _FLAG.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a flag of XLA", hint="write it as in xla_gpu_enable_triton_gemm"
        )
    if any(letter.isspace() for letter in value):
        raise ConfigError(f"the value {value!r} of {name} has a space in it")


def gpu_flags(options: CompileOptions) -> dict[str, str]:
    """Return the flags of XLA for a GPU, by name.

    Command buffers are off: they put the kernels of a schedule into graphs, with one launch for
    many.

    >>> gpu_flags(CompileOptions(matmuls=Matmuls.TRITON))["xla_gpu_enable_triton_gemm"]
    'true'
    """
    disabled = options.disabled_passes
    names = WORKFLOW_DISABLES if disabled is None else disabled
    flags = {
        "xla_gpu_enable_triton_gemm": "false",
        "xla_gpu_enable_command_buffer": "",
        "xla_gpu_enable_latency_hiding_scheduler": "true",
        "xla_gpu_enable_highest_priority_async_stream": "true",
        "xla_gpu_all_reduce_combine_threshold_bytes": str(128 * _MIB),
        "xla_gpu_all_gather_combine_threshold_bytes": str(128 * _MIB),
        "xla_gpu_reduce_scatter_combine_threshold_bytes": str(64 * _MIB),
        **dict.fromkeys(_PIPELINED, "true"),
        "xla_gpu_enable_while_loop_double_buffering": "true",
        "xla_gpu_enable_all_gather_combine_by_dim": "false",
        "xla_gpu_enable_reduce_scatter_combine_by_dim": "false",
    }
    if names:
        flags["xla_disable_hlo_passes"] = ",".join(names)
    return flags | given_gpu_flags(options)


def given_gpu_flags(options: CompileOptions) -> dict[str, str]:
    """Return the GPU flags that options set, without those of the workflow.

    >>> given_gpu_flags(CompileOptions(double_buffered_loops=False))
    {'xla_gpu_enable_while_loop_double_buffering': 'false'}
    """
    matmuls, disabled = options.matmuls, options.disabled_passes
    factor = options.memory_limit_slop_factor
    set_by: dict[str, bool | int | str | None] = {
        "xla_gpu_enable_triton_gemm": None if matmuls is None else matmuls is Matmuls.TRITON,
        "xla_gpu_enable_latency_hiding_scheduler": options.latency_hiding_scheduler,
        "xla_gpu_all_reduce_combine_threshold_bytes": options.all_reduce_combine_bytes,
        "xla_gpu_all_gather_combine_threshold_bytes": options.all_gather_combine_bytes,
        "xla_gpu_reduce_scatter_combine_threshold_bytes": options.reduce_scatter_combine_bytes,
        **dict.fromkeys(_PIPELINED, options.pipelined_collectives),
        "xla_gpu_enable_while_loop_double_buffering": options.double_buffered_loops,
        "xla_disable_hlo_passes": ",".join(disabled) if disabled else None,
        SLOP_FLAG: None if options.fills_memory else factor,
    }
    flags = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in set_by.items()
        if value is not None
    }
    return flags | dict(options.flags)


def tpu_flags(options: CompileOptions) -> dict[str, str]:
    """Return the flags of XLA for a TPU, by name.

    Raises `ConfigError` for options that only a GPU's compiler has.
    """
    refuse_unused(options, {GPU: True})
    passes = ",".join(options.disabled_passes or ())
    return ({"xla_disable_hlo_passes": passes} if passes else {}) | dict(options.flags)
