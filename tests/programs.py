"""Small programs, and how tests write and read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hespas.frontend.stablehlo import NO_OPTIONS, LoadOptions, load_stablehlo
from hespas.program.devices import with_device_count
from hespas.program.program import Function, Op, Program, nested_ops
from hespas.program.text import private_function_text
from hespas.xla.mlir import parse_mlir

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
    return load_stablehlo(source, name=NAME, options=options)


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
