"""Note a compiled program that another part prices."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from hespas.compile.job import accelerator_of
from hespas.compile.targets import GpuTarget, Target, compute_capability, find_target
from hespas.errors import HardwareError
from hespas.program.attrs import CustomCallAttrs
from hespas.program.program import Program, all_ops
from hespas.xla.compile.messages import part_name

_LIBRARIES = ("__cublas", "__cudnn", "__cusolver", "__flash", "__triton")
"""Prefixes of the libraries that XLA calls on GPUs, on AMD's too."""
_PTX_TARGET = re.compile(r"sm_\d+[a-z]?")
_ELSEWHERE = "whose compiler would fuse, schedule and call other kernels"
_OF_TPU = f"the program was compiled for a TPU, and is priced on {{name}}, {_ELSEWHERE}"


def compiled_elsewhere(program: Program, node: str) -> tuple[str, ...]:
    """Return notes on a program priced on another part than its own.

    ``node`` is a preset's name or a path. There are none if everything that the program shows of
    its part fits the node.
    """
    if not program.is_scheduled:
        return ()
    if program.is_recorded:
        return tuple(_recorded(program.compiled_for, node))
    target = _target_of(node)
    name = node if target is None else target.name
    if program.compiled_for:
        return tuple(_by_attribute(program.compiled_for, target, name))
    match target:
        case GpuTarget():
            notes = _on_gpu(program, target)
        case None:
            notes = _on_unknown(program)
        case _:
            notes = _on_tpu(program)
    return tuple(note.format(name=name) for note in notes)


def with_origin(program: Program, node: str) -> Program:
    """Return the program with the notes of `compiled_elsewhere` as assumptions."""
    notes = compiled_elsewhere(program, node)
    return replace(program, assumptions=(*notes, *program.assumptions)) if notes else program


def _by_attribute(compiled_for: str, target: Target | None, name: str) -> Iterator[str]:
    """Compare the module's own attribute with the node's target."""
    node_part = "" if target is None else part_name(accelerator_of(target))
    if compiled_for != node_part:
        has = f" ({_spelled(node_part)})" if node_part else ", which no compiler at hand knows"
        yield (
            f"the program was compiled for {_spelled(compiled_for)}, and is priced on {name}{has}, "
            f"{_ELSEWHERE}"
        )


def _recorded(recorded_for: str, node: str) -> Iterator[str]:
    """Compare the architecture that a step was recorded for with the node's.

    Raises `HardwareError` for a TPU.
    """
    target = _target_of(node)
    if target is not None and not isinstance(target, GpuTarget):
        raise HardwareError(
            f"the step was recorded for NVIDIA's GPUs, and {target.name} is a TPU",
            location=node,
            hint="name a GPU, as in 8xH100_80GB",
        )
    written = _PTX_TARGET.fullmatch(recorded_for)
    if written is None:
        return
    capability = compute_capability(node)
    part = written[0].rstrip("af")
    if capability is None or f"sm_{round(10 * capability)}" != part:
        has = "" if capability is None else f" (compute capability {capability:.1f})"
        yield (
            f"the step was recorded for {_spelled(part)}, and is priced on {node}{has}, for which "
            "PyTorch would compile and call other kernels"
        )


def _spelled(part: str) -> str:
    family, _, version = part.partition("_")
    if family == "tpu":
        return f"TPU {version}"
    return f"compute capability {version[:-1]}.{version[-1]}"


def _target_of(node: str) -> Target | None:
    """Return the node's target; None if no compiler here knows the node."""
    try:
        return find_target(node)
    except HardwareError:
        return None


def _on_gpu(program: Program, target: GpuTarget) -> Iterator[str]:
    if _is_of_tpu(program):
        yield _OF_TPU
    written_for = _PTX_TARGET.fullmatch("" if program.kernels is None else program.kernels.target)
    node_part = part_name(accelerator_of(target))
    part = "" if written_for is None else written_for[0].rstrip("af")
    if part and node_part and part != node_part:
        yield (
            f"the kernels were compiled for {_spelled(part)}, and are priced on "
            f"{{name}} ({_spelled(node_part)}), {_ELSEWHERE}"
        )


def _on_tpu(program: Program) -> Iterator[str]:
    if _is_of_tpu(program):
        yield "the program does not say for which TPU it was compiled; it is taken to be {name}"
    called = _library_call(program)
    if called is not None or program.kernels is not None:
        calls = "it has a GPU's kernels" if called is None else f"it calls {called}"
        yield (
            f"the program was compiled for a GPU ({calls}), and is priced on {{name}}, {_ELSEWHERE}"
        )


def _on_unknown(program: Program) -> Iterator[str]:
    called = _library_call(program)
    if _is_of_tpu(program):
        yield _OF_TPU
    elif program.kernels is not None:
        yield (
            "the program was compiled for another part than {name}, which no compiler at hand "
            f"knows, and {_ELSEWHERE}"
        )
    elif called is not None:
        yield (
            f"the program was compiled for a GPU (it calls {called}), perhaps for another than "
            f"{{name}}, {_ELSEWHERE}"
        )


def _library_call(program: Program) -> str | None:
    """Return the first call of a GPU's library."""
    targets = (op.attrs.target for op in all_ops(program) if isinstance(op.attrs, CustomCallAttrs))
    return next((target for target in targets if target.startswith(_LIBRARIES)), None)


def _is_of_tpu(program: Program) -> bool:
    return any(op.estimated_cycles is not None for op in all_ops(program))
