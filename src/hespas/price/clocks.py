"""The clock that a device sustains while it computes a step, and what its board draws meanwhile.

Power limits act on the mean power over some 10 ms: products that were timed for less than that ran
at the boost clock, longer ones at a lower clock (`hespas.hardware.power.clock_in_loop`). Kernels of
a step take less, and layers as long. So the mean is taken over the whole computation of the step,
which has one clock: the largest at which that mean is within the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from math import isfinite
from typing import ClassVar, Protocol, runtime_checkable

from hespas.base.fields import Option, declare
from hespas.base.groups import Group
from hespas.base.units import format_quantity, parse_quantity
from hespas.errors import ConfigError, HardwareError, option
from hespas.hardware.device import Device, table_of
from hespas.hardware.power import BoardPower, Draw, Sustained, mean_w, sustained_clock
from hespas.price.driver import Estimator
from hespas.price.estimate import Estimate, OpEstimate
from hespas.price.graph import GraphEstimate


class Clocks(Enum):
    """Which clock kernels are priced at.

    ``SUSTAINED`` is what the power limit allows under the whole computation, ``MEASURED`` that of
    the short loops in which tables were measured.
    """

    SUSTAINED = "sustained"
    MEASURED = "measured"


def parse_power_limit(text: str) -> float:
    """Read a power above 0, in W.

    >>> parse_power_limit("550W"), parse_power_limit("0.55 kW")
    (550.0, 550.0)
    """
    limit_w = parse_quantity(text, "W", location=option("power_limit_w"))
    if limit_w <= 0:
        raise ConfigError(f"{option('power_limit_w')} is {text!r}", hint="give a positive number")
    return limit_w


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerOptions:
    """The power that a device may draw, and whether its clock follows from that.

    Raises `ConfigError` for a limit that would have no effect, or is not positive and finite.
    """

    GROUP: ClassVar[Group] = Group.ESTIMATION

    power_limit_w: float | None = declare(
        Option(
            help="The mean power that a device may draw, as in 550W, which its clock follows.",
            aliases=("power_limit",),
            key="perf_estimator.hardware.power_limit_w",
            parse=parse_power_limit,
            metavar="POWER",
            default_text="its thermal design power",
        )
    )
    clocks: Clocks = declare(
        Option(
            help="The clock of kernels: what the power limit allows under the whole step, or that "
            "of the short loops that tables were measured in.",
        ),
        default=Clocks.SUSTAINED,
    )

    def __post_init__(self) -> None:
        limit_w = self.power_limit_w
        if limit_w is None:
            return
        if not (isfinite(limit_w) and limit_w > 0):
            raise ConfigError(
                f"{option('power_limit_w')} is {limit_w:g}", hint="give a positive number"
            )
        if self.clocks is Clocks.MEASURED:
            raise ConfigError(
                f"{option('power_limit_w')} has no effect with {option('clocks')} "
                f"{self.clocks.value}",
                hint="drop one",
            )


@runtime_checkable
class Clocked(Estimator, Protocol):
    """An estimator whose times follow the clock of its device."""

    @property
    def device(self) -> Device:
        """The device that it estimates for."""
        ...

    def at_clock(self, clock: float) -> Estimator:
        """Return the estimator at a part of the device's boost clock."""
        ...


def no_power(device: Device) -> HardwareError:
    """Return the error for a device at a clock that nothing is known to follow from."""
    return HardwareError(
        "the power of the device is not described",
        location=device.name,
        hint=f"put power.json beside its node.json, or drop {option('power_limit_w')}",
    )


def draw_of(total: OpEstimate) -> Draw:
    """Return what a device does, as its power depends on it."""
    flops: dict[str, float] = {}
    for name, done in total.per_type.items():
        table = table_of(name)
        flops[table] = flops.get(table, 0.0) + done.flops
    return Draw(
        time_s=total.time_s,
        clocked_s=total.bound.compute_s,
        flops=flops,
        size_bytes=total.bytes_moved,
    )


def at_sustained_clock(
    estimator: Estimator,
    first: Callable[[Estimator], GraphEstimate],
    again: Callable[[Estimator], GraphEstimate],
) -> GraphEstimate:
    """Return what a graph costs at the clock that its computation sustains.

    ``first`` estimates the graph at the boost clock, ``again`` at a lower one where that draws more
    than the limit. An estimator without a clock is taken as it is. Raises `HardwareError` for a
    limit that no clock keeps.
    """
    if not isinstance(estimator, Clocked):
        return first(estimator)
    device = estimator.device
    power, limit_w = device.power, device.limit_w
    if power is None or limit_w is None:
        return first(estimator)
    at_boost = first(estimator.at_clock(1.0))
    drawn = draw_of(at_boost.total.total)
    try:
        clock = sustained_clock(power, drawn, limit_w)
    except HardwareError as error:
        error.location = error.location or device.name
        raise
    found = at_boost if clock == 1.0 else again(estimator.at_clock(clock))
    sustained = Sustained(
        clock=clock,
        limit_w=limit_w,
        power_w=mean_w(power, draw_of(found.total.total), clock),
        at_boost_w=mean_w(power, drawn, 1.0),
    )
    note = _note(sustained, power)
    noted = Estimate(notes=(note,), noted_s={note: found.total.total.bound.compute_s})
    return replace(found, total=found.total + noted, sustained=sustained)


def _note(sustained: Sustained, power: BoardPower) -> str:
    boost_hz = power.boost_clock_hz
    boost = format_quantity(boost_hz, "Hz")
    if sustained.clock == 1.0:
        return (
            f"power: kernels run at the boost clock, {boost}, with which the board draws "
            f"{sustained.at_boost_w:.0f} W of {sustained.limit_w:g} W in the mean"
        )
    return (
        f"power: kernels run at {format_quantity(sustained.clock * boost_hz, 'Hz')}, with which "
        f"the board draws its limit of {sustained.limit_w:g} W in the mean; at the boost clock, "
        f"{boost}, it would be {sustained.at_boost_w:.0f} W"
    )
