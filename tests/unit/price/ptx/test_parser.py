import pytest

from hespas.errors import ProgramError
from hespas.price.ptx.parser import address_of, read_kernel

TEXT = """
//
.version 8.8
.visible .entry sum_of_rows(
    .param .u64 .ptr .align 16 sum_of_rows_param_0
)
.reqntid 32, 4, 2
{
    .reg .b32 %r<9>;
    .shared .align 4 .b8 shared_0[64];
    ld.param.b64 %rd1, [sum_of_rows_param_0]; // the rows
$L__BB0_1:
    setp.lt.u32|%p1|%p2 %r1, 4;
    @!%p1 bra $L__BB0_3;
    // begin inline asm
    {
    mad.lo.cc.u32   %r3, %r4, %r5, %r6;
    madc.hi.u32     %r6, %r4, %r5,  0;
    }
    // end inline asm
    ld.global.nc.v2.b32 {%r1, %r2}, [%rd1+-8];
    mov.b32 {%rs1, %rs2}, %r1;
    @%p1 st.shared.b32 [shared_0+4], %r2;
    bra.uni $L__BB0_1;
$L__BB0_3: ret;
}
.visible .entry another() { trap; }
"""


def test_a_kernel_ends_at_its_brace_and_labels_stand_before_instructions() -> None:
    kernel = read_kernel(TEXT)
    opcodes = [each.opcode for each in kernel.instructions]
    assert kernel.name == "sum_of_rows"
    assert kernel.threads == 256
    assert opcodes[-1] == "ret"
    assert "trap" not in opcodes
    assert opcodes.count("madc.hi.u32") == opcodes.count("mad.lo.cc.u32") == 1
    assert kernel.labels == {"$L__BB0_1": 1, "$L__BB0_3": len(opcodes) - 1}


def test_what_an_instruction_reads_and_writes() -> None:
    by_opcode = {each.opcode: each for each in read_kernel(TEXT).instructions}
    load = by_opcode["ld.global.nc.v2.b32"]
    assert load.writes == ("%r1", "%r2")
    assert address_of(load) == ("%rd1", -8)
    store = by_opcode["st.shared.b32"]
    assert not store.writes
    assert address_of(store) == ("shared_0", 4)
    assert list(store.reads) == ["%p1", "%r2"]
    branch = by_opcode["bra"]
    assert (branch.guard, branch.guard_is_negated) == ("%p1", True)
    assert by_opcode["mov.b32"].writes == ("%rs1", "%rs2")
    assert by_opcode["madc.hi.u32"].sources == ("%r4", "%r5", 0)


@pytest.mark.parametrize("text", ["", ".version 8.8", ".visible .entry k("])
def test_a_text_without_a_kernel_is_refused(text: str) -> None:
    with pytest.raises(ProgramError, match="no PTX kernel"):
        read_kernel(text, location="here")


def test_what_is_no_statement_is_refused_with_its_place() -> None:
    with pytest.raises(ProgramError, match="here: cannot read"):
        read_kernel(".entry k() {\n 7up %r1;\n}", location="here")


def test_an_instruction_behind_a_source_line_is_read() -> None:
    text = """
    .visible .entry fill(.param .u64 out) {
      ld.param.b64 %rd1, [out];
      .loc 1 60 4                          // step.py:60:4
      st.global.b32 [%rd1], %r1;
      .loc\t1 61 4
      ret;
    }"""
    assert [each.opcode for each in read_kernel(text).instructions] == [
        "ld.param.b64",
        "st.global.b32",
        "ret",
    ]
