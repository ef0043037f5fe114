"""Bring a program and a system together."""

from __future__ import annotations

from hespas.errors import ConfigError
from hespas.hardware.presets import presets_that_fit
from hespas.hardware.system import System
from hespas.program.devices import communication_ops, with_device_count
from hespas.program.program import Program


def settled_program(program: Program, *, devices: int | None, system: System | None) -> Program:
    """Return the program for the devices it runs on; `DeviceCountError` where counts disagree.

    Raises `ConfigError` for a program that communicates where no system is given, naming the
    presets that fit.
    """
    count = None if system is None else system.device_count
    known = with_device_count(program, requested=devices, system=count)
    needed = known.declared_devices or 1
    if system is not None or needed == 1 or not any(True for _ in communication_ops(known)):
        return known
    fitting = presets_that_fit(needed)
    raise ConfigError(
        f"the program communicates among {needed} devices, but no system is given",
        location=program.source,
        hint=f"give --system ({', '.join(fitting) or f'no preset has {needed} devices'}), "
        "or price its computation alone with hespas estimate",
    )
