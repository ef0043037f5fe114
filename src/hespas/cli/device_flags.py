"""The device that flags describe, by themselves or on top of a named one."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from hespas.cli.flags import Flags
from hespas.cli.parsing import parse_rate, parse_rates
from hespas.config.run_config import RunConfig
from hespas.errors import ConfigError
from hespas.estimate.methods import check_uses_node
from hespas.hardware.device import Device
from hespas.hardware.presets import device_names


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


def check_device_flags(flags: Flags, method: str) -> None:
    """Raise `ConfigError` for flags that describe a device to a method that uses none."""
    given = {
        "--node": flags.node,
        "--peak-flops": flags.peak_flops,
        "--memory-bandwidth": flags.memory_bandwidth,
        "--per-datatype-flops": flags.per_datatype_flops,
    }
    for flag, value in given.items():
        if value is not None:
            check_uses_node(method, flag, hint="drop it")


def timed_here(config: RunConfig, method: str) -> str | None:
    """Return what of this machine a method times; None where it times none of it."""
    if method not in {"xla", "iree"}:
        return None
    hardware = None if config.perf_estimator is None else config.perf_estimator.hardware
    module = import_module(f"hespas.backends.{method}")
    return f"this machine's {module.device_of(hardware)} (method {method})"


def _rate(flag: str, text: str | None, unit: str) -> float | None:
    if text is None:
        return None
    rate = parse_rate(text, unit, location=flag)
    if rate <= 0:
        raise ConfigError(f"{flag} is {text!r}", hint=f"give a positive number of {unit}")
    return rate


def _no_device(peak: float | None, bandwidth: float | None) -> ConfigError:
    if peak is None and bandwidth is None:
        return ConfigError(
            "no device is given",
            hint=f"give --node ({', '.join(device_names()[:4])}, ...: see hespas hardware), "
            "or --peak-flops and --memory-bandwidth",
        )
    missing = "--peak-flops" if peak is None else "--memory-bandwidth"
    return ConfigError(
        f"the device is described in part: {missing} is not given", hint=f"give {missing} or --node"
    )
