from __future__ import annotations

import pytest

from hespas.errors import UnsupportedError
from hespas.program.attrs import CollectiveAttrs, PermuteAttrs
from hespas.program.program import Program, all_ops
from hespas.program.slices import with_slices
from hlo_programs import ADD, module, read_hlo

_TRANSFER = '_xla_host_transfer_handler_name="xla_megascale_runtime"'


def _program(slices: int, *, groups: str = "{{0,2},{1,3}}") -> Program:
    """Return a program of slices of four devices, with collectives in a loop and between slices."""
    numbers = ",".join(map(str, range(1, slices + 1)))
    between = (
        f'{_TRANSFER},_xla_host_transfer_rendezvous="all-reduce.1_0",'
        f'_xla_megascale_reduce_operation="SUM",_xla_megascale_target="{{{numbers}}}x{{0:3}}",'
        '_xla_megascale_transfer_type="ALL_REDUCE"'
    )
    loop = (
        "cond {\n  s = (s32[], f32[8]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n"
        "  n = s32[] constant(3)\n  ROOT c = pred[] compare(i, n), direction=LT\n}\n"
        "body {\n  s = (s32[], f32[8]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n"
        "  v = f32[8] get-tuple-element(s), index=1\n  one = s32[] constant(1)\n"
        "  j = s32[] add(i, one)\n"
        f"  r = f32[8] all-reduce(v), channel_id=1, replica_groups={groups}, "
        "use_global_device_ids=true, to_apply=add\n"
        "  p = f32[8] collective-permute(r), channel_id=5, source_target_pairs={{0,1},{1,0}}\n"
        "  ROOT t = (s32[], f32[8]) tuple(j, p)\n}\n"
    )
    entry = (
        "p = f32[8] parameter(0)\n"
        "zero = s32[] constant(0)\n"
        "in = (s32[], f32[8]) tuple(zero, p)\n"
        "w = (s32[], f32[8]) while(in), condition=cond, body=body\n"
        "v = f32[8] get-tuple-element(w), index=1\n"
        "t = token[] after-all()\n"
        f"s = (f32[8], u32[], token[]) send(v, t), channel_id=2, is_host_transfer=true, "
        f"frontend_attributes={{{between}}}\n"
        f"r = (f32[8], u32[], token[]) recv(t), channel_id=3, is_host_transfer=true, "
        f"frontend_attributes={{{between}}}\n"
        f"sd = token[] send-done(s), channel_id=2, is_host_transfer=true, "
        f"frontend_attributes={{{_TRANSFER}}}\n"
        f"rd = (f32[8], token[]) recv-done(r), channel_id=3, is_host_transfer=true, "
        f"frontend_attributes={{{_TRANSFER}}}\n"
        "ROOT g = f32[8] get-tuple-element(rd), index=0"
    )
    header = (
        f'is_scheduled=true, frontend_attributes={{hespas_slices="{slices}"}}, num_partitions=4'
    )
    return read_hlo(module(entry, computations=ADD + loop, header=header))


def _collectives(program: Program) -> list[tuple[str, object]]:
    collectives: list[tuple[str, object]] = []
    for op in all_ops(program):
        match op.attrs:
            case CollectiveAttrs(groups=groups, mode=mode):
                collectives.append((op.kind, (groups.listed(), mode)))
            case PermuteAttrs():
                collectives.append((op.kind, op.attrs))
            case _:
                pass
    return collectives


@pytest.mark.parametrize("groups", ["{{0,2},{1,3}}", "[2,2]<=[4]", "[2,2]<=[2,2]T(1,0)", "{}"])
@pytest.mark.parametrize("slices", [3, 32])
def test_the_program_for_more_slices_is_the_one_that_is_compiled_for_them(
    groups: str, slices: int
) -> None:
    extended = with_slices(_program(2, groups=groups), slices)
    assert extended.partitions == 4 * slices
    assert _collectives(extended) == _collectives(_program(slices, groups=groups))
    assert len(_collectives(extended)) == 3


@pytest.mark.parametrize(
    ("both", "four"),
    [
        ("{{0,1,2,3}}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("{{0,2},{1,3}}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("{{0,1},{2,3}}", ((0, 1), (2, 3), (4, 5), (6, 7))),
    ],
)
def test_groups_of_two_slices_become_those_of_four(
    both: str, four: tuple[tuple[int, ...], ...]
) -> None:
    text = module(
        f"p = f32[8] parameter(0)\nROOT r = f32[8] all-reduce(p), channel_id=1, "
        f"replica_groups={both}, use_global_device_ids=true, to_apply=add",
        computations=ADD,
        header="is_scheduled=true, num_partitions=4",
    )
    (op,) = [op for op in all_ops(with_slices(read_hlo(text), 4)) if op.kind == "all_reduce"]
    assert isinstance(op.attrs, CollectiveAttrs)
    assert op.attrs.groups.listed() == four


def test_collectives_of_other_devices_are_refused() -> None:
    text = module(
        "p = f32[8] parameter(0)\n"
        "ROOT r = f32[8] all-reduce(p), channel_id=1, replica_groups={{0,3},{1,2}}, "
        "use_global_device_ids=true, to_apply=add",
        computations=ADD,
        header="is_scheduled=true, num_partitions=4",
    )
    with pytest.raises(UnsupportedError, match="neither inside"):
        with_slices(read_hlo(text), 4)
