from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

import hespas
from hespas.compile.options import CompileOptions
from hespas.prediction import Prediction
from hespas.program.attrs import CustomCallAttrs, WhileAttrs
from hespas.program.program import Block, Op, Program, Value

TURNS = 6


@cache
def predicted(*, is_pipelined: bool, layers: int = TURNS) -> Prediction:
    return hespas.predict(
        "llama3-100m",
        mesh="fsdp=4",
        cluster="4xH100_80GB",
        scan=True,
        settings={"layers": str(layers), "embedding": "2048", "mlp": "8192"},
        fidelity="fused",
        compiler=CompileOptions(pipelined_collectives=is_pipelined),
    )


def program(*, is_pipelined: bool, layers: int = TURNS) -> Program:
    return predicted(is_pipelined=is_pipelined, layers=layers).graph.program


def loops(found: Program) -> list[Op]:
    return [op for op in found.main.body.operations if op.kind == "while"]


def turns(op: Op) -> int:
    assert isinstance(op.attrs, WhileAttrs)
    assert op.attrs.trip_count is not None
    return op.attrs.trip_count


def collectives(block: Block, times: int = 1) -> Counter[str]:
    """Return how often collectives of each kind start, those of loops as often as these run."""
    found: Counter[str] = Counter()
    for op in block.operations:
        if op.kind == "async_start":
            found[op.regions[0].operations[0].kind] += times
        if op.kind == "while":
            found += collectives(op.regions[-1], times * turns(op))
    return found


def check_values(block: Block, outer: set[Value]) -> None:
    """Fail where a value is read before it is made, or made twice."""
    known = outer | set(block.arguments)
    for op in block.operations:
        assert set(op.operands) <= known, op.instruction
        if op.kind == "while":
            for region in op.regions:
                assert [each.type for each in region.arguments] == [
                    each.type for each in op.operands
                ]
                check_values(region, known)
            handed = op.regions[-1].operations[-1].operands
            assert [each.type for each in handed] == [each.type for each in op.results]
        assert known.isdisjoint(op.results), op.instruction
        known |= set(op.results)


def test_every_value_is_made_once_before_it_is_read() -> None:
    check_values(program(is_pipelined=True).main.body, set())


def test_what_runs_is_the_same() -> None:
    before, after = predicted(is_pipelined=False), predicted(is_pipelined=True)
    assert collectives(before.graph.program.main.body) == collectives(after.graph.program.main.body)
    flops = before.estimates.total.total.flops
    assert after.estimates.total.total.flops == pytest.approx(flops, rel=1e-6)
    assert after.communication_s == pytest.approx(before.communication_s, rel=1e-3)


def test_communication_is_hidden_by_other_turns() -> None:
    before, after = predicted(is_pipelined=False), predicted(is_pipelined=True)
    assert after.exposed_communication_s < 0.6 * before.exposed_communication_s


def test_the_first_and_the_last_turn_are_written_out() -> None:
    forward, backward = loops(program(is_pipelined=True))
    assert turns(forward) == TURNS - 1  # it only gathers
    assert turns(backward) == TURNS - 2


def test_gathers_end_with_the_turn_before() -> None:
    forward, _ = loops(program(is_pipelined=True))
    *operations, last = forward.regions[-1].operations
    ends = [op for op in operations if op.kind == "async_done"]
    assert ends == operations[-len(ends) :]
    assert {value for op in ends for value in op.results} <= set(last.operands)


def test_a_loop_of_two_turns_stays_as_it_is() -> None:
    assert [turns(op) for op in loops(program(is_pipelined=True, layers=2))] == [2, 2]


@cache
def offloaded(cluster: str) -> Prediction:
    return hespas.predict(
        "llama3-100m",
        mesh="fsdp=4",
        cluster=cluster,
        scan=True,
        remat="offload",
        settings={"layers": str(TURNS)},
        fidelity="fused",
    )


def fetches(block: Block) -> list[Op]:
    return [
        op
        for op in block.operations
        if isinstance(op.attrs, CustomCallAttrs) and op.attrs.target == "MoveToDevice"
    ]


def test_tpus_fetch_from_the_host_a_turn_ahead() -> None:
    tpu, gpu = offloaded("4xTPUv6e"), offloaded("4xH100_80GB")
    check_values(tpu.graph.program.main.body, set())
    for found in (tpu, gpu):
        body = loops(found.graph.program)[-1].regions[-1]
        handed = {value for op in fetches(body) for value in op.results}
        assert handed
        last = set(body.operations[-1].operands)
        assert handed <= last if found is tpu else handed.isdisjoint(last)
    assert tpu.host_transfer_bytes == gpu.host_transfer_bytes
