from __future__ import annotations

import pytest

from hespas.errors import ProgramError, UnsupportedError
from hespas.program.attrs import CollectiveAttrs, PermuteAttrs
from hespas.program.program import Op, Program
from hlo_programs import ADD, module, read_hlo

_HEADER = 'is_scheduled=true, frontend_attributes={hespas_slices="3"}, num_partitions=4'
_BETWEEN = (
    '_xla_host_transfer_handler_name="xla_megascale_runtime",'
    '_xla_host_transfer_rendezvous="all-reduce.1_0",'
    '_xla_megascale_reduce_operation="SUM",'
    '_xla_megascale_target="{1,2,3}x{0:3}",'
    '_xla_megascale_transfer_type="ALL_REDUCE"'
)
_DONE = '_xla_host_transfer_handler_name="xla_megascale_runtime"'


def _program(entry: str) -> Program:
    return read_hlo(module(entry, computations=ADD, header=_HEADER))


def _sent(attributes: str = _BETWEEN, *, received: str = _BETWEEN) -> Program:
    return _program(
        "p = f32[8,16] parameter(0)\n"
        "t = token[] after-all()\n"
        f"s = (f32[8,16], u32[], token[]) send(p, t), channel_id=2, is_host_transfer=true, "
        f"frontend_attributes={{{attributes}}}\n"
        f"r = (f32[8,16], u32[], token[]) recv(t), channel_id=1, is_host_transfer=true, "
        f"frontend_attributes={{{received}}}\n"
        "n = f32[8,16] negate(p)\n"
        f"sd = token[] send-done(s), channel_id=2, is_host_transfer=true, "
        f"frontend_attributes={{{_DONE}}}\n"
        f"rd = (f32[8,16], token[]) recv-done(r), channel_id=1, is_host_transfer=true, "
        f"frontend_attributes={{{_DONE}}}\n"
        "g = f32[8,16] get-tuple-element(rd), index=0\n"
        "ROOT a = f32[8,16] add(g, n)"
    )


def _operations(program: Program) -> tuple[Op, ...]:
    return program.functions["main"].body.operations


def test_a_transfer_between_slices_is_a_collective_that_runs_beside_the_computation() -> None:
    program = _sent()
    assert program.partitions == 12
    kinds = [op.kind for op in _operations(program)]
    assert kinds[-5:] == ["async_start", "negate", "async_done", "add", "return"]
    start = next(op for op in _operations(program) if op.kind == "async_start")
    collective = start.regions[0].operations[0]
    assert collective.kind == "all_reduce"
    assert isinstance(collective.attrs, CollectiveAttrs)
    groups = collective.attrs.groups.listed()
    assert groups == ((0, 4, 8), (1, 5, 9), (2, 6, 10), (3, 7, 11))


@pytest.mark.parametrize(
    ("inside", "all_of_them"),
    [
        ("{{0,2},{1,3}}", ((0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11))),
        ("[2,2]<=[4]", ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11))),
        ("[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11))),
        ("{}", ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))),
    ],
)
def test_collectives_inside_a_slice_are_those_of_every_slice(
    inside: str, all_of_them: tuple[tuple[int, ...], ...]
) -> None:
    program = _program(
        "p = f32[8] parameter(0)\n"
        f"ROOT r = f32[8] all-reduce(p), channel_id=1, replica_groups={inside}, "
        "use_global_device_ids=true, to_apply=add"
    )
    (op,) = [inner for inner in _operations(program) if inner.kind == "all_reduce"]
    assert isinstance(op.attrs, CollectiveAttrs)
    assert op.attrs.groups.listed() == all_of_them


def test_permutes_inside_a_slice_are_those_of_every_slice() -> None:
    program = _program(
        "p = f32[8] parameter(0)\n"
        "ROOT r = f32[8] collective-permute(p), channel_id=1, source_target_pairs={{0,1},{1,0}}"
    )
    (op,) = [inner for inner in _operations(program) if inner.kind == "collective_permute"]
    assert isinstance(op.attrs, PermuteAttrs)
    assert op.attrs.pairs == ((0, 1), (1, 0), (4, 5), (5, 4), (8, 9), (9, 8))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("{1,2,3}x{0:3}", "{1,2}x{0:3}"), "not among all 3 slices"),
        (("{1,2,3}x{0:3}", "{1,2,3}x{1:3}"), "has the target"),
        (("ALL_REDUCE", "ALL_TO_ALL"), "is ALL_TO_ALL SUM"),
    ],
)
def test_transfers_of_other_forms_are_refused(changed: tuple[str, str], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        _sent(_BETWEEN.replace(*changed))


def test_a_receive_without_its_send_is_refused() -> None:
    with pytest.raises(ProgramError, match="was not sent"):
        _sent(received=_BETWEEN.replace("all-reduce.1_0", "all-reduce.2_0"))
