"""What a command works with, from flags, configuration file and defaults, in this order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hespas.cli.options import start_logging
from hespas.cli.parsing import parse_custom_calls, parse_per_line, parse_rates, parse_weights
from hespas.config.load import load_config
from hespas.config.run_config import RunConfig, roofline_hardware
from hespas.cost.rules.custom_call import CustomCallCost
from hespas.errors import ConfigError
from hespas.estimate.roofline import RooflineOptions
from hespas.estimate.store import DiskStore, MemoryStore, Store
from hespas.frontend.stablehlo import LoadOptions
from hespas.hardware.device import Device
from hespas.hardware.presets import device_names, device_of, load_device, load_system
from hespas.hardware.system import System
from hespas.split.strategies import SplitOptions, split_options
from hespas.units import parse_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """Flags as given; None or empty for those that aren't. Commands have only some of them."""

    workload: Path | None = None
    mlir_file: Path | None = None
    devices: int | None = None
    trip_count: tuple[str, ...] = ()
    branch_weights: tuple[str, ...] = ()
    split_fn: str | None = None
    block_lim: int | None = None
    merge: bool | None = None
    separator: str | None = None
    separator_policy: str | None = None
    node: str | None = None
    peak_flops: str | None = None
    memory_bandwidth: str | None = None
    per_datatype_flops: str | None = None
    custom_call: tuple[str, ...] = ()
    cache_dir: Path | None = None
    disable_cache: bool | None = None
    in_memory_only_cache: bool | None = None
    threads: int | None = None
    system: str | None = None
    network: str = "congestion-unaware"
    output: Path | None = None
    clean: bool | None = None
    log_level: str | None = None
    log_path: Path | None = None


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
        if self.config_path is None and self.flags.workload is not None:
            named = self.flags.workload
        if named is None:
            raise ConfigError(
                "no program is given",
                place=str(self.config_path or ""),
                mend="name a file, or give --mlir_file",
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
            strategy=flags.split_fn or config.split_strategy or "linear_split",
            merge=bool(merge),
            block_limit=flags.block_lim if flags.block_lim is not None else config.block_lim,
            separator=flags.separator or config.separator or "is_communication_op",
            separator_policy=flags.separator_policy or config.separator_policy or "isolated",
        )

    @property
    def device(self) -> Device:
        """The device: --node before the configuration's, single rates before both."""
        flags = self.flags
        base = self._named_device()
        if base is None and (flags.peak_flops is None or flags.memory_bandwidth is None):
            raise ConfigError(
                "no device is given",
                mend=f"give --node ({', '.join(device_names()[:4])}, ...: see hespas hardware), "
                "or --peak-flops and --memory-bandwidth",
            )
        if base is None:
            base = Device(name="device", peak_flops=1.0, memory_bandwidth_bytes_per_s=1.0)
        rates = parse_rates(flags.per_datatype_flops)
        return replace(
            base,
            peak_flops=_quantity(flags.peak_flops, "FLOP/s", base.peak_flops),
            memory_bandwidth_bytes_per_s=_quantity(
                flags.memory_bandwidth, "B/s", base.memory_bandwidth_bytes_per_s
            ),
            per_datatype_flops={**base.per_datatype_flops, **rates},
        )

    def _named_device(self) -> Device | None:
        if self.flags.node is not None:
            return load_device(self.flags.node)
        if self.config.perf_estimator is None:
            return None
        place = str(self.config_path)
        hardware = roofline_hardware(self.config, place=place)
        if self.config_path is not None and self.config.mlir_file is None:
            return load_device(self.config_path)
        return device_of(hardware, name=place)

    @property
    def roofline_options(self) -> RooflineOptions:
        """What to do about types without a rate."""
        if self.flags.node is not None or self.config.perf_estimator is None:
            return RooflineOptions()
        hardware = roofline_hardware(self.config, place=str(self.config_path))
        return RooflineOptions(
            error_on_unknown_type=bool(hardware.error_on_unknown_type),
            warn_on_unknown_type=bool(hardware.warn_on_unknown_type),
        )

    @property
    def custom_calls(self) -> dict[str, CustomCallCost]:
        """What the user states of custom calls."""
        return parse_custom_calls(self.flags.custom_call)

    @property
    def system(self) -> System | None:
        """The cluster, where one was given."""
        return None if self.flags.system is None else load_system(self.flags.system)

    @property
    def output(self) -> Path | None:
        """The output directory, where one was given."""
        named = self.flags.output or self.config.output_dir
        return None if named is None else Path(named)

    @property
    def clean(self) -> bool:
        """Whether another workload's files may be replaced."""
        return bool(self.flags.clean if self.flags.clean is not None else self.config.clean)

    @property
    def threads(self) -> int:
        """How many estimators run at a time."""
        given = self.flags.threads if self.flags.threads is not None else self.config.num_threads
        if given is not None and given < 1:
            raise ConfigError(f"{given} threads are asked for", mend="give 1 or more")
        return given or 1

    def store(self, beside: Path | None) -> Store | None:
        """Return where estimates are kept; ``beside`` is where the output is being made."""
        flags, config = self.flags, self.config
        disabled = flags.disable_cache if flags.disable_cache is not None else config.disable_cache
        if disabled:
            return None
        in_memory = flags.in_memory_only_cache
        if in_memory is None and config.perf_estimator is not None:
            in_memory = config.perf_estimator.hardware.in_memory_only_cache
        named = flags.cache_dir or config.cache_dir
        if in_memory and flags.cache_dir is not None:
            raise ConfigError(
                "--cache-dir has no effect on an in-memory cache", mend="drop one of the two"
            )
        if in_memory or (named is None and beside is None):
            return MemoryStore()
        if named is not None:
            return DiskStore(directory=Path(named))
        return MemoryStore() if beside is None else DiskStore(directory=beside / "cache")


def _quantity(text: str | None, unit: str, default: float) -> float:
    return default if text is None else parse_quantity(text, unit)


def settings_of(flags: Flags) -> Settings:
    """Read the configuration, if the argument is one, and start logging."""
    start_logging(flags.log_level, flags.log_path)
    path = flags.workload
    if path is not None and path.suffix == ".json":
        return Settings(flags=flags, config=load_config(path), config_path=path)
    if path is not None and flags.mlir_file is not None:
        raise ConfigError(
            "two programs are given", place=str(path), mend="drop the argument or --mlir_file"
        )
    return Settings(flags=flags, config=RunConfig(), config_path=None)
