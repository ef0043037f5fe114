"""Settle the number of devices of a program from a system, the user and the program itself."""

from __future__ import annotations

from hespas.errors import ConfigError
from hespas.hardware.presets import presets_that_fit
from hespas.hardware.system import System
from hespas.program.devices import communication_ops, with_device_count
from hespas.program.program import Program


def settled_program(program: Program, *, devices: int | None, system: System | None) -> Program:
    """Return the program for the devices that it runs on.

    Raises `DeviceCountError` if counts disagree, and `ConfigError`, naming presets that fit, for a
    program that communicates if no system is given.
    """
    count = None if system is None else system.device_count
    settled = with_device_count(program, requested=devices, system=count)
    needed = settled.declared_devices or 1
    if system is not None or needed == 1 or not any(True for _ in communication_ops(settled)):
        return settled
    presets = ", ".join(presets_that_fit(needed)) or f"no preset has {needed} devices"
    raise ConfigError(
        f"the program communicates among {needed} devices, but no system is given",
        location=program.source,
        hint=f"give --system ({presets}), or price its computation alone with hespas estimate",
    )
