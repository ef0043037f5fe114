"""The device, system and network model of a prediction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hespas.base.fields import refuse_unused
from hespas.base.home import cache_home
from hespas.errors import ConfigError, option
from hespas.hardware.device import Device, NodeHardware, RooflineHardware
from hespas.hardware.faster_links import with_link_bandwidths
from hespas.hardware.jobs import Jobs
from hespas.hardware.presets import check_node_file, device_names, load_device, load_hardware
from hespas.hardware.sized import find_system
from hespas.hardware.system import System, interconnect_of
from hespas.prediction.options import EstimateOptions, NetworkOptions, PredictOptions
from hespas.price.cache import DiskStore, MemoryStore, Store
from hespas.price.driver import Estimator
from hespas.price.graph import no_power
from hespas.price.kernel import is_served, runs_in_graphs
from hespas.price.methods import (
    DEFAULT,
    DeviceUse,
    EstimatorSpec,
    RooflineOptions,
    default_method,
    method_named,
)
from hespas.program.program import Program
from hespas.simulate.models import ModelChoice, default_model
from hespas.simulate.options import Model
from hespas.split.modules import RegionModules


def system_of(options: NetworkOptions) -> System | None:
    """Return the system with the user's links, if any."""
    system = options.system if options.cluster is None else options.cluster
    if isinstance(system, str | Path):
        system = find_system(system)
    if system is None:
        return None
    system = with_link_bandwidths(system, options.link_bandwidth)
    if options.jobs > 1:
        jobs = Jobs(count=options.jobs, placement=options.placement)
        jobs.devices(interconnect_of(system))
        system = replace(system, jobs=jobs)
    return system


def model_of(options: NetworkOptions, system: System | None) -> ModelChoice:
    """Return the network model; refuse settings without effect.

    By default, settings that only one model has decide, else the system. Raises `ConfigError`.
    """
    imperfect = options.imperfect
    if imperfect is not None and imperfect.programs:
        message = "programs are for hespas simulate: there is one program here"
        raise ConfigError(message, location=imperfect.source, hint="leave them out")
    return ModelChoice(
        model=_model(options, system),
        network=options.network,
        algorithm=options.algorithm,
        cluster=imperfect,
    )


def _model(options: NetworkOptions, system: System | None) -> Model:
    if options.model is not None:
        return options.model
    links = None if options.imperfect is None else options.imperfect.links or None
    settings = {
        "network": options.network,
        "algorithm": options.algorithm,
        "links": links,
        "jobs": options.jobs if options.jobs > 1 else None,
    }
    return default_model(system, settings)


def with_node(options: EstimateOptions, system: System | None) -> EstimateOptions:
    """Default the node to that of the system preset.

    Single rates override those of that node.
    """
    has_node = options.node is not None or options.hardware is not None
    if system is None or system.part is None or has_node:
        return options
    if options.method is not None and method_named(options.method).device_use is DeviceUse.NONE:
        return options
    return replace(options, node=system.part)


def device_of(options: EstimateOptions) -> Device | None:
    """Return the device with the user's rates.

    The node's device goes before that of the configuration.

    None where nothing names or describes one. Raises `ConfigError` for a device that is described
    in part.
    """
    node = node_of(options)
    device = load_device(node) if isinstance(node, str | Path) else node
    if isinstance(options.node, str | Path):
        check_node_file(options.node)
    peak, bandwidth = options.peak_flops, options.memory_bandwidth
    rates, overhead_s = options.per_datatype_flops or {}, options.launch_overhead_s
    limit_w = options.power.power_limit_w
    if device is not None:
        if limit_w is not None and device.power is None:
            raise no_power(device)
        return replace(
            device,
            launch_overhead_s=device.launch_overhead_s if overhead_s is None else overhead_s,
            peak_flops=device.peak_flops if peak is None else peak,
            memory_bandwidth_bytes_per_s=(
                device.memory_bandwidth_bytes_per_s if bandwidth is None else bandwidth
            ),
            per_datatype_flops={**device.per_datatype_flops, **rates},
            power_limit_w=device.power_limit_w if limit_w is None else limit_w,
        )
    if peak is None and bandwidth is None and options.per_datatype_flops is None:
        return None
    if peak is None or bandwidth is None:
        raise no_device(options)
    return Device(
        name="the device given by flags",
        peak_flops=peak,
        memory_bandwidth_bytes_per_s=bandwidth,
        per_datatype_flops=rates,
        launch_overhead_s=overhead_s,
    )


def node_of(options: EstimateOptions) -> Device | str | Path | None:
    """Return the device's name, if more than rates are given."""
    match options.hardware:
        case _ if options.node is not None:
            return options.node
        case NodeHardware(node=node):
            return node
        case RooflineHardware():
            return options.configuration
        case _:
            return None


def no_device(options: EstimateOptions) -> ConfigError:
    """Return the error for a missing or incomplete device."""
    rates = {
        "peak_flops": options.peak_flops,
        "memory_bandwidth": options.memory_bandwidth,
    }
    missing = [option(name) for name, rate in rates.items() if rate is None]
    if len(missing) == len(rates):
        names = ", ".join(device_names()[:4])
        return ConfigError(
            "no device is given",
            hint=f"give {option('cluster')}, as in 8xH100_80GB, or {option('node')} ({names}, ...: "
            f"see hespas hardware), or {' and '.join(missing)}",
        )
    return ConfigError(
        f"the device is described in part: {missing[0]} is not given",
        hint=f"give {missing[0]} or {option('node')}",
    )


def device_name(options: EstimateOptions) -> str:
    """Return the name of the device, machine or method."""
    method = method_named(options.method or DEFAULT.name)
    here = method.runs_on(options.hardware)
    if here is not None:
        return here
    device = device_of(options)
    return f"the device of method {method.name}" if device is None else device.name


def host_bandwidth(options: EstimateOptions) -> float | None:
    """Return a host link's bytes/s per direction, if known."""
    if options.host_bandwidth is not None:
        return options.host_bandwidth
    device = device_of(options)
    return None if device is None else device.host_bandwidth_bytes_per_s


def device_of_memory(options: EstimateOptions) -> Device | None:
    """Return the device whose memory holds the program, if any.

    A program that runs on this machine has none.
    """
    method = method_named(options.method or DEFAULT.name)
    return None if method.device_here else device_of(options)


_WORTH_KEEPING = 32


def compiled_directory(options: EstimateOptions) -> Path | None:
    """Return the directory of cached compiled programs, if any."""
    if options.disable_cache or options.in_memory_only_cache:
        return None
    return options.cache_dir or cache_home() / "compiled"


def made_directory(options: EstimateOptions) -> Path | None:
    """Return the directory of cached exports and partitions, if any."""
    if compiled_directory(options) is None:
        return None
    return options.cache_dir or cache_home() / "exported"


def store_of(options: EstimateOptions, *, beside: Path | None = None) -> Store | None:
    """Return the cache of prices, if any.

    ``beside`` is the output directory, which holds the cache unless the options name another.
    """
    if options.disable_cache:
        return None
    if options.cache_dir is not None:
        return DiskStore(directory=options.cache_dir)
    if options.in_memory_only_cache or beside is None:
        return MemoryStore()
    return DiskStore(directory=beside / "cache")


def prices_of(options: EstimateOptions, modules: RegionModules) -> Store | None:
    """Return the cache of compiled programs' prices, if any.

    Pricing a few regions takes less time than reading the cache.
    """
    if compiled_directory(options) is None or len(modules.modules) < _WORTH_KEEPING:
        return None
    # Programs that are not compiled need not wait for it.
    from hespas.price.cache import KeptStore  # noqa: PLC0415

    return KeptStore(directory=options.cache_dir or cache_home() / "prices")


def check_caches(options: EstimateOptions) -> None:
    """Raise the error of an unwritable cache early."""
    # Of use to few commands, and half of what they import.
    from hespas.sources.workload import export_cache  # noqa: PLC0415

    directory = compiled_directory(options)
    if directory is not None:
        export_cache(directory).check()


def estimator_of(program: Program, options: PredictOptions) -> Estimator:
    """Return a program's estimator; refuse unused options."""
    estimate = options.estimate
    device = device_of(estimate)
    method = (
        default_method(program, device)
        if estimate.method is None
        else method_named(estimate.method)
    )
    refuse_unused(options, method.absent)
    if device is None and method.device_use is DeviceUse.NEEDED:
        raise no_device(estimate)
    return method.estimator(spec_of(options, device, program))


def spec_of(
    options: PredictOptions, device: Device | None, program: Program | None
) -> EstimatorSpec:
    """Return the inputs of a method's estimator."""
    estimate = options.estimate
    kernels = None if program is None else program.kernels
    return EstimatorSpec(
        device=device,
        hardware=estimate.hardware,
        roofline_options=_roofline_options(estimate),
        custom_calls=estimate.custom_calls,
        kernels=kernels,
        kernels_directory=None if kernels is None else compiled_directory(estimate),
        in_graphs=program is not None and runs_in_graphs(program),
        is_served=program is not None and is_served(program),
    )


def _roofline_options(options: EstimateOptions) -> RooflineOptions:
    """Return the roofline's options: the user's or the node's."""
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
