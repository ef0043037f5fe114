from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from programs import VECTOR, vector_main

SCRIPT = f"""
import os
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.pop("XLA_FLAGS", None)
import numpy
from hespas.errors import HespasError
from xla_execute import compile_module, run_module

text = '''{vector_main("%r = stablehlo.add %a, %a : " + VECTOR)}'''
made = compile_module(text)
given = [[numpy.arange(8, dtype="float32")]]
print(run_module(made, given)[0][0].tolist())
wide = "func.func @main() -> tensor<i64> {{ %c = stablehlo.constant dense<5> : tensor<i64>\\n" \\
    "return %c : tensor<i64> }}"
result = run_module(compile_module(wide), [])[0][0]
print(result.dtype, int(result))
for arguments in ({{"partitions": 2}}, {{"replicas": 3}}):
    try:
        compile_module(text, name="m.mlir", **arguments)
    except HespasError as error:
        print(error)
try:
    compile_module(text.replace("add", "no_such_operation"), name="m.mlir")
except HespasError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def printed() -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_numbers(printed: list[str]) -> None:
    assert printed[0] == "[0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]"


def test_64_bit_numbers_stay_so(printed: list[str]) -> None:
    assert printed[1] == "int64 5"


def test_more_devices_than_there_are(printed: list[str]) -> None:
    assert printed[2:4] == [
        f"m.mlir: {count} devices are needed, but JAX was started with 1; set "
        f"XLA_FLAGS=--xla_force_host_platform_device_count={count} before it starts"
        for count in (2, 3)
    ]


def test_a_module_that_xla_refuses(printed: list[str]) -> None:
    assert printed[4].startswith("m.mlir: XLA cannot compile it: ")
