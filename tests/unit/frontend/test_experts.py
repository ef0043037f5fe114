from __future__ import annotations

import pytest

from expert_programs import experts_on_four, gradient_alone, product_alone
from hespas.errors import ConfigError
from hespas.frontend.experts import Capacity, with_expert_load
from hespas.frontend.load import load_source
from hespas.program.attrs import CollectiveAttrs, DotAttrs
from hespas.program.experts import UNIFORM, ExpertLoad
from hespas.program.program import Program, all_ops
from hespas.tasks.build import operand_bytes
from programs import vector_main

SKEWED = ExpertLoad(layers=((0.5, *(0.5 / 15,) * 15),), source="load.json")
"""One of 16 experts gets half of all tokens: its device of four gets 0.6."""


def _read(text: str) -> Program:
    return load_source(text.encode(), name="p.mlir")


def _rows(program: Program) -> tuple[int, ...]:
    (rows,) = [op.attrs.group_rows for op in all_ops(program) if isinstance(op.attrs, DotAttrs)]
    return rows


def _exchanged(program: Program) -> list[int]:
    return [operand_bytes(op) for op in all_ops(program) if isinstance(op.attrs, CollectiveAttrs)]


def test_rows_that_are_exchanged_are_spread_evenly_where_nothing_is_said() -> None:
    program = with_expert_load(_read(experts_on_four()), None)
    # 64 rows from each of four devices, of which a device with four experts gets a fourth.
    assert _rows(program) == (16, 16, 16, 16)
    assert _exchanged(program) == [64 * 8 * 2, 64 * 8 * 2]
    assert program.assumptions[0] == (
        "each of the 16 experts gets as many tokens, which no program says"
    )
    assert with_expert_load(_read(experts_on_four()), UNIFORM).assumptions[0].endswith("user says")


def test_the_busiest_device_decides() -> None:
    program = with_expert_load(_read(experts_on_four()), SKEWED)
    assert _rows(program) == (128, 9, 9, 9)
    assert _exchanged(program) == [round(4 * 0.6 * 64 * 8 * 2)] * 2
    (note,) = program.assumptions
    assert "of 4 devices the busiest gets 2.4 times an even share" in note


def test_what_has_no_room_is_dropped_and_listed() -> None:
    program = with_expert_load(_read(experts_on_four(room=128)), SKEWED)
    assert _exchanged(program) == [2 * 64 * 8 * 2] * 2
    assert sum(_rows(program)) == pytest.approx(128, abs=2)
    # 0.6 of 256 rows, and room for 128: 10 % of all.
    assert "room for 128 rows: 10 % of the tokens are dropped" in program.assumptions[1]


@pytest.mark.parametrize("text", [product_alone(), gradient_alone()])
def test_groups_without_an_exchange_share_all_rows(text: str) -> None:
    program = _read(text)
    assert with_expert_load(program, None) is program
    load = ExpertLoad(layers=((0.5, 0.5, 0.0, 0.0),), source="load.json")
    assert _rows(with_expert_load(program, load)) == (32, 32, 0, 0)
    # Eight experts are more than the four here: half of them are on another device.
    half = ExpertLoad(layers=((0.125,) * 8,), source="load.json")
    assert _rows(with_expert_load(program, half)) == (8, 8, 8, 8)


def test_a_load_shows_in_the_text_of_operations() -> None:
    program = with_expert_load(_read(experts_on_four()), SKEWED)
    texts = [dict(op.attributes) for op in program.main.body.operations]
    assert texts[0]["mhlo.imbalance"] == "2.4 : f64"
    assert texts[1]["mhlo.group_rows"] == "array<i64: 128, 9, 9, 9>"


def test_a_load_that_does_not_fit_is_refused() -> None:
    three = ExpertLoad(layers=((0.5, 0.25, 0.25),), source="load.json")
    with pytest.raises(ConfigError, match="lists 3 experts, and the program has 16"):
        with_expert_load(_read(experts_on_four()), three)
    with pytest.raises(ConfigError, match="lists 3 experts, and the program has 4"):
        with_expert_load(_read(product_alone()), three)
    plain = _read(vector_main("%r = stablehlo.add %a, %a : tensor<8xf32>"))
    for load in (SKEWED, UNIFORM):
        with pytest.raises(ConfigError, match="has no effect"):
            with_expert_load(plain, load)
    assert with_expert_load(plain, None) is plain


def test_experts_of_fixed_size_drop_what_is_more() -> None:
    plain = _read(vector_main("%r = stablehlo.add %a, %a : tensor<8xf32>"))
    capacity = Capacity(experts=4, factor=1.25)
    load = ExpertLoad(layers=((0.4, 0.2, 0.2, 0.2),), source="load.json")
    (note,) = with_expert_load(plain, load, capacity=capacity).assumptions
    assert "8.75 % of the tokens are dropped, by load.json" in note
    (note,) = with_expert_load(plain, UNIFORM, capacity=capacity).assumptions
    assert "; 0 % of the tokens are dropped" in note
    with pytest.raises(ConfigError, match="lists 16 experts, and the program has 4"):
        with_expert_load(plain, SKEWED, capacity=capacity)
