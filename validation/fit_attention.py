"""Fit what the tables of causal attention do not have: decoding, fp8 and sliding windows.

    pip install 'hespas[tables]'
    python validation/fit_attention.py                # writes src/hespas/configs/attention.json
    python validation/fit_attention.py --residuals    # table of docs/evidence/measured-tables.md

aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0) has timings of attention of one query over a paged
cache, of fp8, and with sliding windows. Decoding takes ``latency + bytes of the cache / (share x
memory bandwidth)``: the median of vLLM, SGLang and TensorRT-LLM of caches from 1 MB and 1024 tokens
on, of bf16, with up to 16 queries for each of their heads, fitted to relative errors. fp8 is
TensorRT-LLM's against its own bf16, from 4096 tokens and 0.5 ms on, the median of each head size.
Over latent vectors a query takes ``latency + max(bytes / (share x
memory bandwidth), FLOPs / (share x peak))``, by SGLang and TensorRT-LLM, fitted likewise.
Of windows, the time over that of a causal attention as long as two windows and with as many
queries, by vLLM, the median from 2048 tokens and 0.2 ms on.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from msgspec import to_builtins

from distil_tables import HALF_BYTES, RECIPES, SGLANG, TENSORRT, VLLM, data_root
from hespas.hardware.device import Device
from hespas.hardware.presets import load_device
from hespas.price.attention import LatentFits, attention_model
from hespas.work.attention import Attention

NODES = {
    "H100_SXM": "H100_80GB",
    "H200_SXM": "H200_141GB",
    "B200_SXM": "B200_180GB",
}
TARGET = Path(__file__).resolve().parent.parent / "src/hespas/configs/attention.json"
LEAST_CACHE_BYTES = 1e6
LEAST_CACHED, MOST_SHARING = 1024, 16
VECTOR, VALUE = 576, 512
"""DeepSeek's latent vector, with the numbers of its place, and what of it is a value."""
LONG_TOKENS, LONG_S = 4096, 5e-4
WINDOW_TOKENS, WINDOW_S = 2048, 2e-4
Rows = Sequence[Mapping[str, Any]]


def rows_of(home: Path, framework: str, name: str) -> Rows:
    """Return the rows of one table of attention; none where a part lacks it."""
    file = home / "attention" / framework / f"{name}_attention_perf.parquet"
    if not file.is_file():
        return ()
    rows: Rows = import_module("pyarrow.parquet").read_table(file).to_pylist()
    return rows


def decoding(home: Path) -> tuple[list[float], list[float]]:
    """Return the bytes of caches, and the median time of one query over each."""
    times: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for framework in (VLLM, SGLANG, TENSORRT):
        for row in rows_of(home, framework, "generation"):
            is_plain = row["attn_dtype"] == row["kv_cache_dtype"] == "bfloat16"
            if is_plain and not row["window_size"]:
                names = ("batch_size", "num_heads", "num_key_value_heads", "head_dim")
                key = (*(row[name] for name in names), row["step"] + row["isl"])
                times[key].append(row["latency"] * 1e-3)
    found = [
        (2.0 * HALF_BYTES * batch * heads * size * length, median(each))
        for (batch, queries, heads, size, length), each in sorted(times.items())
        if length >= LEAST_CACHED and queries <= MOST_SHARING * heads
    ]
    large = [(size, time) for size, time in found if size >= LEAST_CACHE_BYTES]
    return [size for size, _ in large], [time for _, time in large]


def fitted(sizes: Sequence[float], times: Sequence[float], bandwidth: float) -> tuple[float, float]:
    """Return the latency and the share of the bandwidth with the least squares of log errors."""
    size, time = np.array(sizes), np.log(np.array(times))
    best = (float("inf"), 0.0, 1.0)
    for share in np.arange(0.5, 1.0, 0.01):
        for latency in np.arange(4e-6, 30e-6, 0.25e-6):
            predicted = np.log(latency + size / (share * bandwidth))
            error = float(np.mean((predicted - time) ** 2))
            best = min(best, (error, float(latency), float(share)))
    return best[1], best[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentQuery:
    """One query over a cache of latent vectors, and the median time of frameworks."""

    size_bytes: float
    flops: float
    time_s: float

    def predicted_s(self, fits: LatentFits, device: Device) -> float:
        """Return what it takes by the figures of a part."""
        rate = fits.bandwidth_share * device.memory_bandwidth_bytes_per_s
        peak = fits.peak_share * device.rate("bf16")
        return fits.latency_s + max(self.size_bytes / rate, self.flops / peak)


def over_latents(home: Path) -> list[LatentQuery]:
    """Return what was measured of queries over caches of latent vectors in bf16."""
    times: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for file in sorted((home / "mla").glob("*/*/generation_mla_perf.parquet")):
        for row in import_module("pyarrow.parquet").read_table(file).to_pylist():
            tokens = row["step"] + row["isl"]
            if row["kv_cache_dtype"] == "bfloat16" and tokens >= LEAST_CACHED:
                key = (row["batch_size"], row["num_heads"], tokens)
                times[key].append(row["latency"] * 1e-3)
    found = [
        LatentQuery(
            size_bytes=float(HALF_BYTES * batch * tokens * VECTOR),
            flops=2.0 * batch * heads * tokens * (VECTOR + VALUE),
            time_s=median(each),
        )
        for (batch, heads, tokens), each in sorted(times.items())
    ]
    return [each for each in found if each.size_bytes >= LEAST_CACHE_BYTES]


def fitted_latents(queries: Sequence[LatentQuery], device: Device) -> LatentFits:
    """Return the figures with the least squares of log errors."""
    tried = (
        LatentFits(
            latency_s=round(float(latency_s), 8),
            bandwidth_share=round(float(of_bandwidth), 3),
            peak_share=round(float(of_peak), 3),
        )
        for latency_s in np.arange(6e-6, 30e-6, 1e-6)
        for of_bandwidth in np.arange(0.5, 1.0, 0.02)
        for of_peak in np.arange(0.3, 0.9, 0.02)
    )

    def error(fits: LatentFits) -> float:
        return sum(log(each.predicted_s(fits, device) / each.time_s) ** 2 for each in queries)

    return min(tried, key=error)


def f8_speed_ups(home: Path) -> dict[str, float]:
    """Return how much faster fp8 is than bf16, by head size."""
    times: dict[tuple[Any, ...], float] = {}
    for row in rows_of(home, TENSORRT, "context"):
        names = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
        if row["kv_cache_dtype"] == row["attn_dtype"] and not row["window_size"]:
            times[(*(row[name] for name in names), row["attn_dtype"])] = row["latency"] * 1e-3
    ratios: dict[int, list[float]] = defaultdict(list)
    for (*shape, kind), time in times.items():
        slower = times.get((*shape, "bfloat16"))
        if kind == "fp8" and slower and slower > LONG_S and shape[1] >= LONG_TOKENS:
            ratios[shape[4]].append(slower / time)
    return {str(size): round(median(each), 3) for size, each in sorted(ratios.items())}


def windows(home: Path, part: str) -> tuple[dict[str, float], list[float]]:
    """Return, by window, measured over predicted time, and all ratios to their medians."""
    model = attention_model(load_device(NODES[part]))
    ratios: dict[int, list[float]] = defaultdict(list)
    for row in rows_of(home, VLLM, "context"):
        time, window = row["latency"] * 1e-3, row["window_size"]
        is_plain = row["attn_dtype"] == row["kv_cache_dtype"] == "bfloat16"
        is_long = row["isl"] >= WINDOW_TOKENS and row["isl"] > 2 * window and time > WINDOW_S
        if not (is_plain and window and is_long):
            continue
        attention = Attention(
            batch=row["batch_size"],
            heads=row["num_heads"],
            key_heads=row["num_key_value_heads"],
            query_length=row["isl"],
            key_length=row["isl"],
            head_size=row["head_dim"],
            value_size=row["head_dim"],
            is_causal=True,
            is_backward=False,
            has_bias=False,
            dropout_rate=0.0,
            window=window,
            multiplied="bf16",
        )
        ratios[window].append(time / model.unscaled_window_s(attention))
    medians = {window: median(each) for window, each in sorted(ratios.items())}
    errors = [ratio / medians[window] - 1 for window, each in ratios.items() for ratio in each]
    return {str(window): round(each, 3) for window, each in medians.items()}, errors


def main() -> None:
    """Write the file, or list how well it fits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--residuals", action="store_true", help="list errors, write nothing")
    lists = parser.parse_args().residuals
    parts: dict[str, Any] = {}
    for part, node in NODES.items():
        home = data_root() / RECIPES[part].directory
        bandwidth = RECIPES[part].memory_bandwidth
        sizes, times = decoding(home)
        latency_s, share = fitted(sizes, times, bandwidth)
        factors, errors = windows(home, part)
        device, queries = load_device(node), over_latents(home)
        latent = fitted_latents(queries, device)
        parts[part] = {
            "decode_latency_s": float(f"{latency_s:.3g}"),
            "decode_bandwidth_share": round(share, 3),
            "latent": to_builtins(latent),
            "f8_speed_up": f8_speed_ups(home),
            "window_factor": factors,
        }
        if lists:
            predicted = (latency_s + size / (share * bandwidth) for size in sizes)
            off = [abs(p / t - 1) for p, t in zip(predicted, times, strict=True)]
            long = [each for each, time in zip(off, times, strict=True) if time > 1e-4]
            print(part, parts[part])
            ratios = [each.predicted_s(latent, device) / each.time_s - 1 for each in queries]
            long_ratios = [
                each for each, query in zip(ratios, queries, strict=True) if query.time_s > 1e-4
            ]
            print(
                f"| {part}, latent | {len(queries)} | {100 * median(map(abs, ratios)):.0f} % | "
                f"{100 * median(map(abs, long_ratios)):.0f} % | |"
            )
            print(
                f"| {part} | {len(off)} | {100 * median(off):.0f} % | {100 * median(long):.0f} % | "
                f"{100 * median(map(abs, errors)):.0f} % |"
            )
    if not lists:
        about = "Fitted by validation/fit_attention.py to aiconfigurator-core 0.12.0, Apache-2.0"
        TARGET.write_text(json.dumps({"source": about, "parts": parts}, indent=1) + "\n")


if __name__ == "__main__":
    main()
