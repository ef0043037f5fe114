"""Inside one GPU: what a kernel that is read instruction by instruction runs on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from msgspec import Meta, Struct

from hespas.config.decode import decode
from hespas.config.files import read_json
from hespas.errors import HardwareError
from hespas.hardware.device import Device, check_clock
from hespas.hardware.presets import MICROARCHITECTURE, load_device

Count = Annotated[int, Meta(ge=1)]
Rate = Annotated[float, Meta(gt=0)]
Part = Annotated[float, Meta(gt=0, le=1)]
Text = Annotated[str, Meta(min_length=1)]


class _Wire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``microarchitecture.json``."""

    multiprocessors: Count
    clock_hz: Rate
    threads_per_multiprocessor: Count
    blocks_per_multiprocessor: Count
    l1_bytes: Count
    l2_bytes: Count
    l2_bandwidth: Rate
    logic_lanes: Rate
    fused_lanes: Rate
    special_lanes: Rate
    memory_lanes: Rate
    double_lanes: Rate
    issue_lanes: Rate
    pipe_efficiency: Part
    memory_efficiency: Part
    warp_turnover_cycles: Rate
    launch_s: Annotated[float, Meta(ge=0)]
    sources: dict[str, Text]


@dataclass(frozen=True, slots=True, kw_only=True)
class Microarchitecture:
    """Rates of one multiprocessor, and what multiprocessors share.

    ``*_lanes`` are threads a cycle that each pipe of a multiprocessor serves: integer and
    logical work, fused multiply and add, special functions, loads and stores, 64-bit floats, and
    the issue of any instruction. ``l2_bandwidth_bytes_per_s`` is shared by all. Pipes reach
    ``pipe_efficiency`` of their rate, device memory ``memory_efficiency`` of its.
    ``warp_turnover_cycles`` is what starting and retiring one warp costs its multiprocessor,
    ``launch_s`` what a kernel takes beside all this. ``sources`` tells for each figure where it
    comes from; one that nothing was found for begins with ``assumed``.
    """

    multiprocessors: int
    clock_hz: float
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    l1_bytes: int
    l2_bytes: int
    l2_bandwidth_bytes_per_s: float
    logic_lanes: float
    fused_lanes: float
    special_lanes: float
    memory_lanes: float
    double_lanes: float
    issue_lanes: float
    pipe_efficiency: float
    memory_efficiency: float
    warp_turnover_cycles: float
    launch_s: float
    sources: Mapping[str, str]


def load_microarchitecture(device: Device | str | Path) -> Microarchitecture:
    """Return the figures of a device, or of one that is given by its name or its path.

    Raises `HardwareError` for a name that no preset has, and for a device without them.

    >>> load_microarchitecture("H100_80GB").multiprocessors
    132
    """
    found = device if isinstance(device, Device) else load_device(device)
    if found.microarchitecture is None:
        raise HardwareError(
            f"the inside of {found.name} is not described",
            location=found.name,
            hint=f"put {MICROARCHITECTURE} beside its node.json, or use method roofline",
        )
    return read_microarchitecture(found.microarchitecture)


def read_microarchitecture(file: Path) -> Microarchitecture:
    """Return the figures of a file; `HardwareError` for one that lacks the source of a figure."""
    wire = decode(read_json(file), _Wire, location=str(file))
    check_clock(wire.clock_hz, location=str(file))
    figures = {name for name in _Wire.__struct_fields__ if name != "sources"}
    if wire.sources.keys() != figures:
        raise HardwareError(
            f"sources and figures differ: {', '.join(sorted(figures ^ wire.sources.keys()))}",
            location=str(file),
            hint="give the source of each figure, or say that it is assumed",
        )
    return Microarchitecture(
        multiprocessors=wire.multiprocessors,
        clock_hz=wire.clock_hz,
        threads_per_multiprocessor=wire.threads_per_multiprocessor,
        blocks_per_multiprocessor=wire.blocks_per_multiprocessor,
        l1_bytes=wire.l1_bytes,
        l2_bytes=wire.l2_bytes,
        l2_bandwidth_bytes_per_s=wire.l2_bandwidth,
        logic_lanes=wire.logic_lanes,
        fused_lanes=wire.fused_lanes,
        special_lanes=wire.special_lanes,
        memory_lanes=wire.memory_lanes,
        double_lanes=wire.double_lanes,
        issue_lanes=wire.issue_lanes,
        pipe_efficiency=wire.pipe_efficiency,
        memory_efficiency=wire.memory_efficiency,
        warp_turnover_cycles=wire.warp_turnover_cycles,
        launch_s=wire.launch_s,
        sources=MappingProxyType(wire.sources),
    )
