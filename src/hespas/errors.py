"""Every error that hespas raises on purpose.

An error says what is wrong, where, and what mends it. The command line prints it as one
line and exits with code 2; a traceback appears only with ``--debug``.
"""

from __future__ import annotations


class HespasError(Exception):
    """The root: a message, the place it speaks of, and the mend.

    >>> str(HespasError("peak_flops is 0", place="a100.json", mend="give a positive FLOP/s"))
    'a100.json: peak_flops is 0; give a positive FLOP/s'
    """

    def __init__(self, message: str, *, place: str = "", mend: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.mend = mend

    def __str__(self) -> str:
        place = f"{self.place}: " if self.place else ""
        mend = f"; {self.mend}" if self.mend else ""
        return f"{place}{self.message}{mend}"


class ProgramError(HespasError):
    """The program cannot be read, or is not what it claims to be."""


class UnsupportedError(ProgramError):
    """The program is valid, but holds something that hespas has no model of."""


class UnpartitionedError(ProgramError):
    """The program is sharded but not yet partitioned: it has no per-device form."""


class CostError(HespasError):
    """An operation whose work is not known."""


class ConfigError(HespasError):
    """A configuration file, a preset or an option is wrong."""


class HardwareError(HespasError):
    """A device or a system is described with impossible or missing figures."""


class DeviceCountError(HespasError):
    """The number of devices disagrees with the program, its groups or the system."""


class TraceError(HespasError):
    """A trace cannot be read or written."""


class AlgorithmError(HespasError):
    """A collective algorithm is malformed, or does not compute its collective."""


class SimulationError(HespasError):
    """The simulation cannot proceed, or the job asks for what the model does not cover."""


class CacheError(HespasError):
    """The estimator cache is damaged or unusable."""


class OutputError(HespasError):
    """An output file or directory cannot be written as asked."""


class ToolError(HespasError):
    """Another program, such as a compiler or a simulator, is missing or failed."""


class ExtraMissingError(ToolError):
    """Something needs a package that the base install leaves out."""

    def __init__(self, what: str, *, extra: str) -> None:
        super().__init__(
            f"{what} needs packages that are not installed",
            mend=f"pip install 'hespas[{extra}]'",
        )


class MeasurementError(HespasError):
    """Measurements are missing, contradict each other, or lie below what physics allows."""
