import pytest

from hespas.price.ptx.opcodes import Slots, slots_of
from hespas.price.ptx.parser import read_kernel


def slots(*statements: str) -> tuple[Slots, ...]:
    body = "\n".join(f"{each};" for each in statements)
    return slots_of(read_kernel(f".entry k() {{\n{body}\n}}").instructions)


# Each as ptxas of CUDA 12.9 assembles it for sm_90a.
@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("add.rn.f32 %r1, %r2, %r3", Slots(fused=1)),
        ("fma.rn.bf16 %r1, %r2, %r3, %r4", Slots(fused=1)),
        ("max.NaN.f32 %r1, %r2, %r3", Slots(logic=1)),
        ("setp.lt.f32 %p1, %r2, %r3", Slots(logic=1)),
        ("ex2.approx.f32 %r1, %r2", Slots(logic=1, fused=2, special=1)),
        ("ex2.approx.ftz.f32 %r1, %r2", Slots(special=1)),
        ("div.full.f32 %r1, %r2, %r3", Slots(logic=2, fused=5, special=1)),
        ("cvt.f32.bf16 %r1, %rs1", Slots(either=1)),
        ("cvt.rn.bf16x2.f32 %r1, %r2, %r3", Slots(logic=1)),
        ("cvt.rn.f32.s32 %r1, %r2", Slots(logic=1)),
        ("cvt.rzi.s32.f32 %r1, %r2", Slots(special=1)),
        ("cvt.u64.u32 %rd1, %r2", Slots()),
        ("cvt.sat.f32.f32 %r1, %r2", Slots(fused=1)),
        ("mul.wide.u32 %rd1, %r2, 4", Slots(fused=2)),
        ("add.s64 %rd1, %rd2, %rd3", Slots(either=2)),
        ("mul.rn.f64 %fd1, %fd2, %fd3", Slots(double=1)),
        ("ld.global.nc.v4.b16 {%rs1, %rs2, %rs3, %rs4}, [%rd1]", Slots(memory=1)),
        ("ld.param.b64 %rd1, [k_param_0]", Slots()),
        ("shfl.sync.down.b32 %r1, %r2, 16, 31, -1", Slots(memory=1)),
        ("mov.b32 %r1, {%rs1, %rs2}", Slots(logic=1)),
        ("mov.b32 %r1, %r2", Slots()),
        ("and.pred %p1, %p2, %p3", Slots()),
        ("bra.uni $L1", Slots(other=1)),
    ],
)
def test_an_instruction_by_itself(statement: str, expected: Slots) -> None:
    assert slots(statement) == (expected,)


def test_the_assembler_folds_neighbours() -> None:
    wide, added = slots("mul.wide.u32 %rd2, %r1, 4", "add.s64 %rd3, %rd1, %rd2")
    assert (wide.issued, added.issued) == (2, 0)
    masked, tested = slots("and.b16 %rs1, %rs2, 1", "setp.ne.b16 %p1, %rs1, 0")
    assert (masked.issued, tested.issued) == (1, 0)
    assert slots("and.b16 %rs1, %rs2, 1", "setp.ne.b16 %p1, %rs1, 3")[1].issued == 1


def test_a_bf16_that_is_widened_again_is_converted_on_the_slow_pipe() -> None:
    again = slots("cvt.rn.bf16.f32 %rs1, %r1", "cvt.f32.bf16 %r2, %rs1")
    stored = slots("cvt.rn.bf16.f32 %rs1, %r1", "st.global.b16 [%rd1], %rs1")
    assert again[0] == Slots(special=1)
    assert stored[0] == Slots(logic=1)


def test_slots_add_and_multiply() -> None:
    assert Slots(logic=1, memory=2).plus(Slots(logic=1), 3) == Slots(logic=4, memory=2)
    assert Slots(logic=1, fused=2, either=3, special=4, memory=5, double=6, other=7).issued == 28
