"""Random numbers: what a GPU's compiler makes of a generator moves them three times."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest

import hespas
from compilers import needs_gpu
from programs import main_function

STATE = "tensor<2xui64>"
SHAPES = {"ui32": (8192, 8192), "ui16": (4096, 4096), "ui8": (4096, 4096), "ui64": (2048, 2048)}
"""Sizes for each type."""
ODD = ("ui32", (1003, 777))


def _program(element: str, shape: tuple[int, ...], algorithm: str) -> str:
    kind = f"tensor<{'x'.join(map(str, shape))}x{element}>"
    return main_function(
        f"%s, %n = stablehlo.rng_bit_generator %a, algorithm = {algorithm} : ({STATE}) -> "
        f"({STATE}, {kind})\nreturn %n : {kind}",
        arguments=f"%a: {STATE}",
        results=kind,
    )


@pytest.mark.parametrize("fidelity", ["fused", pytest.param("compiled", marks=needs_gpu)])
@pytest.mark.parametrize("algorithm", ["DEFAULT", "THREE_FRY"])
@pytest.mark.parametrize(("element", "shape"), [*SHAPES.items(), ODD])
def test_random_numbers_are_written_read_and_joined(
    element: str, shape: tuple[int, ...], algorithm: str, fidelity: str, tmp_path: Path
) -> None:
    """A word of 32 bits or more for each is written and read, and then the number is written.

    Numbers of 64 bits are written once.
    """
    file = tmp_path / "random.mlir"
    file.write_text(_program(element, shape, algorithm))
    step = hespas.predict(file, "H100_80GB", fidelity=fidelity)
    number_bytes, count = int(element.removeprefix("ui")) // 8, prod(shape)
    words_bytes = 0 if number_bytes > 4 else 4 * count
    numbers_bytes = number_bytes * count
    moved_bytes = step.estimates.total.total.bytes_moved
    assert moved_bytes == pytest.approx(2 * words_bytes + numbers_bytes, rel=0.01)
    assert step.memory.peak_bytes == pytest.approx(words_bytes + numbers_bytes, rel=0.01)
