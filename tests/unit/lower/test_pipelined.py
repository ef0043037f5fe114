from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

import hespas
from hespas.compile.options import CompileOptions
from hespas.prediction.result import Prediction
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


def test_a_loop_keeps_at_least_one_turn() -> None:
    # Forward it gathers ahead; backward it would reduce behind, too.
    assert [turns(op) for op in loops(program(is_pipelined=True, layers=2))] == [1, 2]


@cache
def accumulating() -> Block:
    prediction = hespas.predict(
        "llama3-100m",
        mesh="data=2,fsdp=2",
        cluster="4xH100_80GB",
        scan=True,
        batch=3,
        settings={"layers": "4", "embedding": "1024", "accumulation": "3"},
        fidelity="fused",
    )
    return prediction.graph.program.main.body


def micro_batches() -> Block:
    (loop,) = [op for op in accumulating().operations if _holds_loops(op)]
    assert turns(loop) == 2  # the last is written out, and the first is not
    return loop.regions[-1]


def _holds_loops(op: Op) -> bool:
    return op.kind == "while" and any(each.kind == "while" for each in op.regions[-1].operations)


def test_gradients_of_a_micro_batch_are_reduced_in_its_turn() -> None:
    body = micro_batches()
    starts = {op.results[0] for op in body.operations if op.kind == "async_start"}
    ends = {op.operands[0] for op in body.operations if op.kind == "async_done"}
    assert starts == ends
    carried = set(body.arguments)
    reductions = [
        op
        for op in body.operations
        if op.kind == "async_start"
        and op.regions[0].operations[0].kind in {"all_reduce", "reduce_scatter"}
    ]
    assert reductions
    assert all(carried.isdisjoint(op.operands) for op in reductions)


def test_gathers_for_the_next_micro_batch_start_behind_its_loops() -> None:
    *operations, last = micro_batches().operations
    last_loop = max(at for at, op in enumerate(operations) if op.kind == "while")
    made_by = {value: op for op in operations for value in op.results}
    handed = [made_by[value] for value in last.operands if value in made_by]
    starts = [made_by[op.operands[0]] for op in handed if op.kind == "async_done"]
    assert starts
    assert all(operations.index(op) > last_loop for op in starts)


def test_gathers_of_the_backward_pass_stay_in_their_micro_batch() -> None:
    *operations, last = micro_batches().operations
    made_by = {value: op for op in operations for value in op.results}
    handed = {made_by[value] for value in last.operands if value in made_by}
    ahead = [op.scope for op in handed if op.kind == "async_done"]
    assert ahead
    assert not [scope for scope in ahead if "rematted" in scope or "transpose(" in scope]


def test_zeros_of_the_last_micro_batch_are_made_with_the_first() -> None:
    operations = accumulating().operations
    first = next(at for at, op in enumerate(operations) if op.kind == "while")
    before, after = (
        Counter(str(op.results[0].type) for op in some if op.kind == "fusion" and not op.operands)
        for some in (operations[:first], operations[first:])
    )
    gradients = [kind for kind, count in before.items() if count > 1]
    assert len(gradients) >= 4  # of stacks of weights
    assert not set(gradients) & set(after)


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
