"""What a compiler is told beside the program, and the flags of XLA that say it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType

from hespas.errors import ConfigError

_MIB = 2**20


class Matmuls(Enum):
    """Who multiplies matrices: NVIDIA's library, or kernels that XLA writes through Triton.

    Without a device XLA measures neither, so that Triton's kernels are not tuned.
    """

    CUBLAS = "cublas"
    TRITON = "triton"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """The options of a compilation; None is what the documented workflow sets.

    All but ``disabled_passes`` and ``flags`` are for GPUs. ``disabled_passes`` names passes of
    XLA to leave out, ``flags`` more of its flags, by name without dashes; these win over the
    others. Raises `ConfigError` for a flag that can't be one.
    """

    matmuls: Matmuls | None = None
    latency_hiding_scheduler: bool | None = None
    pipelined_collectives: bool | None = None
    double_buffered_loops: bool | None = None
    all_reduce_combine_bytes: int | None = None
    all_gather_combine_bytes: int | None = None
    reduce_scatter_combine_bytes: int | None = None
    disabled_passes: tuple[str, ...] | None = None
    flags: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        for name, value in self.flags.items():
            _check_flag(name, value)
        for name in self.disabled_passes or ():
            if not _PASS.fullmatch(name):
                raise ConfigError(f"{name!r} is not the name of a pass")


DEFAULT_OPTIONS = CompileOptions()
WORKFLOW_DISABLES = ("rematerialization",)
"""The passes that the documented workflow leaves out."""

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

    Command buffers are off: they put kernels of a schedule into graphs, one launch for many.

    >>> gpu_flags(CompileOptions(matmuls=Matmuls.TRITON))["xla_gpu_enable_triton_gemm"]
    'true'
    """
    disabled = options.disabled_passes
    names = WORKFLOW_DISABLES if disabled is None else disabled
    pipelined = _switch(options.pipelined_collectives)
    combine = {
        "all_reduce": _or(options.all_reduce_combine_bytes, 128 * _MIB),
        "all_gather": _or(options.all_gather_combine_bytes, 128 * _MIB),
        "reduce_scatter": _or(options.reduce_scatter_combine_bytes, 64 * _MIB),
    }
    flags = {
        "xla_gpu_enable_triton_gemm": _switch(options.matmuls is Matmuls.TRITON),
        "xla_gpu_enable_command_buffer": "",
        "xla_gpu_enable_latency_hiding_scheduler": _switch(options.latency_hiding_scheduler),
        "xla_gpu_enable_highest_priority_async_stream": "true",
        **{f"xla_gpu_{kind}_combine_threshold_bytes": str(size) for kind, size in combine.items()},
        "xla_gpu_enable_pipelined_all_gather": pipelined,
        "xla_gpu_enable_pipelined_reduce_scatter": pipelined,
        "xla_gpu_enable_pipelined_all_reduce": pipelined,
        "xla_gpu_enable_while_loop_double_buffering": _switch(options.double_buffered_loops),
        "xla_gpu_enable_all_gather_combine_by_dim": "false",
        "xla_gpu_enable_reduce_scatter_combine_by_dim": "false",
    }
    if names:
        flags["xla_disable_hlo_passes"] = ",".join(names)
    return flags | dict(options.flags)


def tpu_flags(options: CompileOptions) -> dict[str, str]:
    """Return the flags of XLA for a TPU, by name.

    Raises `ConfigError` for options that only a GPU's compiler has.
    """
    bare = replace(options, disabled_passes=None, flags=MappingProxyType({}))
    if bare != DEFAULT_OPTIONS:
        raise ConfigError(
            "matmuls, the scheduler, combining, pipelining and double buffering are options of "
            "GPU compilers",
            hint="drop them, or give TPU flags by name",
        )
    passes = ",".join(options.disabled_passes or ())
    return ({"xla_disable_hlo_passes": passes} if passes else {}) | dict(options.flags)


def _switch(wish: bool | None) -> str:
    return "false" if wish is False else "true"


def _or(wish: int | None, usual: int) -> int:
    return usual if wish is None else wish
