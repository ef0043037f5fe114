"""The thunks of a GPU executable: what XLA launches for each instruction, in order.

XLA writes two lists of the same thunks where it dumps: one with their launch shapes, and one with
the instructions that they stand for. Both number them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from hespas.errors import UnsupportedError
from hespas.program.kernels import CompiledKernels, Extent, KernelLaunch

_LINE = re.compile(r"^\s*(\d+):\s+(k\w+)\s")
_LAUNCH = re.compile(
    r"\]\s+(\S+)\s+grid: \[(\d+), (\d+), (\d+)\] threads: \[(\d+), (\d+), (\d+)\]"
    r".*?shared_memory: (\d+) bytes"
)
_INFO = re.compile(
    r"thunk_info \{\s*(?:profile_annotation: \"(?P<name>[^\"]*)\"\s*)?"
    r"(?:thunk_id: (?P<number>\d+)\s*)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thunk:
    """One step of an executable; ``launch`` is None where it is no kernel of XLA's own."""

    number: int
    kind: str
    launch: Launch | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A kernel's name, blocks, threads and shared memory."""

    kernel: str
    grid: Extent
    block: Extent
    shared_memory_bytes: int


def read_thunks(text: str) -> tuple[Thunk, ...]:
    """Read ``thunk_sequence.txt``: thunks in the order they run, loop bodies where they stand.

    >>> (thunk,) = read_thunks("001: kCustomKernel [source | sink] add grid: [2, 1, 1] "
    ...                        "threads: [128, 1, 1]  shared_memory: 0 bytes")
    >>> thunk.kind, thunk.launch.grid, thunk.launch.block
    ('kCustomKernel', (2, 1, 1), (128, 1, 1))
    """
    thunks: list[Thunk] = []
    for line in text.splitlines():
        head = _LINE.match(line)
        if head is None:
            continue
        thunks.append(Thunk(number=int(head[1]), kind=head[2], launch=_launch(line)))
    return tuple(thunks)


def _launch(line: str) -> Launch | None:
    found = _LAUNCH.search(line)
    if found is None:
        return None
    numbers = tuple(map(int, found.groups()[1:]))
    return Launch(
        kernel=found[1],
        grid=(numbers[0], numbers[1], numbers[2]),
        block=(numbers[3], numbers[4], numbers[5]),
        shared_memory_bytes=numbers[6],
    )


def read_instructions(text: str) -> dict[int, str]:
    """Read ``thunk_metadata.txt``: the instruction of each thunk, by its number.

    >>> read_instructions('thunk_info { profile_annotation: "add.1" thunk_id: 7 }')
    {7: 'add.1'}
    """
    found = _INFO.finditer(text)
    return {int(one["number"]): one["name"] for one in found if one["name"] and one["number"]}


def tied_kernels(
    thunks: tuple[Thunk, ...],
    instructions: Mapping[int, str],
    *,
    ptx: Mapping[str, str],
    fusions: AbstractSet[str],
    known: AbstractSet[str],
) -> CompiledKernels:
    """Return the launches, each with its instruction.

    ``known`` names every instruction of the module, ``fusions`` those that must run. Raises
    `UnsupportedError` where a thunk has no instruction, a launch no PTX, or a fusion no thunk:
    nothing is guessed by position.
    """
    launches: list[KernelLaunch] = []
    seen: set[str] = set()
    for thunk in thunks:
        name = instructions.get(thunk.number)
        if name is not None:
            seen.add(name)
        if thunk.launch is None:
            continue
        launches.append(_tied(thunk.launch, name, ptx=ptx, known=known))
    missing = sorted(fusions - seen)
    if missing:
        raise UnsupportedError(f"{len(missing)} fusions have no kernel, such as {missing[0]}")
    used = {launch.kernel for launch in launches}
    return CompiledKernels(
        launches=tuple(launches),
        ptx={name: text for name, text in sorted(ptx.items()) if name in used},
    )


def _tied(
    launch: Launch, name: str | None, *, ptx: Mapping[str, str], known: AbstractSet[str]
) -> KernelLaunch:
    if name is None or name not in known:
        raise UnsupportedError(f"kernel {launch.kernel} belongs to no instruction of the module")
    if launch.kernel not in ptx:
        raise UnsupportedError(f"kernel {launch.kernel} of {name} has no PTX")
    return KernelLaunch(
        instruction=name,
        kernel=launch.kernel,
        grid=launch.grid,
        block=launch.block,
        shared_memory_bytes=launch.shared_memory_bytes,
    )
