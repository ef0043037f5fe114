from __future__ import annotations

import pytest

from expert_programs import experts_on_four
from hespas.errors import ProgramError
from hespas.frontend.load import load_source
from hespas.program.attrs import CollectiveAttrs
from hespas.program.groups import GroupMode, ListedGroups


def test_a_call_of_the_exchange_is_a_collective() -> None:
    program = load_source(experts_on_four().encode(), name="p.mlir")
    first, _, last, _ = program.main.body.operations
    assert first.name == last.name == "mhlo.ragged_all_to_all"
    assert first.attrs == CollectiveAttrs(
        groups=ListedGroups(groups=((0, 1, 2, 3),)), mode=GroupMode.CROSS_PARTITION, channel=1
    )


def test_an_exchange_inside_of_a_region_is_found() -> None:
    text = experts_on_four()
    head, _, tail = text.partition("%a = ")
    call, _, remainder = tail.partition("\n")
    branch = "stablehlo.return %i : tensor<256x8xbf16>\n}"
    inner = (
        '%p = stablehlo.constant dense<0> : tensor<i32>\n%a = "stablehlo.case"(%p) ({\n'
        f"%i = {call}\n{branch}) : (tensor<i32>) -> tensor<256x8xbf16>\n"
    )
    program = load_source(f"{head}{inner}{remainder}".encode(), name="p.mlir")
    (region,) = program.main.body.operations[1].regions
    assert region.operations[0].name == "mhlo.ragged_all_to_all"


def test_an_exchange_without_groups_is_an_error() -> None:
    text = experts_on_four().replace(
        "replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>", "x"
    )
    with pytest.raises(ProgramError, match="replica_groups is missing"):
        load_source(text.encode(), name="p.mlir")
