from __future__ import annotations

import pytest

from hespas.report.regions import count_operators
from programs import read, vector_main

PROGRAM = vector_main(
    "%v = stablehlo.sine %a : tensor<8xf32>\n"
    "%w = stablehlo.cosine %v : tensor<8xf32>\n"
    "%r = stablehlo.abs %w : tensor<8xf32>"
)


@pytest.mark.parametrize("expand", [False, True])
def test_operations_are_ordered_by_count_then_name(expand: bool) -> None:
    counts = count_operators(read(PROGRAM), expand=expand, signatures=False)
    assert list(counts) == sorted(counts)
    typed = count_operators(read(PROGRAM), expand=expand, signatures=True)
    assert "stablehlo.sine(tensor<8xf32>)" in typed
