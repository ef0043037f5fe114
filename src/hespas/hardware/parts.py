"""Whether a device is of the part that a system preset is made for."""

from __future__ import annotations

import re
from pathlib import Path

from hespas.errors import ConfigError, option
from hespas.hardware.device import Device
from hespas.hardware.presets import is_tpu, part_of, presets_that_fit, system_names
from hespas.hardware.system import System

_MEMORY_SIZE = re.compile(r"_\d+GB$")


def family_of(part: str) -> str:
    """Return what parts that differ in their memory only have in common.

    >>> family_of("A100_SXM_40GB") == family_of("A100_SXM_80GB")
    True
    """
    return _MEMORY_SIZE.sub("", part)


def part_warnings(device: Device | str | Path | None, system: System | None) -> tuple[str, ...]:
    """Return a warning for a device on a system preset that is made for another part.

    Parts that differ in their memory only are alike. Nothing is known of one's own devices and
    systems, so there is none for them. Raises `ConfigError` for a TPU on a system of GPUs, and for
    a GPU on one of TPUs.
    """
    if device is None or system is None or system.part is None:
        return ()
    on_tpus, of_tpu = is_tpu(system.part), is_tpu(device)
    name = device.name if isinstance(device, Device) else str(device)
    if of_tpu is not None and of_tpu != on_tpus:
        kinds = ("a TPU", "a system of GPUs") if of_tpu else ("a GPU", "a slice of TPUs")
        raise ConfigError(
            f"{name} is {kinds[0]}, and {system.name} is {kinds[1]}",
            hint=_matching(name, of_tpu=of_tpu, part=part_of(device), system=system),
        )
    part = part_of(device)
    if part is None or family_of(part) == family_of(system.part):
        return ()
    warning = (
        f"the system {system.name} is made of {system.part}: its network is combined with the "
        f"computation of {name}"
    )
    return (warning,)


def _matching(name: str, *, of_tpu: bool, part: str | None, system: System) -> str:
    """Return which systems fit the device, and which device fits the system."""
    fitting = [other for other in system_names() if part and other.startswith(f"{part}_")]
    same_size = [other for other in fitting if other in presets_that_fit(system.device_count)]
    shown = ", ".join((same_size or fitting)[:4])
    systems = (
        f"{option('system')} {shown}" if shown else f"a system of {'TPUs' if of_tpu else 'GPUs'}"
    )
    return f"give {systems} for {name}, or {option('node')} {system.part} for {system.name}"
