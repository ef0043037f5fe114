"""The power of a GPU's board, by work and clock.

    power = idle + (busy + energy per FLOP x FLOP/s) x v^2 + energy per byte x bytes/s

where ``busy`` is in proportion to the clock while kernels run, and `v` is the voltage over that of
the boost clock. Dynamic power goes with the clock and the square of the voltage (A. P. Chandrakasan
et al., "Low-Power CMOS Digital Design", IEEE Journal of Solid-State Circuits 27(4), 1992). The
voltage is taken to fall in a line with the clock,

    v = floor + (1 - floor) x clock

of a clock as a part of the boost clock. Memory has a clock of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from math import log
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict, fields

from hespas.base.decode import decode, read_json
from hespas.base.figures import Count, Fraction, FractionOrZero, NotNegative, Positive, Text
from hespas.base.frozen import frozen
from hespas.errors import HardwareError

POWER = "power.json"
LEAST_CLOCK = 0.2
"""The slowest clock as a part of the boost clock: GPUs are not run below it to save power."""


class HostPower(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The constant power of a machine around its GPUs.

    A machine has ``devices``. ``device_w`` is a device's share of everything but GPUs: processors,
    memory, switches inside, network cards, fans, and losses of power supplies. ``switch_port_w`` is
    a port of a network switch between machines, 0 if no switch is known.
    """

    devices: Count
    device_w: Positive
    switch_port_w: NotNegative


class BoardPower(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The power of a GPU's board: ``power.json`` of a node.

    ``idle_w`` is drawn between kernels, ``busy_w`` on top while any kernel runs at
    ``boost_clock_hz``. ``flop_j`` is the energy of a FLOP of matrix products by type (``bf16``,
    ``f8``, ``tf32``) at that clock, with all that feeds the units; ``byte_j`` that of a byte moved
    between device memory and registers. ``voltage_floor`` is the part of the voltage that doesn't
    fall with the clock. ``loop_clock`` is the clock, as a part of the boost clock, at which long
    products were measured that stand in tables.
    """

    idle_w: Positive
    busy_w: NotNegative
    flop_j: dict[str, Positive]
    byte_j: NotNegative
    voltage_floor: FractionOrZero
    boost_clock_hz: Positive
    loop_clock: Fraction
    host: HostPower | None = None
    sources: dict[str, Text] = {}


@frozen
class Draw:
    """A GPU's work in some time, which decides its power.

    ``clocked_s`` of ``time_s`` is in inverse proportion to the clock. ``flops`` are of products, by
    the types of `BoardPower`.
    """

    time_s: float
    clocked_s: float
    flops: Mapping[str, float]
    size_bytes: float


@frozen
class BoardEnergy:
    """Where the energy of a board goes, in joules.

    ``compute_j`` is of products and of the multiprocessors at work, ``idle_j`` what the board draws
    all the while.
    """

    compute_j: float
    memory_j: float
    idle_j: float

    @property
    def total_j(self) -> float:
        """All of it."""
        return self.compute_j + self.memory_j + self.idle_j


@frozen
class Sustained:
    """A computation's clock, relative to boost, and power.

    ``power_w`` is the mean over the computation, ``at_boost_w`` that at the boost clock.
    """

    clock: float
    limit_w: float
    power_w: float
    at_boost_w: float


def voltage(power: BoardPower, clock: float) -> float:
    """Return the voltage at a clock, both relative to boost.

    >>> from hespas.hardware.presets import load_device
    >>> voltage(load_device("H100_80GB").power, 0.5)
    0.7
    """
    return power.voltage_floor + (1 - power.voltage_floor) * clock


def slowed(draw: Draw, factor: float) -> Draw:
    """Return the same at a clock scaled by a factor."""
    clocked_s = draw.clocked_s / factor
    return replace(draw, time_s=draw.time_s + clocked_s - draw.clocked_s, clocked_s=clocked_s)


def energy(power: BoardPower, draw: Draw, clock: float) -> BoardEnergy:
    """Return the energy of a GPU's work at a clock.

    ``clock`` is a fraction of the boost clock. Arithmetic of types without a figure is in what busy
    multiprocessors draw.
    """
    products_j = sum(power.flop_j.get(name, 0.0) * flops for name, flops in draw.flops.items())
    busy_j = power.busy_w * clock * draw.time_s
    return BoardEnergy(
        compute_j=(products_j + busy_j) * voltage(power, clock) ** 2,
        memory_j=power.byte_j * draw.size_bytes,
        idle_j=power.idle_w * draw.time_s,
    )


def mean_w(power: BoardPower, draw: Draw, clock: float) -> float:
    """Return the mean power of a GPU's work."""
    return energy(power, draw, clock).total_j / draw.time_s if draw.time_s > 0 else 0.0


def sustained_clock(power: BoardPower, at_boost: Draw, limit_w: float) -> float:
    """Return the largest clock within the power limit.

    ``at_boost`` is the work at the boost clock. The clock is a fraction of that, rounded down to a
    thousandth, and at most 1. Raises `HardwareError` where even the slowest clock draws more.

    >>> from hespas.hardware.presets import load_device
    >>> h100 = load_device("H100_80GB").power
    >>> products = Draw(time_s=1.0, clocked_s=1.0, flops={"bf16": 800e12}, size_bytes=0.0)
    >>> sustained_clock(h100, products, 700.0) < 0.92, sustained_clock(h100, products, 2000.0)
    (True, 1.0)
    """

    def drawn_w(thousandths: int) -> float:
        return mean_w(power, slowed(at_boost, thousandths / 1000), thousandths / 1000)

    low, high = round(1000 * LEAST_CLOCK), 1000
    if drawn_w(high) <= limit_w:
        return 1.0
    least_w = drawn_w(low)
    if least_w > limit_w:
        raise HardwareError(
            f"the power limit is {limit_w:g} W, and the program draws {least_w:.0f} W at the "
            "slowest clock",
            hint=f"give more than {least_w:.0f} W",
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if drawn_w(middle) <= limit_w else (low, middle)
    return low / 1000


_LOOP_S = (0.5e-3, 16e-3)
"""Products so short were timed at the boost clock, and so long at the clock that power allows."""


def clock_in_loop(power: BoardPower, time_s: float) -> float:
    """Return the clock of a table's product, by its time.

    Tables come from a few runs of a product behind each other: over before power limits act where
    it is short. Between, the clock falls in a line with the logarithm of the time. `python
    validation/board_power.py` shows the measured clocks beside it.

    >>> from hespas.hardware.presets import load_device
    >>> h100 = load_device("H100_80GB").power
    >>> clock_in_loop(h100, 1e-4), clock_in_loop(h100, 1.0) == h100.loop_clock
    (1.0, True)
    """
    if time_s <= _LOOP_S[0]:
        return 1.0
    share = min(1.0, log(time_s / _LOOP_S[0]) / log(_LOOP_S[1] / _LOOP_S[0]))
    return 1 - share * (1 - power.loop_clock)


def network_w(host: HostPower, device_count: int) -> float:
    """Return a device's share of the switches between machines.

    A network card for each device, at switches of 64 ports in a tree without contention: each
    level but the highest has a port down and a port up for each device.

    >>> from hespas.hardware.presets import load_device
    >>> host = load_device("H100_80GB").power.host
    >>> network_w(host, 8), network_w(host, 64) == host.switch_port_w
    (0.0, True)
    """
    machines = -(-device_count // host.devices)
    if machines <= 1:
        return 0.0
    # Devices with the same place in their machines share a tree of their own.
    levels, ports = 1, _SWITCH_PORTS
    while ports < machines:
        levels, ports = levels + 1, ports * _SWITCH_PORTS // 2
    return host.switch_port_w * (2 * levels - 1)


_SWITCH_PORTS = 64


def check_sources(figures: AbstractSet[str], sources: AbstractSet[str], *, location: str) -> None:
    """Raise `HardwareError` for figures without sources, or sources without figures."""
    if sources != figures:
        raise HardwareError(
            f"sources and figures differ: {', '.join(sorted(figures ^ sources))}",
            location=location,
            hint="give the source of each figure, or state that it is assumed",
        )


def read_power(file: Path) -> BoardPower:
    """Return a file's figures, else `HardwareError` without sources."""
    power = decode(read_json(file), BoardPower, location=str(file))
    figures = {field.name for field in fields(BoardPower)} - {"sources", "host", "flop_j"}
    figures |= {f"flop_j.{name}" for name in power.flop_j}
    if power.host is not None:
        figures |= {f"host.{name}" for name in asdict(power.host)}
    check_sources(figures, power.sources.keys(), location=str(file))
    return power
