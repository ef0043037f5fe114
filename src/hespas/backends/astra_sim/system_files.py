"""Write a system as the three files that ASTRA-sim reads: what `read_system` reads back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from hespas.base.files import json_bytes, write_file
from hespas.base.units import GIB, to_gb_per_s, to_ns
from hespas.errors import ConfigError
from hespas.hardware.system import RemoteMemory, System
from hespas.program.collectives import COMMON_KINDS

_CUSTOM = "-implementation-custom"
_PER_NODE = "per-node-custom-implementation"


def write_system(system: System, directory: Path) -> tuple[Path, Path, Path]:
    """Write ``system.json``, ``network.yml`` and ``remote_memory.json``, and return their paths.

    Paths of custom collectives become absolute ones. Raises `ConfigError` for an algorithm in
    XML, and a network that only hespas' own model can describe: ASTRA-sim doesn't read them.
    """
    if not system.dimensions:
        message = "ASTRA-sim reads no network of hespas' own model"
        raise ConfigError(message, location=system.name, hint="give a network.yml")
    files = tuple(
        [directory / name for name in ("system.json", "network.yml", "remote_memory.json")]
    )
    contents = (
        json_bytes(_system_json(system)),
        _network_yml(system).encode(),
        json_bytes(_remote_memory_json(system.remote_memory)),
    )
    for file, content in zip(files, contents, strict=True):
        write_file(file, content)
    return cast("tuple[Path, Path, Path]", files)


def _system_json(system: System) -> dict[str, object]:
    found: dict[str, object] = {
        "scheduling-policy": system.scheduling_policy,
        "endpoint-delay": round(to_ns(system.endpoint_delay_s)),
        "active-chunks-per-dimension": system.active_chunks_per_dimension,
        "preferred-dataset-splits": system.preferred_dataset_splits,
        "collective-optimization": system.collective_optimization,
    }
    if system.local_memory_bandwidth_bytes_per_s is not None:
        found["local-mem-bw"] = to_gb_per_s(system.local_memory_bandwidth_bytes_per_s)
    for kind in COMMON_KINDS:
        if kind in system.implementations:
            found[f"{kind.option}-implementation"] = list(system.implementations[kind])
    return found | {name: _absolute(name, value) for name, value in system.options.items()}


def _absolute(name: str, value: object) -> object:
    """Return an option, its paths no longer relative to the working directory."""
    if name == _PER_NODE and value:
        return str(Path(str(value)).absolute())
    if not name.endswith(_CUSTOM) or not value:
        return value
    prefixes = [Path(prefix).absolute() for prefix in cast("Sequence[str]", value)]
    for prefix in prefixes:
        if prefix.suffix == ".xml":
            hint = "write its graphs with hespas algorithm --chakra, and give their prefix"
            raise ConfigError(f"ASTRA-sim reads no XML: {prefix.name}", location=name, hint=hint)
    return [str(prefix) for prefix in prefixes]


def _network_yml(system: System) -> str:
    rows = {
        "topology": [dimension.topology.value for dimension in system.dimensions],
        "npus_count": [dimension.npus_count for dimension in system.dimensions],
        "bandwidth": [dimension.bandwidth_bytes_per_s / GIB for dimension in system.dimensions],
        "latency": [to_ns(dimension.latency_s) for dimension in system.dimensions],
    }
    return "".join(f"{key}: [{', '.join(map(str, row))}]\n" for key, row in rows.items())


def _remote_memory_json(memory: RemoteMemory) -> dict[str, object]:
    latency_s, bandwidth = memory.latency_s, memory.bandwidth_bytes_per_s
    figures: dict[str, object | None] = {
        "memory-type": memory.kind.value,
        "remote-mem-latency": None if latency_s is None else to_ns(latency_s),
        "remote-mem-bw": None if bandwidth is None else to_gb_per_s(bandwidth),
        "num-nodes": memory.nodes,
        "num-npus-per-node": memory.npus_per_node,
    }
    return {name: value for name, value in figures.items() if value is not None}
