"""Other rates of a device than its own: what an estimator would say if a part of it were faster.

Source of the question, not of a formula: a bottleneck is what makes the whole faster when it is
taken away. An estimator that can answer it is `Scalable`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from hespas.errors import HardwareError
from hespas.hardware.device import Device
from hespas.hardware.tensor_core import faster
from hespas.price.driver import Estimator, OperationMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Factors on what a device does.

    ``memory`` multiplies the memory bandwidth, ``arithmetic`` the peak FLOP/s of every type and
    the pipelines of a kernel that is read, ``launch`` the time that a launch takes beside the
    kernel's work. Raises `HardwareError` for rates that are not above 0, and a launch below 0.

    >>> Rates(memory=2.0)
    Rates(memory=2.0, arithmetic=1.0, launch=1.0)
    """

    memory: float = 1.0
    arithmetic: float = 1.0
    launch: float = 1.0

    def __post_init__(self) -> None:
        if not (self.memory > 0 and self.arithmetic > 0 and self.launch >= 0):
            raise HardwareError(f"these factors make no device: {self}", hint="give positive ones")

    @property
    def is_of_launches_alone(self) -> bool:
        """Whether the peak rates stay as they are."""
        return self.memory == self.arithmetic == 1.0


@runtime_checkable
class Scalable(Estimator, OperationMethod, Protocol):
    """An estimator that prices operations, whose times follow the rates of its device."""

    def at_rates(self, rates: Rates) -> OperationMethod:
        """Return the estimator of a device that differs by these factors alone."""
        ...


def device_at(device: Device, rates: Rates) -> Device:
    """Return a device that differs by these factors alone.

    >>> one = Device(name="one", peak_flops=1e12, memory_bandwidth_bytes_per_s=1e11,
    ...              per_datatype_flops={"bf16": 4e12}, launch_overhead_s=3e-6)
    >>> twice = device_at(one, Rates(memory=2.0, launch=0.0))
    >>> twice.memory_bandwidth_bytes_per_s, twice.rate("bf16"), twice.launch_overhead_s
    (200000000000.0, 4000000000000.0, 0.0)
    """
    overhead_s, core = device.launch_overhead_s, device.tensor_core
    return replace(
        device,
        tensor_core=None if core is None else faster(core, rates.arithmetic),
        peak_flops=device.peak_flops * rates.arithmetic,
        per_datatype_flops={
            name: rate * rates.arithmetic for name, rate in device.per_datatype_flops.items()
        },
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s * rates.memory,
        launch_overhead_s=None if overhead_s is None else overhead_s * rates.launch,
    )
