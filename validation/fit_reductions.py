"""Fit small all-reduces by kernels of their own, not NCCL's, into the link presets of hespas.

    pip install 'hespas[tables]'
    python validation/fit_reductions.py                # adds them to configs/links/*.json
    python validation/fit_reductions.py --residuals    # table of docs/evidence/measured-tables.md

In a one-shot kernel each GPU reads the buffers of all others; in a two-shot kernel each adds up its
part of them, and then reads the sums of the others. aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0)
has timings of such kernels of vLLM, SGLang and TensorRT-LLM, launched in CUDA graphs, as
``message_size`` elements of bf16. The median of the three is fitted. Kinds are told apart by size:
vLLM takes one shot below 512 KiB among 4 and below 256 KiB among 8, two beyond; between two GPUs
both read the same bytes. Beside it stands what a kernel takes more that is launched by itself, as
the measured tables of the part have it of products.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from statistics import median

from distil_tables import HALF_BYTES, SGLANG, TENSORRT, VERSION, VLLM, data_root
from fit_links import FABRICS
from hespas.evidence.calibrate.piecewise import Piece, Point, fit, residuals
from hespas.hardware.links import LINKS_DIRECTORY
from hespas.price.tables import load_part

PARTS = {
    "NVLink4_H100": "h100_sxm",
    "NVLink4_H200": "h200_sxm",
    "NVLink5_B200": "b200_sxm",
    "NVLink5_B300": "b300_sxm",
    "NVL72_GB200": "gb200",
    "NVL72_GB300": "gb300",
}
_KIB = 1 << 10
SIZES = {
    "all_reduce_one_shot": {2: (0, 256 * _KIB), 4: (0, 256 * _KIB), 8: (0, 128 * _KIB)},
    "all_reduce_two_shot": {
        2: (512 * _KIB, 4096 * _KIB),
        4: (512 * _KIB, 4096 * _KIB),
        8: (512 * _KIB, 4096 * _KIB),
    },
}
"""From and to which size in bytes a kernel of a kind was measured, by the number of GPUs."""
ALGORITHMS = {"all_reduce_one_shot": "one-shot", "all_reduce_two_shot": "two-shot"}
Fits = Mapping[str, Mapping[int, tuple[Piece, ...]]]
Found = dict[str, dict[int, list[Point]]]


def measured(home: Path) -> Found:
    """Return the median times of a part's kernels, by kind, GPUs and bytes."""
    times: dict[tuple[int, int], list[float]] = defaultdict(list)
    for framework in (VLLM, SGLANG, TENSORRT):
        file = home / "comm" / framework / "custom_allreduce_perf.parquet"
        if not file.is_file():
            continue
        for row in import_module("pyarrow.parquet").read_table(file).to_pylist():
            if not row["kernel_source"].endswith("eager"):
                key = row["num_gpus"], row["message_size"] * HALF_BYTES
                times[key].append(row["latency"] * 1e-3)
    found: Found = {kind: defaultdict(list) for kind in SIZES}
    for (gpus, size), each in sorted(times.items()):
        for kind, limits in SIZES.items():
            low, high = limits.get(gpus, (1, 0))
            if low <= size <= high:
                found[kind][gpus].append(Point(size_bytes=size, time_s=median(each)))
    return found


def fits_of(found: Found) -> Fits:
    """Return one piece for each kind and number of GPUs, or two for one shot."""
    return {
        kind: {gpus: fit(points, sizes_a_piece=4) for gpus, points in by_gpus.items()}
        for kind, by_gpus in found.items()
    }


def write(name: str, fits: Fits) -> None:
    """Add the fits to a preset's file, whose other figures stay."""
    alone_s = load_part(FABRICS[name].part).about.alone_s
    path = LINKS_DIRECTORY / f"{name}.json"
    preset = json.loads(path.read_text())
    preset["collectives"] = {
        kind: by_gpus for kind, by_gpus in preset["collectives"].items() if kind not in SIZES
    }
    for kind, by_gpus in fits.items():
        preset["collectives"][kind] = {
            str(gpus): [
                {
                    "algorithm": ALGORITHMS[kind],
                    "protocol": "kernel",
                    "up_to_bytes": piece.up_to_bytes,
                    "latency_s": float(f"{piece.latency_s + alone_s:.4g}"),
                    "bandwidth_bytes_per_s": piece.bandwidth_bytes_per_s,
                }
                for piece in pieces
            ]
            for gpus, pieces in by_gpus.items()
        }
    path.write_text(json.dumps(preset, indent=1) + "\n")


def main() -> None:
    """Write the fits of all links, or list how well they fit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--residuals", action="store_true", help="list errors, write nothing")
    lists = parser.parse_args().residuals
    home = data_root()
    if lists:
        print(f"| link | kind | GPUs | sizes | median error | worst | (aiconfigurator {VERSION})")
    for name, part in PARTS.items():
        found = measured(home / part)
        fits = fits_of(found)
        if not lists:
            write(name, fits)
            continue
        for kind, by_gpus in found.items():
            for gpus, points in by_gpus.items():
                errors = [abs(error) for error in residuals(fits[kind][gpus], points)]
                print(
                    f"| {name} | {ALGORITHMS[kind]} | {gpus} | {len(points)} | "
                    f"{100 * median(errors):.1f} % | {100 * max(errors):.1f} % |"
                )


if __name__ == "__main__":
    main()
