from __future__ import annotations

from typing import Any

import pytest

from hespas.errors import ProgramError
from hespas.frontend.hlo.attributes import replica_groups
from hespas.program.attrs import CollectiveAttrs, PermuteAttrs
from hespas.program.groups import FoldedGroups, GroupMode
from hespas.program.program import Op
from hespas.program.types import AsyncType
from hespas.xla.hlo.schema import message_class
from hlo_programs import ADD, entry_op, entry_ops, module, read_hlo


def _all_reduce(groups: str, more: str = "") -> Op:
    return entry_op(
        "p = f32[8] parameter(0)\n"
        f"ROOT r = f32[8] all-reduce(p), replica_groups={groups}, to_apply=add{more}",
        computations=ADD,
    )


def _groups(op: Op) -> tuple[tuple[int, ...], ...]:
    assert isinstance(op.attrs, CollectiveAttrs)
    return op.attrs.groups.listed()


@pytest.mark.parametrize(
    ("spelling", "groups"),
    [
        ("{}", ()),
        ("{{0,2},{1,3}}", ((0, 2), (1, 3))),
        ("{{0,1,2},{3}}", ((0, 1, 2), (3,))),
        ("[2,2]<=[4]", ((0, 1), (2, 3))),
        ("[2,4]<=[4,2]T(1,0)", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['a'=4,'b'=2] {'a'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['a'=4,'b'=2] {'b'}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['a'=4,'b'=1] {'a'}", ((0, 1, 2, 3),)),
    ],
)
def test_every_spelling_of_replica_groups(
    spelling: str, groups: tuple[tuple[int, ...], ...]
) -> None:
    assert _groups(_all_reduce(spelling)) == groups


_INSTRUCTION = "xla.HloInstructionProto"


def _on_mesh(*, sub_axis: tuple[int, int] | None = None, **mesh: Any) -> Any:
    """Return an instruction among the first axis of a mesh of 4 x 2 devices."""
    instruction = message_class(_INSTRUCTION)()
    described = instruction.mesh_axes_replica_group_list
    for name, size in (("a", 4), ("b", 2)):
        described.mesh.axes.add(name=name, size=size)
    described.mesh.device_ids.extend(mesh.get("device_ids", ()))
    if "reshape_dims" in mesh:
        described.mesh.iota_transform.reshape_dims.extend(mesh["reshape_dims"])
        described.mesh.iota_transform.transpose_perm.extend(mesh["transpose_perm"])
    axis = described.axes.add(mesh_axis_index=0)
    if sub_axis is not None:
        axis.sub_axis_info.pre_size, axis.sub_axis_info.size = sub_axis
    return instruction


@pytest.mark.parametrize(
    ("mesh", "groups"),
    [
        ({}, ((0, 2, 4, 6), (1, 3, 5, 7))),
        ({"device_ids": (7, 6, 5, 4, 3, 2, 1, 0)}, ((7, 5, 3, 1), (6, 4, 2, 0))),
        # Devices 0 to 7 folded to 2 x 4 and transposed: 0, 4, 1, 5, 2, 6, 3, 7.
        ({"reshape_dims": (2, 4), "transpose_perm": (1, 0)}, ((0, 1, 2, 3), (4, 5, 6, 7))),
        ({"sub_axis": (1, 2)}, ((0, 4), (1, 5), (2, 6), (3, 7))),
        ({"sub_axis": (2, 2)}, ((0, 2), (1, 3), (4, 6), (5, 7))),
    ],
)
def test_axes_of_meshes_in_any_order(
    mesh: dict[str, Any], groups: tuple[tuple[int, ...], ...]
) -> None:
    assert replica_groups(_on_mesh(**mesh)).listed() == groups


def test_an_axis_that_a_mesh_does_not_have_is_an_error() -> None:
    instruction = _on_mesh()
    instruction.mesh_axes_replica_group_list.axes.add(mesh_axis_index=2)
    with pytest.raises(ProgramError, match="mesh axis 2 is not defined"):
        replica_groups(instruction)


def test_groups_of_many_devices_stay_folded() -> None:
    op = _all_reduce("[1024,16]<=[16,1024]T(1,0)")
    assert isinstance(op.attrs, CollectiveAttrs)
    assert op.attrs.groups == FoldedGroups(dimensions=(16, 1024), permutation=(1, 0), group_size=16)
    assert len(dict(op.attributes)["replica_groups"]) < 50


@pytest.mark.parametrize(
    ("more", "mode", "channel"),
    [
        ("", GroupMode.CROSS_REPLICA, None),
        (", channel_id=3", GroupMode.CROSS_REPLICA_AND_PARTITION, 3),
        (", channel_id=3, use_global_device_ids=true", GroupMode.FLATTENED_IDS, 3),
    ],
)
def test_what_the_numbers_in_groups_mean(more: str, mode: GroupMode, channel: int | None) -> None:
    op = _all_reduce("{{0,1}}", more)
    assert isinstance(op.attrs, CollectiveAttrs)
    assert (op.attrs.mode, op.attrs.channel) == (mode, channel)


def test_an_all_to_all_with_a_channel_is_among_partitions() -> None:
    op = entry_op(
        "p = f32[8] parameter(0)\n"
        "ROOT r = f32[8] all-to-all(p), replica_groups={{0,1}}, channel_id=2, dimensions={0}"
    )
    assert isinstance(op.attrs, CollectiveAttrs)
    assert (op.attrs.mode, op.attrs.dimension) == (GroupMode.CROSS_PARTITION, 0)
    assert dict(op.attributes)["split_count"] == "2 : i64"


def test_channels_and_names_are_not_printed() -> None:
    printed = [
        _all_reduce("{{0,1}}", f", channel_id={channel}, use_global_device_ids=true").attributes
        for channel in (1, 2)
    ]
    assert printed[0] == printed[1]


def test_combined_collectives_are_one_operation() -> None:
    op = entry_op(
        """
        p = f32[8] parameter(0)
        q = bf16[4] parameter(1)
        ROOT r = (f32[32], bf16[16]) all-gather(p, q), replica_groups={{0,1,2,3}}, dimensions={0}
        """
    )
    assert (len(op.operands), len(op.results)) == (2, 2)
    assert isinstance(op.attrs, CollectiveAttrs)
    assert op.attrs.dimension == 0


def test_a_permute_keeps_its_pairs() -> None:
    op = entry_op(
        "p = f32[8] parameter(0)\n"
        "ROOT r = f32[8] collective-permute(p), channel_id=1, source_target_pairs={{0,1},{1,0}}"
    )
    assert op.attrs == PermuteAttrs(
        pairs=((0, 1), (1, 0)), mode=GroupMode.CROSS_PARTITION, channel=1
    )


_GROUPS = "replica_groups={{0,1,2,3}}"
_STARTS = {
    "all_gather": (
        "(f32[8], f32[32]) all-gather-start(p), replica_groups={{0,1,2,3}}, dimensions={0}",
        "f32[32] all-gather-done(s)",
    ),
    "all_reduce": (
        "f32[8] all-reduce-start(p), replica_groups={{0,1,2,3}}, to_apply=add",
        "f32[8] all-reduce-done(s)",
    ),
    "collective_permute": (
        "(f32[8], f32[8], u32[]) collective-permute-start(p), source_target_pairs={{0,1},{1,0}}",
        "f32[8] collective-permute-done(s)",
    ),
    "copy": ("(f32[8], f32[8], u32[]) copy-start(p)", "f32[8] copy-done(s)"),
    "reduce_scatter": (
        f"((f32[8]), f32[2]) reduce-scatter-start(p), {_GROUPS}, dimensions={{0}}, to_apply=add",
        "f32[2] reduce-scatter-done(s)",
    ),
    "slice": ("((f32[8]), f32[2], s32[]) slice-start(p), slice={[2:4]}", "f32[2] slice-done(s)"),
}


@pytest.mark.parametrize("kind", _STARTS)
def test_a_start_holds_what_it_starts(kind: str) -> None:
    begin, end = _STARTS[kind]
    start, tanh, done, last = entry_ops(
        f"p = f32[8] parameter(0)\ns = {begin}\nt = f32[8] tanh(p)\nd = {end}\n"
        f"ROOT r = {end.split()[0]} negate(d)",
        computations=ADD,
    )
    started, returned = start.regions[0].operations
    assert (start.name, done.name) == ("mhlo.async_start", "mhlo.async_done")
    assert started.kind == kind
    assert returned.operands == started.results
    assert isinstance(start.results[0].type, AsyncType)
    assert start.results[0].type.members == (done.results[0].type,)
    assert done.operands == start.results
    assert (tanh.kind, last.operands) == ("tanh", done.results)


_SYNCHRONOUS = 'backend_config={"collective_backend_config":{"is_sync":true}}'


@pytest.mark.parametrize("kind", ["all_gather", "all_reduce", "reduce_scatter"])
def test_a_start_that_the_stream_waits_for_is_the_operation_itself(kind: str) -> None:
    begin, end = _STARTS[kind]
    op, last = entry_ops(
        f"p = f32[8] parameter(0)\ns = {begin}, {_SYNCHRONOUS}\nd = {end}\n"
        f"ROOT r = {end.split()[0]} negate(d)",
        computations=ADD,
    )
    assert op.kind == kind
    assert last.operands == op.results


def test_an_update_hands_the_bundle_on() -> None:
    ops = entry_ops(
        """
        p = f32[8] parameter(0)
        s = ((f32[8]), f32[8], s32[]) async-start(p), calls=wrapped
        u = ((f32[8]), f32[8], s32[]) async-update(s)
        ROOT d = f32[8] async-done(u)
        """,
        computations="wrapped {\n  a = f32[8] parameter(0)\n  ROOT t = f32[8] tanh(a)\n}\n",
    )
    assert [op.kind for op in ops] == ["async_start", "async_update", "async_done"]


_TPU = """
starting {
  x = f32[8] parameter(0)
  g = f32[32] all-gather(x), replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT c = (f32[8], f32[32], s32[2]) custom-call(g), custom_call_target="AsyncCollectiveStart"
}

beside {
  x = f32[8] parameter(0)
  whole = f32[32] parameter(1)
  flag = s32[2] parameter(2)
  y = f32[8] parameter(3)
  g = f32[32] all-gather(x), replica_groups={{0,1,2,3}}, dimensions={0}
  t = f32[8] tanh(y)
  ROOT all = (f32[8], f32[8], f32[32], f32[32], s32[2]) tuple(t, x, whole, g, flag)
}

ending {
  x = f32[8] parameter(0)
  whole = f32[32] parameter(1)
  flag = s32[2] parameter(2)
  g = f32[32] all-gather(x), replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT c = f32[32] custom-call(x, whole, g, flag), custom_call_target="AsyncCollectiveDone"
}
"""


def test_a_collective_that_a_tpu_fuses_with_computation_runs_beside_it() -> None:
    start, fusion, done = entry_ops(
        """
        p = f32[8] parameter(0)
        q = f32[8] parameter(1)
        s = (f32[8], f32[32], s32[2]) fusion(p), kind=kCustom, calls=starting
        x = f32[8] get-tuple-element(s), index=0
        w = f32[32] get-tuple-element(s), index=1
        f = s32[2] get-tuple-element(s), index=2
        b = (f32[8], f32[8], f32[32], f32[32], s32[2]) fusion(x, w, f, q), kind=kOutput,
          calls=beside
        x2 = f32[8] get-tuple-element(b), index=1
        w2 = f32[32] get-tuple-element(b), index=2
        f2 = s32[2] get-tuple-element(b), index=4
        t = f32[8] get-tuple-element(b), index=0
        d = f32[32] fusion(x2, w2, f2), kind=kCustom, calls=ending
        ROOT r = (f32[32], f32[8]) tuple(d, t)
        """,
        computations=_TPU,
    )
    assert [op.kind for op in start.regions[0].operations] == ["all_gather", "return"]
    assert [op.kind for op in fusion.regions[0].operations] == ["tanh", "return"]
    assert (len(fusion.operands), len(fusion.results)) == (2, 1)
    assert (done.kind, done.operands) == ("async_done", start.results)


def test_an_all_reduce_of_which_each_device_keeps_a_slice_is_a_reduce_scatter() -> None:
    body = (
        ADD
        + """
        scattered {
          x = f32[16] parameter(0)
          a = f32[16] all-reduce(x), replica_groups={{0,1,2,3}}, to_apply=add
          i = u32[] partition-id()
          four = u32[] constant(4)
          at = u32[] multiply(i, four)
          ROOT d = f32[4] dynamic-slice(a, at), dynamic_slice_sizes={4}
        }
        """
    )
    op = entry_op(
        "p = f32[16] parameter(0)\nROOT f = f32[4] fusion(p), kind=kCustom, calls=scattered",
        computations=body,
    )
    assert op.kind == "reduce_scatter"
    assert isinstance(op.attrs, CollectiveAttrs)
    assert op.attrs.dimension == 0


def test_combined_all_reduces_are_scattered_dimension_by_dimension() -> None:
    body = (
        ADD
        + """
        scattered {
          x = f32[16,2] parameter(0)
          y = f32[2,16] parameter(1)
          a = (f32[16,2], f32[2,16]) all-reduce(x, y), replica_groups={{0,1,2,3}}, to_apply=add
          i = u32[] partition-id()
          zero = u32[] constant(0)
          left = f32[16,2] get-tuple-element(a), index=0
          right = f32[2,16] get-tuple-element(a), index=1
          d = f32[4,2] dynamic-slice(left, i, zero), dynamic_slice_sizes={4,2}
          e = f32[2,4] dynamic-slice(right, zero, i), dynamic_slice_sizes={2,4}
          ROOT r = (f32[4,2], f32[2,4]) tuple(d, e)
        }
        """
    )
    first, second, tanh = entry_ops(
        """
        p = f32[16,2] parameter(0)
        q = f32[2,16] parameter(1)
        f = (f32[4,2], f32[2,4]) fusion(p, q), kind=kCustom, calls=scattered
        g = f32[2,4] get-tuple-element(f), index=1
        ROOT t = f32[2,4] tanh(g)
        """,
        computations=body,
    )
    dimensions = [
        op.attrs.dimension for op in (first, second) if isinstance(op.attrs, CollectiveAttrs)
    ]
    assert dimensions == [0, 1]
    assert tanh.operands == second.results


def test_any_other_fusion_around_a_collective_is_opened_and_reported() -> None:
    program = read_hlo(
        module(
            "p = f32[8] parameter(0)\nROOT f = f32[8] fusion(p), kind=kCustom, calls=mixed",
            computations=ADD + "mixed {\n  x = f32[8] parameter(0)\n  t = f32[8] tanh(x)\n"
            "  ROOT a = f32[8] all-reduce(t), replica_groups={{0,1}}, to_apply=add\n}\n",
        )
    )
    assert [op.kind for op in program.main.body.operations] == ["tanh", "all_reduce", "return"]
    assert program.assumptions == (
        "%f: a fusion around a collective is counted operation by operation",
    )


def test_a_done_without_a_start_is_an_error() -> None:
    with pytest.raises(ProgramError):
        read_hlo(module("p = f32[8] parameter(0)\nROOT d = f32[8] all-reduce-done(p)"))
