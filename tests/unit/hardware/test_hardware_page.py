"""The page docs/how-to/own-hardware.md agrees with the preset files, and its examples are valid."""

from __future__ import annotations

import re
from pathlib import Path

from hespas.hardware.device import Device
from hespas.hardware.presets import (
    device_names,
    load_device,
    load_system,
    node_info,
    system_names,
)
from hespas.hardware.system import CollectiveKind, NetworkDimension, System
from hespas.units import GIB, to_ns

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "own-hardware.md"
NODES_HEAD = (
    "| node | other types, TFLOP/s | by element type, TFLOP/s | memory, GB/s | memory, GiB "
    "| TDP, W | clock, GHz | target | source |\n|---|---|---|---|---|---|---|---|---|"
)
SYSTEMS_HEAD = (
    "| system | devices | dimensions: wiring, GB/s, ns | local memory, GB/s | algorithms |\n"
    "|---|---|---|---|---|"
)


def _tera(flops: float) -> str:
    return f"{flops / 1e12:g}"


def _node_row(device: Device) -> str:
    info = node_info(device.name)
    rates = ", ".join(f"{key} {_tera(rate)}" for key, rate in device.per_datatype_flops.items())
    cells = (
        f"`{device.name}`",
        _tera(device.peak_flops),
        rates,
        f"{device.memory_bandwidth_bytes_per_s / 1e9:g}",
        f"{info.memory_capacity_bytes / 2**30:g}",
        "unknown" if device.tdp_w is None else f"{device.tdp_w:g}",
        "none" if device.clock_hz is None else f"{device.clock_hz / 1e9:g}",
        info.target or "none",
        info.sources["memory_bandwidth"].partition(":")[0],
    )
    return f"| {' | '.join(cells)} |"


def _wiring(dimension: NetworkDimension) -> str:
    figures = f"{dimension.bandwidth_bytes_per_s / GIB:g}, {to_ns(dimension.latency_s):.0f}"
    return f"{dimension.topology.value} x {dimension.npus_count}, {figures}"


def _system_row(system: System) -> str:
    local = system.local_memory_bandwidth_bytes_per_s
    cells = (
        f"`{system.name}`",
        f"{system.device_count}",
        "; ".join(map(_wiring, system.dimensions)),
        "none" if local is None else f"{local / 1e9:g}",
        ", ".join(system.implementations[CollectiveKind.ALL_REDUCE]),
    )
    return f"| {' | '.join(cells)} |"


def test_the_table_of_nodes_agrees_with_the_files() -> None:
    rows = [_node_row(load_device(name)) for name in device_names()]
    assert "\n".join(["", NODES_HEAD, *rows, ""]) in PAGE.read_text()


def test_the_table_of_systems_agrees_with_the_files() -> None:
    rows = [_system_row(load_system(name)) for name in system_names()]
    assert "\n".join(["", SYSTEMS_HEAD, *rows, ""]) in PAGE.read_text()


def test_the_examples_of_one_s_own_files_are_valid(tmp_path: Path) -> None:
    blocks = re.findall(
        r"^```(?:json|yaml)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    names = ("config.json", "node.json", "network.yml", "system.json", "remote_memory.json")
    for name, block in zip(names, blocks, strict=True):
        (tmp_path / name).write_text(block)
    device = load_device(tmp_path)
    assert device.per_datatype_flops == {"bf16": 200e12, "f32": 20e12}
    assert device.memory_capacity_bytes == 64 * 2**30
    assert load_system(tmp_path).device_count == 8
