"""Fit the link presets of hespas to measured collectives, or list how well they fit.

    python validation/fit_links.py --xla-tables DIRECTORY    # writes configs/links/*.json
    python validation/fit_links.py --residuals    # table of docs/evidence/measured-tables.md

Groups of 2, 4 and 8 GPUs: the NCCL timings of aiconfigurator-core, which validation/
distil_tables.py keeps in the measured tables. Larger groups of an NVL72 rack, and transfers
between two devices: openxla/xla, xla/service/gpu/model/collective_interpolator_data.h
(Apache-2.0), as DIRECTORY/xla_collective_perf_table.csv with the columns arch, op, dim0, groups,
devices_per_group, permute_pairs, throughput_bytes_per_s.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from statistics import median

from hespas.evidence.calibrate.piecewise import Piece, Point, fit, residuals
from hespas.hardware.links import LINKS_DIRECTORY, load_link
from hespas.price.tables import load_part

XLA_OPS = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "collective-permute": "send_recv",
}
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
F32_BYTES = 4
IN_SWITCH_RATIO = 1.25
"""An all-reduce whose bus bandwidth beats the all-gather's by more than this reduces in switches.

A ring moves the same bytes for both; without in-switch reduction (A100) the ratio is 1.08.
"""
Measured = dict[str, dict[int, list[Point]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A link preset: whose tables it is fitted to, and what its maker says of a wire."""

    part: str
    about: str
    arch: str = ""
    bandwidth_bytes_per_s: float
    multiprocessors: int | None = None
    reduces_in_switch: bool = False


FABRICS = {
    "NVLink3_A100": Fabric(
        part="A100_SXM",
        about="third-generation NVLink through NVSwitch; NVIDIA A100 datasheet: 600 GB/s a GPU, "
        "both directions",
        bandwidth_bytes_per_s=300e9,
        multiprocessors=108,
    ),
    "NVLink4_H100": Fabric(
        part="H100_SXM",
        about="fourth-generation NVLink through NVSwitch; NVIDIA H100 datasheet: 900 GB/s a GPU, "
        "both directions",
        arch="sm_90",
        bandwidth_bytes_per_s=450e9,
        multiprocessors=132,
        reduces_in_switch=True,
    ),
    "NVLink4_H200": Fabric(
        part="H200_SXM",
        about="fourth-generation NVLink through NVSwitch; NVIDIA H200 datasheet: 900 GB/s a GPU, "
        "both directions",
        bandwidth_bytes_per_s=450e9,
        multiprocessors=132,
        reduces_in_switch=True,
    ),
    "NVLink5_B200": Fabric(
        part="B200_SXM",
        about="fifth-generation NVLink through NVSwitch; NVIDIA HGX B200 specifications: 1.8 TB/s "
        "a GPU, both directions",
        arch="sm_100_B200",
        bandwidth_bytes_per_s=900e9,
        multiprocessors=148,
        reduces_in_switch=True,
    ),
    "NVLink5_B300": Fabric(
        part="B300_SXM",
        about="fifth-generation NVLink through NVSwitch; NVIDIA HGX B300 specifications: 1.8 TB/s "
        "a GPU, both directions",
        bandwidth_bytes_per_s=900e9,
        multiprocessors=158,
        reduces_in_switch=True,
    ),
    "NVL72_GB200": Fabric(
        part="GB200",
        about="fifth-generation NVLink of an NVL72 rack; NVIDIA GB200 NVL72 specifications: "
        "1.8 TB/s a GPU, both directions",
        arch="sm_100_GB200",
        bandwidth_bytes_per_s=900e9,
        multiprocessors=152,
        reduces_in_switch=True,
    ),
    "NVL72_GB300": Fabric(
        part="GB300",
        about="fifth-generation NVLink of an NVL72 rack; NVIDIA GB300 NVL72 specifications: "
        "1.8 TB/s a GPU, both directions",
        arch="sm_103",
        bandwidth_bytes_per_s=900e9,
        multiprocessors=152,
        reduces_in_switch=True,
    ),
    "PCIe4_L40S": Fabric(
        part="L40S",
        about="PCI Express 4.0 x16 without peer access; NVIDIA L40S datasheet: 64 GB/s, both "
        "directions",
        bandwidth_bytes_per_s=32e9,
    ),
}


_NCCL_PROTOCOLS = (
    "Per step and by protocol: NCCL's own constants for networks, src/graph/tuning.cc: a ring's "
    "hop of 2.7, 4.0 and 14.0 us for LL, LL128 and Simple, of which LL gets a half and LL128 "
    "120/128 of the bandwidth; sizes of change are where these times cross. Assumed: 1 us of a "
    "hop is the sender's for each message, which is what keeps many messages at once from being "
    "free"
)
POSTING_S = 1e-6
HOP_S, LL128_S, SIMPLE_S = 2.7e-6, 4.0e-6, 14.0e-6
LL_FRACTION, LL128_FRACTION = 0.5, 120 / 128

WIRES = {
    "InfiniBand_HDR_200G": (25e9, "NVIDIA ConnectX-6 and Quantum: 200 Gb/s a port", True),
    "InfiniBand_NDR_400G": (50e9, "NVIDIA ConnectX-7 and Quantum-2: 400 Gb/s a port", True),
    "InfiniBand_XDR_800G": (100e9, "NVIDIA ConnectX-8 and Quantum-X800: 800 Gb/s a port", True),
    "RoCE_200G": (25e9, "200 Gb/s Ethernet with RDMA (ConnectX-6 Dx)", False),
    "RoCE_400G": (50e9, "400 Gb/s Ethernet with RDMA (ConnectX-7)", False),
    "EFA_100G": (
        12.5e9,
        (
            "AWS p4d.24xlarge: 400 Gb/s for 8 GPUs is 50 Gb/s a GPU, one adapter "
            "of 100 Gb/s for two; its latency is taken to be InfiniBand's"
        ),
        False,
    ),
    "EFA_400G": (
        50e9,
        (
            "AWS p5.48xlarge: 3200 Gb/s for 8 GPUs, 400 Gb/s a GPU; its latency is "
            "taken to be InfiniBand's"
        ),
        False,
    ),
}
"""Between nodes: bytes/s of one direction of a port, its source, whether switches can reduce."""


def wire(name: str) -> dict[str, object]:
    """Return the preset of a link between nodes: no measurements, the constants of NCCL.

    A step of one message takes its hop, of which `POSTING_S` is for each message that is sent.
    """
    rate, source, in_switch = WIRES[name]
    crossings = [
        round((slow - fast) * rate / (1 / before - 1 / after))
        for fast, slow, before, after in (
            (HOP_S, LL128_S, LL_FRACTION, LL128_FRACTION),
            (LL128_S, SIMPLE_S, LL128_FRACTION, 1.0),
        )
    ]
    protocols = (
        ("LL", crossings[0], HOP_S, LL_FRACTION),
        ("LL128", crossings[1], LL128_S, LL128_FRACTION),
        ("Simple", None, SIMPLE_S, 1.0),
    )
    return {
        "name": name,
        "source": f"{source}. {_NCCL_PROTOCOLS}. Nothing here was measured.",
        "link": {
            "bandwidth_bytes_per_s": rate,
            "latency_s": float(f"{HOP_S - POSTING_S:.3g}"),
            "step_overhead_s": POSTING_S,
            "protocols": [
                {
                    "name": protocol,
                    "up_to_bytes": limit,
                    "overhead_s": float(f"{hop_s - HOP_S:.3g}"),
                    "bandwidth_fraction": fraction,
                }
                for protocol, limit, hop_s, fraction in protocols
            ],
            "reduces_in_switch": in_switch,
        },
    }


def nccl(part: str) -> Measured:
    """Return the NCCL timings kept in the measured tables of a part."""
    found: Measured = {}
    for kind in KINDS:
        grid = load_part(part).tables[f"collective.{kind}"].grid
        by_size: dict[int, list[Point]] = defaultdict(list)
        for (gpus, size), log_time in zip(grid.cells(), grid.log_times, strict=True):
            by_size[gpus].append(Point(size_bytes=size, time_s=exp(log_time)))
        found[kind] = dict(by_size)
    return found


def xla(file: Path, arch: str) -> Measured:
    """Return the timings of XLA's tables.

    ``dim0`` counts f32 of the whole buffer, except that a reduce-scatter's counts those of the
    result of one device; the throughput is that of the whole buffer. (At 4 devices of a GB200
    so read, they agree with NCCL's table within 4 % from 32 to 512 MiB.)
    """
    found: dict[str, dict[int, list[Point]]] = defaultdict(lambda: defaultdict(list))
    with file.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["arch"] != arch:
                continue
            kind = XLA_OPS[row["op"]]
            gpus = 2 if kind == "send_recv" else int(row["devices_per_group"])
            parts = gpus if kind == "reduce_scatter" else 1
            size = F32_BYTES * int(row["dim0"]) * parts
            time_s = size / float(row["throughput_bytes_per_s"])
            found[kind][gpus].append(Point(size_bytes=size, time_s=time_s))
    return found


def measured(fabric: Fabric, xla_file: Path) -> Measured:
    """Return all that is fitted: NCCL's own timings before XLA's of the same group size."""
    found = nccl(fabric.part)
    theirs = xla(xla_file, fabric.arch) if fabric.arch else {}
    for kind, by_size in theirs.items():
        known = found.setdefault(kind, {})
        for gpus, points in by_size.items():
            if gpus not in known and (kind == "send_recv" or gpus > 8 or 8 not in known):
                known[gpus] = points
    return found


def bus_bandwidth(kind: str, gpus: int, piece: Piece) -> float:
    """Return the bytes that each device sends and receives in a ring, a second."""
    passes = 2 if kind == "all_reduce" else 1
    return piece.bandwidth_bytes_per_s * passes * (gpus - 1) / gpus


def named(
    kind: str, gpus: int, pieces: Sequence[Piece], gather: Sequence[Piece], *, in_switch: bool
) -> list[dict[str, object]]:
    """Return pieces as a preset has them, with the algorithm and protocol they look like."""
    ring = max(bus_bandwidth("all_gather", gpus, piece) for piece in gather[-1:])
    made: list[dict[str, object]] = []
    for piece in pieces:
        is_last = piece.up_to_bytes is None
        reduces = kind == "all_reduce" and in_switch and is_last and gpus > 2
        beats = reduces and bus_bandwidth(kind, gpus, piece) > IN_SWITCH_RATIO * ring
        direct = kind in {"all_to_all", "send_recv"}
        made.append(
            {
                "algorithm": "NVLS" if beats else "direct" if direct else "ring",
                "protocol": _protocol(piece.up_to_bytes),
                "up_to_bytes": piece.up_to_bytes,
                "latency_s": piece.latency_s,
                "bandwidth_bytes_per_s": piece.bandwidth_bytes_per_s,
            }
        )
    return made


def _protocol(up_to_bytes: int | None) -> str:
    if up_to_bytes is None or up_to_bytes > 4 << 20:
        return "Simple"
    return "LL" if up_to_bytes <= 128 << 10 else "LL128"


def preset(name: str, fabric: Fabric, found: Measured) -> dict[str, object]:
    """Return the file of a link preset."""
    fits = {
        kind: {gpus: fit(points) for gpus, points in sorted(by_size.items())}
        for kind, by_size in found.items()
    }
    gathers = fits["all_gather"]
    last = max(gpus for gpus in gathers if gpus <= 8)
    step_s = (gathers[last][0].latency_s - gathers[2][0].latency_s) / (last - 2)
    return {
        "name": name,
        "source": f"{fabric.about}. Collectives: fitted by validation/fit_links.py to "
        f"{load_part(fabric.part).tables['collective.all_reduce'].source} "
        f"({load_part(fabric.part).about.measured_on}), aiconfigurator-core "
        f"{load_part(fabric.part).about.version}, Apache-2.0"
        + (", and to openxla/xla collective_interpolator_data.h, Apache-2.0" * bool(fabric.arch))
        + ". Names of algorithms and protocols are inferred from sizes and rates. The hop's "
        "latency is what a rank more adds to a short all-gather."
        + " Multiprocessors: XLA's description of the part (openxla/xla, Apache-2.0)."
        * (fabric.multiprocessors is not None),
        "link": {
            "bandwidth_bytes_per_s": fabric.bandwidth_bytes_per_s,
            "latency_s": float(f"{step_s:.3g}"),
            "reduces_in_switch": fabric.reduces_in_switch,
        },
        **({} if fabric.multiprocessors is None else {"multiprocessors": fabric.multiprocessors}),
        "collectives": {
            kind: {
                str(gpus): named(
                    kind,
                    gpus,
                    pieces,
                    gathers.get(gpus, gathers[last]),
                    in_switch=fabric.reduces_in_switch,
                )
                for gpus, pieces in by_size.items()
            }
            for kind, by_size in fits.items()
        },
    }


def residual_rows() -> list[tuple[str, str, int, int, float, float]]:
    """Return fabric, kind, group size, pieces, median and worst error of the presets' own fits."""
    rows: list[tuple[str, str, int, int, float, float]] = []
    for name, fabric in FABRICS.items():
        link = load_link(name)
        for kind, by_size in nccl(fabric.part).items():
            for gpus, points in by_size.items():
                fits = link.collectives[kind][gpus]
                pieces = [
                    Piece(
                        up_to_bytes=each.up_to_bytes,
                        latency_s=each.latency_s,
                        bandwidth_bytes_per_s=each.bandwidth_bytes_per_s,
                    )
                    for each in fits
                ]
                errors = [abs(error) for error in residuals(pieces, points)]
                rows.append((name, kind, gpus, len(fits), median(errors), max(errors)))
    return rows


def residual_table(rows: Sequence[tuple[str, str, int, int, float, float]]) -> str:
    """Return the residuals as a Markdown table: median (worst) error over sizes, in per cent."""
    cells: dict[tuple[str, int], Mapping[str, str]] = defaultdict(dict)
    for name, kind, gpus, _, middle, worst in rows:
        cells[name, gpus] = {**cells[name, gpus], kind: f"{100 * middle:.1f} ({100 * worst:.0f})"}
    lines = [f"| link | GPUs | {' | '.join(KINDS)} |", "|---|---|---|---|---|---|"]
    for (name, gpus), by_kind in cells.items():
        lines.append(f"| {name} | {gpus} | {' | '.join(by_kind[kind] for kind in KINDS)} |")
    return "\n".join(lines)


def main() -> None:
    """Write the presets, or print their residuals."""
    parser = argparse.ArgumentParser(description="Fit the link presets.")
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--xla-tables", type=Path)
    choice.add_argument("--residuals", action="store_true")
    given = parser.parse_args()
    if given.residuals:
        print(residual_table(residual_rows()))
        return
    presets = {name: wire(name) for name in WIRES}
    for name, fabric in FABRICS.items():
        found = measured(fabric, given.xla_tables / "xla_collective_perf_table.csv")
        presets[name] = preset(name, fabric, found)
    for name, content in presets.items():
        text = json.dumps(content, indent=1)
        (LINKS_DIRECTORY / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
