"""Read and write programs as MSCCL's XML.

Source of elements and attributes: the files that MSCCL's runtime reads. ``algo`` holds a
``gpu`` for each rank, which holds a ``tb`` for each threadblock, which holds its ``step``s.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree

from hespas.collectives.program import (
    Buffer,
    Place,
    Program,
    Rank,
    Step,
    StepId,
    StepKind,
    Threadblock,
    chunk_counts,
    step_text,
)
from hespas.collectives.schedule import Collective
from hespas.collectives.verify import verify
from hespas.errors import AlgorithmError

_NONE = -1
_OTHER_NAMES = {
    "reducescatter": Collective.REDUCE_SCATTER,
    "all_reduce": Collective.ALL_REDUCE,
    "all_gather": Collective.ALL_GATHER,
    "all_to_all": Collective.ALL_TO_ALL,
}
_NOT_MSCCLS = (Collective.GATHER, Collective.SCATTER, Collective.BARRIER)
_OWN_NAMES = {one.value: one for one in Collective if one not in _NOT_MSCCLS}
_COLLECTIVES = _OWN_NAMES | _OTHER_NAMES
_KINDS = {kind.value: kind for kind in StepKind}
_BUFFERS = {buffer.value: buffer for buffer in Buffer}


def read_program(path: Path) -> Program:
    """Read a program from a file.

    Raises `AlgorithmError`, naming file, rank, threadblock and step, for what is missing,
    malformed or contradictory. Whether it computes its collective is for
    `hespas.collectives.verify.verify` to say.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise AlgorithmError(
            f"the algorithm cannot be read: {error}", location=str(path)
        ) from error
    return parse_program(text, location=str(path))


def read_verified(path: Path) -> Program:
    """Read an MSCCL XML file and verify it. Raises `AlgorithmError`, naming the file."""
    program = read_program(path)
    try:
        verify(program)
    except AlgorithmError as error:
        error.location = f"{path}: {error.location}" if error.location else str(path)
        raise
    return program


def parse_program(text: str, *, location: str = "algorithm") -> Program:
    """Read a program from XML; see `read_program`."""
    if "<!" in text.replace("<!--", ""):
        raise AlgorithmError("the XML declares a document type or entities", location=location)
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - it declares no entities
    except ElementTree.ParseError as error:
        raise AlgorithmError(f"the XML is malformed: {error}", location=location) from error
    if root.tag != "algo":
        raise AlgorithmError(f"the root element is <{root.tag}>, not <algo>", location=location)
    return _Reader(location).program(root)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the elements of one file; ``place`` says which."""

    place: str

    def fail(self, where: str, message: str, *, hint: str = "") -> NoReturn:
        raise AlgorithmError(message, location=f"{self.place}: {where}", hint=hint)

    def text(self, element: ElementTree.Element, name: str, where: str) -> str:
        value = element.get(name)
        if value is None:
            self.fail(where, f"<{element.tag}> lacks {name}")
        return value

    def integer(
        self, element: ElementTree.Element, name: str, where: str, *, default: int | None = None
    ) -> int:
        if default is not None and name not in element.attrib:
            return default
        value = self.text(element, name, where)
        try:
            number = int(value)
        except ValueError:
            self.fail(where, f"{name} is {value!r}, not an integer")
        if number < _NONE:
            self.fail(where, f"{name} is {number}")
        return number

    def children(
        self, element: ElementTree.Element, tag: str, where: str
    ) -> list[ElementTree.Element]:
        other = next((child.tag for child in element if child.tag != tag), None)
        if other is not None:
            self.fail(where, f"<{element.tag}> holds <{other}>, where only <{tag}> may be")
        return list(element)

    def program(self, root: ElementTree.Element) -> Program:
        gpus = self.children(root, "gpu", "algo")
        count = self.integer(root, "ngpus", "algo", default=len(gpus))
        if count != len(gpus) or count < 2:
            self.fail("algo", f"ngpus is {count}, and there are {len(gpus)} <gpu>")
        by_id = {self.integer(gpu, "id", "gpu"): gpu for gpu in gpus}
        absent = next((number for number in range(count) if number not in by_id), None)
        if absent is not None:
            self.fail("algo", f"there is no <gpu> with id {absent}")
        collective = self._collective(root)
        chunks = self.integer(root, "nchunksperloop", "algo")
        inputs, outputs = self._counts(collective, count, chunks, gpus)
        depended_on = _Dependents(self, any("hasdep" in step.attrib for step in root.iter("step")))
        return Program(
            name=root.get("name", "algorithm"),
            collective=collective,
            input_chunks=inputs,
            output_chunks=outputs,
            is_in_place=self.integer(root, "inplace", "algo", default=0) == 1,
            root=self.integer(root, "root", "algo", default=0),
            protocol=root.get("proto", "Simple"),
            ranks=tuple(
                [self._rank(number, by_id[number], depended_on) for number in range(count)]
            ),
        )

    def _collective(self, root: ElementTree.Element) -> Collective:
        name = self.text(root, "coll", "algo").lower()
        if name not in _COLLECTIVES:
            names = ", ".join(_OWN_NAMES)
            self.fail("algo", f"coll is {name!r}", hint=f"use one of {names}")
        return _COLLECTIVES[name]

    def _counts(
        self, collective: Collective, ranks: int, chunks: int, gpus: list[ElementTree.Element]
    ) -> tuple[int, int]:
        declared = [
            max(self.integer(gpu, name, "gpu", default=0) for gpu in gpus)
            for name in ("i_chunks", "o_chunks")
        ]
        if collective is Collective.CUSTOM:
            return max(declared[0], 1), declared[1]
        shared = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)
        if chunks < 1 or (collective in shared and chunks % ranks):
            self.fail("algo", f"nchunksperloop is {chunks} among {ranks} ranks")
        return chunk_counts(collective, ranks, chunks)

    def _rank(self, number: int, gpu: ElementTree.Element, dependents: _Dependents) -> Rank:
        where = f"rank {number}"
        blocks = self.children(gpu, "tb", where)
        threadblocks = [self._threadblock(number, block) for block in blocks]
        dependents.check(number, blocks, threadblocks)
        return Rank(
            scratch_chunks=self.integer(gpu, "s_chunks", where, default=0),
            threadblocks=tuple(threadblocks),
        )

    def _threadblock(self, rank: int, block: ElementTree.Element) -> Threadblock:
        number = self.integer(block, "id", f"rank {rank}")
        where = f"rank {rank}, threadblock {number}"
        send = self.integer(block, "send", where, default=_NONE)
        receive = self.integer(block, "recv", where, default=_NONE)
        steps: list[Step] = []
        for index, element in enumerate(self.children(block, "step", where)):
            at = step_text(rank, StepId(number, index))
            if self.integer(element, "s", at, default=index) != index:
                self.fail(at, f"s is {element.get('s')}: steps are not numbered from 0 on")
            steps.append(self._step(element, at))
        return Threadblock(
            id=number,
            send_peer=None if send == _NONE else send,
            receive_peer=None if receive == _NONE else receive,
            channel=self.integer(block, "chan", where, default=0),
            steps=tuple(steps),
        )

    def _step(self, element: ElementTree.Element, where: str) -> Step:
        name = self.text(element, "type", where)
        if name not in _KINDS:
            names = ", ".join(_KINDS)
            self.fail(where, f"type is {name!r}", hint=f"use one of {names}")
        kind = _KINDS[name]
        threadblock = self.integer(element, "depid", where, default=_NONE)
        step = self.integer(element, "deps", where, default=_NONE)
        if (threadblock == _NONE) != (step == _NONE):
            self.fail(where, f"depid is {threadblock} and deps is {step}")
        is_nop = kind is StepKind.NOP
        count = self.integer(element, "cnt", where, default=0 if is_nop else None)
        if count < 1 and not is_nop:
            self.fail(where, f"cnt is {count}")
        return Step(
            kind=kind,
            source=self._chunk(element, "src", where, is_used=kind.reads),
            target=self._chunk(element, "dst", where, is_used=kind.writes),
            count=count,
            after=None if step == _NONE else StepId(threadblock, step),
        )

    def _chunk(self, element: ElementTree.Element, end: str, where: str, *, is_used: bool) -> Place:
        default = None if is_used else 0
        offset = self.integer(element, f"{end}off", where, default=default)
        buffer = (
            self.text(element, f"{end}buf", where) if is_used else element.get(f"{end}buf", "i")
        )
        if buffer not in _BUFFERS:
            self.fail(where, f"{end}buf is {buffer!r}", hint="use i, o or s")
        return Place(_BUFFERS[buffer], offset)


@dataclass(frozen=True, slots=True)
class _Dependents:
    """Checks that a step on which others wait says so: the runtime signals only then."""

    reader: _Reader
    is_declared: bool

    def check(
        self, rank: int, blocks: list[ElementTree.Element], threadblocks: list[Threadblock]
    ) -> None:
        if not self.is_declared:
            return
        signals = {
            StepId(threadblock.id, index)
            for block, threadblock in zip(blocks, threadblocks, strict=True)
            for index, step in enumerate(block)
            if step.get("hasdep") == "1"
        }
        for threadblock in threadblocks:
            for index, step in enumerate(threadblock.steps):
                if step.after is not None and step.after not in signals:
                    waiting = step_text(rank, StepId(threadblock.id, index))
                    waited_for = f"threadblock {step.after.threadblock}, step {step.after.step}"
                    message = f"waits for {waited_for}, which is not there or lacks hasdep"
                    self.reader.fail(waiting, message, hint='give that step hasdep="1"')


def program_xml(program: Program) -> str:
    """Return a program as MSCCL's XML; `parse_program` gives it back."""
    larger = max(program.input_chunks, program.output_chunks)
    channels = {block.channel for _, block, _, _ in program.steps()}
    root = ElementTree.Element(
        "algo",
        name=program.name,
        proto=program.protocol,
        nchannels=str(max(channels, default=0) + 1),
        nchunksperloop=str(larger),
        ngpus=str(len(program.ranks)),
        coll=program.collective.value,
        inplace=str(int(program.is_in_place)),
    )
    if program.root:
        root.set("root", str(program.root))
    for number, rank in enumerate(program.ranks):
        gpu = ElementTree.SubElement(
            root,
            "gpu",
            id=str(number),
            i_chunks=str(program.input_chunks),
            o_chunks=str(program.output_chunks),
            s_chunks=str(rank.scratch_chunks),
        )
        waited_for = {
            step.after for block in rank.threadblocks for step in block.steps if step.after
        }
        for block in rank.threadblocks:
            _add_threadblock(gpu, block, waited_for)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _add_threadblock(gpu: ElementTree.Element, block: Threadblock, waited_for: set[StepId]) -> None:
    element = ElementTree.SubElement(
        gpu,
        "tb",
        id=str(block.id),
        send=str(_NONE if block.send_peer is None else block.send_peer),
        recv=str(_NONE if block.receive_peer is None else block.receive_peer),
        chan=str(block.channel),
    )
    for index, step in enumerate(block.steps):
        after = step.after or StepId(_NONE, _NONE)
        ElementTree.SubElement(
            element,
            "step",
            s=str(index),
            type=step.kind.value,
            srcbuf=step.source.buffer.value,
            srcoff=str(step.source.offset),
            dstbuf=step.target.buffer.value,
            dstoff=str(step.target.offset),
            cnt=str(step.count),
            depid=str(after.threadblock),
            deps=str(after.step),
            hasdep=str(int(StepId(block.id, index) in waited_for)),
        )
