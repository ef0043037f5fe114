"""Threads of kernels that put operands side by side, as jaxlib 0.10.2 launches them for H100."""

from __future__ import annotations

from math import ceil, prod

import pytest

from hespas.frontend.load import load_source
from hespas.hardware.presets import load_device
from hespas.lower.fused import fused
from hespas.price.driver import is_kernel
from hespas.price.ptx.kernels import kernel_pricer
from hespas.work.expand import Leaf, expand
from programs import main_function

PRICER = kernel_pricer(load_device("H100_80GB"), None)


def _kind(shape: tuple[int, ...], element: str) -> str:
    return f"tensor<{'x'.join(map(str, shape))}x{element}>"


def _turnover_s(shapes: list[tuple[int, ...]], along: int, element: str) -> float:
    kinds = [_kind(shape, element) for shape in shapes]
    whole = list(shapes[0])
    whole[along] = sum(shape[along] for shape in shapes)
    result = _kind(tuple(whole), element)
    tanh = "\n".join(f"%t{at} = stablehlo.tanh %a{at} : {kind}" for at, kind in enumerate(kinds))
    names = ", ".join(f"%t{at}" for at in range(len(kinds)))
    text = main_function(
        f"""{tanh}
        %c = stablehlo.concatenate {names}, dim = {along} : ({", ".join(kinds)}) -> {result}
        return %c : {result}""",
        arguments=", ".join(f"%a{at}: {kind}" for at, kind in enumerate(kinds)),
        results=result,
    )
    program = fused(load_source(text.encode(), name="test.mlir"))
    (leaf,) = expand([op for op in program.main.body.operations if is_kernel(op, program)])
    assert isinstance(leaf, Leaf)
    assert PRICER is not None
    return PRICER.read(leaf).terms.turnover_s


@pytest.mark.parametrize(
    ("shapes", "along", "element", "elements_per_thread"),
    [
        ([(4096, 1024)] * 4, 1, "bf16", 4),
        ([(4096, 1024)] * 4, 0, "f32", 4),
        ([(4096, 1024), (4096, 1)], 1, "bf16", 1),
        ([(4096, 1024), (4096, 2)], 1, "bf16", 2),
        ([(4096, 1024), (4096, 8)], 1, "bf16", 4),
        ([(16, 1, 1024, 64), (16, 128, 1024, 64), (16, 1, 1024, 64)], 1, "bf16", 1),
        ([(16, 2, 1024, 64), (16, 128, 1024, 64), (16, 2, 1024, 64)], 1, "bf16", 2),
        ([(4096, 4096, 1)] * 2, 2, "bf16", 1),
        ([(4096, 4096, 2)] * 2, 2, "bf16", 2),
        ([(4096, 4096, 3)] * 2, 2, "f32", 1),
    ],
)
def test_a_thread_has_as_many_of_each_operand_as_divide_their_extents(
    shapes: list[tuple[int, ...]], along: int, element: str, elements_per_thread: int
) -> None:
    """The largest operand decides how many threads there are."""
    assert PRICER is not None
    gpu = PRICER.gpu
    blocks = max(map(prod, shapes)) / elements_per_thread / 128
    busiest = ceil(blocks / gpu.multiprocessors)
    expected_s = busiest * 4 * gpu.warp_turnover_cycles / gpu.clock_hz
    assert _turnover_s(shapes, along, element) == pytest.approx(expected_s)
