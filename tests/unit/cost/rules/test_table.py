from __future__ import annotations

from importlib import import_module

import pytest

from hespas.cost.rules.table import BODY_RULES, GAPS, OPENED, RULES, joined
from hespas.cost.work import ZERO
from hespas.frontend.hlo.opcodes import OPCODES
from hespas.program.program import Op

_KNOWN = RULES.keys() | BODY_RULES.keys() | OPENED | {"custom_call"}


def _dialect_kinds(dialect: str) -> set[str]:
    module = import_module(f"jaxlib.mlir.dialects._{dialect}_ops_gen")
    names: list[str] = [getattr(entry, "OPERATION_NAME", "") for entry in vars(module).values()]
    return {name.removeprefix(f"{dialect}.") for name in names if name.startswith(f"{dialect}.")}


def test_every_stablehlo_operation_has_a_rule_or_a_stated_reason() -> None:
    kinds = _dialect_kinds("stablehlo")

    assert len(kinds) > 110
    assert kinds - _KNOWN == set(GAPS)


def test_every_mhlo_operation_but_two_that_nothing_exports_has_a_rule() -> None:
    left = _dialect_kinds("mhlo") - _KNOWN - set(GAPS)

    assert left == {"minimum_broadcast_shapes", "scan"}


def test_every_hlo_opcode_has_a_rule_or_a_stated_reason() -> None:
    kinds = {opcode.kind for opcode in OPCODES.values()}

    assert kinds - _KNOWN <= set(GAPS)


def test_no_operation_has_two_rules() -> None:
    tables = [set(RULES), set(BODY_RULES), set(OPENED), {"custom_call"}, set(GAPS)]

    kinds = [kind for table in tables for kind in table]

    assert len(kinds) == len(set(kinds))


def test_every_rule_is_for_an_operation_that_exists() -> None:
    of_hlo = {opcode.kind for opcode in OPCODES.values()}
    existing = _dialect_kinds("stablehlo") | _dialect_kinds("mhlo") | {"call"} | of_hlo

    assert _KNOWN - existing == set()


def test_the_operations_of_xlas_own_exports_have_rules() -> None:
    exported = {"copy", "bitcast", "fusion", "async_start", "async_update", "async_done", "call"}

    assert exported <= _KNOWN


def test_a_second_rule_for_a_kind_is_refused() -> None:
    def rule(op: Op) -> object:
        return ZERO

    with pytest.raises(ValueError, match="two cost rules for add"):
        joined(({"add": rule}, {"add": rule}))
