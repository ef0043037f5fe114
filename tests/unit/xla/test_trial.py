from __future__ import annotations

import io
from pathlib import Path

import pytest

from hespas.errors import ProgramError
from hespas.xla.mlir.module import parse_mlir
from hespas.xla.trial import check_bytecode
from programs import VECTOR, vector_main

TEXT = vector_main(f"%r = stablehlo.tanh %a : {VECTOR}")


def test_bytecode_that_ends_its_reader_is_refused() -> None:
    source = (Path(__file__).parent / "damaged.mlirbc").read_bytes()
    with pytest.raises(
        ProgramError, match=r"step\.mlir: cannot be parsed: the bytecode is damaged"
    ):
        check_bytecode(source, name="step.mlir")


def test_what_can_be_read_and_what_is_refused_without_harm_passes() -> None:
    file = io.BytesIO()
    parse_mlir(TEXT.encode(), name="step.mlir").handle.operation.write_bytecode(file)
    for source in (file.getvalue(), file.getvalue()[:100], TEXT.encode()):
        check_bytecode(source, name="step.mlir")
