"""Distil measured layers of experts: what their products take, by rows, experts and sizes.

aiconfigurator-core times a whole layer of experts, from the tokens to their weighted sum, with the
uneven loads that routers make (``power_law_1.01``). A table has its three products: the layer
without the bytes of the activation and of the sum, and without the launches of other kernels. A
time goes with the product of experts and sizes where the rows of each expert stay, so a size that
no axis has is scaled to the nearest one.

``python validation/distil_experts.py PART`` says how far a model's layers are off where the
table is made without them.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise, product
from math import exp, log, nan
from pathlib import Path
from statistics import median
from typing import Any

from hespas.errors import MeasurementError
from hespas.price.experts import ROWS_OF
from hespas.price.tables import Axis, Grid, completed, monotone, read

VLLM, SGLANG, TENSORRT = "vllm/0.24.0", "sglang/0.5.14", "trtllm/1.3.0rc20"
_ALL = (VLLM, SGLANG, TENSORRT)
KINDS: Mapping[str, tuple[str, Sequence[str]]] = {
    "bf16": ("bfloat16", _ALL),
    "f8": ("fp8_block", _ALL),
    "mxfp4": ("w4a16_mxfp4", (VLLM,)),
    "int4": ("int4_wo", (VLLM, SGLANG)),
    "nvfp4": ("nvfp4", _ALL),
}
"""What the tables call weights, and the engines that have kernels for them. SGLang's of MXFP4 on
Hopper widen the weights beforehand, which takes twice as long as vLLM's."""
Join = Callable[[Iterable[float]], float]
_JOINS: Mapping[str, tuple[Join, str]] = {"bf16": (median, "median")}
"""As of single products: of other kinds each engine has kernels of its own."""
LOAD = "power_law_1.01"
_WIDENS = {"rows": 1.9, "experts": 1.9, "narrow": 1.3, "wide": 1.3}
"""How far neighbours of an axis are apart at least."""
_MOST_PARTS = 8
"""Devices that experts are divided over: the busiest of more has very uneven loads."""
_UNGATED = {(1024, 2688), (2048, 5120), (2688, 1856), (8192, 5120)}
"""Hidden and inner sizes of Nemotron's experts, which have two products."""
_OTHER_KERNELS = 5
"""Of a layer: the choice of experts, the order of rows, a quantisation, the activation, the sum."""
_LEAST_PRODUCTS = 0.5
"""The share of a layer that products take at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A measured layer on one device: times by rows of each expert; ``sizes`` of its matrices."""

    model: tuple[int, ...]
    experts: int
    sizes: tuple[int, int]
    times: Mapping[float, float]

    @property
    def volume(self) -> int:
        """The weights of one of the three products."""
        return self.experts * self.sizes[0] * self.sizes[1]


@cache
def _columns(file: Path) -> dict[str, list[Any]]:
    return import_module("pyarrow.parquet").read_table(file).to_pydict()


def layers(home: Path, kind: str, *, bytes_per_s: float, launch_s: float) -> list[Layer]:
    """Return the measured layers of a kind of weights, of all engines.

    Kernels that only move data do so at ``bytes_per_s``, and take ``launch_s`` beside.
    """
    name, engines = KINDS[kind]
    files = [home / "moe" / engine / "moe_perf.parquet" for engine in engines]
    found: list[Layer] = []
    for file in (each for each in files if each.exists()):
        times: dict[tuple[int, ...], dict[float, float]] = defaultdict(dict)
        for shape, tokens, whole_s in _measured(file, name):
            hidden, inner, chosen, experts, tensor, parts = shape
            taken = tokens * chosen / parts
            moved = 2 * (3 * taken * inner / tensor + taken * hidden + tokens * hidden)
            others_s = moved / bytes_per_s + _OTHER_KERNELS * launch_s
            products_s = max(_LEAST_PRODUCTS * whole_s, whole_s - others_s)
            times[shape][taken / (experts // parts)] = products_s
        for (hidden, inner, chosen, experts, tensor, parts), of_rows in times.items():
            low, high = sorted((hidden, inner // tensor))
            found.append(
                Layer(
                    model=(hidden, inner, chosen, experts),
                    experts=experts // parts,
                    sizes=(low, high),
                    times=of_rows,
                )
            )
    return found


_SHAPE = ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")


def _measured(file: Path, name: str) -> Iterator[tuple[tuple[int, ...], int, float]]:
    """Yield the shape, the tokens and the seconds of layers with weights of a name."""
    columns = _columns(file)
    shapes = zip(*(columns[key] for key in _SHAPE), strict=True)
    others = (columns[key] for key in ("moe_dtype", "distribution", "num_tokens", "latency"))
    for shape, dtype, load, tokens, latency_ms in zip(shapes, *others, strict=True):
        hidden, inner, _, experts, _, parts = shape
        is_used = dtype == name and load == LOAD and latency_ms > 0
        is_whole = parts <= _MOST_PARTS and not experts % parts
        if is_used and is_whole and (hidden, inner) not in _UNGATED:
            yield shape, tokens, latency_ms * 1e-3


def grid_of(measured: Sequence[Layer], join: Join) -> Grid:
    """Return the table of layers, complete; more rows never take less.

    ``join`` makes one time of those of several engines.
    """
    rows = [1 << power for power in range(18)]
    axes = (
        Axis(name="rows", sizes=tuple(rows), weight=4.0),
        _axis("experts", (layer.experts for layer in measured)),
        _axis("narrow", (layer.sizes[0] for layer in measured)),
        _axis("wide", (layer.sizes[1] for layer in measured)),
    )
    of_shapes: dict[tuple[tuple[int, ...], tuple[int, ...]], list[float]] = defaultdict(list)
    for layer in measured:
        at = tuple(
            min(axis.sizes, key=lambda size: abs(log(size / own)))
            for axis, own in zip(axes[1:], (layer.experts, *layer.sizes), strict=True)
        )
        factor = log(at[0] * at[1] * at[2] / layer.volume)
        for count in rows:
            time = _between(layer.times, count / ROWS_OF)
            if time is not None:
                of_shapes[(count, *at), (*layer.model, *layer.sizes)].append(time + factor)
    cells: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for (cell, _), engines in of_shapes.items():
        cells[cell].append(join(engines))
    times = tuple(
        median(cells[cell]) if cell in cells else nan
        for cell in product(*(axis.sizes for axis in axes))
    )
    return _rising(completed(Grid(axes=axes, log_times=times)))


def _rising(grid: Grid) -> Grid:
    """Return the nearest times that never fall as rows grow."""
    stride, times = grid.strides[0], list(grid.log_times)
    for start in range(stride):
        line = Grid(axes=grid.axes[:1], log_times=tuple(times[start::stride]))
        times[start::stride] = monotone(line).log_times
    return Grid(axes=grid.axes, log_times=tuple(times))


def _axis(name: str, sizes: Iterable[int]) -> Axis:
    kept: list[int] = []
    for size in sorted(set(sizes)):
        if not kept or size >= _WIDENS[name] * kept[-1]:
            kept.append(size)
    return Axis(name=name, sizes=tuple(kept))


def _between(times: Mapping[float, float], rows: float) -> float | None:
    """Return the logarithm of a time between two measured ones; None outside of them."""
    for low, high in pairwise(sorted(times)):
        if low <= rows <= high:
            part = log(rows / low) / log(high / low)
            return (1 - part) * log(times[low]) + part * log(times[high])
    return None


def experts_tables(
    home: Path, *, bytes_per_s: float, launch_s: float
) -> Iterator[tuple[str, str, Grid]]:
    """Yield each kind of weights that a part has layers of, the source, and the table.

    Kernels that only move data do so at ``bytes_per_s``, and take ``launch_s`` beside.
    """
    for kind, (name, engines) in KINDS.items():
        measured = layers(home, kind, bytes_per_s=bytes_per_s, launch_s=launch_s)
        if measured:
            join, how = _JOINS.get(kind, (min, "fastest"))
            source = f"layers of experts in {name}, {LOAD}: {how} of {', '.join(engines)}"
            yield kind, source, grid_of(measured, join)


def model_errors(measured: Sequence[Layer], join: Join) -> dict[tuple[int, ...], list[float]]:
    """Return errors of each model's times, by tables made without the model."""
    errors: dict[tuple[int, ...], list[float]] = {}
    for model in sorted({layer.model for layer in measured}):
        others = [layer for layer in measured if layer.model != model]
        try:
            grid = grid_of(others, join)
        except MeasurementError:
            continue
        errors[model] = [
            predicted_s(grid, layer, rows) / time - 1
            for layer in measured
            if layer.model == model
            for rows, time in layer.times.items()
        ]
    return errors


def predicted_s(grid: Grid, layer: Layer, rows: float) -> float:
    """Return what a table says of a layer."""
    sizes = (max(1, round(rows * ROWS_OF)), layer.experts, *layer.sizes)
    return read(grid, sizes).time_s


def main() -> None:
    """Print errors by kind of weights and model."""
    from distil_tables import RECIPES, data_root  # noqa: PLC0415 - it imports this file

    for part in sys.argv[1:]:
        recipe = RECIPES[part]
        for kind in KINDS:
            bytes_per_s = 0.85 * recipe.memory_bandwidth
            home = data_root() / recipe.directory
            measured = layers(home, kind, bytes_per_s=bytes_per_s, launch_s=2e-6)
            if not measured:
                continue
            join, _ = _JOINS.get(kind, (min, ""))
            own = grid_of(measured, join)
            fits = [
                abs(log(predicted_s(own, layer, rows) / time))
                for layer in measured
                for rows, time in layer.times.items()
            ]
            print(part, kind, len(measured), "layers", f"table itself {exp(median(fits)) - 1:.1%}")
            for model, errors in model_errors(measured, join).items():
                sizes = [abs(each) for each in errors]
                print(f"  without {model}: median {median(sizes):.1%}, bias {median(errors):+.1%}")


if __name__ == "__main__":
    main()
