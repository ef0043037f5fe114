"""How often devices fail so that a run must restart: published figures, with their sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hespas.errors import ConfigError, option
from hespas.prediction.goodput.options import GoodputOptions

_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """The mean time between interruptions by one device, its share of the machine included."""

    device_interval_s: float
    source: str


FAILURES: Mapping[str, FailureRate] = MappingProxyType(
    {
        "H100": FailureRate(
            device_interval_s=16_384 * 54 * _DAY_S / 419,
            source="419 unexpected interruptions of 16,384 H100 in 54 days (Llama 3, arXiv "
            "2407.21783, section 3.3.4)",
        ),
        "A100": FailureRate(
            device_interval_s=8 * 1000 * _DAY_S / 6.50,
            source="6.50 failures in 1,000 days of a node of eight A100 (Meta's RSC-1, arXiv "
            "2410.21680)",
        ),
    }
)
"""By the first part of a device's name."""

CHECKPOINT_BYTES_PER_S = 2e12 / 16_000
CHECKPOINT_SOURCE = (
    "2 TB/s sustained for some 16,000 devices (Llama 3, arXiv 2407.21783, section 3.3.1)"
)
"""What one device of a large cluster writes to its storage, all of them at once."""


def known_failures(device: str) -> FailureRate | None:
    """Return how often a device fails, None where nothing is published of its part.

    >>> known_failures("H100_80GB").device_interval_s / 3600 > 40_000, known_failures("MI300X")
    (True, None)
    """
    return FAILURES.get(device.partition("_")[0])


def failure_interval(options: GoodputOptions, device: str) -> FailureRate:
    """Return how often a device fails, as given or published; `ConfigError` where neither is."""
    if options.device_failure_interval is not None:
        return FailureRate(device_interval_s=options.device_failure_interval, source="")
    known = known_failures(device)
    if known is None:
        raise ConfigError(
            f"how often {device or 'the device'} fails is not known",
            hint=f"give {option('device_failure_interval')}, as in 50000h for one device",
        )
    return known
