"""PTX text -> instructions and basic blocks.

Only what a reader of costs needs: opcodes, operands, guards, labels and the declared block of
threads. Source of the syntax: NVIDIA, "Parallel Thread Execution ISA", sections 4 and 9.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache

import msgspec

from hespas.errors import ProgramError

Operand = str | int
"""A register (``%r1``), a whole number, or any other text as it stands."""

_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
_COMMENT = re.compile(r"//[^\n]*")
_LABEL = re.compile(r"(\$?[\w$]+):(?!:)\s*(.*)$", re.DOTALL)
_STATEMENT = re.compile(
    r"^(?:@(!?)(%[\w$]+)\s+)?([a-z][\w:]*(?:\.[\w:]+)*)(?![\w.:])\s*(.*)$", re.DOTALL
)
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
_NUMBER = re.compile(r"^-?(?:0[xX][0-9a-fA-F]+|\d+)U?$")
_ENDLESS_NUMBER = re.compile(r"\d{500}")
_REGISTER = re.compile(r"%[\w$]+(?:\.[xyz])?")
_ADDRESS = re.compile(r"^\[\s*([\w$%.]+)\s*(?:\+\s*(-?\d+))?\s*\]$")
_BLOCK_OF_THREADS = re.compile(r"\.(?:reqntid|maxntid)\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?")
_NO_RESULT = frozenset(
    {"st", "red", "bar", "barrier", "bra", "brx", "ret", "exit", "trap", "membar", "fence", "call"}
    | {"griddepcontrol", "cp", "mbarrier", "prefetch", "discard", "wgmma", "nanosleep", "tcgen05"}
)


class Instruction(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One instruction.

    ``parts`` is the opcode at its dots, ``writes`` the registers that it sets, ``sources`` the
    other operands in order; operands in braces stand one by one. ``guard`` is the predicate
    that it waits for, negated where ``guard_is_negated``.
    """

    opcode: str
    parts: tuple[str, ...]
    writes: tuple[str, ...]
    sources: tuple[Operand, ...]
    guard: str = ""
    guard_is_negated: bool = False

    @property
    def name(self) -> str:
        """The opcode's first word."""
        return self.parts[0]

    @property
    def reads(self) -> tuple[str, ...]:
        """The registers that it depends on, with those of addresses."""
        return _registers((self.guard, *self.sources) if self.guard else self.sources)


@lru_cache(maxsize=65536)
def _registers(sources: tuple[Operand, ...]) -> tuple[str, ...]:
    text = " ".join([source for source in sources if isinstance(source, str)])
    return tuple(_REGISTER.findall(text)) if "%" in text else ()


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """One entry point.

    ``labels`` gives for each label the position in ``instructions`` that it stands before.
    ``threads`` is the declared number of threads in a block, None where the text has none.
    """

    name: str
    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]
    threads: int | None


def read_kernel(text: str, *, location: str = "") -> Kernel:
    """Read the one kernel of a PTX text; `ProgramError` where there is none.

    >>> kernel = read_kernel('''
    ... .visible .entry fill(.param .u64 out) .reqntid 128, 1, 1
    ... {
    ...   .reg .b64 %rd<4>;
    ...   ld.param.b64 %rd1, [out];
    ...   st.global.v2.b32 [%rd1+8], {%r1, %r2};
    ...   ret;
    ... }''')
    >>> kernel.name, kernel.threads, [each.opcode for each in kernel.instructions]
    ('fill', 128, ['ld.param.b64', 'st.global.v2.b32', 'ret'])
    >>> kernel.instructions[1].sources
    ('[%rd1+8]', '%r1', '%r2')
    """
    entry = _ENTRY.search(text)
    start = text.find("{", entry.end()) if entry else -1
    if entry is None or start < 0:
        raise ProgramError("the text has no PTX kernel", location=location, hint="give one .entry")
    endless = _ENDLESS_NUMBER.search(text, entry.end())
    if endless is not None:
        message = f"a number begins with {endless[0][:20]} and has hundreds of digits"
        raise ProgramError(message, location=location or entry[1])
    declared = _BLOCK_OF_THREADS.search(text, entry.end(), start)
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for statement in _statements(text[start + 1 :]):
        if statement[-1] == ":":
            labels[statement[:-1]] = len(instructions)
        elif statement[0] != ".":
            instructions.append(_instruction(statement, location=location or entry[1]))
    return Kernel(
        name=entry[1],
        instructions=tuple(instructions),
        labels=labels,
        threads=_product(declared) if declared else None,
    )


def _product(match: re.Match[str]) -> int:
    count = 1
    for extent in match.groups():
        count *= int(extent or 1)
    return count


def _statements(body: str) -> Iterator[str]:
    """Yield statements and labels of one kernel, up to the brace that closes it."""
    depth = 1
    for chunk in _COMMENT.sub("", body).split(";"):
        statement = chunk.strip()
        while statement and statement[0] in "{}$":
            if statement[0] == "$":
                label = _LABEL.match(statement)
                if label is None:
                    break
                yield f"{label[1]}:"
                statement = label[2]
                continue
            depth += 1 if statement[0] == "{" else -1
            if not depth:
                return
            statement = statement[1:].lstrip()
        if statement:
            yield statement


def _instruction(statement: str, *, location: str) -> Instruction:
    match = _STATEMENT.match(statement)
    if match is None:
        raise ProgramError(f"cannot read the PTX statement {statement[:60]!r}", location=location)
    negated, guard, opcode, rest = match.groups()
    parts = _parts(opcode)
    operands = _operands(rest)
    if () in operands:
        raise ProgramError(f"the PTX {statement[:60]!r} lacks an operand", location=location)
    written: tuple[Operand, ...] = ()
    if operands and parts[0] not in _NO_RESULT:
        written, *operands = operands
    return Instruction(
        opcode=opcode,
        parts=parts,
        writes=tuple([each for each in written if isinstance(each, str)]),
        sources=tuple([source for operand in operands for source in operand]),
        guard=guard or "",
        guard_is_negated=bool(negated),
    )


@cache
def _parts(opcode: str) -> tuple[str, ...]:
    return tuple(opcode.split("."))


def _operands(text: str) -> list[tuple[Operand, ...]]:
    """Return the operands, each as the values that stand in it."""
    if "{" in text or "[" in text:
        return [_flat(operand) for operand in _OPERAND.findall(text)]
    return [_flat(operand.strip()) for operand in text.split(",")] if text else []


@lru_cache(maxsize=65536)
def _flat(operand: str) -> tuple[Operand, ...]:
    if not operand:
        return ()
    if operand[0] == "[":
        return (operand,)
    if operand[0] == "{" or "|" in operand:
        names = operand.strip("{}").replace("|", ",").split(",")
        return tuple([_value(name.strip()) for name in names])
    return (_value(operand),)


def _value(text: str) -> Operand:
    return int(text.rstrip("U"), 0) if _NUMBER.match(text) else text


def address_of(instruction: Instruction) -> tuple[str, int]:
    """Return the base and the offset of a memory access; an empty base where it has none."""
    for source in instruction.sources:
        if isinstance(source, str) and source[0] == "[":
            return _address(source)
    return "", 0


@lru_cache(maxsize=65536)
def _address(operand: str) -> tuple[str, int]:
    match = _ADDRESS.match(operand)
    return (match[1], int(match[2] or 0)) if match else ("", 0)
