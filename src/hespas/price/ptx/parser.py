"""Parse PTX text into instructions, basic blocks and loops.

Only what the cost needs is parsed: opcodes, operands, guards, labels, the declared block of
threads, and the slice of a kernel that decides its branches and addresses. Source of the syntax:
NVIDIA, "Parallel Thread Execution ISA", sections 4 and 9.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from math import prod

import msgspec

from hespas.errors import ProgramError

Operand = str | int
"""A register (``%r1``), a whole number, or any other text as it stands."""

_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
_COMMENT = re.compile(r"//[^\n]*|^[ \t]*\.loc[ \t][^\n;]*$", re.MULTILINE)
"""Comments, and the ``.loc`` source positions of instructions, which end with the line."""
_LABEL = re.compile(r"(\$?[\w$]+):(?!:)\s*(.*)$", re.DOTALL)
_STATEMENT = re.compile(
    r"^(?:@(!?)(%?[\w$]+)\s+)?([a-z][\w:]*(?:\.[\w:]+)*)(?![\w.:])\s*(.*)$", re.DOTALL
)
_WAIT = re.compile(r"@!?[\w$%]+\s+bra(?:\.uni)?\s+[A-Za-z_]")
"""A branch back to a label of inline assembly, which waits."""
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

    ``parts`` is the opcode split at its dots, ``writes`` the registers that it sets, ``sources``
    the other operands in order; operands in braces are listed one by one. ``guard`` is the
    predicate that it waits for, negated where ``guard_is_negated``.
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
        """The registers that the instruction reads, with those of addresses."""
        return _registers((self.guard, *self.sources) if self.guard else self.sources)


@lru_cache(maxsize=65536)
def _registers(sources: tuple[Operand, ...]) -> tuple[str, ...]:
    text = " ".join([source for source in sources if isinstance(source, str)])
    return tuple(_REGISTER.findall(text)) if "%" in text else ()


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """One entry point.

    ``labels`` maps each label to the position in ``instructions`` that it precedes. ``threads`` is
    the declared number of threads in a block, None where the text has none.
    """

    name: str
    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]
    threads: int | None


def read_kernel(text: str, *, location: str = "") -> Kernel:
    """Read the one kernel of a PTX text; raise `ProgramError` without one.

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
        elif statement[0] != "." and not _WAIT.match(statement):
            instructions.append(_instruction(statement, location=location or entry[1]))
    return Kernel(
        name=entry[1],
        instructions=tuple(instructions),
        labels=labels,
        threads=prod(int(size or 1) for size in declared.groups()) if declared else None,
    )


def _statements(body: str) -> Iterator[str]:
    """Yield statements and labels of one kernel, up to its closing brace.

    Inline assembly waits in loops of its own, whose labels have no ``$``: they go round once.
    """
    depth = 1
    for chunk in _COMMENT.sub("", body).split(";"):
        statement = chunk.strip()
        while statement:
            label = _LABEL.match(statement)
            if label is not None:
                if label[1][0] == "$":
                    yield f"{label[1]}:"
                statement = label[2]
                continue
            if statement[0] not in "{}":
                break
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
    negated, guard, opcode, operand_text = match.groups()
    parts = _parts(opcode)
    operands = _operands(operand_text)
    if () in operands:
        raise ProgramError(f"the PTX {statement[:60]!r} lacks an operand", location=location)
    written: tuple[Operand, ...] = ()
    if operands and parts[0] not in _NO_RESULT:
        written, *operands = operands
    return Instruction(
        opcode=opcode,
        parts=parts,
        writes=tuple([register for register in written if isinstance(register, str)]),
        sources=tuple([source for operand in operands for source in operand]),
        guard=guard or "",
        guard_is_negated=bool(negated),
    )


@cache
def _parts(opcode: str) -> tuple[str, ...]:
    return tuple(opcode.split("."))


def _operands(text: str) -> list[tuple[Operand, ...]]:
    if "{" in text or "[" in text:
        return [_flatten_operand(operand) for operand in _OPERAND.findall(text)]
    return [_flatten_operand(operand.strip()) for operand in text.split(",")] if text else []


@lru_cache(maxsize=65536)
def _flatten_operand(operand: str) -> tuple[Operand, ...]:
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
    """Return the base, if any, and the offset of a memory access.

    For a copy to shared memory, whose address ``cp.async`` names first, these are the source's.
    """
    sources = instruction.sources[1:] if instruction.name == "cp" else instruction.sources
    for source in sources:
        if isinstance(source, str) and source[0] == "[":
            return _address(source)
    return "", 0


@lru_cache(maxsize=65536)
def _address(operand: str) -> tuple[str, int]:
    match = _ADDRESS.match(operand)
    return (match[1], int(match[2] or 0)) if match else ("", 0)


_ENDS = frozenset({"bra", "ret", "exit", "trap"})
_ACCESSES = frozenset({"ld", "st", "atom", "red"})
_COPIED = ("shared", "global")
"""How the opcode of ``cp.async``, a thread's own copy, ends; bulk copies address differently."""
NOWHERE = -1


class BasicBlock(msgspec.Struct, frozen=True, kw_only=True):
    """Instructions ``start`` up to but without ``stop``, always executed together.

    ``steps`` are the positions of those that the walk has to follow; ``after`` is the block that
    follows in the text, ``target`` the one that its last instruction jumps to; `NOWHERE` if there
    is none.
    """

    start: int
    stop: int
    steps: tuple[int, ...]
    after: int
    target: int


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """The control flow of a kernel: only loops lead back.

    ``loops`` maps the head of each loop to its blocks. ``followed`` are the registers that
    addresses, guards and branches depend on.
    """

    blocks: tuple[BasicBlock, ...]
    loops: Mapping[int, frozenset[int]]
    followed: frozenset[str]


def is_access(instruction: Instruction) -> bool:
    """Return whether an instruction touches global or shared memory."""
    if instruction.name == "cp":
        return instruction.parts[-2:] == _COPIED
    if instruction.parts[0] not in _ACCESSES:
        return False
    return "global" in instruction.parts or "shared" in instruction.parts


def is_load(instruction: Instruction) -> bool:
    """Return whether an access reads memory; atomic ones count as writing it."""
    return instruction.name in {"ld", "cp"}


def flow_of(kernel: Kernel) -> Flow:
    """Cut a kernel into basic blocks and loops."""
    instructions = kernel.instructions
    starts = {0, *kernel.labels.values()}
    starts |= {i + 1 for i, instruction in enumerate(instructions) if instruction.parts[0] in _ENDS}
    ordered = sorted(start for start in starts if start < len(instructions))
    stops = [*ordered[1:], len(instructions)]
    edges = [_edges(kernel, ordered, stop) for stop in stops]
    order, loops = _order(edges)
    number = {text: new for new, text in enumerate(order)} | {NOWHERE: NOWHERE}
    followed = _followed_registers(instructions)
    return Flow(
        blocks=tuple(
            BasicBlock(
                start=ordered[text],
                stop=stops[text],
                steps=_steps(instructions, ordered[text], stops[text], followed),
                after=number[edges[text][0]],
                target=number[edges[text][1]],
            )
            for text in order
        ),
        loops={
            number[head]: frozenset(number[text] for text in body) for head, body in loops.items()
        },
        followed=frozenset(followed),
    )


def _steps(
    instructions: Sequence[Instruction], start: int, stop: int, followed: set[str]
) -> tuple[int, ...]:
    return tuple(
        [
            i
            for i, instruction in enumerate(instructions[start:stop], start)
            if not followed.isdisjoint(instruction.writes) or is_access(instruction)
        ]
    )


def _edges(kernel: Kernel, starts: Sequence[int], stop: int) -> tuple[int, int]:
    last = kernel.instructions[stop - 1]
    after = starts.index(stop) if stop < len(kernel.instructions) else NOWHERE
    if last.name == "bra":
        target = starts.index(kernel.labels[str(last.sources[0])])
        return (after if last.guard else NOWHERE), target
    is_end = last.name in _ENDS and not last.guard
    return (NOWHERE if is_end else after), NOWHERE


def _order(edges: Sequence[tuple[int, int]]) -> tuple[list[int], dict[int, set[int]]]:
    """Return blocks in reverse postorder, and the loops by head."""
    first = _postorder(edges, {})
    rank = {block: -position for position, block in enumerate(first)}
    loops: dict[int, set[int]] = {}
    into: dict[int, list[int]] = {}
    for block in first:
        for target in edges[block]:
            into.setdefault(target, []).append(block)
    for block in first:
        for head in edges[block]:
            if head != NOWHERE and rank[head] <= rank[block]:
                _add_body(loops.setdefault(head, {head}), block, into)
    depth = {block: sum(block in body for body in loops.values()) for block in first}
    return _postorder(edges, depth)[::-1], loops


def _add_body(body: set[int], tail: int, into: Mapping[int, list[int]]) -> None:
    waiting = [tail]
    while waiting:
        block = waiting.pop()
        if block not in body:
            body.add(block)
            waiting.extend(into.get(block, ()))


def _postorder(edges: Sequence[tuple[int, int]], depth: Mapping[int, int]) -> list[int]:
    """Return the blocks in depth-first postorder, exits of loops first."""
    ordered: list[int] = []
    entered = {0}
    waiting = [(0, _successors(edges[0], depth))]
    while waiting:
        block, nexts = waiting[-1]
        if not nexts:
            ordered.append(block)
            waiting.pop()
            continue
        target = nexts.pop(0)
        if target not in entered:
            entered.add(target)
            waiting.append((target, _successors(edges[target], depth)))
    return ordered


def _successors(edges: tuple[int, int], depth: Mapping[int, int]) -> list[int]:
    after, target = edges
    targets = [block for block in (target, after) if block != NOWHERE]
    return sorted(targets, key=lambda block: depth.get(block, 0))


def _followed_registers(instructions: tuple[Instruction, ...]) -> set[str]:
    makers = _writers(instructions, range(len(instructions)))
    waiting = [instruction.guard for instruction in instructions if instruction.guard]
    waiting += [
        address_of(instruction)[0] for instruction in instructions if is_access(instruction)
    ]
    followed: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in followed or name[:1] != "%":
            continue
        followed.add(name)
        for maker in makers.get(name, ()):
            waiting.extend(instructions[maker].reads)
    return followed


def _writers(instructions: Sequence[Instruction], positions: Iterable[int]) -> dict[str, list[int]]:
    writers: dict[str, list[int]] = {}
    for position in positions:
        for name in instructions[position].writes:
            writers.setdefault(name, []).append(position)
    return writers


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks that lead back to ``head``.

    ``carried`` are registers that an iteration reads before it writes them; ``comparisons`` the
    positions of the ``setp`` that decide its branches.
    """

    head: int
    body: frozenset[int]
    carried: tuple[str, ...]
    comparisons: tuple[int, ...]


def loop_of(kernel: Kernel, flow: Flow, head: int) -> Loop:
    """Describe the loop of a head."""
    body = flow.loops[head]
    blocks = [flow.blocks[number] for number in sorted(body)]
    followed = [kernel.instructions[position] for block in blocks for position in block.steps]
    written = {name for instruction in followed for name in instruction.writes}
    carried: dict[str, None] = {}
    done: set[str] = set()
    for instruction in followed:
        carried.update(
            dict.fromkeys(n for n in instruction.reads if n in written and n not in done)
        )
        done.update(instruction.writes)
    positions = [position for block in blocks for position in range(block.start, block.stop)]
    comparisons = _deciding_comparisons(kernel.instructions, positions)
    return Loop(head=head, body=body, carried=tuple(carried), comparisons=comparisons)


def _deciding_comparisons(
    instructions: Sequence[Instruction], inside: Sequence[int]
) -> tuple[int, ...]:
    """Return the comparisons that decide a loop's branches and guards."""
    writers = _writers(instructions, inside)
    waiting = [instructions[i].guard for i in inside if instructions[i].guard]
    comparisons: set[int] = set()
    followed: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in followed:
            continue
        followed.add(name)
        for position in writers.get(name, ()):
            maker = instructions[position]
            if maker.name == "setp":
                comparisons.add(position)
            elif maker.parts[-1] == "pred":
                waiting.extend(maker.reads)
    return tuple(sorted(comparisons))
