"""Read the kernels of a GPU executable from XLA's dump.

XLA launches a list of thunks. It dumps them twice, numbered alike: once with their launch shapes,
and once with the instructions that they run. Together with the PTX and the optimised module these
give each kernel's text, launch shape and instruction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

from hespas.base.frozen import frozen
from hespas.errors import UnsupportedError
from hespas.program.kernels import CompiledKernels, Extent, KernelLaunch
from hespas.xla.hlo.schema import message_class

_NOTHING_STARTED: Mapping[str, str] = {}


def read_kernels(
    dump: Path, *, module_text: str, starts: Mapping[str, str] = _NOTHING_STARTED
) -> CompiledKernels:
    """Read a compiled module's kernels from its dump.

    The directory ``dump`` holds one module. ``module_text`` is the optimised module, ``starts`` the
    result of `read_starts` for it. Raises `UnsupportedError` if the lists of thunks are missing, or
    do not match the module's instructions and the PTX.
    """
    thunks = read_thunks(_only_file(dump, "*.thunk_sequence.txt"))
    instruction_of_thunk = read_thunk_instructions(_only_file(dump, "*.thunk_metadata.txt"))
    ptx: dict[str, str] = {}
    target = ""
    for file in sorted(dump.glob("*.ptx")):
        text = file.read_text()
        ptx |= read_ptx(text)
        target = target or ptx_target(text)
    return match_kernels(
        thunks,
        {number: starts.get(name, name) for number, name in instruction_of_thunk.items()},
        ptx=ptx,
        instructions=read_instruction_names(module_text),
        target=target,
    )


def _only_file(dump: Path, pattern: str) -> str:
    files = sorted(dump.glob(pattern))
    if len(files) != 1:
        raise UnsupportedError(f"the compiler left {len(files)} lists of thunks, not 1")
    return files[0].read_text()


@frozen
class Launch:
    """A kernel's name, blocks, threads and shared memory."""

    kernel: str
    grid: Extent
    block: Extent
    shared_memory_bytes: int


@frozen
class Thunk:
    """A step of an executable; ``launch`` is None without kernels."""

    number: int
    kind: str
    launch: Launch | None


_THUNK = re.compile(r"^\s*(\d+):\s+(k\w+)\s")
_LAUNCH = re.compile(
    r"\]\s+(\S+)\s+grid: \[(\d+), (\d+), (\d+)\] threads: \[(\d+), (\d+), (\d+)\]"
    r".*?shared_memory: (\d+) bytes"
)


def read_thunks(text: str) -> tuple[Thunk, ...]:
    """Read ``thunk_sequence.txt``: thunks in execution order.

    Loop bodies stand in their loops' place.

    >>> (thunk,) = read_thunks("001: kCustomKernel [source | sink] add grid: [2, 1, 1] "
    ...                        "threads: [128, 1, 1]  shared_memory: 0 bytes")
    >>> thunk.kind, thunk.launch.grid, thunk.launch.block
    ('kCustomKernel', (2, 1, 1), (128, 1, 1))
    """
    heads = ((line, _THUNK.match(line)) for line in text.splitlines())
    return tuple(
        Thunk(number=int(head[1]), kind=head[2], launch=_launch(line))
        for line, head in heads
        if head is not None
    )


def _launch(line: str) -> Launch | None:
    match = _LAUNCH.search(line)
    if match is None:
        return None
    kernel, *numbers = match.groups()
    grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_memory_bytes = map(int, numbers)
    return Launch(
        kernel=kernel,
        grid=(grid_x, grid_y, grid_z),
        block=(block_x, block_y, block_z),
        shared_memory_bytes=shared_memory_bytes,
    )


_THUNK_INFO = re.compile(
    r"thunk_info \{\s*(?:profile_annotation: \"(?P<name>[^\"]*)\"\s*)?"
    r"(?:thunk_id: (?P<number>\d+)\s*)?"
)


def read_thunk_instructions(text: str) -> dict[int, str]:
    """Read ``thunk_metadata.txt``: the instruction of each thunk, by its number.

    >>> read_thunk_instructions('thunk_info { profile_annotation: "add.1" thunk_id: 7 }')
    {7: 'add.1'}
    """
    infos = _THUNK_INFO.finditer(text)
    return {int(info["number"]): info["name"] for info in infos if info["name"] and info["number"]}


_ENTRY = re.compile(r"^\.visible \.entry ([\w$.]+)\(", re.MULTILINE)
_HEADER = re.compile(r"^[ \t]*(?:\.(?:version|target|address_size)\b.*|//.*|)\n", re.MULTILINE)
_PTX_TARGET = re.compile(r"^[ \t]*\.target[ \t]+(\w+)", re.MULTILINE)


def ptx_target(text: str) -> str:
    r"""Return a PTX module's target, or "".

    >>> ptx_target(".version 8.8\n.target sm_90a\n")
    'sm_90a'
    """
    match = _PTX_TARGET.search(text)
    return "" if match is None else match[1]


def read_ptx(text: str) -> dict[str, str]:
    r"""Split a PTX module into its kernels, by name.

    Variables and functions before the first kernel stay with every kernel, since each may use
    them; the header is left out.

    >>> sorted(read_ptx(".version 8.8\n.visible .entry a(\n)\n{ret;}\n"
    ...                 ".visible .entry b(\n)\n{ret;}\n"))
    ['a', 'b']
    """
    entries = list(_ENTRY.finditer(text))
    if not entries:
        return {}
    shared = _HEADER.sub("", text[: entries[0].start()])
    ends = [entry.start() for entry in entries[1:]] + [len(text)]
    return {
        entry[1]: shared + text[entry.start() : end].strip() + "\n"
        for entry, end in zip(entries, ends, strict=True)
    }


@frozen
class InstructionNames:
    """The names of instructions, and of scheduled fusions."""

    instructions: frozenset[str]
    fusions: frozenset[str]


_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^  (?:ROOT )?%?([\w.\-]+) = .*? ([a-z][\w\-]*)\(")
_FUSED = re.compile(r" fusion\(.*? calls=%?([\w.\-]+)")
_APPLIED = re.compile(r" to_apply=%?([\w.\-]+)")


def read_instruction_names(text: str) -> InstructionNames:
    r"""Read the names of an optimised module's instructions.

    Fusions inside other fusions, or inside what is applied element by element, are not run by
    themselves.

    >>> read_instruction_names("ENTRY %m (a: f32[]) -> f32[] {\n"
    ...                        "  ROOT %f = f32[] fusion(%a), kind=kLoop, calls=%b\n}").fusions
    frozenset({'f'})
    """
    bodies: set[str] = set()
    names: set[str] = set()
    fusions: dict[str, list[str]] = {}
    computation = ""
    for line in text.splitlines():
        if not line.startswith(" "):
            head = _COMPUTATION.match(line)
            computation = head[1] if head else ""
            continue
        instruction = _INSTRUCTION.match(line)
        if instruction is None:
            continue
        names.add(instruction[1])
        if instruction[2] == "fusion":
            fusions.setdefault(computation, []).append(instruction[1])
            bodies.update(_FUSED.findall(line))
        bodies.update(_APPLIED.findall(line))
    run = (name for home, fused in fusions.items() if home not in bodies for name in fused)
    return InstructionNames(instructions=frozenset(names), fusions=frozenset(run))


def read_starts(proto: bytes) -> dict[str, str]:
    """Map asynchronous instructions to their starts.

    ``proto`` is a serialised module. A kernel that is started has the name of the instruction
    inside of its start, which the module's text leaves out.
    """
    module = message_class("xla.HloModuleProto").FromString(proto)
    bodies = {body.id: body for body in module.computations}
    return {
        inner.name: start.name
        for computation in module.computations
        for start in computation.instructions
        if start.opcode == "async-start"
        for called in start.called_computation_ids
        for inner in bodies[called].instructions
    }


def match_kernels(
    thunks: tuple[Thunk, ...],
    instruction_of_thunk: Mapping[int, str],
    *,
    ptx: Mapping[str, str],
    instructions: InstructionNames,
    target: str = "",
) -> CompiledKernels:
    """Return the launches by instruction, and their PTX.

    Raises `UnsupportedError` for a launch without an instruction of the module or without PTX, and
    for a fusion without a thunk: nothing is matched by position.
    """
    launches: list[KernelLaunch] = []
    run: set[str] = set()
    for thunk in thunks:
        instruction = instruction_of_thunk.get(thunk.number)
        if instruction is not None:
            run.add(instruction)
        if thunk.launch is not None:
            names = instructions.instructions
            launches.append(_match_launch(thunk.launch, instruction, ptx=ptx, names=names))
    missing = sorted(instructions.fusions - run)
    if missing:
        raise UnsupportedError(f"{len(missing)} fusions have no kernel, such as {missing[0]}")
    launched = {launch.kernel for launch in launches}
    return CompiledKernels(
        launches=tuple(launches),
        ptx={name: text for name, text in sorted(ptx.items()) if name in launched},
        target=target,
    )


def _match_launch(
    launch: Launch, instruction: str | None, *, ptx: Mapping[str, str], names: AbstractSet[str]
) -> KernelLaunch:
    if instruction is None or instruction not in names:
        raise UnsupportedError(f"kernel {launch.kernel} belongs to no instruction of the module")
    if launch.kernel not in ptx:
        raise UnsupportedError(f"kernel {launch.kernel} of {instruction} has no PTX")
    return KernelLaunch(
        instruction=instruction,
        kernel=launch.kernel,
        grid=launch.grid,
        block=launch.block,
        shared_memory_bytes=launch.shared_memory_bytes,
    )
