"""``method: systolic``: the closed forms, for arrays that a configuration describes."""

from __future__ import annotations

from hespas.config.run_config import SystolicHardware
from hespas.errors import ConfigError
from hespas.estimate.methods import Wanted
from hespas.estimate.roofline import Roofline
from hespas.estimate.systolic.array import Dataflow, SystolicArray
from hespas.estimate.systolic.estimator import ClosedForm, ProductTimer, Systolic
from hespas.hardware.device import Device


def make(wanted: Wanted) -> Systolic:
    """Return the estimator of the method ``systolic``.

    Raises `ConfigError` without a description of the array, and for what is for simulators.
    """
    hardware = array_hardware(wanted, "systolic")
    if hardware.binary is not None:
        raise ConfigError(
            "hardware.binary has no effect on method 'systolic', which runs no program",
            hint="drop it, or use method 'scalesim' or 'zigzag_onnx'",
        )
    return with_timer(ClosedForm(array=array_of(hardware)), hardware, wanted)


def array_hardware(wanted: Wanted, method: str) -> SystolicHardware:
    """Return the array that the configuration describes; `ConfigError` where there is none."""
    if not isinstance(wanted.hardware, SystolicHardware):
        raise ConfigError(
            f"method {method!r} needs a description of the array",
            hint=f"give a configuration with perf_estimator.method {method!r}, such as "
            "configs/nodes/TPUv3/systolic/config.json",
        )
    return wanted.hardware


def array_of(hardware: SystolicHardware) -> SystolicArray:
    """Return the array alone."""
    return SystolicArray(
        rows=hardware.array_rows,
        columns=hardware.array_columns,
        count=hardware.array_count,
        clock_hz=hardware.clock_hz,
        dataflow=Dataflow(hardware.dataflow),
        sram_bandwidth_bytes_per_s=hardware.sram_bandwidth,
    )


def with_timer(timer: ProductTimer, hardware: SystolicHardware, wanted: Wanted) -> Systolic:
    """Return the estimator that asks ``timer`` for products, with the roofline for the rest."""
    device = Device(
        name=f"{hardware.array_rows} x {hardware.array_columns} array",
        peak_flops=hardware.vector_flops,
        memory_bandwidth_bytes_per_s=hardware.memory_bandwidth,
    )
    fallback = Roofline(
        device=device, options=wanted.roofline_options, custom_calls=wanted.custom_calls
    )
    return Systolic(timer=timer, fallback=fallback, peak_flops=array_of(hardware).peak_flops)
