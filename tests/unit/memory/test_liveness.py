"""The memory of compiled programs: what is in place, what waits, what is reused."""

from __future__ import annotations

import pytest

from hespas.memory.usage import memory_use
from scheduled import V, done, kernel, loop, scheduled, start, sync

KIB = 1024


ELEMENTWISE = """
%elementwise (p: f32[256]) -> f32[256] {
  %p = f32[256] parameter(0)
  ROOT %n = f32[256] negate(%p)
}
"""


def test_a_kernel_has_a_result_of_its_own() -> None:
    chain = [kernel(f"k{at + 1}", f"k{at}" if at else "a") for at in range(5)]
    # Of every two that are there at a time, the output holds one.
    assert memory_use(scheduled(*chain)).temporary_bytes == KIB
    between = f"%k2 = {V} fusion(%k1), kind=kLoop, calls=%elementwise"
    in_place = scheduled(
        kernel("k1", "a"), between, f"%k3 = {V} add(%k1, %k2)", functions=ELEMENTWISE
    )
    # The sum, an output, is written over one of the two.
    assert memory_use(in_place).temporary_bytes == KIB


def test_a_fusion_that_keeps_places_may_write_over_what_an_operation_alone_made() -> None:
    over = f"%k2 = {V} fusion(%k1), kind=kLoop, calls=%elementwise"
    end = "%k3 = f32[1] slice(%k2), slice={[0:1]}"
    direct = scheduled(kernel("k1", "a"), over, end, functions=ELEMENTWISE)
    assert memory_use(direct).temporary_bytes == KIB
    viewed = scheduled(
        kernel("k1", "a"),
        f"%b = {V} bitcast(%k1)",
        over.replace("%k1", "%b"),
        end,
        functions=ELEMENTWISE,
    )
    assert memory_use(viewed).temporary_bytes == 2 * KIB


def test_an_output_lends_its_memory_before_it_is_made() -> None:
    # k0 lies where k2 will be, for nothing reads it any more by then; k1 does not fit there.
    chain = scheduled(kernel("k0", "a"), kernel("k1", "k0"), kernel("k2", "k1"))
    assert memory_use(chain).temporary_bytes == KIB
    # Here k0 is read by the kernel that makes the output: it reads all of it first, or not.
    read = (kernel("k0", "a"), kernel("k1", "k0"), "%s = f32[128] slice(%k1), slice={[0:128]}")
    apart = scheduled(*read, f"%k2 = {V} concatenate(%s, %s), dimensions={{0}}")
    assert memory_use(apart).temporary_bytes == KIB + KIB // 2
    both = scheduled(kernel("k0", "a"), kernel("k1", "k0"), f"%k2 = {V} add(%k0, %k1)")
    assert memory_use(both).temporary_bytes == KIB


BOTH = "(f32[256],f32[256])"
TWO = """
%two (p: f32[256]) -> (f32[256], f32[256]) {
  %p = f32[256] parameter(0)
  %n = f32[256] negate(%p)
  %m = f32[256] abs(OF)
  ROOT %t = (f32[256], f32[256]) tuple(%n, %m)
}
"""


def test_of_equal_outputs_the_last_made_lends_its_memory_first() -> None:
    # In XLA's assignment of an all-to-all between two kernels: what is reduced lies where the copy
    # will be. What comes of it is there at the same time, and while k2 is made.
    program = scheduled(
        kernel("k0", "a"),
        sync("k1", "k0"),
        kernel("k2", "k1"),
        f"%c = {V} copy(%k2)",
        f"%t = {BOTH} tuple(%k2, %c)",
    )
    assert memory_use(program).temporary_bytes == KIB


@pytest.mark.parametrize(("of", "temporaries"), [("%p", 0), ("%n", 1)])
def test_one_of_several_results_is_written_over_the_operand(of: str, temporaries: int) -> None:
    # XLA writes none over it where a result is made of another one.
    program = scheduled(
        kernel("k0", "a"),
        f"%k1 = {BOTH} fusion(%k0), kind=kLoop, calls=%two",
        functions=TWO.replace("OF", of),
    )
    assert memory_use(program).temporary_bytes == temporaries * KIB


def test_an_output_is_written_over_one_of_several_results() -> None:
    # XLA's selection over one of two vectors that an all-gather joins; the other one is beside it.
    program = scheduled(
        f"%k0 = {BOTH} fusion(%a), kind=kLoop, calls=%two",
        f"%g = {V} get-tuple-element(%k0), index=0",
        f"%k1 = {V} fusion(%g), kind=kLoop, calls=%elementwise",
        functions=ELEMENTWISE + TWO.replace("OF", "%p"),
    )
    assert memory_use(program).temporary_bytes == KIB


def test_what_a_collective_works_on_stays_until_its_end() -> None:
    gather = (
        "%g = (f32[256], f32[1024]) all-gather-start(%k0), channel_id=1, "
        "replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true"
    )
    ended = "%d = f32[1024] all-gather-done(%g)"
    read = "%s = f32[256] slice(%d), slice={[0:256]}"
    later = scheduled(kernel("k0", "a"), gather, kernel("k1", "a"), ended, read)
    # The operand and four times as much that comes of it; k1 lies in the output.
    assert memory_use(later).temporary_bytes == 5 * KIB


def test_an_asynchronous_all_reduce_works_in_place() -> None:
    asynchronous = scheduled(
        kernel("k0", "a"), start("r", "k0"), done("d", "r"), kernel("k1", "d"), kernel("k2", "k1")
    )
    assert memory_use(asynchronous).temporary_bytes == KIB
    synchronous = scheduled(
        kernel("k0", "a"), sync("r", "k0"), kernel("k1", "r"), kernel("k2", "k1")
    )
    assert memory_use(synchronous).temporary_bytes == 2 * KIB


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_sort_works_in_place(is_fused: bool) -> None:
    functions = """
%less (l: f32[], r: f32[], i: f32[], j: f32[]) -> pred[] {
  %l = f32[] parameter(0)
  %r = f32[] parameter(1)
  %i = f32[] parameter(2)
  %j = f32[] parameter(3)
  ROOT %c = pred[] compare(%l, %r), direction=LT
}
%sorted (p: f32[256], q: f32[256]) -> (f32[256], f32[256]) {
  %p = f32[256] parameter(0)
  %q = f32[256] parameter(1)
  ROOT %s = (f32[256], f32[256]) sort(%p, %q), dimensions={0}, to_apply=%less
}
"""
    sort = "sort(%k0, %k1), dimensions={0}, to_apply=%less"
    fusion = "fusion(%k0, %k1), kind=kCustom, calls=%sorted"
    program = scheduled(
        kernel("k0", "a"),
        kernel("k1", "k0"),
        f"%both = (f32[256], f32[256]) {fusion if is_fused else sort}",
        f"%k2 = {V} get-tuple-element(%both), index=0",
        f"%k3 = {V} get-tuple-element(%both), index=1",
        f"%k4 = {V} add(%k2, %k3)",
        functions=functions,
    )
    # One of the two vectors is the output.
    assert memory_use(program).temporary_bytes == KIB


def test_a_fusion_that_updates_a_slice_works_in_place() -> None:
    update = """
%update (p: f32[256], u: f32[16], i: s32[]) -> f32[256] {
  %p = f32[256] parameter(0)
  %u = f32[16] parameter(1)
  %i = s32[] parameter(2)
  ROOT %n = f32[256] dynamic-update-slice(%p, %u, %i)
}
"""
    program = scheduled(
        kernel("k0", "a"),
        "%cut = f32[16] slice(%a), slice={[0:16]}",
        "%at = s32[] constant(3)",
        f"%k1 = {V} fusion(%k0, %cut, %at), kind=kLoop, calls=%update",
        f"%k2 = {V} fusion(%k1, %cut, %at), kind=kLoop, calls=%update",
        functions=update,
    )
    # All three vectors are the output; the slice takes 64 bytes of the smallest piece of memory.
    use = memory_use(program)
    assert (use.temporary_bytes, use.gap_bytes) == (128, 64)


def test_a_value_that_no_round_changes_is_not_copied() -> None:
    function, lines = loop("l", "a", "%w = f32[256] bitcast(%v)")
    unchanged = function.replace("%w = f32[256] bitcast(%v)\n", "").replace("%w)", "%v)")
    program = scheduled(*lines, kernel("k", "l"), functions=unchanged)
    # The counter, in and out.
    assert memory_use(program).temporary_bytes <= 2 * 128


def test_outputs_over_arguments_take_no_memory() -> None:
    program = scheduled(kernel("k0", "a"), kernel("k1", "k0"), aliases="{ {}: (0, {}, may-alias) }")
    use = memory_use(program)
    assert (use.alias_bytes, use.peak_bytes) == (KIB, 2 * KIB)
