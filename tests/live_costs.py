"""The costs of a program as XLA's analysis counts: what results depend on, each loop once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hespas.program.program import Block, Op, Program, nested_ops
from hespas.work.expand import Branch, Cost, Leaf, Loop, expand


def without_loops(costs: Iterable[Cost]) -> tuple[Cost, ...]:
    """Return the same with every loop run once, which is how XLA's cost analysis counts."""
    return tuple([_once(cost) for cost in costs])


def _once(cost: Cost) -> Cost:
    match cost:
        case Leaf():
            return cost
        case Loop(condition=condition, body=body):
            return replace(
                cost, count=1, condition=without_loops(condition), body=without_loops(body)
            )
        case Branch(alternatives=alternatives):
            return replace(cost, alternatives=tuple(map(without_loops, alternatives)))


def live_costs(program: Program) -> tuple[Cost, ...]:
    return without_loops(expand(_live(program.main.body), program.functions))


def _live(block: Block) -> list[Op]:
    """Return the operations that the block's results depend on."""
    needed = set(block.operations[-1].operands)
    kept: list[Op] = []
    for op in reversed(block.operations[:-1]):
        if needed.intersection(op.results):
            kept.append(op)
            needed.update(op.operands)
            needed.update(
                v for region in op.regions for o in nested_ops(region) for v in o.operands
            )
    return kept[::-1]
