"""Whole programs: blocks of drawn operations, with loops, branches, calls and donated arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from random_programs.blocks import Block, Settings, Tensor, Value, tensors
from random_programs.collectives import COLLECTIVES
from random_programs.operations import SIMPLE
from random_programs.shardings import MESH, sharding

_COUNTER = Tensor(element="i32")
_TOTAL = Tensor(element="f32")
_MOST_DEPTH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A program's text, and what of it laws ask for."""

    text: str
    devices: int
    is_sharded: bool = False

    @property
    def branches(self) -> bool:
        return "stablehlo.case" in self.text or "stablehlo.if" in self.text


def fill(block: Block, most: int) -> None:
    """Add up to so many drawn operations."""
    kinds: list[Callable[[Block], None]] = [*SIMPLE]
    if block.settings.devices > 1:
        kinds += COLLECTIVES
    if block.depth < _MOST_DEPTH:
        kinds += [loop, branch, call]
    for _ in range(block.integer(1, most)):
        block.one_of(kinds)(block)


def _results(block: Block, kinds: Sequence[Tensor]) -> list[Value]:
    """Draw a value of each type, the latest rather than others."""
    found: list[Value] = []
    for kind in kinds:
        fitting = [value for value in block.values if value.type == kind]
        found.append(fitting[-1] if fitting else block.constant(kind))
    return found


def _returned(block: Block, word: str, values: Sequence[Value]) -> str:
    names = ", ".join(value.name for value in values)
    types = ", ".join(str(value.type) for value in values)
    return "\n".join([*block.lines, f"{word} {names} : {types}"])


def _many(block: Block, head: str, results: Sequence[Value], operands: Sequence[Value]) -> None:
    """Add an operation of several results, each of the type of a value."""
    made = [Value(name=block.name(), type=one.type, varies=one.varies) for one in results]
    block.read.update(operand.name for operand in operands)
    block.lines.append(f"{', '.join(value.name for value in made)} = {head}")
    block.values += made


def loop(block: Block) -> None:
    """Carry some values through a while of a known number of rounds."""
    carried = [block.value() for _ in range(block.integer(1, 3))]
    carried.append(block.like(_TOTAL))
    start = block.constant(_COUNTER, 0)
    last = block.integer(1, 5)
    arguments = [
        Value(name=block.name(), type=value.type, varies=value is start or value.varies)
        for value in (start, *carried)
    ]
    counter, *_, total = arguments
    body = block.inner(arguments, index=counter)
    fill(body, 6)
    kinds = [value.type for value in carried]
    results = _results(body, kinds[:-1])
    body.read.update(value.name for value in results)
    sum_of_all = body.binary("add", total, body.used_up())
    one, then = block.name(), block.name()
    body.lines += [
        f"{one} = stablehlo.constant dense<1> : {_COUNTER}",
        f"{then} = stablehlo.add {counter.name}, {one} : {_COUNTER}",
    ]
    end = _returned(
        body, "stablehlo.return", [Value(name=then, type=_COUNTER), *results, sum_of_all]
    )
    given = ", ".join(
        f"{inside.name} = {outside.name}"
        for inside, outside in zip(arguments, (start, *carried), strict=True)
    )
    types = ", ".join(str(argument.type) for argument in arguments)
    limit, holds = block.name(), block.name()
    head = (
        f"stablehlo.while({given}) : {types}\ncond {{\n"
        f"{limit} = stablehlo.constant dense<{last}> : {_COUNTER}\n"
        f"{holds} = stablehlo.compare LT, {counter.name}, {limit} : ({_COUNTER}, {_COUNTER}) -> "
        f"tensor<i1>\nstablehlo.return {holds} : tensor<i1>\n}} do {{\n{end}\n}}"
    )
    left = [
        replace(value, varies=value.varies and was.varies)
        for value, was in zip(results, carried, strict=False)
    ]
    _many(block, head, [replace(counter, varies=False), *left, total], (start, *carried))


def branch(block: Block) -> None:
    """Choose one of several blocks, which read what is outside of them."""
    count = block.integer(2, 3)
    index = block.index
    kinds = [block.value().type for _ in range(block.integer(1, 2))]
    regions: list[str] = []
    for _ in range(count):
        inner = block.inner(block.values, index=index)
        devices, block.settings.devices = block.settings.devices, 1
        fill(inner, 4)
        block.settings.devices = devices
        results = _results(inner, kinds)
        inner.read.update(value.name for value in results)
        results.append(inner.used_up())
        regions.append(f"{{\n{_returned(inner, 'stablehlo.return', results)}\n}}")
        block.read |= inner.read
    kinds.append(_TOTAL)
    types = ", ".join(map(str, kinds))
    head = f'"stablehlo.case"({index.name}) ({", ".join(regions)}) : ({_COUNTER}) -> ({types})'
    chosen = [Value(name="", type=kind, varies=False) for kind in kinds]
    _many(block, head, chosen, (index,))


def call(block: Block) -> None:
    """Move a block to a function of its own, and call it."""
    given = [block.index, *(block.value() for _ in range(block.integer(1, 2)))]
    arguments = [Value(name=block.name(), type=value.type, varies=value.varies) for value in given]
    body = block.inner(arguments, index=arguments[0])
    fill(body, 4)
    results = body.unread() or arguments[:1]
    kinds = [value.type for value in results]
    number = len(block.settings.functions)
    listed = ", ".join(f"{argument.name}: {argument.type}" for argument in arguments)
    types = ", ".join(map(str, kinds))
    block.settings.functions.append(
        f"func.func private @called_{number}({listed}) -> ({types}) {{\n"
        f"{_returned(body, 'return', results)}\n}}\n"
    )
    names = ", ".join(value.name for value in given)
    inputs = ", ".join(str(value.type) for value in given)
    head = f"func.call @called_{number}({names}) : ({inputs}) -> ({types})"
    _many(block, head, results, given)


@st.composite
def programs(draw: st.DrawFn, *, most: int = 12, live: bool = True) -> Drawn:
    """Draw a program of one device or four; its results depend on all of it if it is ``live``.

    Four devices exchange data by collectives, or share a sharded program that has none.
    """
    devices = draw(st.sampled_from((1, 4)))
    is_sharded = devices > 1 and draw(st.booleans())
    settings = Settings(devices=1 if is_sharded else devices)
    kinds = draw(st.lists(tensors(), min_size=1, max_size=4))
    arguments = [Value(name=f"%a{number}", type=kind) for number, kind in enumerate(kinds)]
    index = Value(name="%index", type=_COUNTER)
    arguments.append(index)
    block = Block(draw, arguments, settings, index=index)
    fill(block, most)
    results = block.unread() or block.values[-1:]
    if len(results) > 1 and not live:
        results = draw(st.lists(st.sampled_from(results), min_size=1, unique=True))
    donated = _donations(draw, arguments, results)
    shardings = [sharding(draw, one.type) if is_sharded else "" for one in (*arguments, *results)]
    for argument, result in donated.items():
        # What is written over another array lies where that does.
        shardings[len(arguments) + result] = shardings[argument]
    listed = ", ".join(
        f"{value.name}: {value.type}{_attributes(shardings[at], donated.get(at))}"
        for at, value in enumerate(arguments)
    )
    types = ", ".join(
        f"{value.type}{_attributes(shardings[len(arguments) + at], None)}"
        for at, value in enumerate(results)
    )
    mesh = MESH if is_sharded else ""
    text = (
        f"module attributes {{mhlo.num_partitions = {devices} : i32, mhlo.num_replicas = 1 : i32}} "
        f"{{\n{mesh}{''.join(settings.functions)}func.func public @main({listed}) -> ({types}) {{\n"
        f"{_returned(block, 'return', results)}\n}}\n}}\n"
    )
    return Drawn(text=text, devices=devices, is_sharded=is_sharded)


def _attributes(sharded: str, donated: int | None) -> str:
    listed = [sharded] if sharded else []
    if donated is not None:
        listed.append(f"tf.aliasing_output = {donated} : i32")
    return f" {{{', '.join(listed)}}}" if listed else ""


def _donations(
    draw: st.DrawFn, arguments: Sequence[Value], results: Sequence[Value]
) -> dict[int, int]:
    """Draw arguments that results of the same type are written over, both by number."""
    found: dict[int, int] = {}
    free = list(enumerate(results))
    for number, argument in enumerate(arguments):
        fitting = [each for each in free if each[1].type == argument.type]
        if fitting and draw(st.booleans()):
            free.remove(fitting[0])
            found[number] = fitting[0][0]
    return found
