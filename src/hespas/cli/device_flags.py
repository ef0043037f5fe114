"""The device that flags describe, by themselves or on top of a named one."""

from __future__ import annotations

from dataclasses import replace

from hespas.cli.flags import Flags
from hespas.cli.parsing import parse_rates
from hespas.errors import ConfigError
from hespas.hardware.device import Device
from hespas.hardware.presets import device_names
from hespas.units import parse_quantity


def device_of_flags(flags: Flags, named: Device | None, launch_s: float | None) -> Device:
    """Return ``named`` with the rates that flags give, or a device of these rates alone.

    ``launch_s`` is what a launch costs, where the user says so. Raises `ConfigError` where
    rates are missing, or are no positive numbers.
    """
    peak = _rate("--peak-flops", flags.peak_flops, "FLOP/s")
    bandwidth = _rate("--memory-bandwidth", flags.memory_bandwidth, "B/s")
    rates = parse_rates(flags.per_datatype_flops)
    if named is not None:
        return replace(
            named,
            launch_overhead_s=named.launch_overhead_s if launch_s is None else launch_s,
            peak_flops=named.peak_flops if peak is None else peak,
            memory_bandwidth_bytes_per_s=(
                named.memory_bandwidth_bytes_per_s if bandwidth is None else bandwidth
            ),
            per_datatype_flops={**named.per_datatype_flops, **rates},
        )
    if peak is None or bandwidth is None:
        raise _no_device(peak, bandwidth)
    return Device(
        name="the device given by flags",
        peak_flops=peak,
        memory_bandwidth_bytes_per_s=bandwidth,
        per_datatype_flops=rates,
        launch_overhead_s=launch_s,
    )


def _rate(flag: str, text: str | None, unit: str) -> float | None:
    if text is None:
        return None
    rate = parse_quantity(text, unit, place=flag)
    if rate <= 0:
        raise ConfigError(f"{flag} is {text!r}", mend=f"give a positive number of {unit}")
    return rate


def _no_device(peak: float | None, bandwidth: float | None) -> ConfigError:
    if peak is None and bandwidth is None:
        return ConfigError(
            "no device is given",
            mend=f"give --node ({', '.join(device_names()[:4])}, ...: see hespas hardware), "
            "or --peak-flops and --memory-bandwidth",
        )
    missing = "--peak-flops" if peak is None else "--memory-bandwidth"
    return ConfigError(
        f"the device is described in part: {missing} is not given", mend=f"give {missing} or --node"
    )
