"""Read and write programs as MSCCL's XML.

Source of elements and attributes: the files that MSCCL's runtime reads. ``algo`` holds a ``gpu``
for each rank, a ``gpu`` a ``tb`` for each threadblock, and a ``tb`` its ``step``s.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import msgspec
from msgspec import Meta, Struct

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
from hespas.collectives.verify import verify
from hespas.errors import AlgorithmError
from hespas.program.collectives import COMMON_KINDS, CollectiveKind

_NONE = -1
_KINDS = (*COMMON_KINDS, CollectiveKind.BROADCAST, CollectiveKind.REDUCE, CollectiveKind.CUSTOM)
_COLLECTIVES = {kind.value: kind for kind in _KINDS} | {
    "reducescatter": CollectiveKind.REDUCE_SCATTER,
    "all_reduce": CollectiveKind.ALL_REDUCE,
    "all_gather": CollectiveKind.ALL_GATHER,
    "all_to_all": CollectiveKind.ALL_TO_ALL,
}
_SHARED = COMMON_KINDS[1:]


def read_program(path: Path) -> Program:
    """Read a program from a file.

    Raises `AlgorithmError`, naming file, rank, threadblock and step, for missing, malformed or
    contradictory content. `hespas.collectives.verify.verify` checks that the program computes its
    collective.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise AlgorithmError(
            f"the algorithm cannot be read: {error}", location=str(path)
        ) from error
    return parse_program(text, location=str(path))


def read_verified(path: Path) -> Program:
    """Read and verify an MSCCL XML file; `AlgorithmError` names it."""
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


_Number = Annotated[int, Meta(ge=_NONE)]


class _Algo(Struct, kw_only=True):
    coll: str
    nchunksperloop: _Number
    ngpus: _Number | None = None
    name: str = "algorithm"
    proto: str = "Simple"
    inplace: _Number = 0
    root: _Number = 0


class _Gpu(Struct, kw_only=True):
    id: _Number
    i_chunks: _Number = 0
    o_chunks: _Number = 0
    s_chunks: _Number = 0


class _Threadblock(Struct, kw_only=True):
    id: _Number
    send: _Number = _NONE
    recv: _Number = _NONE
    chan: _Number = 0


class _Step(Struct, kw_only=True):
    type: StepKind
    s: _Number | None = None
    cnt: _Number | None = None
    srcbuf: Buffer | None = None
    srcoff: _Number | None = None
    dstbuf: Buffer | None = None
    dstoff: _Number | None = None
    depid: _Number = _NONE
    deps: _Number = _NONE
    hasdep: str = ""


_CHOICES = {"type": StepKind, "srcbuf": Buffer, "dstbuf": Buffer}
_S = TypeVar("_S", bound=Struct)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the elements of ``file``, which errors name."""

    file: str

    def fail(self, where: str, message: str, *, hint: str = "") -> NoReturn:
        raise AlgorithmError(message, location=f"{self.file}: {where}", hint=hint)

    def attributes(self, element: Element, form: type[_S], where: str) -> _S:
        try:
            return msgspec.convert(element.attrib, form, strict=False)
        except msgspec.ValidationError as error:
            complaint, _, path = str(error).partition(" - at `$.")
            name = path.rstrip("`")
        if not name:
            self.fail(where, f"<{element.tag}> lacks {complaint.split('`')[1]}")
        value = element.attrib[name]
        choices = ", ".join(str(member.value) for member in _CHOICES.get(name, ()))
        if choices:
            self.fail(where, f"{name} is {value!r}", hint=f"use one of {choices}")
        shown = value if "got" not in complaint else f"{value!r}, not an integer"
        return self.fail(where, f"{name} is {shown}")

    def children(self, element: Element, tag: str, where: str) -> list[Element]:
        wrong_tag = next((child.tag for child in element if child.tag != tag), None)
        if wrong_tag is not None:
            self.fail(where, f"<{element.tag}> holds <{wrong_tag}>, where only <{tag}> may be")
        return list(element)

    def program(self, root: Element) -> Program:
        algo = self.attributes(root, _Algo, "algo")
        elements = self.children(root, "gpu", "algo")
        count = len(elements) if algo.ngpus is None else algo.ngpus
        if count != len(elements) or count < 2:
            self.fail("algo", f"ngpus is {count}, and there are {len(elements)} <gpu>")
        gpus = [(self.attributes(element, _Gpu, "gpu"), element) for element in elements]
        by_id = {gpu.id: (gpu, element) for gpu, element in gpus}
        absent = next((number for number in range(count) if number not in by_id), None)
        if absent is not None:
            self.fail("algo", f"there is no <gpu> with id {absent}")
        collective = _COLLECTIVES.get(algo.coll.lower())
        if collective is None:
            names = ", ".join(kind.value for kind in _KINDS)
            self.fail("algo", f"coll is {algo.coll.lower()!r}", hint=f"use one of {names}")
        if collective is CollectiveKind.CUSTOM:
            inputs = max(1, *[gpu.i_chunks for gpu, _ in gpus])
            outputs = max(gpu.o_chunks for gpu, _ in gpus)
        else:
            chunks = algo.nchunksperloop
            if chunks < 1 or (collective in _SHARED and chunks % count):
                self.fail("algo", f"nchunksperloop is {chunks} among {count} ranks")
            inputs, outputs = chunk_counts(collective, count, chunks)
        is_declared = any("hasdep" in step.attrib for step in root.iter("step"))
        ranks = [
            self._rank(number, *by_id[number], is_declared=is_declared) for number in range(count)
        ]
        return Program(
            name=algo.name,
            collective=collective,
            input_chunks=inputs,
            output_chunks=outputs,
            is_in_place=algo.inplace == 1,
            root=algo.root,
            protocol=algo.proto,
            ranks=tuple(ranks),
        )

    def _rank(self, number: int, gpu: _Gpu, element: Element, *, is_declared: bool) -> Rank:
        """Read a rank, whose awaited steps must have ``hasdep``."""
        signals: set[StepId] = set()
        blocks = [
            self._threadblock(number, block, signals)
            for block in self.children(element, "tb", f"rank {number}")
        ]
        for block in blocks:
            for index, step in enumerate(block.steps):
                if is_declared and step.after is not None and step.after not in signals:
                    awaited = f"threadblock {step.after.threadblock}, step {step.after.step}"
                    self.fail(
                        step_text(number, StepId(block.id, index)),
                        f"waits for {awaited}, which is not there or lacks hasdep",
                        hint='give that step hasdep="1"',
                    )
        return Rank(scratch_chunks=gpu.s_chunks, threadblocks=tuple(blocks))

    def _threadblock(self, rank: int, element: Element, signals: set[StepId]) -> Threadblock:
        block = self.attributes(element, _Threadblock, f"rank {rank}")
        steps: list[Step] = []
        for index, child in enumerate(
            self.children(element, "step", f"rank {rank}, threadblock {block.id}")
        ):
            step_id = StepId(block.id, index)
            where = step_text(rank, step_id)
            step = self.attributes(child, _Step, where)
            if step.s not in (None, index):
                self.fail(where, f"s is {step.s}: steps are not numbered from 0 on")
            if step.hasdep == "1":
                signals.add(step_id)
            steps.append(self._step(step, where))
        return Threadblock(
            id=block.id,
            send_peer=None if block.send == _NONE else block.send,
            receive_peer=None if block.recv == _NONE else block.recv,
            channel=block.chan,
            steps=tuple(steps),
        )

    def _step(self, step: _Step, where: str) -> Step:
        kind = step.type
        needed = {
            "srcbuf": kind.reads, "srcoff": kind.reads, "dstbuf": kind.writes,
            "dstoff": kind.writes, "cnt": kind is not StepKind.NOP,
        }  # fmt: skip
        for name, is_needed in needed.items():
            if is_needed and getattr(step, name) is None:
                self.fail(where, f"<step> lacks {name}")
        if (step.depid == _NONE) != (step.deps == _NONE):
            self.fail(where, f"depid is {step.depid} and deps is {step.deps}")
        count = step.cnt or 0
        if count < 1 and kind is not StepKind.NOP:
            self.fail(where, f"cnt is {count}")
        return Step(
            kind=kind,
            source=Place(step.srcbuf or Buffer.INPUT, step.srcoff or 0),
            target=Place(step.dstbuf or Buffer.INPUT, step.dstoff or 0),
            count=count,
            after=None if step.deps == _NONE else StepId(step.depid, step.deps),
        )


def program_xml(program: Program) -> str:
    """Return a program as MSCCL's XML; `parse_program` restores it."""
    larger = max(program.input_chunks, program.output_chunks)
    channels = {block.channel for _, block, _, _ in program.steps()}
    root = ElementTree.Element(
        "algo",
        _texts(
            name=program.name,
            proto=program.protocol,
            nchannels=max(channels, default=0) + 1,
            nchunksperloop=larger,
            ngpus=len(program.ranks),
            coll=program.collective.value,
            inplace=int(program.is_in_place),
            **({"root": program.root} if program.root else {}),
        ),
    )
    for number, rank in enumerate(program.ranks):
        chunks = {"i_chunks": program.input_chunks, "o_chunks": program.output_chunks}
        gpu = ElementTree.SubElement(
            root, "gpu", _texts(id=number, **chunks, s_chunks=rank.scratch_chunks)
        )
        awaited = rank.awaited()
        for block in rank.threadblocks:
            peers = [
                _NONE if peer is None else peer for peer in (block.send_peer, block.receive_peer)
            ]
            element = ElementTree.SubElement(
                gpu, "tb", _texts(id=block.id, send=peers[0], recv=peers[1], chan=block.channel)
            )
            for index, step in enumerate(block.steps):
                is_awaited = StepId(block.id, index) in awaited
                ElementTree.SubElement(
                    element, "step", _step_attributes(index, step, is_awaited=is_awaited)
                )
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _step_attributes(index: int, step: Step, *, is_awaited: bool) -> dict[str, str]:
    after = step.after or StepId(_NONE, _NONE)
    return _texts(
        s=index,
        type=step.kind.value,
        srcbuf=step.source.buffer.value,
        srcoff=step.source.offset,
        dstbuf=step.target.buffer.value,
        dstoff=step.target.offset,
        cnt=step.count,
        depid=after.threadblock,
        deps=after.step,
        hasdep=int(is_awaited),
    )


def _texts(**attributes: object) -> dict[str, str]:
    return {name: str(value) for name, value in attributes.items()}
