from __future__ import annotations

from importlib import import_module

import pytest

from hespas.frontend.hlo.attributes import OPCODES
from hespas.program.operations import libraries
from hespas.program.operations.table import TRAITS, joined, kinds_of
from hespas.program.operations.traits import Category, Traits

_RUN_OTHERS = kinds_of(Category.CALL, Category.CONTROL, Category.CUSTOM_CALL, Category.FUSION) | {
    "async_start"
}


def _dialect_kinds(dialect: str) -> set[str]:
    module = import_module(f"jaxlib.mlir.dialects._{dialect}_ops_gen")
    names: list[str] = [getattr(entry, "OPERATION_NAME", "") for entry in vars(module).values()]
    return {name.removeprefix(f"{dialect}.") for name in names if name.startswith(f"{dialect}.")}


def test_every_stablehlo_operation_has_a_record() -> None:
    kinds = _dialect_kinds("stablehlo")

    assert len(kinds) > 110
    assert kinds <= TRAITS.keys()


def test_every_mhlo_operation_but_two_that_nothing_exports_has_a_record() -> None:
    left = _dialect_kinds("mhlo") - TRAITS.keys()

    assert left == {"minimum_broadcast_shapes", "scan"}


def test_every_hlo_opcode_has_a_record() -> None:
    assert {opcode.kind for opcode in OPCODES.values()} <= TRAITS.keys()


@pytest.mark.parametrize("kind", sorted(TRAITS))
def test_an_operation_has_one_rule_for_its_work_or_a_reason_for_none(kind: str) -> None:
    traits = TRAITS[kind]

    stated = [traits.work, traits.work_of_bodies, traits.without_work or None]
    assert len([rule for rule in stated if rule is not None]) == (kind not in _RUN_OTHERS)


def test_every_record_is_of_an_operation_that_exists() -> None:
    of_hlo = {opcode.kind for opcode in OPCODES.values()}
    existing = _dialect_kinds("stablehlo") | _dialect_kinds("mhlo") | {"call"} | of_hlo

    events = set(libraries.EVENT_TRAITS)
    own = {"async_done", "async_start", "async_update", "fusion"}
    assert TRAITS.keys() - existing - events == own or (
        TRAITS.keys() <= existing | events | {"custom_call", "case", "if", "while"}
    )


def test_only_updates_say_which_operand_they_write() -> None:
    updates = {kind for kind, traits in TRAITS.items() if traits.written_operand is not None}

    assert updates == kinds_of(Category.UPDATE)


def test_ranks_of_fusions_differ_and_have_names() -> None:
    ranked = [traits for traits in TRAITS.values() if traits.fusion_rank is not None]

    assert len({traits.fusion_rank for traits in ranked}) == len(ranked)
    assert all(traits.kernel_name for traits in ranked)


def test_what_computes_elements_is_fusible_and_more_than_moving() -> None:
    elementwise = [traits for traits in TRAITS.values() if traits.is_elementwise]

    assert all(traits.is_fusible and not traits.moves_only for traits in elementwise)


def test_a_second_record_of_a_kind_is_refused() -> None:
    record = Traits(category=Category.ELEMENTWISE)

    with pytest.raises(ValueError, match="two records of add"):
        joined(({"add": record}, {"add": record}))
