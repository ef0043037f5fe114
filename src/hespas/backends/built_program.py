"""Simulators that somebody built: how one is called, and where in its answer the cycles stand.

Builds differ in their flags and in what they print, so that a configuration can say both; what it
doesn't say is as in the builds that were run.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import permutations
from pathlib import Path, PurePosixPath
from string import Formatter

from hespas.backends.tool import read_text
from hespas.base.process import LOG_NAME
from hespas.base.suggest import suggestion
from hespas.errors import ConfigError, ToolError
from hespas.price.systolic import SimulatorHardware

LOCATION = "perf_estimator.hardware"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """What is known of a simulator, whatever its build.

    ``placeholders`` are those of its arguments, with what they stand for. Of each group of
    ``needed`` the arguments must hold one. ``usual`` are its arguments, ``pattern`` finds the
    cycles, and ``answer_file`` is where arguments with ``{output}`` write them, unless the
    configuration says otherwise.
    """

    method: str
    name: str
    source: str
    placeholders: Mapping[str, str]
    needed: Sequence[Sequence[str]]
    usual: tuple[str, ...]
    pattern: str
    answer_file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltProgram:
    """A simulator's program, its arguments, and the pattern that finds the cycles.

    ``digests`` are those of the program, under "", and of ``files`` under their names.
    """

    name: str
    binary: Path
    arguments: tuple[str, ...]
    pattern: re.Pattern[str]
    answer_file: str | None
    files: Mapping[str, Path]
    digests: Mapping[str, str]

    @property
    def parameters(self) -> Mapping[str, object]:
        """All of it as JSON values, files by their content."""
        return {
            "binary": self.digests[""],
            "arguments": list(self.arguments),
            "cycles_pattern": self.pattern.pattern,
            "answer_file": self.answer_file,
            "files": {name: self.digests[name] for name in sorted(self.files)},
        }

    def command(self, values: Mapping[str, object], directory: Path) -> list[str]:
        """Lay the files into ``directory`` and return the command with ``values`` filled in."""
        for name, path in self.files.items():
            self._link(directory / name, path)
        output = directory / (self.answer_file or LOG_NAME)
        output.parent.mkdir(parents=True, exist_ok=True)
        filled = {**values, "output": output}
        return [str(self.binary), *(text.format_map(filled) for text in self.arguments)]

    def _link(self, name: Path, path: Path) -> None:
        try:
            name.parent.mkdir(parents=True, exist_ok=True)
            name.symlink_to(path)
        except OSError as error:
            raise ConfigError(
                f"files names {name.name!r}, which hespas writes itself",
                location=LOCATION,
                hint="leave it out",
            ) from error

    def cycles(self, directory: Path) -> float:
        """Return the one count that the pattern finds; `ToolError` for none, or several."""
        location = directory / (self.answer_file or LOG_NAME)
        text = read_text(location, name=self.name)
        found = sorted({str(match[1]) for match in self.pattern.finditer(text)})
        if not found:
            raise ToolError(
                f"nothing in {self.name}'s answer fits cycles_pattern {self.pattern.pattern!r}",
                location=str(location),
                hint="compare the two",
            )
        if len(found) > 1:
            raise ToolError(
                f"{len(found)} different counts in {self.name}'s answer fit cycles_pattern "
                f"{self.pattern.pattern!r}: {', '.join(found[:4])}",
                location=str(location),
                hint="make it fit one of them",
            )
        try:
            return float(found[0])
        except ValueError:
            raise ToolError(
                f"cycles_pattern {self.pattern.pattern!r} finds {found[0]!r}, which is no number",
                location=str(location),
            ) from None


def built_program(hardware: SimulatorHardware, interface: Interface) -> BuiltProgram:
    """Return the program that the configuration names.

    Raises `ConfigError` for what is missing or malformed, saying what it is, and `ToolError` where
    there is no such program.
    """
    if hardware.sram_bandwidth is not None:
        raise ConfigError(
            f"sram_bandwidth has no effect on method {interface.method!r}",
            location=LOCATION,
            hint="drop it",
        )
    binary = program_path(hardware.binary, interface)
    arguments = interface.usual if hardware.arguments is None else hardware.arguments
    answer_file = _answer_file(hardware.answer_file, arguments, interface)
    _check_arguments(arguments, answer_file, interface)
    pattern = _pattern(hardware.cycles_pattern or interface.pattern)
    files = _files(hardware.files, answer_file)
    paths = {"": binary, **files}
    return BuiltProgram(
        name=interface.name,
        binary=binary,
        arguments=arguments,
        pattern=pattern,
        answer_file=answer_file,
        files=files,
        digests={name: digest(path) for name, path in paths.items()},
    )


def digest(path: Path) -> str:
    """Return a digest of a file's content, or of all files in a folder with their names."""
    try:
        if not path.is_dir():
            return sha256(path.read_bytes()).hexdigest()
        inside = sorted(each for each in path.rglob("*") if each.is_file())
        parts = (f"{each.relative_to(path)}\0{digest(each)}\n" for each in inside)
        return sha256("".join(parts).encode()).hexdigest()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", location=str(path)) from error


def program_path(named: str | None, interface: Interface) -> Path:
    """Return the program of that name, here or on the PATH.

    Raises `ConfigError` where no name is given, `ToolError` where there is no such program.
    """
    if named is None:
        raise ConfigError(
            f"method {interface.method!r} needs binary, the path of {interface.name}'s program",
            location=LOCATION,
            hint=f"build it from {interface.source} and give its path",
        )
    here = Path(named).absolute()
    if here.is_file() and not os.access(here, os.X_OK):
        raise ToolError(
            f"{interface.name}'s program is not executable", location=str(here), hint="chmod +x it"
        )
    found = str(here) if here.is_file() else shutil.which(named)
    if found is None:
        raise ToolError(
            f"there is no program {named}, neither here nor on the PATH",
            location=interface.name,
            hint=f"build it from {interface.source} and give its path as binary",
        )
    return Path(found).absolute()


def _answer_file(given: str | None, arguments: Sequence[str], interface: Interface) -> str | None:
    writes = any("output" in _placeholders(text) for text in arguments)
    return interface.answer_file if given is None and writes else given


def _check_arguments(
    arguments: Sequence[str], answer_file: str | None, interface: Interface
) -> None:
    held = {name for text in arguments for name in _placeholders(text)}
    for name in sorted(held - set(interface.placeholders)):
        raise ConfigError(
            f"arguments hold {{{name}}}",
            location=LOCATION,
            hint=f"{suggestion(name, interface.placeholders)}; braces that mean themselves are "
            "doubled",
        )
    for group in interface.needed:
        if not held.intersection(group):
            lacking = " or ".join(f"{{{name}}}, {interface.placeholders[name]}" for name in group)
            raise ConfigError(
                f"arguments lack {lacking}, for {interface.name}",
                location=LOCATION,
                hint="add it",
            )
    if "output" in held and answer_file is None:
        raise ConfigError(
            "arguments hold {output}, the path of answer_file, which is not given",
            location=LOCATION,
            hint="name the answer_file",
        )


def _placeholders(text: str) -> list[str]:
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise ConfigError(
            f"the argument {text!r} is malformed: {error}",
            location=LOCATION,
            hint="double braces that mean themselves",
        ) from None
    return [
        name + (f"!{how}" if how else "") + (f":{form}" if form else "")
        for _, name, form, how in parts
        if name is not None
    ]


def _pattern(given: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(given, re.MULTILINE)
    except re.error as error:
        raise ConfigError(f"cycles_pattern is {given!r}: {error}", location=LOCATION) from None
    if pattern.groups != 1:
        raise ConfigError(
            f"cycles_pattern {given!r} has {pattern.groups} groups",
            location=LOCATION,
            hint="put one pair of parentheses, around the number",
        )
    return pattern


def _files(files: Mapping[str, str], answer_file: str | None) -> dict[str, Path]:
    written = [] if answer_file is None else [answer_file]
    for name in [*files, *written]:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ConfigError(
                f"{name!r} is no name beneath the directory that the program is started in",
                location=LOCATION,
                hint="give a relative one without '..'",
            )
    for name, other in permutations([*files, *written, LOG_NAME], 2):
        if PurePosixPath(other).is_relative_to(name):
            raise ConfigError(
                f"files or answer_file name {name!r}, and {other!r} is to stand there",
                location=LOCATION,
                hint="give them names apart",
            )
    return {name: Path(path).absolute() for name, path in sorted(files.items())}
