from __future__ import annotations

from collections.abc import Callable

import pytest

from hespas.frontend.load import load_source
from hespas.program.program import Program
from hespas.program.work import Work
from hespas.work.expand import expand, total
from hespas.xla.mlir.text import split_list


def _operation_program(text: str) -> Program:
    """Read one operation in generic form whose operands are %0, %1, ... in order."""
    operands, _, results = text.rpartition(" : ")[2].partition(" -> ")
    arguments = ", ".join(
        f"%{at}: {kind}" for at, kind in enumerate(split_list(operands.strip("()")))
    )
    made = split_list(results.strip("()")) if results.startswith("(") else [results]
    names = ", ".join(f"%r#{at}" for at in range(len(made))) if len(made) > 1 else "%r"
    count = f":{len(made)}" if len(made) > 1 else ""
    kinds = ", ".join(made)
    body = f"%r{count} = {text}\n return {names} : {kinds}"
    source = f"func.func @main({arguments}) -> ({kinds}) {{\n {body}\n}}"
    return load_source(source.encode(), name="test.mlir")


@pytest.fixture
def work_of() -> Callable[[str], Work]:
    """Return the work of one operation, given in MLIR's generic form."""

    def work(text: str) -> Work:
        return total(expand(_operation_program(text).main.body.operations))

    return work


@pytest.fixture
def program_of() -> Callable[[str], Program]:
    """Return the program of a module's text."""
    return lambda text: load_source(text.encode(), name="test.mlir")
