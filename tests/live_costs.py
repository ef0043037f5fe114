"""The costs of a program as XLA's analysis counts: what results depend on, each loop once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hespas.program.program import Block, Op, Program, nested_ops
from hespas.work.expand import Branch, Cost, Leaf, Loop, expand, without_loops


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


def leaves(costs: Iterable[Cost]) -> Iterator[Leaf]:
    """Yield single operations, those of all alternatives of a branch among them."""
    for cost in costs:
        match cost:
            case Leaf():
                yield cost
            case Loop():
                yield from leaves(cost.items)
            case Branch(alternatives=alternatives):
                for items in alternatives:
                    yield from leaves(items)
