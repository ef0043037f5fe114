"""The method that prices a program's regions; options that it doesn't use are refused."""

from __future__ import annotations

from pathlib import Path

from hespas.base.fields import changed
from hespas.errors import ConfigError, option
from hespas.hardware.device import Device, RooflineHardware
from hespas.hardware.presets import load_hardware
from hespas.prediction.caches import compiled_directory
from hespas.prediction.machines import device_of, no_device
from hespas.prediction.options import EstimateOptions, PredictOptions
from hespas.price.driver import Estimator
from hespas.price.methods import DeviceUse, EstimatorSpec, Method, default_method, method_named
from hespas.price.roofline import RooflineOptions
from hespas.program.kernels import CompiledKernels
from hespas.program.program import Program


def estimator_of(program: Program, options: PredictOptions) -> Estimator:
    """Return the estimator of a program; `ConfigError` for options that have no effect on it."""
    estimate = options.estimate
    device = device_of(estimate)
    method = _method_of(program, estimate, device)
    check_device_options(estimate, method)
    check_method_options(method, options)
    if device is None and method.device_use is DeviceUse.NEEDED:
        raise no_device(estimate)
    return method.estimator(spec_of(options, device, program.kernels))


def _method_of(program: Program, options: EstimateOptions, device: Device | None) -> Method:
    if options.method is not None:
        return method_named(options.method)
    return default_method(program, device)


def spec_of(
    options: PredictOptions, device: Device | None, kernels: CompiledKernels | None
) -> EstimatorSpec:
    """Return what a method makes its estimator of."""
    estimate = options.estimate
    return EstimatorSpec(
        device=device,
        hardware=estimate.hardware,
        roofline_options=_roofline_options(estimate),
        custom_calls=estimate.custom_calls,
        kernels=kernels,
        kernels_directory=None if kernels is None else compiled_directory(estimate),
    )


def _roofline_options(options: EstimateOptions) -> RooflineOptions:
    """Return what to do about types without a rate: as the device's file says."""
    if options.roofline is not None:
        return options.roofline
    hardware = options.hardware
    if isinstance(options.node, str | Path):
        hardware = load_hardware(options.node)
    if isinstance(options.node, Device) or not isinstance(hardware, RooflineHardware):
        return RooflineOptions()
    return RooflineOptions(
        error_on_unknown_type=bool(hardware.error_on_unknown_type),
        warn_on_unknown_type=bool(hardware.warn_on_unknown_type),
    )


def check_device_options(options: EstimateOptions, method: Method) -> None:
    """Raise `ConfigError` for options that describe a device to a method that reads none."""
    given = {
        "node": options.node,
        "peak_flops": options.peak_flops,
        "memory_bandwidth": options.memory_bandwidth,
        "per_datatype_flops": options.per_datatype_flops,
    }
    for name, value in given.items():
        if value is not None:
            method.check_uses_device(name)


def check_method_options(method: Method, options: PredictOptions) -> None:
    """Raise `ConfigError` for options about kernels to a method that prices none."""
    power = options.estimate.power
    for name in changed(power):
        if not method.follows_clock:
            raise ConfigError(
                f"{option(name)} has no effect on method {method.name}",
                hint=f"drop it, or add {option('method')} measured",
            )
    if options.estimate.launch_overhead_s is not None and not method.adds_launches:
        raise ConfigError(
            f"{option('launch_overhead')} has no effect on method {method.name}",
            hint=f"drop it, or add {option('method')} roofline",
        )
    if options.program.kernels is not None and not method.reads_kernels:
        raise ConfigError(
            f"{option('kernels')} has no effect on method {method.name}", hint="drop it"
        )
