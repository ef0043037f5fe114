"""Custom calls whose work is known by their target's name; any other is the user's to state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from hespas.cost.rules import library
from hespas.cost.rules.linear_algebra import cholesky, triangular_solve
from hespas.cost.rules.movement import nothing
from hespas.cost.rules.selection import top_k
from hespas.cost.rules.sizes import arithmetic_type, first_result, traffic
from hespas.cost.work import Work, flop_counts
from hespas.errors import CostError
from hespas.program.attrs import CustomCallAttrs
from hespas.program.program import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandTraffic:
    """The user says: it reads its operands and writes its results, and computes little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedWork:
    """The user says what one call does."""

    work: Work


CustomCallCost = OperandTraffic | StatedWork


def custom_call(op: Op, stated: Mapping[str, CustomCallCost]) -> tuple[Work, str]:
    """Return the work of a custom call and, where the user stated it, the assumption.

    ``stated`` maps targets to what the user says; it goes before our own table. Raises
    `CostError` for a target that neither knows.
    """
    if not isinstance(op.attrs, CustomCallAttrs):
        raise CostError("the target of a custom call is not known", location=op.location)
    target = op.attrs.target
    match stated.get(target):
        case None:
            return _known(op, target)
        case StatedWork(work=work):
            return work, f"custom call {target}: work as the user states it"
        case OperandTraffic():
            assumed = f"custom call {target}: reads its operands, writes its results, 0 FLOPs"
            return traffic(op), assumed


def _known(op: Op, target: str) -> tuple[Work, str]:
    rule = TARGETS.get(target)
    if rule is not None:
        return rule(op), _PLACED.format(target) if target in _PLACEMENTS else ""
    written = library.work_by_author(op)
    if written is not None:
        return written, f"custom call {target}: work as its author states it"
    close = get_close_matches(target, TARGETS, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise CostError(
        f"the work of custom call {target!r} is not known{hint}",
        location=op.location,
        hint=f"give --custom-call {target}=traffic, or {target}=flops:N,type:T,bytes:N",
    )


# Threefry 2x32 makes two numbers with 20 rounds of add, rotate (2 shifts, 1 or) and xor, after 2
# additions of the key; 5 times in between it adds the key and a counter, 3 additions.
# Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
_THREEFRY_FLOPS_PER_PAIR = 20 * 5 + 2 + 5 * 3


def threefry(op: Op) -> Work:
    """Count the integer operations of Threefry 2x32, for each pair of numbers made."""
    made = first_result(op)
    name = arithmetic_type(made.element)
    return traffic(op, flops=flop_counts(name, made.element_count * _THREEFRY_FLOPS_PER_PAIR))


# Where a value should lie: whether that moves it is the compiler's decision.
_PLACEMENTS = ("MoveToDevice", "MoveToHost", "annotate_device_placement")
_PLACED = "custom call {}: a transfer between host and device, if there is one, is not counted"

# Notes to the compiler, and what a TPU's compiler says of memory: values go through as they are.
_ANNOTATIONS = (
    "AllocateBuffer",
    "AllocatePersistentBuffer",
    "AssumeGatherIndicesInBound",
    "ConcatBitcast",
    "GatherScatterIndicesBitpacked",
    "LayoutConstraint",
    "PrepareAsyncCallDone",
    "PrepareAsyncCallStart",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "Sharding",
    "xla.sdy.FuncResultSharding",
    "xla.sdy.GlobalToLocalShape",
    "xla.sdy.LocalToGlobalShape",
)
_TOP_K = ("TopK", "__gpu$TopK", "mhlo.topk", "stablehlo.dynamic_top_k")
_THREEFRY = ("cu_threefry2x32", "cu_threefry2x32_ffi", "hip_threefry2x32_ffi")
_CHOLESKY = ("cusolver_potrf_ffi", "hipsolver_potrf_ffi", *(f"lapack_{t}potrf_ffi" for t in "sdcz"))
_TRIANGULAR = tuple(f"lapack_{t}trsm_ffi" for t in "sdcz")

TARGETS = {
    **library.TARGETS,
    **dict.fromkeys((*_ANNOTATIONS, *_PLACEMENTS), nothing),
    **dict.fromkeys(_TOP_K, top_k),
    **dict.fromkeys(_THREEFRY, threefry),
    **dict.fromkeys(_CHOLESKY, cholesky),
    **dict.fromkeys(_TRIANGULAR, triangular_solve),
}
