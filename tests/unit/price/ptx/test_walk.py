import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hespas.price.ptx.memory import bank_passes, touched
from hespas.price.ptx.parser import Kernel, flow_of, read_kernel
from hespas.price.ptx.walk import FRESH, Walk, walk

from .conftest import launch


def kernel(body: str) -> Kernel:
    return read_kernel(f".visible .entry k(.param .u64 k_param_0)\n{{\n{body}\n}}")


def walked(
    body: str,
    *,
    threads: int = 64,
    blocks: int = 4,
    index: int = 1,
    integers: tuple[int | None, ...] = (),
) -> Walk:
    launched = replace(launch("k", blocks=blocks, threads=threads), integers=integers)
    return walk(kernel(body), launched, index=index)


def runs_of(state: Walk, opcode: str) -> list[float]:
    """Return how many warps ran each instruction of an opcode, in the text's order."""
    instructions = state.kernel.instructions
    found = {
        position: runs
        for block, runs in zip(state.flow.blocks, state.runs, strict=True)
        for position in range(block.start, block.stop)
    }
    return [found.get(i, 0.0) for i, each in enumerate(instructions) if each.opcode == opcode]


BOUNDED_BY_A_PARAMETER = """
    ld.param.b32 %r2, [k_param_1];
    mov.b32 %r1, 0;
$loop:
    fma.rn.f32 %f1, %f1, %f1, %f1;
    add.s32 %r1, %r1, 128;
    setp.lt.s32 %p1, %r1, %r2;
    @%p1 bra $loop;
    ret;
"""


@pytest.mark.parametrize(("width", "rounds"), [(128, 1), (4096, 32), (4100, 33)])
def test_a_loop_ends_where_a_parameter_says(width: int, rounds: int) -> None:
    state = walked(BOUNDED_BY_A_PARAMETER, integers=(None, width))
    assert runs_of(state, "fma.rn.f32") == [2.0 * rounds]
    assert not state.unknown_loops


COUNTED = """
    ld.param.b64 %rd1, [k_param_0];
    mov.b32 %r1, {start};
$L1:
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.b32 [%rd3], %r9;
    add.s32 %r1, %r1, {step};
    setp.{compare}.s32 %p1, %r1, {stop};
    @%p1 bra $L1;
    ret;
"""


@given(
    start=st.integers(-50, 50),
    step=st.integers(1, 9),
    rounds=st.integers(1, 3000),
    over=st.integers(0, 8),
)
def test_a_counted_loop_goes_round_as_often_as_it_says(
    start: int, step: int, rounds: int, over: int
) -> None:
    stop = start + step * rounds - over % step
    state = walked(COUNTED.format(start=start, step=step, stop=stop, compare="lt"))
    assert runs_of(state, "st.global.b32") == [2.0 * rounds]
    assert not state.unknown_loops
    (store,) = [each for each in state.accesses.values() if each.warps]
    assert store.warps == 2 * rounds


def test_a_loop_until_equal() -> None:
    state = walked(COUNTED.format(start=0, step=4, stop=4000, compare="ne"))
    assert runs_of(state, "st.global.b32") == [2.0 * 1000]


def test_loops_in_loops_multiply() -> None:
    state = walked(
        """
    mov.b32 %r1, 0;
$L1:
    mov.b32 %r2, 0;
$L2:
    add.s32 %r2, %r2, 2;
    popc.b32 %r7, %r8;
    setp.lt.u32 %p2, %r2, 20;
    @%p2 bra $L2;
    add.s32 %r1, %r1, 1;
    brev.b32 %r7, %r8;
    setp.lt.u32 %p1, %r1, 70;
    @%p1 bra $L1;
    ret;"""
    )
    assert runs_of(state, "popc.b32") == [2.0 * 70 * 10]
    assert runs_of(state, "brev.b32") == [2.0 * 70]


def test_threads_that_leave_a_loop_early_wait_for_the_others() -> None:
    """Thread t goes round t / 32 + 1 times, so that the second of two warps takes one more."""
    state = walked(
        """
    mov.u32 %r1, %tid.x;
    shr.u32 %r2, %r1, 5;
    mov.b32 %r3, 0;
$L1:
    popc.b32 %r7, %r8;
    add.s32 %r3, %r3, 1;
    setp.le.u32 %p1, %r3, %r2;
    @%p1 bra $L1;
    brev.b32 %r7, %r8;
    ret;"""
    )
    assert runs_of(state, "popc.b32") == [3.0]
    assert runs_of(state, "brev.b32") == [2.0]


def test_a_loop_that_data_ends_is_reported_and_counted_once() -> None:
    state = walked(
        """
    ld.param.b64 %rd1, [k_param_0];
$L1:
    ld.global.b32 %r1, [%rd1];
    popc.b32 %r7, %r8;
    setp.ne.b32 %p1, %r1, 0;
    @%p1 bra $L1;
    ret;"""
    )
    assert runs_of(state, "popc.b32") == [2.0]
    assert len(state.unknown_loops) == 1


def test_a_loop_that_nothing_ends_is_reported_too() -> None:
    state = walked(
        """
    mov.b32 %r1, 5;
$L1:
    setp.lt.u32 %p1, %r1, 9;
    @%p1 bra $L1;
    ret;"""
    )
    assert len(state.unknown_loops) == 1


def test_only_the_threads_of_a_guard_touch_memory() -> None:
    body = """
    ld.param.b64 %rd1, [k_param_0];
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p1, %r1, 8;
    mul.wide.u32 %rd2, %r1, 32;
    add.s64 %rd3, %rd1, %rd2;
    @%p1 st.global.b32 [%rd3], %r9;
    ret;"""
    (store,) = walked(body).accesses.values()
    assert (store.warps, store.threads, store.sectors, store.stride) == (1, 8, 8, 32)


def test_blocks_and_threads_see_their_numbers() -> None:
    body = """
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ctaid.y;
    mov.u32 %r3, %tid.y;
    mad.lo.s32 %r4, %r2, 100, %r1;
    add.s32 %r5, %r4, %r3;
    mul.wide.u32 %rd2, %r5, 4;
    st.global.b32 [%rd2], %r9;
    ret;"""
    launched = replace(launch("k", blocks=1, threads=1), grid=(3, 5, 1), block=(8, 8, 1))
    state = walk(kernel(body), launched, index=7)
    value = state.registers["%r5"]
    assert isinstance(value, np.ndarray)
    assert sorted(set(value.tolist())) == [201 + y for y in range(8)]


SLICED = """
    ld.param.b64 %rd1, [k_param_0];
    ld.param.b64 %rd2, [k_param_1];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd9, %rd2, %rd3;
    ld.global.b32 %r2, [{index}];
    max.s32 %r3, %r2, 0;
    min.s32 %r4, %r3, 21;
    mul.wide.s32 %rd4, %r4, 4096;
    add.s64 %rd5, %rd1, %rd4;
    add.s64 %rd6, %rd5, %rd3;
    ld.global.b32 %r5, [%rd6];
    ret;
"""


def test_an_index_that_all_threads_load_together_does_not_scatter_them() -> None:
    state = walked(SLICED.format(index="%rd2"))
    assert not state.data_addresses
    assert [each.sectors for each in state.accesses.values()] == [2.0, 8.0]


def test_an_index_that_each_thread_loads_scatters_them() -> None:
    state = walked(SLICED.format(index="%rd9"))
    assert len(state.data_addresses) == 1
    assert [each.sectors for each in state.accesses.values()][1] > 8


def test_the_slow_way_of_a_library_function_is_left_out_and_a_guarded_store_is_not() -> None:
    state = walked(
        """
    ld.param.b64 %rd1, [k_param_0];
    ld.global.b32 %r1, [%rd1];
    abs.f32 %r2, %r1;
    setp.ltu.f32 %p1, %r2, 0f47CE4780;
    @%p1 bra $FAST;
    ld.global.b32 %r4, [%rd9];
    st.local.b32 [%rd8], %r4;
$FAST:
    setp.ne.b32 %p2, %r1, 0;
    @%p2 bra $END;
    st.global.b32 [%rd1], %r4;
$END:
    ret;"""
    )
    assert runs_of(state, "st.local.b32") == [0.0]
    assert runs_of(state, "st.global.b32") == [2.0]
    assert len(state.data_branches) == 2


def test_blocks_of_code_in_any_order_are_walked_in_the_order_of_execution() -> None:
    text = """
    mov.b32 %r1, 0;
    bra.uni $HEAD;
$LATCH:
    add.s32 %r1, %r1, 1;
    setp.lt.u32 %p1, %r1, 40;
    @!%p1 bra $END;
$HEAD:
    popc.b32 %r7, %r8;
    bra.uni $LATCH;
$END:
    ret;"""
    flow = flow_of(kernel(text))
    assert list(flow.loops.values()) == [frozenset({1, 2})]
    assert runs_of(walked(text), "popc.b32") == [2.0 * 40]


@pytest.mark.parametrize("stride", [2, 4, 8, 16, 32, 64, 128])
def test_sectors_and_lines_of_a_warp_follow_from_its_stride(stride: int) -> None:
    lanes = np.arange(64, dtype=np.int64) * stride
    found = touched(lanes, None, 64)
    assert found.warps == 2
    assert found.sectors == 2 * max(1, min(32, stride))
    assert found.lines == 2 * max(1, min(32, stride * 32 // 128))


@given(st.lists(st.integers(0, 4096), min_size=1, max_size=70), st.data())
def test_sectors_are_those_that_a_set_would_count(
    addresses: list[int], data: st.DataObject
) -> None:
    threads = len(addresses)
    mask = data.draw(st.lists(st.booleans(), min_size=threads, max_size=threads))
    found = touched(np.array(addresses, dtype=np.int64), np.array(mask), threads)
    warps = [range(first, min(first + 32, threads)) for first in range(0, threads, 32)]
    sectors = [{addresses[i] // 32 for i in warp if mask[i]} for warp in warps]
    lines = [{addresses[i] // 128 for i in warp if mask[i]} for warp in warps]
    assert found.sectors == sum(map(len, sectors))
    assert found.lines == sum(map(len, lines))
    assert found.warps == sum(1 for each in sectors if each)
    assert found.threads == sum(mask)


def test_threads_that_meet_in_a_bank_wait_for_each_other() -> None:
    lanes = np.arange(32, dtype=np.int64)
    assert bank_passes(lanes * 4, None, 32, 4) == 1
    assert bank_passes(lanes * 132, None, 32, 4) == 1
    assert bank_passes(lanes * 128, None, 32, 4) == 32
    assert bank_passes(lanes * 16, None, 32, 16) == 4
    assert bank_passes(lanes * 0, None, 32, 4) == 1


def gathered(first: str, second: str) -> float:
    """Return the sectors that loads ask for at indices that two variables of a block hold."""
    body = f"""
    ld.param.b64 %rd1, [k_param_0];
    mov.b32 %r1, %tid.x;
    shl.b32 %r2, %r1, 2;
    mov.b32 %r3, {first};
    add.s32 %r4, %r3, %r2;
    ld.shared.b32 %r5, [%r4];
    mov.b32 %r6, {second};
    add.s32 %r7, %r6, %r2;
    ld.shared.b32 %r8, [%r7];
    mul.wide.u32 %rd2, %r5, 4;
    add.s64 %rd3, %rd1, %rd2;
    ld.global.b32 %r9, [%rd3];
    mul.wide.u32 %rd4, %r8, 4;
    add.s64 %rd5, %rd1, %rd4;
    ld.global.b32 %r10, [%rd5];
    ret;"""
    return float(walked(body).sums[FRESH])


def test_shared_variables_lie_apart_whatever_they_are_called() -> None:
    same = gathered("shared_12", "shared_12")
    assert gathered("shared_12", "shared_13") == 2 * same
    assert gathered("shared_12", "shared_21") == 2 * same
