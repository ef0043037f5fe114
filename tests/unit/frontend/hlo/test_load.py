"""Collectives without a name are named after what makes their operands or reads their results."""

from __future__ import annotations

import pytest

from hespas.frontend.load import load_source
from hespas.program.program import Op, Program, all_ops, is_communication_op
from hespas.program.scopes import read_scope

HEAD = """HloModule m, is_scheduled=true, num_partitions=4

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

"""
REDUCED = """ENTRY main {
  x = f32[64] parameter(0)
  y = f32[64] sine(x), metadata={op_name="FIRST"}
  z = f32[64] cosine(x), metadata={op_name="SECOND"}
  joined = f32[128] concatenate(y, z), dimensions={0}
  r = f32[128] all-reduce(joined), channel_id=1, use_global_device_ids=true, to_apply=add,
    replica_groups={{0,1,2,3}}
  ROOT w = f32[128] negate(r), metadata={op_name="jit(f)/elsewhere/neg"}
}
"""
GATHERED = """ENTRY main {
  x = f32[64] parameter(0)
  v = f32[64] negate(x), metadata={op_name="jit(f)/elsewhere/neg"}
  start = ((f32[64], f32[64]), (f32[256], f32[256])) all-gather-start(x, v), channel_id=1,
    use_global_device_ids=true, replica_groups={{0,1,2,3}}, dimensions={0}
  done = (f32[256], f32[256]) all-gather-done(start)
  g = f32[256] get-tuple-element(done), index=0
  h = f32[256] get-tuple-element(done), index=1
  y = f32[256] sine(g), metadata={op_name="FIRST"}
  z = f32[256] cosine(h), metadata={op_name="SECOND"}
  ROOT t = (f32[256], f32[256]) tuple(y, z)
}
"""


def load(text: str) -> Program:
    return load_source((HEAD + text).encode(), name="m.hlo")


def collective(text: str) -> Op:
    (found,) = [op for op in all_ops(load(text)) if is_communication_op(op)]
    return found


@pytest.mark.parametrize("text", [REDUCED, GATHERED])
@pytest.mark.parametrize(
    ("first", "second", "path"),
    [
        ("jit(f)/jvp(layers)/mlp/sin", "jit(f)/jvp(layers)/norm/cos", "layers"),
        ("jit(f)/jvp(layers)/mlp/sin", "jit(f)/jvp(layers)/mlp/cos", "layers/mlp"),
        ("jit(f)/jvp(layers)/mlp/sin", "", "layers/mlp"),
        # They do not agree.
        ("jit(f)/layers/mlp/sin", "jit(f)/head/cos", ""),
        ("jit(f)/jvp(layers)/mlp/sin", "jit(f)/transpose(jvp(layers))/mlp/cos", ""),
        ("", "", ""),
    ],
)
def test_it_is_named_after_what_all_agree_on(text: str, first: str, second: str, path: str) -> None:
    op = collective(text.replace("FIRST", first).replace("SECOND", second))
    assert "/".join(read_scope(op.scope).path) == path
    assert bool(op.scope) == bool(path)


def test_a_name_of_its_own_stays() -> None:
    text = REDUCED.replace(
        "replica_groups={{0,1,2,3}}",
        'replica_groups={{0,1,2,3}}, metadata={op_name="jit(f)/own/psum"}',
    )
    assert collective(text).scope == "jit(f)/own/psum"


LOOP = """body {
  p = (s32[], f32[64], f32[64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  old = f32[64] get-tuple-element(p), index=1
  moved = f32[64] copy(old)
  r = f32[64] all-reduce(moved), channel_id=1, use_global_device_ids=true, to_apply=add,
    replica_groups={{0,1,2,3}}
  made = f32[64] sine(r), metadata={op_name="jit(f)/transpose(jvp(layers))/mlp/sin"}
  one = s32[] constant(1)
  next = s32[] add(i, one)
  ROOT out = (s32[], f32[64], f32[64]) tuple(next, made, r)
}

cond {
  p = (s32[], f32[64], f32[64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(8)
  ROOT less = pred[] compare(i, n), direction=LT
}

ENTRY main {
  x = f32[64] parameter(0)
  zero = s32[] constant(0)
  t = (s32[], f32[64], f32[64]) tuple(zero, x, x)
  loop = (s32[], f32[64], f32[64]) while(t), condition=cond, body=body,
    backend_config={"known_trip_count":{"n":"8"}}
  last = f32[64] get-tuple-element(loop), index=1
  r2 = f32[64] all-reduce(last), channel_id=2, use_global_device_ids=true, to_apply=add,
    replica_groups={{0,1,2,3}}
  ROOT e = f32[64] negate(r2)
}
"""


def test_the_round_before_and_the_loop_before_make_operands_too() -> None:
    scopes = [op.scope for op in all_ops(load(LOOP)) if is_communication_op(op)]
    assert scopes == ["jit(f)/transpose(jvp(layers))/mlp/sin"] * 2
