"""``method: cocossim``: cycles from COCOSSim (Apache-2.0, github.com/mc186/cocossim).

Tested with its build 8da7e20. It starts in ``build/`` and looks for its memory's description beside
it. A layer is a line ``Conv B Cin H W Cout [kernel [stride [padding]]]``. Without ``-c`` (cores)
and ``-ws`` (1 for weight stationary, 0 for output stationary) it reads uninitialised memory; so it
does for output-stationary arrays, unless the C library clears memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil
from pathlib import Path

from msgspec.structs import replace

from hespas.backends.tool import (
    BuiltProgram,
    Interface,
    ToolTimer,
    built_program,
    program_path,
    refusal,
)
from hespas.base.figures import Text
from hespas.errors import UnsupportedError
from hespas.price.methods import EstimatorSpec
from hespas.price.systolic import (
    Dataflow,
    Product,
    SimulatorHardware,
    Systolic,
    SystolicArray,
    array_hardware,
    array_of,
    with_timer,
)

_WORKLOAD = "workload.txt"
_USUAL_LINE = "Conv 1 {k} {m} 1 {n} 1 1 0"
"""A product as a convolution of 1 x 1: m positions, k features in, n out."""

_FLAGS = {Dataflow.WEIGHT_STATIONARY: 1, Dataflow.OUTPUT_STATIONARY: 0}
_ENV = "/usr/bin/env"
_PROGRAM = "build/perf_model"
_BESIDE = ("dramsim3/configs", "dramsim3/libdramsim3.so")
"""The files that the program looks for beside its folder."""

_USUAL_ARGUMENTS = (
    "--chdir=build",
    f"./{Path(_PROGRAM).name}",
    *("-c", "1"),
    *("-sa_sz", "{rows}"),
    *("-vu_sz", "128"),
    *("-ws", "{dataflow}"),
    *("-f", "{clock_ghz}"),
    *("-i", "{workload}"),
    *("-o", "{output}"),
)
_ENVIRONMENTS: Mapping[Dataflow, Mapping[str, str]] = {
    Dataflow.WEIGHT_STATIONARY: {},
    Dataflow.OUTPUT_STATIONARY: {
        "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.perturb=255"
    },
}
"""The GNU C library fills new memory with the complement of ``perturb``: zeros."""

_ELEMENT_BYTES = 2
_INT_BITS = 31


def _prepare(
    product: Product,
    element_bytes: int,
    directory: Path,
    *,
    program: BuiltProgram,
    line: str,
    array: SystolicArray,
) -> Sequence[str]:
    """Write a product's workload; return the command.

    Raises `UnsupportedError` for a product that overflows its counters.
    """
    simulated = simulated_product(product, array)
    text = line.format(m=simulated.m, n=simulated.n, k=simulated.k)
    (directory / _WORKLOAD).write_text(f"{text}\n")
    values = {
        "workload": directory / _WORKLOAD,
        "rows": array.rows,
        "columns": array.columns,
        "dataflow": _FLAGS[array.dataflow],
        "clock_hz": f"{array.clock_hz:.12g}",
        "clock_ghz": f"{array.clock_hz / 1e9:.12g}",
        "element_bytes": element_bytes,
    }
    variables = _ENVIRONMENTS[array.dataflow]
    settings = [f"{name}={value}" for name, value in variables.items()]
    command = program.command(values, directory)
    return [_ENV, *settings, *command] if settings else command


def simulated_product(product: Product, array: SystolicArray) -> Product:
    """Return the product that COCOSSim simulates instead.

    For output-stationary arrays it ignores rows and columns that fill no array, so they are rounded
    up to whole arrays. Raises `UnsupportedError` if the byte count of a weight-stationary array
    exceeds 32 bits: (m n + m min(k, rows)) elements of 2 bytes.

    >>> array = SystolicArray(rows=128, columns=128, clock_hz=940e6,
    ...                       dataflow=Dataflow.OUTPUT_STATIONARY)
    >>> simulated_product(Product(m=300, n=1000, k=700), array)
    Product(m=384, n=1024, k=700)
    """
    match array.dataflow:
        case Dataflow.OUTPUT_STATIONARY:
            return Product(
                m=ceil(product.m / array.rows) * array.rows,
                n=ceil(product.n / array.columns) * array.columns,
                k=product.k,
            )
        case Dataflow.WEIGHT_STATIONARY:
            elements = product.m * (product.n + min(product.k, array.rows))
            if elements * _ELEMENT_BYTES >= 2**_INT_BITS:
                raise UnsupportedError(
                    f"COCOSSim counts the {elements * _ELEMENT_BYTES:,} bytes of {product.m} x "
                    f"{product.k} by {product.k} x {product.n} in 32 bits, which they exceed",
                    hint="use another method for this program",
                )
            return product


class CocossimHardware(SimulatorHardware, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hardware`` of the method ``cocossim``.

    ``product_line`` is the workload's line for a matrix product, with ``{m}``, ``{n}``, ``{k}``.
    """

    product_line: Text | None = None


def make(spec: EstimatorSpec) -> Systolic:
    """Return the estimator of the method ``cocossim``."""
    hardware = array_hardware(spec, "cocossim", CocossimHardware)
    array = array_of(hardware)
    interface = _interface(array)
    configured = (
        _with_usual_arguments(hardware, array, interface)
        if hardware.arguments is None
        else hardware
    )
    program = built_program(configured, interface)
    line = _USUAL_LINE if hardware.product_line is None else _checked_line(hardware.product_line)
    timer = ToolTimer(
        name=interface.name,
        method=interface.method,
        array=array,
        settings={
            "program": program.settings,
            "product_line": line,
            "environment": dict(_ENVIRONMENTS[array.dataflow]),
            "whole_folds": array.dataflow is Dataflow.OUTPUT_STATIONARY,
        },
        prepare=partial(_prepare, program=program, line=line, array=array),
        cycles=program.cycles,
        notes=_notes(line, program, array),
    )
    return with_timer(timer, hardware, spec)


def _with_usual_arguments(
    hardware: CocossimHardware, array: SystolicArray, interface: Interface
) -> CocossimHardware:
    """Return the configuration in which env calls the program in ``build``."""
    if array.rows != array.columns:
        raise refusal(
            f"COCOSSim's arrays are square, and this one has {array.rows} rows and "
            f"{array.columns} columns",
            "give arguments with {rows} and {columns} where your build takes both",
        )
    if _PROGRAM in hardware.files and hardware.binary in (None, "env", _ENV):
        return replace(hardware, binary=_ENV)
    if _PROGRAM in hardware.files:
        message = f"binary is {hardware.binary!r}, and files name {_PROGRAM} as well"
        raise refusal(message, "give one of the two")
    if hardware.binary in ("env", _ENV):
        raise refusal(
            f"binary is {hardware.binary}, and files name no {_PROGRAM} for it to start",
            "give the path of COCOSSim's perf_model as binary",
        )
    program = program_path(hardware.binary, interface)
    home = program.resolve().parent.parent
    neighbours = {name: str(home / name) for name in _BESIDE if (home / name).exists()}
    files = {_PROGRAM: str(program), **neighbours, **hardware.files}
    return replace(hardware, binary=_ENV, files=files)


def _interface(array: SystolicArray) -> Interface:
    columns = () if array.columns == array.rows else (("columns",),)
    return Interface(
        method="cocossim",
        name="COCOSSim",
        source="github.com/mc186/cocossim",
        placeholders={
            "workload": "the file with the product's line",
            "dataflow": "1 for weight stationary and 0 for output stationary",
            "rows": "the array's rows",
            "columns": "its columns",
            "clock_hz": "its clock",
            "clock_ghz": "the same in GHz",
            "element_bytes": "the size of an element",
            "output": "the path of answer_file",
        },
        needed=(("workload",), ("dataflow",), ("rows",), *columns),
        usual=_USUAL_ARGUMENTS,
        pattern="^Cycles ([0-9]+)$",
        answer_file="stats.txt",
    )


def _checked_line(line: str) -> str:
    try:
        shown = line.format(m="<m>", n="<n>", k="<k>")
    except (ValueError, KeyError, IndexError, AttributeError):
        shown = ""
    if not all(name in shown for name in ("<m>", "<n>", "<k>")):
        raise refusal(
            f"product_line is {line!r}",
            "give the line of a product of m x k by k x n, with {m}, {n} and {k}, such as "
            f'"{_USUAL_LINE}"',
        )
    return line


def _notes(line: str, program: BuiltProgram, array: SystolicArray) -> tuple[str, ...]:
    notes = [f"a product is the line '{line}'"]
    if line == _USUAL_LINE:
        notes = [f"{notes[0]}, a convolution of 1 x 1"]
    arguments = "".join(program.arguments)
    if "{element_bytes}" not in arguments:
        notes.append(f"an element takes {_ELEMENT_BYTES} bytes there, whatever the program's")
    if "{clock_" not in arguments:
        notes.append("the clock beside its memory's is that of its build or arguments")
    if array.dataflow is Dataflow.OUTPUT_STATIONARY:
        notes.append("rows and columns of results are rounded up to whole arrays")
    return tuple(notes)
