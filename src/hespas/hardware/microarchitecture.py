"""The inside of a GPU, from ``microarchitecture.json``."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct, structs

from hespas.base.decode import decode, read_json
from hespas.base.figures import Count, Fraction, NotNegative, Positive, Text
from hespas.errors import HardwareError
from hespas.hardware.device import Device, check_clock
from hespas.hardware.power import check_sources
from hespas.hardware.presets import MICROARCHITECTURE, load_device


class Microarchitecture(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"l2_bandwidth_bytes_per_s": "l2_bandwidth"},
):
    """Rates of one multiprocessor, and resources that all share.

    The fields are the keys of ``microarchitecture.json``. ``*_lanes`` are the threads per cycle
    that each pipe of a multiprocessor serves: integer and logical work, fused multiply-add, special
    functions, loads and stores, 64-bit floats, and the issue of any instruction. All
    multiprocessors share ``l2_bandwidth_bytes_per_s``. Pipes reach ``pipe_efficiency`` of their
    rate, device memory ``memory_efficiency`` of its rate. ``warp_turnover_cycles`` is the cost of
    starting and retiring one warp, ``launch_s`` the fixed time of a kernel that is launched alone,
    ``graph_launch_s`` that of one in a CUDA graph, by default the same. Products of single warps
    (``mma``) reach ``warp_product_share`` of the rate of tensor cores. ``sources`` names the
    source of each figure, by its key; the source of an assumption begins with ``assumed``.
    """

    multiprocessors: Count
    clock_hz: Positive
    threads_per_multiprocessor: Count
    blocks_per_multiprocessor: Count
    l1_bytes: Count
    l2_bytes: Count
    l2_bandwidth_bytes_per_s: Positive
    logic_lanes: Positive
    fused_lanes: Positive
    special_lanes: Positive
    memory_lanes: Positive
    double_lanes: Positive
    issue_lanes: Positive
    pipe_efficiency: Fraction
    memory_efficiency: Fraction
    warp_turnover_cycles: Positive
    launch_s: NotNegative
    sources: dict[str, Text]
    graph_launch_s: NotNegative | None = None
    warp_product_share: Fraction | None = None


def load_microarchitecture(device: Device | str | Path) -> Microarchitecture:
    """Return a device's microarchitecture, also by name or path.

    Raises `HardwareError` for an unknown name, and for a device without this description.

    >>> load_microarchitecture("H100_80GB").multiprocessors
    132
    """
    gpu = device if isinstance(device, Device) else load_device(device)
    if gpu.microarchitecture is None:
        raise HardwareError(
            f"the microarchitecture of {gpu.name} is not described",
            location=gpu.name,
            hint=f"put {MICROARCHITECTURE} beside its node.json, or use method roofline",
        )
    return read_microarchitecture(gpu.microarchitecture)


def read_microarchitecture(file: Path) -> Microarchitecture:
    """Return a file's figures, else `HardwareError` without sources."""
    gpu = decode(read_json(file), Microarchitecture, location=str(file))
    check_clock(gpu.clock_hz, location=str(file))
    figures = {
        field.encode_name
        for field in structs.fields(Microarchitecture)
        if field.name != "sources" and getattr(gpu, field.name) is not None
    }
    check_sources(figures, gpu.sources.keys(), location=str(file))
    return gpu


def launching_in_graphs(gpu: Microarchitecture) -> Microarchitecture:
    """Return a GPU that launches kernels in CUDA graphs."""
    launch_s = gpu.launch_s if gpu.graph_launch_s is None else gpu.graph_launch_s
    return structs.replace(gpu, launch_s=launch_s)


def microarchitecture_at(
    gpu: Microarchitecture, *, arithmetic: float, launch: float
) -> Microarchitecture:
    """Return a GPU with scaled launches and arithmetic pipelines.

    >>> gpu = load_microarchitecture("H100_80GB")
    >>> other = microarchitecture_at(gpu, arithmetic=2.0, launch=0.0)
    >>> other.fused_lanes / gpu.fused_lanes, other.memory_lanes / gpu.memory_lanes, other.launch_s
    (2.0, 1.0, 0.0)
    """
    pipes = ("logic_lanes", "fused_lanes", "special_lanes", "double_lanes", "issue_lanes")
    rates = {name: getattr(gpu, name) * arithmetic for name in pipes}
    return structs.replace(gpu, **rates, launch_s=gpu.launch_s * launch)
