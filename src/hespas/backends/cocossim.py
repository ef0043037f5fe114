"""``method: cocossim``: cycles from COCOSSim (Apache-2.0, github.com/mc186/cocossim).

What is known of it here: a layer's line ``Conv B Cin H W Cout [kernel [stride [padding]]]``, and
the flag ``-ws``, 1 for weight stationary and 0 for output stationary, without which its build
8da7e20 takes either, from memory that nothing has set. All else of a build, the configuration says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hespas.backends.built_program import LOCATION, BuiltProgram, Interface, built_program
from hespas.backends.tool import ToolTimer
from hespas.config.figures import Text
from hespas.errors import ConfigError
from hespas.estimate.methods import EstimatorSpec
from hespas.estimate.systolic.array import Dataflow, Product, SystolicArray
from hespas.estimate.systolic.method import (
    SimulatorHardware,
    Systolic,
    array_hardware,
    array_of,
    with_timer,
)

_WORKLOAD = "workload.txt"
_USUAL_LINE = "Conv 1 {k} {m} 1 {n} 1 1 0"
"""A product as a convolution of 1 x 1: m places, k features in, n out."""

_FLAGS = {Dataflow.WEIGHT_STATIONARY: 1, Dataflow.OUTPUT_STATIONARY: 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cocossim:
    """COCOSSim, as somebody built it."""

    program: BuiltProgram
    product_line: str
    array: SystolicArray

    @property
    def name(self) -> str:
        """What people call it."""
        return "COCOSSim"

    @property
    def method(self) -> str:
        """Its name in configuration files."""
        return "cocossim"

    @property
    def parameters(self) -> Mapping[str, object]:
        """The program, and how a product is written."""
        return {"program": dict(self.program.parameters), "product_line": self.product_line}

    def prepare(self, product: Product, element_bytes: int, directory: Path) -> Sequence[str]:
        """Write the workload, a line for the product."""
        line = self.product_line.format(m=product.m, n=product.n, k=product.k)
        (directory / _WORKLOAD).write_text(f"{line}\n")
        values = {
            "workload": directory / _WORKLOAD,
            "rows": self.array.rows,
            "columns": self.array.columns,
            "dataflow": _FLAGS[self.array.dataflow],
            "clock_hz": f"{self.array.clock_hz:.12g}",
            "clock_ghz": f"{self.array.clock_hz / 1e9:.12g}",
            "element_bytes": element_bytes,
        }
        return self.program.command(values, directory)

    def cycles(self, directory: Path) -> float:
        """Read what the pattern finds."""
        return self.program.cycles(directory)


class CocossimHardware(SimulatorHardware, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hardware`` of the method ``cocossim``.

    ``product_line`` is the workload's line for a matrix product, with ``{m}``, ``{n}``, ``{k}``.
    """

    product_line: Text | None = None


def make(spec: EstimatorSpec) -> Systolic:
    """Return the estimator of the method ``cocossim``.

    Raises `ConfigError` for a configuration that lacks a part of how the program is called, and
    `ToolError` where there is no program.
    """
    hardware = array_hardware(spec, "cocossim")
    if not isinstance(hardware, CocossimHardware):
        raise ConfigError(
            "the configuration is of another method", hint="set perf_estimator.method to cocossim"
        )
    array = array_of(hardware)
    program = built_program(hardware, _interface(array))
    line = _USUAL_LINE if hardware.product_line is None else _checked_line(hardware.product_line)
    timer = ToolTimer(
        tool=Cocossim(program=program, product_line=line, array=array),
        array=array,
        notes=_notes(line, program, array),
    )
    return with_timer(timer, hardware, spec)


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
        example='["--layers", "{workload}", "--size", "{rows}", "-ws", "{dataflow}"]',
    )


def _checked_line(line: str) -> str:
    try:
        shown = line.format(m="<m>", n="<n>", k="<k>")
    except (ValueError, KeyError, IndexError, AttributeError):
        shown = ""
    if not all(name in shown for name in ("<m>", "<n>", "<k>")):
        raise ConfigError(
            f"product_line is {line!r}",
            location=LOCATION,
            hint="give the line of a product of m x k by k x n, with {m}, {n} and {k}, such as "
            f'"{_USUAL_LINE}"',
        )
    return line


def _notes(line: str, program: BuiltProgram, array: SystolicArray) -> tuple[str, ...]:
    written = f"a product is the line '{line}'"
    if line == _USUAL_LINE:
        written += ", a convolution of 1 x 1, which was not checked against a build"
    arguments = "".join(program.arguments)
    own = [] if "{element_bytes}" in arguments else ["size of an element"]
    own += [] if "{clock_" in arguments else ["clock beside its memory's"]
    notes = [written]
    if own:
        notes.append(f"the {' and the '.join(own)} are those of its build or arguments")
    if array.dataflow is Dataflow.OUTPUT_STATIONARY:
        notes.append(
            "its answers for output-stationary arrays vary (build 8da7e20: 6,038 to 6,158 cycles "
            "in four runs of 128 x 128 x 128), and each product is asked for once"
        )
    return tuple(notes)
