"""The energy of a step: where it goes, a device with its share of what it stands in.

A device draws what its kernels make it draw while it computes
(`hespas.hardware.power.BoardPower`), and its idle power for the rest of the step. The machine
around it and the switches between machines draw the same all the while.
"""

from __future__ import annotations

from hespas.hardware.power import energy, network_w
from hespas.prediction.options import PredictOptions
from hespas.prediction.result import Prediction
from hespas.price.clocks import draw_of
from hespas.report.schema import EnergyParts


def energy_parts(prediction: Prediction) -> EnergyParts | None:
    """Return the parts of the energy of a step; None where the clock doesn't follow from power."""
    sustained, device = prediction.estimates.sustained, prediction.device
    if sustained is None or device is None or device.power is None:
        return None
    power, step_s = device.power, prediction.step_time_s
    board = energy(power, draw_of(prediction.estimates.total.total), sustained.clock)
    idle_j = power.idle_w * step_s
    board_j = board.compute_j + board.memory_j + idle_j
    host = power.host
    node_j = None if host is None else host.device_w * step_s
    network_j = None if host is None else network_w(host, prediction.devices) * step_s
    machine_j = board_j + (node_j or 0.0) + (network_j or 0.0)
    device_w = board_j / step_s if step_s > 0 else 0.0
    return EnergyParts(
        compute_j=board.compute_j,
        memory_j=board.memory_j,
        idle_j=idle_j,
        node_j=node_j,
        network_j=network_j,
        facility_j=(prediction.options.energy.pue - 1) * machine_j,
        device_w=device_w,
        node_w=None if host is None else host.devices * (device_w + host.device_w),
        node_devices=None if host is None else host.devices,
        clock=sustained.clock,
        power_limit_w=sustained.limit_w,
    )


def energy_j(prediction: Prediction) -> float | None:
    """Return the energy of a step: the sum of its parts, where they are known.

    Elsewhere it is what the method says of the board while it computes; None if it says nothing.
    """
    parts = energy_parts(prediction)
    if parts is None:
        return with_facility(prediction.estimates.total.total.energy_j, prediction.options)
    known = (parts.compute_j, parts.memory_j, parts.idle_j, parts.node_j, parts.network_j)
    return sum(each for each in known if each is not None) + parts.facility_j


def with_facility(energy_j: float | None, options: PredictOptions) -> float | None:
    """Return an energy with what the site needs for it; None where it is not known."""
    return None if energy_j is None else energy_j * options.energy.pue
