"""Refuse figures of hardware that are in another unit than their key's.

The limits leave all parts and networks that exist: links from 8 Mbit/s, latencies below a second,
memories from 10 MB, and devices from 1 W to 100 kW.
"""

from __future__ import annotations

from hespas.errors import ConfigError

_SLOWEST_LINK, _FASTEST_LINK = 1e6, 1e15
_LONGEST_LATENCY_S = 1.0
_SHORTEST_LATENCY_NS = 1e-3
_SMALLEST_MEMORY, _LARGEST_MEMORY = 1e7, 1e16
_LEAST_W, _MOST_W = 1.0, 1e5


def check_link_rate(rate: float | None, *, path: str) -> None:
    """Raise `ConfigError` for a link's bytes/s in another unit.

    >>> check_link_rate(450e9, path="$.bandwidth_bytes_per_s")
    >>> check_link_rate(450, path="$.bandwidth_bytes_per_s")
    Traceback (most recent call last):
        ...
    hespas.errors.ConfigError: $.bandwidth_bytes_per_s is 450 B/s; give 450e9 for 450 GB/s
    """
    if rate is None or _SLOWEST_LINK <= rate <= _FASTEST_LINK:
        return
    example = f"{rate:g}" if 1e-2 <= rate < _SLOWEST_LINK else "25"
    raise ConfigError(f"{path} is {rate:g} B/s", hint=f"give {example}e9 for {example} GB/s")


def check_link_gb_per_s(rate: float, *, path: str) -> None:
    """Raise `ConfigError` for a link's GB/s in another unit.

    >>> check_link_gb_per_s(450e9, path="$.bandwidth[0]")
    Traceback (most recent call last):
        ...
    hespas.errors.ConfigError: $.bandwidth[0] is 4.5e+11 GB/s; give 450 for 450 GB/s
    """
    if _SLOWEST_LINK <= rate * 1e9 <= _FASTEST_LINK:
        return
    example = f"{rate / 1e9:g}" if rate * 1e9 > _FASTEST_LINK else "25"
    raise ConfigError(f"{path} is {rate:g} GB/s", hint=f"give {example} for {example} GB/s")


def check_latency(latency_s: float | None, *, path: str) -> None:
    """Raise `ConfigError` for a latency in seconds in another unit.

    >>> check_latency(500, path="$.latency_s")
    Traceback (most recent call last):
        ...
    hespas.errors.ConfigError: $.latency_s is 500 s; give 500e-9 for 500 ns, 500e-6 for 500 us
    """
    if latency_s is None or latency_s < _LONGEST_LATENCY_S:
        return
    example = f"{latency_s:g}" if latency_s < _SLOWEST_LINK else "500"
    hint = f"give {example}e-9 for {example} ns, {example}e-6 for {example} us"
    raise ConfigError(f"{path} is {latency_s:g} s", hint=hint)


def check_latency_ns(latency_ns: float, *, path: str) -> None:
    """Raise `ConfigError` for a latency in ns in seconds instead.

    >>> check_latency_ns(5e-7, path="$.latency[0]")
    Traceback (most recent call last):
        ...
    hespas.errors.ConfigError: $.latency[0] is 5e-07 ns; give 500 for 500 ns
    """
    if 0 < latency_ns < _SHORTEST_LATENCY_NS:
        example = f"{latency_ns * 1e9:g}"
        hint = f"give {example} for {example} ns"
        raise ConfigError(f"{path} is {latency_ns:g} ns", hint=hint)
    if latency_ns >= _LONGEST_LATENCY_S * 1e9:
        hint = "give 1000 for 1 us"
        raise ConfigError(f"{path} is {latency_ns:g} ns", hint=hint)


def check_memory(size_bytes: int | None, *, path: str) -> None:
    """Raise `ConfigError` for a device's memory in another unit.

    >>> check_memory(80, path="$.memory_capacity_bytes")
    Traceback (most recent call last):
        ...
    hespas.errors.ConfigError: $.memory_capacity_bytes is 80 bytes; give 85899345920 for 80 GB
    """
    if size_bytes is None or _SMALLEST_MEMORY <= size_bytes <= _LARGEST_MEMORY:
        return
    example = size_bytes if size_bytes < 2**13 else 80
    hint = f"give {example * 2**30} for {example} GB"
    raise ConfigError(f"{path} is {size_bytes} bytes", hint=hint)


def check_power(power_w: float | None, *, path: str) -> None:
    """Raise `ConfigError` for a device's power in another unit.

    >>> check_power(0.7, path="$.tdp_W")
    Traceback (most recent call last):
        ...
    hespas.errors.ConfigError: $.tdp_W is 0.7 W; give 700 for 0.7 kW
    """
    if power_w is None or _LEAST_W <= power_w <= _MOST_W:
        return
    is_small = 1e-2 <= power_w < _LEAST_W
    hint = f"give {power_w * 1e3:g} for {power_w:g} kW" if is_small else "give it in W, as in 700"
    raise ConfigError(f"{path} is {power_w:g} W", hint=hint)
