"""What each PTX instruction costs in machine instructions, by execution pipe.

Read from machine code, not guessed: every line of `_TABLE` is what ``ptxas`` (CUDA 12.9) makes
of the instruction for sm_80, sm_90a and sm_100a, as ``nvdisasm`` shows it, counted over copies of
the instruction with its operands in registers. Where the three differ, the newest two decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from hespas.errors import ProgramError
from hespas.price.ptx.parser import Instruction
from hespas.price.ptx.terms import Slots

NOTHING = Slots()
_LOGIC = Slots(logic=1)
_FUSED = Slots(fused=1)
_EITHER = Slots(either=1)
_SPECIAL = Slots(special=1)
_MEMORY = Slots(memory=1)
_DOUBLE = Slots(double=1)
_OTHER = Slots(other=1)
# A special function of a value that may be denormal is scaled before and after.
_SCALED_SPECIAL = Slots(logic=1, fused=2, special=1)
_INTEGER_DIVISION = Slots(logic=5, fused=5, either=5, special=3)

_FLOAT_TYPES = frozenset({"f32", "f16", "bf16", "f16x2", "bf16x2"})

# By the first word alone.
_BY_NAME: Mapping[str, Slots] = {
    **dict.fromkeys(("ld", "st", "shfl", "atom", "red", "redux", "vote", "match"), _MEMORY),
    **dict.fromkeys(("ldmatrix", "stmatrix", "cp"), _MEMORY),
    **dict.fromkeys(("bra", "ret", "exit", "bar", "barrier", "membar", "fence", "brx"), _OTHER),
    **dict.fromkeys(("griddepcontrol", "mma", "wgmma", "mbarrier", "elect", "tcgen05"), _OTHER),
    **dict.fromkeys(("and", "or", "xor", "not", "lop3", "prmt", "shf", "bfe", "bfi"), _LOGIC),
    **dict.fromkeys(("setp", "set", "selp", "slct", "min", "max", "shr", "bfind"), _LOGIC),
    **dict.fromkeys(("add", "sub", "shl", "neg", "abs"), _EITHER),
    **dict.fromkeys(("mul", "mad", "fma", "madc", "mul24", "mad24", "dp4a"), _FUSED),
    **dict.fromkeys(("addc", "subc", "copysign", "testp", "sad"), _LOGIC),
    **dict.fromkeys(("popc", "clz", "brev", "fns"), _SPECIAL),
    **dict.fromkeys(("ex2", "lg2", "sqrt", "rsqrt"), _SCALED_SPECIAL),
    **dict.fromkeys(("sin", "cos"), Slots(fused=1, special=1)),
    **dict.fromkeys(("mov", "cvta", "isspacep", "activemask", "createpolicy"), NOTHING),
    "tanh": _SPECIAL,
    "rcp": Slots(logic=4, fused=2, special=1),
    "div": _INTEGER_DIVISION,
    "rem": _INTEGER_DIVISION,
}
# By the whole opcode, without the words that don't change the cost.
_BY_OPCODE: Mapping[str, Slots] = {
    "div.full.f32": Slots(logic=2, fused=5, special=1),
    "div.approx.f32": Slots(logic=1, fused=3, special=1),
    "div.rn.f32": Slots(logic=2, fused=5, either=2, special=1, other=5),
    "ex2.approx.ftz.f32": _SPECIAL,
    "lg2.approx.ftz.f32": _SPECIAL,
    "rcp.approx.ftz.f32": _SPECIAL,
    "rsqrt.approx.ftz.f32": _SPECIAL,
    "sqrt.approx.ftz.f32": Slots(fused=1, special=1),
}


_FOLDING = frozenset({"setp", "add", "or"})


def slots_of(instructions: Sequence[Instruction]) -> tuple[Slots, ...]:
    """Return what each instruction costs one warp.

    Some cost nothing because the assembler folds them into a neighbour: a 64-bit addition into
    the wide multiplication before it, a test for zero into the ``and`` that it tests.
    """
    writer = {name: each for each in instructions for name in each.writes}
    readers: dict[str, list[str]] = {}
    for each in instructions:
        if each.parts[0] in {"cvt", "mov"}:
            for name in each.reads:
                readers.setdefault(name, []).append(each.parts[0])
    return tuple(_slots(each, writer, readers) for each in instructions)


def _slots(
    each: Instruction,
    writer: Mapping[str, Instruction],
    readers: Mapping[str, list[str]],
) -> Slots:
    name = each.parts[0]
    if name == "cvt":
        return _conversion(each, readers)
    if name in _FOLDING and _is_folded(each, writer):
        return NOTHING
    if name == "mov":
        return _move(each)
    return _typed(each.opcode)


@cache
def _typed(opcode: str) -> Slots:
    name, *words = opcode.split(".")
    kind = words[-1] if words else ""
    if "param" in words or kind == "pred":
        return NOTHING
    slots = _BY_OPCODE.get(opcode, _BY_NAME.get(name, _OTHER))
    if opcode in _BY_OPCODE:
        return slots
    if kind == "f64" and name not in {"ld", "st", "selp", "mov"}:
        return _DOUBLE
    if kind in _FLOAT_TYPES and name in {"add", "sub", "mul", "fma", "neg", "abs"}:
        return _FUSED
    is_double = {"wide", "hi"}.intersection(words) or kind in {"s64", "u64", "b64"}
    return slots.plus(slots, 1) if is_double and slots not in {_MEMORY, _OTHER} else slots


def _is_folded(each: Instruction, writer: Mapping[str, Instruction]) -> bool:
    makers = [writer[name] for name in _names(each) if name in writer]
    if each.name == "setp":
        return each.sources[-1:] == (0,) and any(maker.name == "and" for maker in makers)
    if each.parts[-1] in {"s64", "u64", "b64"}:
        return any("wide" in maker.parts for maker in makers)
    # LEA and LOP3 take a shifted or masked operand as it is.
    return each.parts[-1] in {"s32", "b32"} and any(maker.name == "shl" for maker in makers)


def _names(each: Instruction) -> list[str]:
    return [source for source in each.sources if isinstance(source, str)]


def _move(each: Instruction) -> Slots:
    """Halves of a register are picked out or put together by one permutation."""
    is_split = len(each.writes) > 1
    is_packed = len(each.sources) > 1
    if is_packed:
        return _LOGIC
    return Slots(logic=0.5) if is_split else NOTHING


def _conversion(each: Instruction, readers: Mapping[str, list[str]]) -> Slots:
    types = [part for part in each.parts if part.rstrip("0123456789x") in {"f", "bf", "s", "u"}]
    if not types:
        raise ProgramError(f"the PTX {each.opcode!r} does not say what it converts")
    to, of = types[0], types[-1]
    if to[0] in "su" and of[0] in "su":
        return _LOGIC if to[0] == "s" and to[1:] < of[1:] else NOTHING
    if "bf16" in {to, of} or "bf16x2" in {to, of}:
        return _bf16_conversion(each, to, readers)
    if of == "f16":
        return _FUSED
    if to in {"f16", "f16x2"}:
        return _LOGIC
    if to == "f32" and of == "f32":
        return _FUSED if "sat" in each.parts else _SPECIAL
    is_fast = to == "f32" and of in {"s32", "u32"}
    return _LOGIC if is_fast else _SPECIAL


def _bf16_conversion(each: Instruction, to: str, readers: Mapping[str, list[str]]) -> Slots:
    """To f32 is a shift; from f32 a packing one, or for a single value a slow conversion.

    The assembler converts on the slow pipe (``F2F``) a value that is widened again, and packs
    elsewhere (``F2FP.PACK_AB``).
    """
    if to == "f32":
        return _EITHER
    if to == "bf16x2":
        return _LOGIC
    users = readers.get(each.writes[0], [])
    return _SPECIAL if "cvt" in users and "mov" not in users else _LOGIC
