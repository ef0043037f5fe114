"""Ask another program how many cycles a product takes, each product once."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Protocol

from hespas.base.process import Limits, run_program, scratch_directory
from hespas.base.progress import Stage, stage
from hespas.errors import ExtraMissingError, HespasError, ImpossibleTimeError, ToolError
from hespas.price.systolic import (
    Product,
    SimulatorHardware,
    SystolicArray,
    SystolicHardware,
    array_parameters,
    array_text,
)

LIMITS = Limits(time_s=1800)
_LONG_S = 10.0
log = logging.getLogger("hespas")


class Tool(Protocol):
    """A simulator of systolic arrays, by the files that it reads and writes."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def method(self) -> str:
        """The name that configuration files give it."""
        ...

    @property
    def parameters(self) -> Mapping[str, object]:
        """Everything besides array and product that decides the answer, as JSON values."""
        ...

    def prepare(self, product: Product, element_bytes: int, directory: Path) -> Sequence[str]:
        """Write its inputs to ``directory`` and return the command that runs it there."""
        ...

    def cycles(self, directory: Path) -> float:
        """Read the cycles that it found; `HespasError` where they aren't there."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTimer:
    """Times products by running a tool, in a directory of its own each time.

    The directory of a run that failed is kept, with its log; that of one that went well, or that
    was refused before it began, is not. ``simulates_all`` tools are given a product whole; the
    others get the part of one array of several. ``notes`` are further assumptions.
    ``simulated_bytes_per_s`` is how fast the tool gets through operands and results, where that is
    known: a product that takes long is announced.
    """

    tool: Tool
    array: SystolicArray
    simulates_all: bool = False
    notes: tuple[str, ...] = ()
    simulated_bytes_per_s: float = inf
    times_s: dict[tuple[Product, int], float] = field(
        default_factory=dict[tuple[Product, int], float]
    )

    @property
    def method(self) -> str:
        """Its name in configuration files."""
        return self.tool.method

    @property
    def parameters(self) -> Mapping[str, object]:
        """The array's, and the tool's own."""
        return {**array_parameters(self.array), **self.tool.parameters}

    @property
    def assumption(self) -> str:
        """What it assumes."""
        cycles = (
            f"{self.method}: matrix products take the cycles that {self.tool.name} gives each by "
            f"itself on {array_text(self.array)}"
        )
        return "; ".join((cycles, *self.notes))

    def time_s(self, product: Product, element_bytes: int) -> float:
        """Return cycles over the clock; `ToolError`, naming the log, where the tool fails."""
        key = (product, element_bytes)
        if key not in self.times_s:
            self.times_s[key] = self._run(product, element_bytes) / self.array.clock_hz
        return self.times_s[key]

    def _run(self, product: Product, element_bytes: int) -> float:
        columns = product.n if self.simulates_all else self.array.columns_each(product)
        shared = Product(m=product.m, n=columns, k=product.k)
        what = f"{_shape(shared)} by {self.tool.name}"
        with scratch_directory(self.method) as directory:
            command = self._prepared(shared, element_bytes, directory)
            with stage(Stage.ESTIMATE, what, kind=self.method, size=shared.multiplications):
                self._announce(shared, element_bytes)
                run_program(command, name=self.tool.name, directory=directory, limits=LIMITS)
            found = self._cycles(directory)
            self._check(found, product, directory)
            return found

    def _cycles(self, directory: Path) -> float:
        try:
            return self.tool.cycles(directory)
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError) as error:
            raise ToolError(
                f"{self.tool.name}'s answer cannot be read: {error}", location=str(directory)
            ) from error

    def _prepared(self, product: Product, element_bytes: int, directory: Path) -> Sequence[str]:
        try:
            return self.tool.prepare(product, element_bytes, directory)
        except HespasError:
            # Nothing ran, so that there is no log to look at.
            shutil.rmtree(directory, ignore_errors=True)
            raise

    def _announce(self, product: Product, element_bytes: int) -> None:
        elements = product.m * product.k + product.k * product.n + product.m * product.n
        expected_s = elements * element_bytes / self.simulated_bytes_per_s
        if expected_s >= _LONG_S:
            log.warning(
                "%s simulates %s, which takes some %.0f s; it is ended after %.0f s",
                self.tool.name,
                _shape(product),
                expected_s,
                LIMITS.time_s,
            )

    def _check(self, found: float, product: Product, directory: Path) -> None:
        """Refuse what no array can do: whatever was read there, it is not the product's cycles."""
        least = product.multiplications / self.array.multipliers
        if not least <= found < inf:
            raise ImpossibleTimeError(
                f"{self.tool.name} gives {found:,.10g} cycles for {_shape(product)}, where "
                f"{self.array.multipliers:,} multipliers need {least:,.10g} at least",
                location=str(directory),
            )


def _shape(product: Product) -> str:
    return f"{product.m} x {product.k} by {product.k} x {product.n}"


def interpreter(hardware: SystolicHardware, package: str, *, what: str, extra: str) -> str:
    """Return the Python that has ``package``: the configuration's ``binary``, or this one.

    A ``binary`` that is a simulator's own program is none. Raises `ExtraMissingError` where no
    other is named and this one lacks the package.
    """
    if hardware.binary is not None and not isinstance(hardware, SimulatorHardware):
        return hardware.binary
    if find_spec(package) is None:
        raise ExtraMissingError(what, extra=extra)
    return sys.executable


def read_text(path: Path, *, name: str) -> str:
    """Return a file that a tool should have written; `HespasError` where it hasn't."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise HespasError(f"{name} wrote no {path.name}", location=str(path.parent)) from error
