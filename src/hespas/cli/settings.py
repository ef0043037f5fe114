"""What a command works with, from flags, configuration file and defaults, in this order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hespas.cli.caching import CacheWish
from hespas.cli.device_flags import check_device_flags, device_of_flags, timed_here
from hespas.cli.flags import Flags
from hespas.cli.optimising import compiled_directory
from hespas.cli.options import start_logging
from hespas.cli.parsing import parse_custom_calls, parse_per_line, parse_weights
from hespas.config.load import load_config
from hespas.config.run_config import (
    RooflineHardware,
    RunConfig,
    roofline_hardware,
)
from hespas.cost.rules.custom_call import CustomCallCost
from hespas.errors import ConfigError
from hespas.estimate.cache import Store
from hespas.estimate.driver import Estimator
from hespas.estimate.methods import OF_A_DEVICE, Wanted, configured_device, estimator, usual_method
from hespas.estimate.roofline import RooflineOptions
from hespas.frontend.overrides import LoadOptions
from hespas.hardware.device import Device
from hespas.hardware.presets import load_device, load_hardware
from hespas.program.program import Program
from hespas.split.strategies import SplitOptions, split_options
from hespas.units import parse_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Flags joined with a configuration file."""

    flags: Flags
    config: RunConfig
    config_path: Path | None

    @property
    def workload(self) -> Path:
        """The program's file."""
        named = self.flags.mlir_file or self.config.mlir_file
        if named is None:
            raise ConfigError(
                "no program is given",
                location=str(self.config_path or ""),
                hint="name a file, or give --mlir_file",
            )
        return Path(named)

    @property
    def load_options(self) -> LoadOptions:
        """What the user tells about loops and branches."""
        return LoadOptions(
            trip_counts=parse_per_line(self.flags.trip_count),
            branch_weights=parse_weights(self.flags.branch_weights),
        )

    @property
    def devices(self) -> int | None:
        """The number of devices, where one was given."""
        if self.flags.devices is not None or self.config.perf_estimator is None:
            return self.flags.devices
        return self.config.perf_estimator.hardware.num_npus

    @property
    def split(self) -> SplitOptions:
        """How to split."""
        flags, config = self.flags, self.config
        merge = flags.merge if flags.merge is not None else config.merge
        return split_options(
            strategy=_named(flags.split_fn, config.split_strategy, "linear_split"),
            merge=bool(merge),
            block_limit=flags.block_lim if flags.block_lim is not None else config.block_lim,
            separator=_named(flags.separator, config.separator, "is_communication_op"),
            separator_policy=_named(flags.separator_policy, config.separator_policy, "isolated"),
        )

    @property
    def device(self) -> Device:
        """The device: --node before the configuration's, single rates before both."""
        return device_of_flags(self.flags, self._named_device(), self.launch_overhead_s)

    @property
    def launch_overhead_s(self) -> float | None:
        """What the user says that a launch costs."""
        text = self.flags.launch_overhead
        if text is None:
            return None
        overhead_s = parse_quantity(text, "s", location="--launch-overhead")
        if overhead_s < 0:
            raise ConfigError(f"--launch-overhead is {text!r}", hint="give 0 or more")
        return overhead_s

    def _named_device(self) -> Device | None:
        if self.flags.node is not None:
            return load_device(self.flags.node)
        configured = self.config.perf_estimator
        if self.config_path is None or configured is None:
            return None
        return configured_device(configured.hardware, self.config_path)

    @property
    def roofline_options(self) -> RooflineOptions:
        """What to do about types without a rate: as the device's file says."""
        if self.flags.node is not None:
            hardware = load_hardware(self.flags.node)
        elif self._configured_rates:
            hardware = roofline_hardware(self.config, location=str(self.config_path))
        else:
            return RooflineOptions()
        return RooflineOptions(
            error_on_unknown_type=bool(hardware.error_on_unknown_type),
            warn_on_unknown_type=bool(hardware.warn_on_unknown_type),
        )

    @property
    def _configured_rates(self) -> bool:
        configured = self.config.perf_estimator
        return configured is not None and isinstance(configured.hardware, RooflineHardware)

    @property
    def method(self) -> str:
        """Who estimates a program as exported: --method before the configuration's."""
        configured = self.config.perf_estimator
        return _named(self.flags.method, configured and configured.method, "roofline")

    def method_of(self, program: Program) -> str:
        """Return who estimates a program.

        Where nobody says, that is measured tables for what a compiler scheduled, if there are any
        of the device.
        """
        said = (self.flags.method, self.config.perf_estimator)
        if not program.is_scheduled or any(each is not None for each in said):
            return self.method
        return usual_method(program, self.device)

    @property
    def device_name(self) -> str:
        """The device's name; where the program runs here, what runs it; else the method's."""
        here = timed_here(self.config, self.method)
        if here is not None:
            return here
        return self.device.name if self._has_device else f"the device of method {self.method}"

    @property
    def memory_capacity_bytes(self) -> int | None:
        """How much memory the device has, where that is known."""
        if timed_here(self.config, self.method) is not None:
            return None
        return self.device.memory_capacity_bytes if self._has_device else None

    @property
    def _has_device(self) -> bool:
        flags = self.flags
        given = (flags.node, flags.peak_flops, flags.memory_bandwidth, flags.per_datatype_flops)
        return any(each is not None for each in given) or self._named_device() is not None

    def estimator(self, program: Program) -> Estimator:
        """Return the estimator of a program."""
        configured = self.config.perf_estimator
        method = self.method_of(program)
        check_device_flags(self.flags, method)
        if self.flags.launch_overhead is not None and method != "roofline":
            raise ConfigError(
                f"--launch-overhead has no effect on method {method}",
                hint="drop it, or add --method roofline",
            )
        reads_kernels = method in {"measured", "kernel"}
        if self.flags.kernels is not None and not reads_kernels:
            raise ConfigError(f"--kernels has no effect on method {method}", hint="drop it")
        wanted = Wanted(
            device=self.device if method in OF_A_DEVICE or self._has_device else None,
            hardware=None if configured is None else configured.hardware,
            roofline_options=self.roofline_options,
            custom_calls=self.custom_calls,
            kernels=program.kernels,
            kernels_directory=None if program.kernels is None else compiled_directory(self.flags),
        )
        return estimator(method, wanted)

    @property
    def custom_calls(self) -> dict[str, CustomCallCost]:
        """What the user states of custom calls."""
        return parse_custom_calls(self.flags.custom_call)

    @property
    def output(self) -> Path | None:
        """The output directory, where one was given."""
        named = self.flags.output or self.config.output_dir
        if named is None and self.flags.clean:
            raise ConfigError("--clean has no effect without --output", hint="give --output")
        if named is None and self.config.clean:
            raise ConfigError(
                "clean has no effect without output_dir",
                location=str(self.config_path),
                hint="add output_dir, or give --output",
            )
        return None if named is None else Path(named)

    @property
    def clean(self) -> bool:
        """Whether another workload's files may be replaced."""
        return bool(self.flags.clean or self.config.clean)

    @property
    def threads(self) -> int:
        """How many estimators run at a time."""
        given = self.flags.threads if self.flags.threads is not None else self.config.num_threads
        if given is not None and given < 1:
            raise ConfigError(f"{given} threads are asked for", hint="give 1 or more")
        return given or 1

    def store(self, beside: Path | None) -> Store | None:
        """Return where estimates are kept; ``beside`` is where the output is being made."""
        flags, config = self.flags, self.config
        given = CacheWish(
            source="",
            disabled=bool(flags.disable_cache),
            in_memory=bool(flags.in_memory_only_cache),
            directory=flags.cache_dir,
        )
        if given.says_something:
            return given.store(beside)
        estimator = config.perf_estimator
        configured = CacheWish(
            source=str(self.config_path),
            disabled=bool(config.disable_cache),
            in_memory=bool(estimator and estimator.hardware.in_memory_only_cache),
            directory=None if config.cache_dir is None else Path(config.cache_dir),
        )
        return configured.store(beside)


def _named(given: str | None, configured: str | None, default: str) -> str:
    """Return the first that is given; an empty text is given too, and refused later."""
    return next(text for text in (given, configured, default) if text is not None)


def settings_of(flags: Flags, config_file: Path | None = None) -> Settings:
    """Read the configuration, the argument or ``config_file``, and start logging."""
    start_logging(flags.log_level, flags.log_path)
    argument = flags.workload
    if argument is not None and config_file is None and argument.suffix == ".json":
        return Settings(flags=flags, config=load_config(argument), config_path=argument)
    if argument is not None and flags.mlir_file is not None:
        raise ConfigError(
            "two programs are given",
            location=str(argument),
            hint="drop the argument or --mlir_file",
        )
    named = replace(flags, mlir_file=flags.mlir_file or argument)
    config = RunConfig() if config_file is None else load_config(config_file)
    return Settings(flags=named, config=config, config_path=config_file)
