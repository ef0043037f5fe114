"""Ask another program for the cycles of each product, once.

Some programs are Python packages; others are built by users. Builds differ in their flags and in
their output, so a configuration can describe both; the defaults are those of the tested builds.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from hashlib import sha256
from importlib.util import find_spec
from itertools import permutations
from math import inf
from pathlib import Path, PurePosixPath
from string import Formatter

from hespas.base.frozen import frozen
from hespas.base.process import LOG_NAME, Limits, run_program, scratch_directory
from hespas.base.progress import Stage, stage
from hespas.base.suggest import suggestion
from hespas.errors import (
    ConfigError,
    ExtraMissingError,
    HespasError,
    ImpossibleTimeError,
    ToolError,
)
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


@frozen
class ToolTimer:
    """Times products by runs of a tool in own directories.

    ``prepare`` writes the tool's inputs, for a product and the size of an element, to a directory
    and returns the command that runs it there; ``cycles`` reads its answer. ``settings`` are
    everything besides array and product that decides the answer, as JSON values. The directory of a
    failed run is kept, with its log. ``simulates_all`` tools get a whole product; the others get
    the part of one array of several. ``notes`` are further assumptions. ``simulated_bytes_per_s``
    is the tool's speed in operands and results, if known: a long simulation is announced.
    """

    name: str
    method: str
    array: SystolicArray
    prepare: Callable[[Product, int, Path], Sequence[str]]
    cycles: Callable[[Path], float]
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    simulates_all: bool = False
    notes: tuple[str, ...] = ()
    simulated_bytes_per_s: float = inf
    times_s: dict[tuple[Product, int], float] = field(
        default_factory=dict[tuple[Product, int], float]
    )

    @property
    def parameters(self) -> Mapping[str, object]:
        """The parameters of the array and of the tool."""
        return {**array_parameters(self.array), **self.settings}

    @property
    def assumption(self) -> str:
        """The assumptions of the method."""
        cycles = (
            f"{self.method}: matrix products take the cycles that {self.name} gives each by "
            f"itself on {array_text(self.array)}"
        )
        return "; ".join((cycles, *self.notes))

    def time_s(self, product: Product, element_bytes: int) -> float:
        """Return cycles over the clock; `ToolError` naming the log."""
        key = (product, element_bytes)
        if key not in self.times_s:
            self.times_s[key] = self._run(product, element_bytes) / self.array.clock_hz
        return self.times_s[key]

    def _run(self, product: Product, element_bytes: int) -> float:
        columns = product.n if self.simulates_all else self.array.columns_each(product)
        shared = Product(m=product.m, n=columns, k=product.k)
        subject = f"{_shape(shared)} by {self.name}"
        with scratch_directory(self.method) as directory:
            try:
                command = self.prepare(shared, element_bytes, directory)
            except HespasError:
                # Nothing ran, so there is no log to look at.
                shutil.rmtree(directory, ignore_errors=True)
                raise
            with stage(Stage.ESTIMATE, subject, kind=self.method, size=shared.multiplications):
                self._announce(shared, element_bytes)
                run_program(command, name=self.name, directory=directory, limits=LIMITS)
            try:
                cycles = self.cycles(directory)
            except (OSError, ValueError, LookupError, TypeError, ArithmeticError) as error:
                raise ToolError(
                    f"{self.name}'s answer cannot be read: {error}", location=str(directory)
                ) from error
            # A count that no array can reach is not the product's cycles.
            least = product.multiplications / self.array.multipliers
            if not least <= cycles < inf:
                raise ImpossibleTimeError(
                    f"{self.name} gives {cycles:,.10g} cycles for {_shape(product)}, where "
                    f"{self.array.multipliers:,} multipliers need {least:,.10g} at least",
                    location=str(directory),
                )
            return cycles

    def _announce(self, product: Product, element_bytes: int) -> None:
        elements = product.m * product.k + product.k * product.n + product.m * product.n
        expected_s = elements * element_bytes / self.simulated_bytes_per_s
        if expected_s >= _LONG_S:
            log.warning(
                "%s simulates %s, which takes some %.0f s; it is ended after %.0f s",
                self.name,
                _shape(product),
                expected_s,
                LIMITS.time_s,
            )


def _shape(product: Product) -> str:
    return f"{product.m} x {product.k} by {product.k} x {product.n}"


def interpreter(hardware: SystolicHardware, package: str, *, method: str, extra: str) -> str:
    """Return the Python that has ``package``.

    It is the configuration's ``binary``, or this one. A ``binary`` that is a simulator's own
    program does not count.
    """
    if hardware.binary is not None and not isinstance(hardware, SimulatorHardware):
        return hardware.binary
    if find_spec(package) is None:
        raise ExtraMissingError(f"method {method!r}", extra=extra)
    return sys.executable


def read_text(path: Path, *, name: str) -> str:
    """Return a tool's output file; `HespasError` if missing."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise HespasError(f"{name} wrote no {path.name}", location=str(path.parent)) from error


LOCATION = "perf_estimator.hardware"


def refusal(message: str, hint: str = "") -> ConfigError:
    """Return the error for an invalid simulator configuration."""
    return ConfigError(message, location=LOCATION, hint=hint)


@frozen
class Interface:
    """A simulator's interface, independent of its build.

    ``placeholders`` are those of its arguments, with descriptions. The arguments must contain one
    placeholder of each group of ``needed``. ``usual`` are the default arguments, ``pattern`` finds
    the cycles, and arguments with ``{output}`` write them to ``answer_file``, unless the
    configuration differs.
    """

    method: str
    name: str
    source: str
    placeholders: Mapping[str, str]
    needed: Sequence[Sequence[str]]
    usual: tuple[str, ...]
    pattern: str
    answer_file: str | None = None


@frozen
class BuiltProgram:
    """A simulator's program, arguments and pattern of cycles."""

    name: str
    binary: Path
    arguments: tuple[str, ...]
    pattern: re.Pattern[str]
    answer_file: str | None
    files: Mapping[str, Path]

    @property
    def settings(self) -> Mapping[str, object]:
        """All fields as JSON values, files by their content."""
        return {
            "binary": digest(self.binary),
            "arguments": list(self.arguments),
            "cycles_pattern": self.pattern.pattern,
            "answer_file": self.answer_file,
            "files": {name: digest(path) for name, path in sorted(self.files.items())},
        }

    def command(self, values: Mapping[str, object], directory: Path) -> list[str]:
        """Link the files into ``directory`` and return the filled-in command."""
        for file, path in self.files.items():
            name = directory / file
            try:
                name.parent.mkdir(parents=True, exist_ok=True)
                name.symlink_to(path)
            except OSError as error:
                message = f"files names {name.name!r}, which hespas writes itself"
                raise refusal(message, "leave it out") from error
        output = directory / (self.answer_file or LOG_NAME)
        output.parent.mkdir(parents=True, exist_ok=True)
        filled = {**values, "output": output}
        return [str(self.binary), *(text.format_map(filled) for text in self.arguments)]

    def cycles(self, directory: Path) -> float:
        """Return the only count that the pattern finds; `ToolError` otherwise."""
        location = directory / (self.answer_file or LOG_NAME)
        text = read_text(location, name=self.name)
        counts = sorted({str(match[1]) for match in self.pattern.finditer(text)})
        pattern = f"cycles_pattern {self.pattern.pattern!r}"
        if not counts:
            raise ToolError(
                f"nothing in {self.name}'s answer fits {pattern}",
                location=str(location),
                hint="compare the two",
            )
        if len(counts) > 1:
            raise ToolError(
                f"{len(counts)} different counts in {self.name}'s answer fit {pattern}: "
                f"{', '.join(counts[:4])}",
                location=str(location),
                hint="make it fit one of them",
            )
        try:
            return float(counts[0])
        except ValueError:
            raise ToolError(
                f"{pattern} finds {counts[0]!r}, which is no number", location=str(location)
            ) from None


def built_program(hardware: SimulatorHardware, interface: Interface) -> BuiltProgram:
    """Return the program of a configuration.

    Raises `ConfigError` for missing or malformed entries, and `ToolError` for a missing program.
    """
    if hardware.sram_bandwidth is not None:
        message = f"sram_bandwidth has no effect on method {interface.method!r}"
        raise refusal(message, "drop it")
    binary = program_path(hardware.binary, interface)
    arguments = interface.usual if hardware.arguments is None else hardware.arguments
    placeholders = {name for text in arguments for name in _placeholders(text)}
    answer_file = hardware.answer_file
    if answer_file is None and "output" in placeholders:
        answer_file = interface.answer_file
    _check_arguments(placeholders, answer_file, interface)
    pattern = _compiled_pattern(hardware.cycles_pattern or interface.pattern)
    _check_files(hardware.files, answer_file)
    files = {name: Path(path).absolute() for name, path in sorted(hardware.files.items())}
    return BuiltProgram(
        name=interface.name,
        binary=binary,
        arguments=arguments,
        pattern=pattern,
        answer_file=answer_file,
        files=files,
    )


def digest(path: Path) -> str:
    """Return a digest of a file, or of a folder's files and their names."""
    try:
        if not path.is_dir():
            return sha256(path.read_bytes()).hexdigest()
        files = sorted(file for file in path.rglob("*") if file.is_file())
        parts = (f"{file.relative_to(path)}\0{digest(file)}\n" for file in files)
        return sha256("".join(parts).encode()).hexdigest()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", location=str(path)) from error


def program_path(binary: str | None, interface: Interface) -> Path:
    """Return the program, here or on the PATH."""
    if binary is None:
        raise refusal(
            f"method {interface.method!r} needs binary, the path of {interface.name}'s program",
            f"build it from {interface.source} and give its path",
        )
    local_path = Path(binary).absolute()
    if local_path.is_file() and not os.access(local_path, os.X_OK):
        raise ToolError(
            f"{interface.name}'s program is not executable",
            location=str(local_path),
            hint="chmod +x it",
        )
    path = str(local_path) if local_path.is_file() else shutil.which(binary)
    if path is None:
        raise ToolError(
            f"there is no program {binary}, neither here nor on the PATH",
            location=interface.name,
            hint=f"build it from {interface.source} and give its path as binary",
        )
    return Path(path).absolute()


def _check_arguments(placeholders: set[str], answer_file: str | None, interface: Interface) -> None:
    for name in sorted(placeholders - set(interface.placeholders)):
        doubled = "braces that mean themselves are doubled"
        hint = f"{suggestion(name, interface.placeholders)}; {doubled}"
        raise refusal(f"arguments hold {{{name}}}", hint)
    for group in interface.needed:
        if not placeholders.intersection(group):
            lacking = " or ".join(f"{{{name}}}, {interface.placeholders[name]}" for name in group)
            raise refusal(f"arguments lack {lacking}, for {interface.name}", "add it")
    if "output" in placeholders and answer_file is None:
        message = "arguments hold {output}, the path of answer_file, which is not given"
        raise refusal(message, "name the answer_file")


def _placeholders(text: str) -> list[str]:
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        message = f"the argument {text!r} is malformed: {error}"
        raise refusal(message, "double braces that mean themselves") from None
    return [
        name + (f"!{how}" if how else "") + (f":{form}" if form else "")
        for _, name, form, how in parts
        if name is not None
    ]


def _compiled_pattern(text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text, re.MULTILINE)
    except re.error as error:
        raise refusal(f"cycles_pattern is {text!r}: {error}") from None
    if pattern.groups != 1:
        message = f"cycles_pattern {text!r} has {pattern.groups} groups"
        raise refusal(message, "put one pair of parentheses, around the number")
    return pattern


def _check_files(files: Mapping[str, str], answer_file: str | None) -> None:
    names = [*files, *([] if answer_file is None else [answer_file])]
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise refusal(
                f"{name!r} is no name beneath the directory that the program is started in",
                "give a relative one without '..'",
            )
    for name, inner_name in permutations([*names, LOG_NAME], 2):
        if PurePosixPath(inner_name).is_relative_to(name):
            message = f"files or answer_file name {name!r}, where {inner_name!r} is written"
            raise refusal(message, "give them different names")
