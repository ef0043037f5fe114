"""Computation that devices repeat: theirs together against that of the undivided program.

A partitioner divides a product along what its operands are divided by. Where a constraint is
missing, each device of an axis computes all of it, without a word. Matrix products show it: divided
over n devices, each has an n-th of the FLOPs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hespas.base.units import format_quantity
from hespas.program.attrs import CallAttrs, CaseAttrs, WhileAttrs
from hespas.program.program import Block, Function, Program, all_ops
from hespas.program.scopes import merged_layers, read_scope
from hespas.work.gemm import gemms

_NOTABLE = 1.05
"""Repeated products below a twentieth of all are left out: padding, and heads that don't divide."""
_DEPTH, _SHOWN, _NO_NAME = 2, 3, "(no name)"

Flops = Counter[str]
"""FLOPs of matrix products by module path."""


def replication_warning(undivided: Program, local: Program) -> str:
    """Return which matrix products devices repeat, and how often; empty where they don't.

    ``undivided`` is the program of all devices, ``local`` that of one. Nothing is said where a
    part of the first is written for single devices, or a loop's rounds are not known.
    """
    devices = local.declared_devices or 1
    if devices == 1 or any(op.kind == "manual_computation" for op in all_ops(undivided)):
        return ""
    whole, one = product_flops(undivided), product_flops(local)
    if whole is None or one is None or not whole:
        return ""
    needed, executed = whole.total(), devices * one.total()
    if executed <= _NOTABLE * needed:
        return ""
    repeated = {
        path: devices * flops - whole[path]
        for path, flops in one.items()
        if whole[path] and devices * flops > _NOTABLE * whole[path]
    }
    longest = sorted(repeated, key=lambda path: (-repeated[path], path))[:_SHOWN]
    where = ", ".join(
        f"{path or _NO_NAME} {devices * one[path] / whole[path]:.3g} x" for path in longest
    )
    return (
        f"devices repeat computation: their matrix products have "
        f"{format_quantity(executed, 'FLOP')} together, {executed / needed:.3g} x those of the "
        f"undivided program{where and f' ({where})'}; a sharding constraint "
        "(jax.lax.with_sharding_constraint) divides them"
    )


def product_flops(program: Program) -> Flops | None:
    """Return the FLOPs of a program's matrix products by module; None for unknown loops."""
    try:
        return _of_block(program.main.body, program.functions, {})
    except _UnknownLoopError:
        return None


class _UnknownLoopError(Exception):
    """The program does not say how often a loop runs."""


def _of_block(block: Block, functions: Mapping[str, Function], known: dict[str, Flops]) -> Flops:
    found: Flops = Counter()
    for op in block.operations:
        match op.attrs:
            case WhileAttrs(trip_count=count):
                inner = _of_block(op.regions[-1], functions, known)
                if inner and count is None:
                    raise _UnknownLoopError
                found += _times(inner, count or 0)
            case CaseAttrs():
                branches = [_of_block(region, functions, known) for region in op.regions]
                found += max(branches, key=lambda each: each.total(), default=Flops())
            case CallAttrs(callee=callee):
                if callee not in known:
                    known[callee] = _of_block(functions[callee].body, functions, known)
                found += known[callee]
            case _:
                for product in gemms(op):
                    path = merged_layers(read_scope(op.scope).path)[:_DEPTH]
                    found["/".join(path)] += product.flops
    return found


def _times(flops: Flops, count: int) -> Flops:
    return Counter({path: count * each for path, each in flops.items()})
