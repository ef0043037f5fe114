"""The errors that hespas raises.

An error says what is wrong, where, and how to fix it. The command line prints it as one line and
exits with code 2; a traceback appears only with ``--debug``.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_OPTION = re.compile("\u27e8([a-z0-9_]+)\u27e9")


def option(name: str) -> str:
    """Return an option's marker for the text of an error.

    ``name`` is the option's field name. Errors are raised far from where a user gave the option, so
    they can't know its spelling: `HespasError.text` replaces the marker by a flag, a key or an
    argument.
    """
    return f"\u27e8{name}\u27e9"


def spelled(text: str, spell: Callable[[str], str]) -> str:
    """Spell the marked options of a text.

    >>> spelled(f"give {option('node')}", lambda name: f"--{name}")
    'give --node'
    """
    return _OPTION.sub(lambda match: spell(match[1]), text)


class HespasError(Exception):
    """The base of all errors: message, location and hint.

    >>> str(HespasError("peak_flops is 0", location="a100.json", hint="give a positive FLOP/s"))
    'a100.json: peak_flops is 0; give a positive FLOP/s'
    >>> error = HespasError("no device is given", hint=f"give {option('node')}")
    >>> str(error)
    'no device is given; give node'
    >>> error.text(lambda name: f"--{name}")
    'no device is given; give --node'
    >>> error.hint
    'give node'

    ``marked_message`` and ``marked_hint`` are the texts with the markers of `option`, for an error
    that passes them on.
    """

    def __init__(self, message: str, *, location: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.marked_message = message
        self.location = location
        self.marked_hint = hint

    @property
    def message(self) -> str:
        """What is wrong, with options spelled as in Python."""
        return spelled(self.marked_message, str)

    @property
    def hint(self) -> str:
        """How to fix it, with options spelled as in Python."""
        return spelled(self.marked_hint, str)

    def text(self, spell: Callable[[str], str]) -> str:
        """Return the error as one line, with spelled options."""
        location = f"{self.location}: " if self.location else ""
        hint = f"; {self.marked_hint}" if self.marked_hint else ""
        return spelled(f"{location}{self.marked_message}{hint}", spell)

    def __str__(self) -> str:
        return self.text(str)


class ProgramError(HespasError):
    """The program cannot be read, or contradicts itself."""


class UnsupportedError(ProgramError):
    """The valid program contains an operation without a model."""


class UnpartitionedError(ProgramError):
    """The sharded program is not yet partitioned for one device."""


class CostError(HespasError):
    """The work of an operation is unknown."""


class ConfigError(HespasError):
    """A configuration file, a preset or an option is wrong."""


def refuse(is_wrong: object, message: str, hint: str = "", *, location: str = "") -> None:
    """Raise `ConfigError` where something is wrong.

    >>> refuse(0 > 1, "size is 0", "give 1 or more")
    """
    if is_wrong:
        raise ConfigError(message, location=location, hint=hint)


class HardwareError(HespasError):
    """The description of hardware has impossible or missing figures."""


class DeviceCountError(HespasError):
    """The number of devices disagrees with program or system."""


class TraceError(HespasError):
    """A trace cannot be read or written."""


class AlgorithmError(HespasError):
    """A collective algorithm is malformed or computes something else."""


class SimulationError(HespasError):
    """The simulation cannot proceed, or the job needs other models."""


class CacheError(HespasError):
    """The cache of estimates is damaged or unusable."""


class OutputError(HespasError):
    """An output file or directory cannot be written as requested."""


class ToolError(HespasError):
    """Another program, such as a compiler, is missing or failed."""


class TimeLimitError(ToolError):
    """Another program took longer than it may."""


class ImpossibleTimeError(ToolError):
    """Another program answered an impossibly short time."""


class ExtraMissingError(ToolError):
    """A feature needs packages of an extra."""

    def __init__(self, feature: str, *, extra: str) -> None:
        super().__init__(
            f"{feature} needs packages that are not installed",
            hint=f"pip install 'hespas[{extra}]'",
        )


class MeasurementError(HespasError):
    """Measurements are missing, contradictory or impossibly fast."""
