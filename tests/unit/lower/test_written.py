from __future__ import annotations

from itertools import pairwise

from hespas.frontend.load import load_source
from hespas.lower.written import MOST_PLACES, _Walk, read_often  # pyright: ignore[reportPrivateUsage]
from hespas.program.program import Op
from programs import main_function


def sums_of_pairs(levels: int, *, largest: int) -> list[Op]:
    """Return operations that add neighbours, then what came of them, so often."""
    sizes = [2**largest >> level for level in range(levels + 1)]
    lines = [
        f"""%e{level} = stablehlo.slice %s{level} [0:{size}:2]
          : (tensor<{size}xf32>) -> tensor<{half}xf32>
        %o{level} = stablehlo.slice %s{level} [1:{size}:2]
          : (tensor<{size}xf32>) -> tensor<{half}xf32>
        %s{level + 1} = stablehlo.add %e{level}, %o{level} : tensor<{half}xf32>"""
        for level, (size, half) in enumerate(pairwise(sizes))
    ]
    kind = f"tensor<{sizes[-1]}xf32>"
    text = main_function(
        "\n".join([*lines, f"return %s{levels} : {kind}"]),
        arguments=f"%s0: tensor<{sizes[0]}xf32>",
        results=kind,
    )
    return list(load_source(text.encode(), name="test.mlir").main.body.operations[:-1])


def written(levels: int, *, largest: int = 24) -> list[int]:
    ops = sums_of_pairs(levels, largest=largest)
    return sorted(read_often(ops, loops=set(range(len(ops))), free=set()))


def test_a_kernel_reads_at_no_more_places_than_sixteen() -> None:
    assert MOST_PLACES == 16
    assert written(4) == []
    sum_of_sixteen = 4 * 3 - 1
    assert written(5) == written(8) == [sum_of_sixteen]
    assert written(9) == [sum_of_sixteen, 2 * sum_of_sixteen + 1]


def test_what_is_small_is_computed_again() -> None:
    assert written(9, largest=12) == []


def test_trees_of_small_sums_take_few_steps() -> None:
    walk = _Walk(
        operations=(ops := sums_of_pairs(13, largest=13)), loops=set(range(len(ops))), free=set()
    )
    for at, op in enumerate(ops):
        walk.op(at, op)
    assert max(len(places) for each in walk.places for places in each.values()) <= 64
