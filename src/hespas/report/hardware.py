"""Presets of nodes, systems and links as text and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import msgspec
from msgspec.structs import asdict

from hespas.base.suggest import nearest, suggestion
from hespas.base.units import GIB, format_bytes_binary, format_quantity, format_time, to_ns
from hespas.compile.targets import find_target
from hespas.errors import HardwareError
from hespas.hardware.device import Device
from hespas.hardware.interconnect import Dimension, Slice
from hespas.hardware.links import Link, link_names, load_link
from hespas.hardware.microarchitecture import Microarchitecture, read_microarchitecture
from hespas.hardware.power import POWER, BoardPower
from hespas.hardware.presets import (
    MICROARCHITECTURE,
    NodeInfo,
    check_node_file,
    describes_system,
    device_names,
    load_device,
    load_system,
    node_directory,
    node_info,
    system_names,
)
from hespas.hardware.sized import find_system, names_system
from hespas.hardware.system import System, astra_name
from hespas.price.tables import part_names
from hespas.report.drawing import drawing

_SYSTEM_WIDTH = 26


def hardware_text() -> str:
    """Return tables of nodes, systems and links."""
    tables = {
        "Nodes, with memory, its bandwidth and peak rates:": map(
            _node_line, map(load_device, device_names())
        ),
        "Systems, by dimension (any number of a node is a system too, as 32xH100_80GB):": map(
            _system_line, map(load_system, system_names())
        ),
        "Links (in a system's hespas/network.json):": map(_link_line, map(load_link, link_names())),
    }
    table_texts = ["\n".join([head, *lines]) for head, lines in tables.items()]
    return "\n\n".join([*table_texts, "hespas hardware NAME shows all figures and their sources."])


def _node_line(device: Device) -> str:
    rates = device.per_datatype_flops
    best = max(rates, key=lambda key: rates[key], default="")
    shown_types = [key for key in ("f32", "bf16") if key in rates]
    rate_texts = [f"{key} {format_quantity(rates[key], 'FLOP/s')}" for key in shown_types]
    if best and best not in shown_types:
        rate_texts.append(f"{best} {format_quantity(rates[best], 'FLOP/s')}")
    memory = device.memory_capacity_bytes
    size = "unknown" if memory is None else format_bytes_binary(memory)
    bandwidth = format_quantity(device.memory_bandwidth_bytes_per_s, "B/s")
    return f"  {device.name:<15} {size:>8} {bandwidth:>11}  {', '.join(rate_texts)}"


def _system_line(system: System) -> str:
    dimensions = "; ".join(map(_dimension_text, system.dimensions))
    return f"  {system.name:<{_SYSTEM_WIDTH}} {system.device_count:>5} devices: {dimensions}"


def _link_line(link: Link) -> str:
    figures: list[str] = []
    if (parameters := link.parameters) is not None:
        figures = [
            format_quantity(parameters.bandwidth_bytes_per_s, "B/s"),
            format_time(parameters.latency_s),
        ]
    sizes = sorted({size for by_size in link.collectives.values() for size in by_size})
    measured = f"collectives measured among {', '.join(map(str, sizes))}" if sizes else ""
    return f"  {link.name:<{_SYSTEM_WIDTH}} {'; '.join([', '.join(figures), measured]).strip('; ')}"


def _dimension_text(dimension: Dimension) -> str:
    return (
        f"{astra_name(dimension.shape)} of {dimension.size}, "
        f"{dimension.bandwidth_bytes_per_s / GIB:.4g} GiB/s, {format_time(dimension.latency_s)}"
    )


def preset_details(name: str) -> str:
    """Return all figures of a node or system, with sources.

    Raises `HardwareError` for other names.
    """
    return _system_details(find_system(name)) if _is_system(name) else _node_details(name)


def _is_system(name: str) -> bool:
    return names_system(name) or describes_system(Path(name))


def _node_details(name: str) -> str:
    title, info, device = _node(name)
    lines = [f"{title}: {info.full_name}", *_figures(device)]
    if (links := info.slice) is not None:
        lines.append(f"  slice        {_slice_text(links)}")
    if (core := device.tensor_core) is not None:
        units = ", ".join(f"{key} {value}" for key, value in asdict(core).items())
        lines.append(f"  TensorCore   {units}")
    if (measured := device.measured) is not None:
        factors = sorted(measured.factors.items())
        times = ", ".join(f"{factor:g} ({key})" for key, factor in factors)
        lines.append(
            f"  measured     tables of {measured.part}{', times ' if times else ''}{times}"
        )
        shares = ", ".join(f"{part:.0%} ({key})" for key, part in sorted(measured.reached.items()))
        if shares:
            lines.append(f"  reached      of its peaks, of what {measured.part} reaches: {shares}")
    lines += [f"  target       {info.target or 'none'}", "", *info.notes, "Sources:"]
    lines += [f"  {key}: {text}" for key, text in info.sources.items()]
    if (gpu := _microarchitecture(device)) is not None:
        lines += ["", f"Inside ({MICROARCHITECTURE}):"]
        lines += [
            f"  {key:<26} {_figure_text(key, value):<12} {gpu.sources[key]}"
            for key, value in msgspec.to_builtins(gpu).items()
            if key in gpu.sources
        ]
    if device.power is not None:
        lines += ["", f"Power ({POWER}), in W, J and parts of the boost clock:"]
        lines += [
            f"  {key:<26} {value:<12.4g} {device.power.sources[key]}"
            for key, value in _power_figures(device.power)
        ]
    return "\n".join(lines)


def _power_figures(power: BoardPower) -> list[tuple[str, float]]:
    figures: list[tuple[str, float]] = []
    for key, value in msgspec.to_builtins(power).items():
        if isinstance(value, dict) and key != "sources":
            inner = cast("dict[str, float]", value)
            figures += [(f"{key}.{name}", figure) for name, figure in inner.items()]
        elif isinstance(value, int | float):
            figures.append((key, value))
    return figures


def _node(name: str) -> tuple[str, NodeInfo, Device]:
    """Return a node's name, description and rates.

    Raises `HardwareError` for an unknown name.
    """
    try:
        info = node_info(name)
    except HardwareError as error:
        if Path(name).exists():
            raise
        presets = (*device_names(), *system_names())
        raise HardwareError(
            f"no preset is named {name!r}",
            hint=suggestion(name, presets)
            if nearest(name, presets)
            else "hespas hardware lists them",
        ) from error
    if info.target is not None:
        find_target(name)
    device = load_device(name)
    check_node_file(name)
    measured = device.measured
    if measured is not None and measured.part not in part_names():
        raise HardwareError(
            f"there are no measured tables of {measured.part!r}",
            location=measured.location,
            hint=suggestion(measured.part, part_names()),
        )
    return node_directory(name).resolve().name, info, device


def _microarchitecture(device: Device) -> Microarchitecture | None:
    file = device.microarchitecture
    return None if file is None else read_microarchitecture(file)


def _figure_text(key: str, value: float) -> str:
    if key.endswith("_bandwidth"):
        return format_quantity(value, "B/s")
    if key.endswith("_hz"):
        return format_quantity(value, "Hz")
    if key.endswith("_bytes"):
        return format_bytes_binary(value)
    return format_time(value) if key.endswith("_s") else f"{value:g}"


def _system_details(system: System) -> str:
    lines = [f"{system.name}: {system.device_count} devices"]
    lines += [
        f"  dimension {number}: {_dimension_text(dimension)}"
        for number, dimension in enumerate(system.dimensions)
    ]
    lines += [
        f"  {kind.option}: {', '.join(names)}" for kind, names in system.implementations.items()
    ]
    lines += _own_network(system)
    memory = system.local_memory_bandwidth_bytes_per_s
    if memory is not None:
        lines.append(f"  local memory: {format_quantity(memory, 'B/s')}")
    lines.append(f"  endpoint delay: {format_time(system.endpoint_delay_s)}")
    lines += ["", "Network:", *drawing(system)]
    return "\n".join(lines)


def _own_network(system: System) -> list[str]:
    network = system.interconnect
    if network is None or not network.algorithms or not network.dimensions:
        return []
    shapes = ", ".join(
        f"{dimension.shape.value.replace('_', ' ')} of {dimension.size}"
        for dimension in network.dimensions
    )
    return [
        f"  in hespas' model: {shapes}",
        *[f"    {kind}: {', '.join(names)}" for kind, names in network.algorithms.items()],
    ]


def _slice_text(links: Slice) -> str:
    closed = (
        f"of cubes of {links.cube}"
        if links.closed_axis is None
        else f"rings of {links.closed_axis}"
    )
    return (
        f"{format_quantity(links.link_bandwidth, 'B/s')} a link, {closed}; "
        f"{format_quantity(links.dcn_bandwidth, 'B/s')} to other slices"
    )


def _figures(device: Device) -> list[str]:
    rates = {"other types": device.peak_flops, **device.per_datatype_flops}
    texts = {key: format_quantity(rate, "FLOP/s") for key, rate in rates.items()}
    texts["memory"] = format_quantity(device.memory_bandwidth_bytes_per_s, "B/s")
    if device.memory_capacity_bytes is not None:
        texts["capacity"] = format_bytes_binary(device.memory_capacity_bytes)
    if device.tdp_w is not None:
        texts["power"] = f"{device.tdp_w:g} W"
    if device.launch_overhead_s is not None:
        texts["launch"] = format_time(device.launch_overhead_s)
    if device.clock_hz is not None:
        texts["clock"] = f"{device.clock_hz / 1e9:g} GHz"
    if device.host_bandwidth_bytes_per_s is not None:
        rate = format_quantity(device.host_bandwidth_bytes_per_s, "B/s")
        texts["to the host"] = f"{rate} in each direction"
    return [f"  {name:<12} {text}" for name, text in texts.items()]


def hardware_json(name: str | None) -> dict[str, object]:
    """Return a node or system, or all presets, as JSON."""
    if name is not None and _is_system(name):
        return _system_json(find_system(name))
    if name is not None:
        return _node_json(name)
    return {
        "nodes": {preset: _node_json(preset) for preset in device_names()},
        "systems": {preset: _system_json(load_system(preset)) for preset in system_names()},
        "links": {preset: _link_json(load_link(preset)) for preset in link_names()},
    }


def _node_json(name: str) -> dict[str, object]:
    title, info, device = _node(name)
    measured, gpu = device.measured, _microarchitecture(device)
    return {
        "name": title,
        "full_name": info.full_name,
        "peak_flops": device.peak_flops,
        "per_datatype_flops": dict(device.per_datatype_flops),
        "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s,
        "memory_capacity_bytes": device.memory_capacity_bytes,
        "tdp_w": device.tdp_w,
        "launch_overhead_s": device.launch_overhead_s,
        "clock_hz": device.clock_hz,
        "host_bandwidth_bytes_per_s": device.host_bandwidth_bytes_per_s,
        "tensor_core": None if device.tensor_core is None else asdict(device.tensor_core),
        "tables": None if measured is None else measured.part,
        "calibration": {} if measured is None else dict(measured.factors),
        "reached": {} if measured is None else dict(measured.reached),
        "microarchitecture": None if gpu is None else msgspec.to_builtins(gpu),
        "power": None if device.power is None else msgspec.to_builtins(device.power),
        "target": info.target,
        "aliases": list(info.aliases),
        "sources": dict(info.sources),
    }


def _link_json(link: Link) -> dict[str, object]:
    parameters = link.parameters
    return {
        "name": link.name,
        "source": link.source,
        "bandwidth_bytes_per_s": None if parameters is None else parameters.bandwidth_bytes_per_s,
        "latency_s": None if parameters is None else parameters.latency_s,
        "measured": {kind: sorted(by_size) for kind, by_size in link.collectives.items()},
    }


def _system_json(system: System) -> dict[str, object]:
    return {
        "name": system.name,
        "devices": system.device_count,
        "dimensions": [
            {
                "topology": astra_name(dimension.shape),
                "npus_count": dimension.size,
                "bandwidth_gib_per_s": dimension.bandwidth_bytes_per_s / GIB,
                "latency_ns": to_ns(dimension.latency_s),
            }
            for dimension in system.dimensions
        ],
    }
