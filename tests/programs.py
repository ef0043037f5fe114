"""Small programs, and how tests write and read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from hespas.frontend.load import load_source
from hespas.frontend.overrides import NO_OPTIONS, LoadOptions
from hespas.program.devices import with_device_count
from hespas.program.program import Function, Op, Program, nested_ops
from hespas.program.text import private_function_text
from hespas.xla.mlir.module import parse_mlir

NAME = "test.mlir"
VECTOR = "tensor<8xf32>"
ADD_BODY = """({
    ^bb0(%lhs: tensor<f32>, %rhs: tensor<f32>):
      %sum = stablehlo.add %lhs, %rhs : tensor<f32>
      stablehlo.return %sum : tensor<f32>
    })"""


def main_function(body: str, *, arguments: str = "", results: str = "") -> str:
    """Return ``func.func @main`` with a body that ends in ``return``."""
    return f"func.func @main({arguments}) -> ({results}) {{\n{body}\n}}\n"


def vector_main(body: str, *, result: str = "%r") -> str:
    """Return a main function from one vector, ``%a``, to one."""
    return main_function(
        f"{body}\nreturn {result} : {VECTOR}", arguments=f"%a: {VECTOR}", results=VECTOR
    )


def on_devices(text: str, partitions: int = 4, replicas: int = 1) -> str:
    """Return functions in a module that is made for so many devices."""
    counts = {"mhlo.num_partitions": partitions, "mhlo.num_replicas": replicas}
    attributes = ", ".join(f"{name} = {count} : i32" for name, count in counts.items())
    return f"module attributes {{{attributes}}} {{\n{text}}}\n"


def all_reduce(
    result: str,
    operand: str,
    *,
    groups: Sequence[Sequence[int]] = ((0, 1, 2, 3),),
    kind: str = VECTOR,
    channel: int = 1,
) -> str:
    """Return an all_reduce of device ids in groups of equal size."""
    rows = [list(group) for group in groups]
    return (
        f'{result} = "stablehlo.all_reduce"({operand}) <{{channel_handle = '
        f"#stablehlo.channel_handle<handle = {channel}, type = 1>, replica_groups = "
        f"dense<{rows}> : tensor<{len(rows)}x{len(rows[0])}xi64>, use_global_device_ids}}> "
        f"{ADD_BODY} : ({kind}) -> {kind}"
    )


def read(text: str | bytes, *, options: LoadOptions = NO_OPTIONS) -> Program:
    """Load a program without settling its devices."""
    source = text.encode() if isinstance(text, str) else text
    return load_source(source, name=NAME, options=options)


def settled(text: str, *, devices: int | None = None) -> Program:
    """Load a program and settle how many devices it runs on."""
    return with_device_count(read(text), requested=devices, system=None)


def ops_of(program: Program, kind: str) -> list[Op]:
    """Return the operations of a kind, nested ones too, in order."""
    blocks = [function.body for function in program.functions.values()]
    return [op for block in blocks for op in nested_ops(block) if op.kind == kind]


def only(program: Program, kind: str) -> Op:
    """Return the one operation of a kind."""
    (op,) = ops_of(program, kind)
    return op


def text_of(functions: Mapping[str, Function]) -> str:
    """Print functions in canonical form, sorted by name."""
    return "".join(private_function_text(functions[name]) for name in sorted(functions))


def check_verifies(text: str) -> None:
    """Parse and verify a module: `hespas.errors.ProgramError` where it isn't valid MLIR."""
    parse_mlir(text.encode(), name="printed.mlir")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One line of a straight program: value 0 is the argument, the nth step makes value n."""

    kind: str
    operands: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Straight:
    """A program without loops, calls or branches; ``results`` are values that it returns."""

    steps: tuple[Step, ...]
    results: tuple[int, ...]

    @classmethod
    def from_lines(cls, *lines: str, results: tuple[int, ...]) -> Straight:
        """Read ``"add 1 2"``: a kind and the values that it takes."""
        words = [line.split() for line in lines]
        steps = [Step(kind=kind, operands=tuple(map(int, used))) for kind, *used in words]
        return cls(steps=tuple(steps), results=results)

    @property
    def text(self) -> str:
        """The program for four devices."""
        return on_devices(self.main("".join(self.line(at) for at in range(len(self.steps)))))

    def line(self, at: int) -> str:
        """Return the line of a step, its values named ``%v<number>``."""
        step, made = self.steps[at], f"%v{at + 1}"
        operands = [f"%v{number}" for number in step.operands]
        if step.kind == "all_reduce":
            return f"{all_reduce(made, operands[0], channel=at + 1)}\n"
        if step.kind == "constant":
            return f"{made} = stablehlo.constant dense<{at}.0> : {VECTOR}\n"
        return f"{made} = stablehlo.{step.kind} {', '.join(operands)} : {VECTOR}\n"

    def main(self, body: str) -> str:
        """Return a main function that runs ``body`` and returns the results."""
        types = ", ".join([VECTOR] * len(self.results))
        named = ", ".join(f"%v{number}" for number in self.results)
        end = f"return {named} : {types}" if self.results else "return"
        return main_function(f"{body}{end}", arguments=f"%v0: {VECTOR}", results=types)


_OPERAND_COUNTS = {"constant": 0, "tanh": 1, "negate": 1, "add": 2, "all_reduce": 1}


@st.composite
def straight_programs(draw: st.DrawFn, *, longest: int = 30) -> Straight:
    """Draw a program of up to ``longest`` lines, whose lines use each other at random."""
    steps: list[Step] = []
    for number in range(draw(st.integers(1, longest))):
        kind = draw(st.sampled_from(tuple(_OPERAND_COUNTS)))
        operands = [draw(st.integers(0, number)) for _ in range(_OPERAND_COUNTS[kind])]
        steps.append(Step(kind=kind, operands=tuple(operands)))
    results = draw(st.lists(st.integers(0, len(steps)), max_size=4))
    return Straight(steps=tuple(steps), results=tuple(results))
