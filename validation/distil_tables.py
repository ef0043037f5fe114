"""Distil the measured tables of hespas from published measurements.

    pip install 'hespas[tables]'
    python validation/distil_tables.py [--xla-tables DIRECTORY] [PART...]

writes src/hespas/configs/measured/<PART>.xz for every part (or those named). The sources:

* aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0): timings of GEMMs, attention, quantisation,
  layers of experts and NCCL collectives under vLLM, SGLang and TensorRT-LLM.
* openxla/xla, xla/service/gpu/model/matmul_interpolator_data.h (Apache-2.0), as a CSV with the
  columns arch,b,m,n,k,dtypes,flops_per_s in DIRECTORY/xla_matmul_perf_table.csv: GEMMs of f32,
  which run as tf32. Without DIRECTORY those tables are left out.
"""

from __future__ import annotations

import argparse
import csv
import lzma
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import product
from math import exp, isnan, log, nan
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from distil_experts import SGLANG, TENSORRT, VLLM, experts_tables
from hespas.errors import ExtraMissingError, MeasurementError
from hespas.price.tables import (
    FORMAT,
    TABLES_DIRECTORY,
    Axis,
    Grid,
    PartWire,
    TableWire,
)

VERSION = "0.12.0"
STEP = 1 / 128
"""Cells are rounded to steps of 0.8 %."""

WEIGHTS = {"m": 2.0, "n": 1.0, "k": 4.0}
"""Of the axes in filling a gap: tiles make steps in m and n but not in k; n is the coarsest."""

COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
HALF_BYTES = 2
ALONE_S = {"H100": 2.433e-6, "B200": 3.147e-6}
"""What a product takes more by itself, as this script finds it for the parts that XLA timed."""

SHORT_S = 2e-5
"""Longer products differ by their clocks more than by their launch."""

Rows = Mapping[str, Sequence[Any]]
Times = Mapping[tuple[int, ...], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What to read for a part.

    ``peak_flops`` and ``memory_bandwidth`` are the datasheet's, dense; ``cache_bytes`` is the
    second-level cache as XLA's description of the part has it. ``xla`` names the part in XLA's
    tables; ``alone_like`` one that they have, for a part that they lack.
    """

    directory: str
    frameworks: tuple[str, ...] = (VLLM, SGLANG, TENSORRT)
    f8_frameworks: tuple[str, ...] = (VLLM, SGLANG, TENSORRT)
    nccl: str
    peak_flops: Mapping[str, float]
    memory_bandwidth: float
    cache_bytes: int
    xla: str = ""
    alone_like: str = "H100"
    quantize: str = VLLM
    head_dims: tuple[int, ...] = field(default=(64, 128))


RECIPES = {
    "A100_SXM": Recipe(
        directory="a100_sxm",
        frameworks=("vllm/0.14.0", "sglang/0.5.10", "trtllm/1.0.0"),
        f8_frameworks=(),
        nccl="2.27.3",
        peak_flops={"bf16": 312e12},
        memory_bandwidth=2039e9,
        cache_bytes=41943040,
        quantize="",
        head_dims=(128,),
    ),
    "H100_SXM": Recipe(
        directory="h100_sxm",
        nccl="2.29.2",
        peak_flops={"bf16": 989.5e12, "f8": 1979e12, "tf32": 494.5e12},
        memory_bandwidth=3350e9,
        cache_bytes=52428800,
        xla="sm_90",
    ),
    "H200_SXM": Recipe(
        directory="h200_sxm",
        nccl="2.29.2",
        peak_flops={"bf16": 989.5e12, "f8": 1979e12},
        memory_bandwidth=4800e9,
        cache_bytes=52428800,
    ),
    "B200_SXM": Recipe(
        directory="b200_sxm",
        nccl="2.29.2",
        peak_flops={"bf16": 2250e12, "f8": 4500e12, "tf32": 1125e12, "f4": 9000e12},
        memory_bandwidth=7700e9,
        cache_bytes=132644864,
        xla="sm_100_B200",
    ),
    "B300_SXM": Recipe(
        directory="b300_sxm",
        nccl="2.29.2",
        peak_flops={"bf16": 2250e12, "f8": 4500e12, "f4": 14000e12},
        memory_bandwidth=8000e9,
        cache_bytes=132644864,
        alone_like="B200",
    ),
    "GB200": Recipe(
        directory="gb200",
        nccl="2.29.2",
        peak_flops={"bf16": 2500e12, "f8": 5000e12, "f4": 10000e12},
        memory_bandwidth=8000e9,
        cache_bytes=132644864,
        alone_like="B200",
    ),
    "GB300": Recipe(
        directory="gb300",
        nccl="2.29.2",
        peak_flops={"bf16": 2500e12, "f8": 5000e12, "f4": 15000e12},
        memory_bandwidth=8000e9,
        cache_bytes=132644864,
        alone_like="B200",
    ),
    "L40S": Recipe(
        directory="l40s",
        f8_frameworks=(VLLM,),
        nccl="2.27.3",
        peak_flops={"bf16": 362.05e12, "f8": 733e12},
        memory_bandwidth=864e9,
        cache_bytes=100663296,
    ),
}


def data_root() -> Path:
    """Return the directory of aiconfigurator-core's data; errors where it isn't what it should."""
    spec = find_spec("aiconfigurator_core")
    if spec is None or spec.origin is None or find_spec("pyarrow") is None:
        raise ExtraMissingError("distilling measured tables", extra="tables")
    found = version("aiconfigurator-core")
    if found != VERSION:
        raise MeasurementError(
            f"aiconfigurator-core is {found}, the tables are distilled from {VERSION}",
            hint=f"pip install aiconfigurator-core=={VERSION}",
        )
    return Path(spec.origin).parent / "systems" / "data"


def read_rows(file: Path) -> Rows:
    """Return the columns of a file of measurements."""
    rows: Rows = import_module("pyarrow.parquet").read_table(file).to_pydict()
    return rows


def gemm_times(file: Path, data_type: str) -> Times:
    """Return the times in seconds of products of one type, by m, n and k."""
    rows = read_rows(file)
    listed = zip(rows["gemm_dtype"], rows["m"], rows["n"], rows["k"], rows["latency"], strict=True)
    return {
        (m, n, k): latency_ms * 1e-3
        for kind, m, n, k, latency_ms in listed
        if kind == data_type and latency_ms > 0
    }


def _made(name: str, source: str, axes: Sequence[Axis], times: Times) -> tuple[TableWire, Grid]:
    grid = Grid(
        axes=tuple(axes),
        log_times=tuple(
            log(times[cell]) if cell in times else nan
            for cell in product(*(axis.sizes for axis in axes))
        ),
    )
    return _wired(name, source, grid)


def _wired(name: str, source: str, grid: Grid) -> tuple[TableWire, Grid]:
    wires = tuple(Axis(name=a.name, sizes=a.sizes, weight=a.weight) for a in grid.axes)
    return TableWire(name=name, axes=wires, step=STEP, source=source), grid


def _gemm(home: Path, recipe: Recipe, kind: str) -> tuple[TableWire, Grid] | None:
    """Join the timings of several frameworks.

    bf16: all of them call cuBLAS, so the median is a GEMM timed three times over. f8 and f4: each
    has a kernel of its own, some with the quantisation of an operand; XLA would choose the fastest.
    """
    frameworks = recipe.frameworks if kind == "bf16" else recipe.f8_frameworks
    if not frameworks or kind not in recipe.peak_flops:
        return None
    name = {"bf16": "bfloat16", "f8": "fp8", "f4": "nvfp4"}[kind]
    tables = [gemm_times(home / "gemm" / each / "gemm_perf.parquet", name) for each in frameworks]
    join = median if kind == "bf16" else min
    first = tables[0]
    m_sizes = {m for m, _, _ in first} | {16384, 32768}
    axes = (
        Axis(
            name="m", sizes=_sorted(m for m in m_sizes if m == 1 or m % 2 == 0), weight=WEIGHTS["m"]
        ),
        Axis(name="n", sizes=_sorted(n for _, n, _ in first), weight=WEIGHTS["n"]),
        Axis(name="k", sizes=_sorted(k for _, _, k in first), weight=WEIGHTS["k"]),
    )
    times = {
        cell: join([table[cell] for table in tables if cell in table])
        for cell in product(*(axis.sizes for axis in axes))
        if any(cell in table for table in tables)
    }
    how = "median of" if kind == "bf16" else "fastest of"
    return _made(f"gemm.{kind}", f"{how} {', '.join(frameworks)}", axes, times)


def _axis(name: str, sizes: Iterable[int]) -> Axis:
    return Axis(name=name, sizes=_sorted(sizes), weight=WEIGHTS[name])


def _sorted(sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(sizes)))


def _xla_gemm(directory: Path, arch: str) -> tuple[TableWire, Grid]:
    """GEMMs of f32, which run as tf32."""
    found = _xla_rows(directory, arch, "f32xf32->f32")
    times = {cell: median(each) for cell, each in found.items()}
    axes = [_axis(name, (cell[at] for cell in times)) for at, name in enumerate("mnk")]
    return _made("gemm.tf32", "openxla/xla matmul_interpolator_data.h", axes, times)


def _xla_rows(directory: Path, arch: str, types: str) -> dict[tuple[int, ...], list[float]]:
    """Return XLA's timings by rows, columns and sum.

    A batch counts as more rows: in these measurements 2 products take 1.00 (the median; 0.97 to
    1.05 in 9 of 10 products of bf16) of the time of one with twice the rows.
    """
    found: dict[tuple[int, ...], list[float]] = defaultdict(list)
    with (directory / "xla_matmul_perf_table.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["arch"] == arch and row["dtypes"] == types:
                b, m, n, k = (int(row[key]) for key in "bmnk")
                found[b * m, n, k].append(2 * b * m * n * k / float(row["flops_per_s"]))
    return found


def _alone(bf16: Grid, xla: Path | None, recipe: Recipe) -> tuple[float, str]:
    """Return what a product takes more by itself: XLA's timings less those of the table."""
    if xla is None or not recipe.xla:
        return ALONE_S[recipe.alone_like], f"assumed: as measured on the {recipe.alone_like}"
    table = dict(zip(bf16.cells(), bf16.log_times, strict=True))
    measured = _xla_rows(xla, recipe.xla, "bf16xbf16->bf16")
    more = [
        median(times) - exp(table[cell])
        for cell, times in measured.items()
        if cell in table and median(times) < SHORT_S
    ]
    source = "openxla/xla matmul_interpolator_data.h less the table: the median of short products"
    return round(median(more), 9), source


def _attention(home: Path, recipe: Recipe) -> tuple[TableWire, Grid]:
    """Causal attention by head dimension, batch times heads, and length.

    The median over batches, heads and groups of the same product: the work is the same.
    """
    rows = read_rows(home / "attention" / recipe.frameworks[0] / "context_attention_perf.parquet")
    count = len(rows["latency"])
    windows = rows.get("window_size", [0] * count)
    found: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for at in range(count):
        plain = rows["attn_dtype"][at] == rows["kv_cache_dtype"][at] == "bfloat16"
        if plain and windows[at] == 0 and rows["latency"][at] > 0:
            cell = (
                rows["head_dim"][at],
                rows["batch_size"][at] * rows["num_heads"][at],
                rows["isl"][at],
            )
            found[cell].append(rows["latency"][at] * 1e-3)
    times = {cell: median(each) for cell, each in found.items()}
    lengths = _sorted(length for _, _, length in times)
    powers = [2**power for power in range(15)]
    heads = [each for each in powers if sum((128, each, s) in times for s in lengths) > 3]
    axes = (
        Axis(name="head_dim", sizes=recipe.head_dims),
        Axis(name="heads", sizes=_sorted(heads)),
        Axis(name="length", sizes=lengths, weight=2),
    )
    return _made("attention.causal.bf16", f"vLLM: {recipe.frameworks[0]}", axes, times)


def _collectives(home: Path, recipe: Recipe) -> Iterable[tuple[TableWire, Grid]]:
    """Return collectives of 16-bit numbers; message_size counts elements of the whole buffer."""
    rows = read_rows(home / "comm" / "nccl" / recipe.nccl / "nccl_perf.parquet")
    for theirs, ours in COLLECTIVES.items():
        times = {
            (gpus, elements * HALF_BYTES): latency * 1e-3
            for name, kind, gpus, elements, latency in zip(
                rows["op_name"],
                rows["nccl_dtype"],
                rows["num_gpus"],
                rows["message_size"],
                rows["latency"],
                strict=True,
            )
            if name == theirs and kind == "half"
        }
        axes = (
            Axis(name="gpus", sizes=_sorted(gpus for gpus, _ in times)),
            Axis(name="size_bytes", sizes=_sorted(size for _, size in times)),
        )
        yield _made(f"collective.{ours}", f"NCCL {recipe.nccl}, half", axes, times)


def _streaming(home: Path, recipe: Recipe, bf16: Times) -> tuple[float, float, str]:
    """Return the shortest time of a kernel that moves data, and the bandwidth of long ones.

    From the quantisation of bf16 to f8 (3 bytes an element), the median of long ones; where there
    is none, from products of one row, which read a matrix, the fastest of long ones: on parts
    with both, that is 0.87 to 1.03 of the other, 1.01 in the median.
    """
    if recipe.quantize:
        rows = read_rows(home / "quantize" / recipe.quantize / "scale_matrix_perf.parquet")
        moved = [
            (3 * m * k, latency * 1e-3)
            for m, k, latency in zip(rows["m"], rows["k"], rows["latency"], strict=True)
            if latency > 0
        ]
        source = f"{recipe.quantize}: static_scaled_fp8_quant, bf16 to f8"
    else:
        moved = [(2 * n * k, time) for (m, n, k), time in bf16.items() if m == 1]
        source = "products of one row with a matrix, the fastest"
    join = median if recipe.quantize else max
    latency = median(time for size, time in moved if size <= 1e5)
    large = [(size, time) for size, time in moved if size >= 8 * recipe.cache_bytes]
    rate = join([size / (time - latency) for size, time in large])
    return latency, rate / recipe.memory_bandwidth, source


def distil(part: str, root: Path, xla: Path | None) -> bytes:
    """Return the file of a part."""
    recipe = RECIPES[part]
    home = root / recipe.directory
    first = home / "gemm" / recipe.frameworks[0] / "gemm_perf.parquet"
    latency, efficiency, streaming = _streaming(home, recipe, gemm_times(first, "bfloat16"))
    made = [_gemm(home, recipe, kind) for kind in ("bf16", "f8", "f4")]
    if recipe.xla and xla is not None:
        made.append(_xla_gemm(xla, recipe.xla))
    made.append(_attention(home, recipe))
    made.extend(_collectives(home, recipe))
    moved_bytes_per_s = efficiency * recipe.memory_bandwidth
    layers = experts_tables(home, bytes_per_s=moved_bytes_per_s, launch_s=latency)
    made.extend(_wired(f"experts.{kind}", source, grid) for kind, source, grid in layers)
    pairs = [each for each in made if each is not None]
    alone_s, alone_source = _alone(pairs[0][1], xla, recipe)
    about = PartWire(
        format=FORMAT,
        part=part,
        measured_on=str(read_rows(first)["device"][0]),
        source="aiconfigurator-core (NVIDIA) and openxla/xla, distilled by "
        "validation/distil_tables.py",
        licence="Apache-2.0",
        version=VERSION,
        peak_flops=dict(recipe.peak_flops),
        memory_bandwidth=recipe.memory_bandwidth,
        cache_bytes=recipe.cache_bytes,
        streaming_latency_s=round(latency, 9),
        streaming_efficiency=round(efficiency, 4),
        streaming_source=streaming,
        alone_s=alone_s,
        alone_source=alone_source,
        tables=tuple(table for table, _ in pairs),
    )
    return encode_part(about, [grid for _, grid in pairs])


def encode_part(about: PartWire, grids: Iterable[Grid]) -> bytes:
    """Encode a part's tables, up to a cell's step."""
    body = b"".join(
        _encode_cells(grid, table.step) for table, grid in zip(about.tables, grids, strict=True)
    )
    return lzma.compress(msgspec.json.encode(about) + b"\n" + body, preset=9 | lzma.PRESET_EXTREME)


def _encode_cells(grid: Grid, step: float) -> bytes:
    codes = [0 if isnan(time) else round((time - log(1e-9)) / step) for time in grid.log_times]
    differences = [code - before for code, before in zip(codes, [0, *codes], strict=False)]
    zigzag = [
        2 * difference if difference >= 0 else -2 * difference - 1 for difference in differences
    ]
    return bytes(difference >> 8 for difference in zigzag) + bytes(
        difference & 255 for difference in zigzag
    )


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description="Distil the measured tables.")
    parser.add_argument("parts", nargs="*", default=list(RECIPES))
    parser.add_argument("--xla-tables", type=Path)
    given = parser.parse_args()
    root = data_root()
    for part in given.parts:
        content = distil(part, root, given.xla_tables)
        (TABLES_DIRECTORY / f"{part}.xz").write_bytes(content)
        print(part, len(content), "bytes")


if __name__ == "__main__":
    main()
