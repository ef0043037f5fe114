"""The flags of all commands, as given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
    method: str | None = None
    peak_flops: str | None = None
    memory_bandwidth: str | None = None
    per_datatype_flops: str | None = None
    launch_overhead: str | None = None
    custom_call: tuple[str, ...] = ()
    cache_dir: Path | None = None
    disable_cache: bool | None = None
    in_memory_only_cache: bool | None = None
    threads: int | None = None
    system: str | None = None
    network: str | None = None
    model: str | None = None
    algorithm: str | None = None
    cluster: Path | None = None
    output: Path | None = None
    clean: bool | None = None
    optimise: bool | None = None
    disable_passes: str | None = None
    matmuls: str | None = None
    latency_hiding_scheduler: bool | None = None
    xla_flag: tuple[str, ...] = ()
    kernels: Path | None = None
    log_level: str | None = None
    log_path: Path | None = None
