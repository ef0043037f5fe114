"""Derive the power of GPU boards from published measurements: power.json of the nodes.

    pip install 'hespas[tables]'
    python validation/board_power.py [--write | --measured]

prints what was measured beside what the model says, and with --write writes power.json into
src/hespas/configs/nodes. The sources:

* aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0). Three frameworks timed the same products, each
  so often. Where products are short their times agree, up to a constant. Long ones differ: power
  limits act on those that were run for long. And on the B200, attention and experts were timed
  with the power that the board drew.
* With --measured alone: products that ran for seconds on an H100, validation/measurements, which
  nothing here is fitted to, beside the rates that the model sustains.
* MLPerf Training 4.0 to 5.0 (MLCommons): power of whole machines, in
  src/hespas/configs/published/training_power.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from distil_tables import RECIPES, Times, data_root, gemm_times, read_rows
from hespas.hardware.power import POWER, BoardPower, Draw, clock_in_loop, sustained_clock
from hespas.hardware.presets import PRESETS_DIRECTORY, load_device
from hespas.price.gemm import Product, gemm_model
from power_readings import PowerReading, read_readings

FLOOR = 0.4
BYTE_J = 56e-12
SHORT_S, LONG_S = (1e-4, 5e-4), 16e-3
LARGE = 1024
"""Products with a smaller side are not limited by arithmetic."""

POWERED = "vllm/0.22.0"
NODES = {
    "A100_SXM_40GB": ("A100_SXM", 1.41e9),
    "A100_SXM_80GB": ("A100_SXM", 1.41e9),
    "A100_PCIe_40GB": ("A100_SXM", 1.41e9),
    "A100_PCIe_80GB": ("A100_SXM", 1.41e9),
    "H100_80GB": ("H100_SXM", 1.98e9),
    "H200_141GB": ("H200_SXM", 1.98e9),
    "B200_180GB": ("B200_SXM", 1.965e9),
    "B300_288GB": ("B300_SXM", 1.965e9),
    "GB300_288GB": ("GB300", 2.07e9),
    "GB200_186GB": ("GB200", 2.062e9),
}
"""The part whose products were timed, and the boost clock of XLA's description of the node."""

MEASURED_ON = {
    "A100_SXM": "A100_SXM_80GB",
    "H100_SXM": "H100_80GB",
    "H200_SXM": "H200_141GB",
    "B200_SXM": "B200_180GB",
    "B300_SXM": "B300_288GB",
    "GB300": "GB300_288GB",
    "GB200": "GB200_186GB",
}

CLOCKED_BY = {"GB200": "B200_SXM"}
"""Parts whose frameworks disagree on short products, and another of the same silicon for each."""
MACHINES = {
    "A100_SXM_40GB": "H100",
    "A100_SXM_80GB": "H100",
    "H100_80GB": "H100",
    "H200_141GB": "H100",
    "B200_180GB": "B200",
    "B300_288GB": "B200",
}
"""The machines of eight whose share is that of the node's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """Long products of a part: their clock by duration, and their rate at the boost clock."""

    clocks: tuple[tuple[float, float, float, int], ...]
    loop_clock: float
    boost_flops: float


def framework_times(part: str, root: Path) -> list[Times]:
    """Return the times of a part's products in bf16, by m, n and k: a table for each framework."""
    recipe = RECIPES[part]
    home = root / recipe.directory / "gemm"
    return [gemm_times(home / each / "gemm_perf.parquet", "bfloat16") for each in recipe.frameworks]


def loop_of(part: str, root: Path) -> Loop:
    """Compare the three frameworks' times of the same products.

    The clock of the median, which the tables hold, is the fastest time over it, where the same
    ratio of short products counts as 1: libraries differ by that much at equal clocks. The fastest
    time is another part's where this one's short products tell nothing (`CLOCKED_BY`).
    """
    times, fastest = framework_times(part, root), framework_times(CLOCKED_BY.get(part, part), root)
    cells = [cell for cell in times[0] if min(cell) >= LARGE]
    cells = [cell for cell in cells if all(cell in table for table in (*times, *fastest))]
    rows = [(median(table[cell] for table in times), cell) for cell in cells]
    ratios = [(time_s, min(table[cell] for table in fastest) / time_s) for time_s, cell in rows]
    short = median(ratio for time_s, ratio in ratios if SHORT_S[0] <= time_s < SHORT_S[1])
    edges = [1e-4, 2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 16e-3, 1.0]
    clocks = [
        (low, high, median(found) / short, len(found))
        for low, high in pairwise(edges)
        if (found := [ratio for time_s, ratio in ratios if low <= time_s < high])
    ]
    loop_clock = clocks[-1][2]
    rate = median(2 * m * n * k / time_s for time_s, (m, n, k) in rows if time_s >= LONG_S)
    return Loop(clocks=tuple(clocks), loop_clock=loop_clock, boost_flops=rate / loop_clock)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel that was timed with the board's power."""

    flops_per_s: float
    bytes_per_s: float
    power_w: float


def experts(root: Path) -> Iterator[Kernel]:
    """Yield kernels of experts in bf16 that took long, on the B200."""
    rows = read_rows(root / "b200_sxm" / "moe" / POWERED / "moe_perf.parquet")
    for row in _rows(rows):
        time_s = row["latency"] * 1e-3
        if row["moe_dtype"] != "bfloat16" or time_s < SHORT_S[1]:
            continue
        tokens = row["num_tokens"] * row["topk"] / row["moe_ep_size"]
        used = min(row["num_experts"] / row["moe_ep_size"], tokens)
        weights = 3 * row["hidden_size"] * row["inter_size"] / row["moe_tp_size"]
        yield Kernel(
            flops_per_s=2 * tokens * weights / time_s,
            bytes_per_s=2 * used * weights / time_s,
            power_w=row["power"],
        )


def decoding(root: Path) -> list[float]:
    """Return the board's power under attention of single tokens, on the B200."""
    home = root / "b200_sxm" / "attention" / POWERED
    rows = read_rows(home / "generation_attention_perf.parquet")
    return [row["power"] for row in _rows(rows) if row["power"] > 0]


def _rows(columns: Any) -> Iterator[dict[str, Any]]:
    names = list(columns)
    for values in zip(*(columns[name] for name in names), strict=True):
        yield dict(zip(names, values, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Of the limit of the B200's board: what it draws idle, and while kernels run."""

    idle: float
    busy: float


def flop_j(loop: Loop, limit_w: float, idle_w: float, busy_w: float) -> float:
    """Return the energy of a FLOP that makes long products draw the limit at their clock."""
    clock = loop.loop_clock
    scale = clock * (FLOOR + (1 - FLOOR) * clock) ** 2
    return ((limit_w - idle_w) / scale - busy_w) / loop.boost_flops


def shares(loop: Loop, root: Path) -> Shares:
    """Return what was measured on the B200.

    Idle is the least of kernels that do nearly nothing, their 5 % quantile. Busy is what expert
    kernels draw beside with less than 1 TB/s and 150 TFLOP/s.
    """
    limit_w = load_device("B200_180GB").tdp_w or 0.0
    drawn = sorted(decoding(root))
    idle_w = drawn[len(drawn) // 20]
    slow = [each for each in experts(root) if each.flops_per_s < 150e12 and each.bytes_per_s < 1e12]
    busy_w = 0.0
    for _ in range(50):
        each_j = flop_j(loop, limit_w, idle_w, busy_w)
        busy_w = median(
            each.power_w - idle_w - each_j * each.flops_per_s - BYTE_J * each.bytes_per_s
            for each in slow
        )
    print(f"B200: idle {idle_w:.0f} W, busy {busy_w:.0f} W more ({len(slow)} kernels of experts)")
    return Shares(idle=idle_w / limit_w, busy=busy_w / limit_w)


def _significant(value: float) -> float:
    return float(f"{value:.3g}")


ASSUMED_SHARE = "assumed: the part of the power limit that was measured on the B200"


def board(node: str, loop: Loop, measured: Shares, readings: Sequence[PowerReading]) -> BoardPower:
    """Return the figures of a node."""
    part, clock_hz = NODES[node]
    limit_w = load_device(MEASURED_ON[part]).tdp_w or 0.0
    idle_w, busy_w = round(measured.idle * limit_w), round(measured.busy * limit_w)
    each_j = flop_j(loop, limit_w, idle_w, busy_w)
    is_b200 = part == "B200_SXM"
    beside = f" beside the fastest of {CLOCKED_BY[part]}" if part in CLOCKED_BY else ""
    by_script = "(python validation/board_power.py)"
    kernels = f"aiconfigurator-core 0.12.0, {POWERED} on a B200"
    sources = {
        "idle_w": f"measured: {kernels}: 5 % quantile under attention of single tokens"
        if is_b200
        else ASSUMED_SHARE,
        "busy_w": f"measured: {kernels}: kernels of experts below 1 TB/s and 150 TFLOP/s"
        if is_b200
        else ASSUMED_SHARE,
        "flop_j.bf16": f"the limit of {limit_w:g} W, at the clock of long products {by_script}",
        "flop_j.f8": "assumed: half of bf16's, at twice the rate",
        "flop_j.tf32": "assumed: twice bf16's, at half the rate",
        "byte_j": "assumed: 31 pJ in HBM2 (O'Connor et al., Fine-Grained DRAM, MICRO 2017: 3.9 "
        "pJ a bit), and nearly as much on the way to registers",
        "voltage_floor": "assumed: the voltage falls in a line to 0.4 of its value at no clock",
        "boost_clock_hz": "XLA's description of the part (openxla/xla, xla/backends/gpu/"
        "target_config/specs, Apache-2.0): clock_rate_ghz",
        "loop_clock": "measured: aiconfigurator-core 0.12.0, products of bf16 of 16 ms and more, "
        f"three frameworks{beside} {by_script}",
    }
    values: dict[str, Any] = {
        "idle_w": idle_w,
        "busy_w": busy_w,
        "flop_j": {
            "bf16": _significant(each_j),
            "f8": _significant(each_j / 2),
            "tf32": _significant(each_j * 2),
        },
        "byte_j": BYTE_J,
        "voltage_floor": FLOOR,
        "boost_clock_hz": clock_hz,
        "loop_clock": round(loop.loop_clock, 3),
    }
    if node in MACHINES:
        kind = MACHINES[node]
        values["host"] = {
            "devices": 8,
            "device_w": round(host_w([each for each in readings if each.part == kind])),
            "switch_port_w": _significant(switch_port_w(readings)),
        }
        whose = "" if node.startswith(kind) else f"assumed, those of {kind} machines: "
        sources |= {
            "host.devices": "machines of eight, HGX and DGX",
            "host.device_w": f"{whose}MLPerf Training, power of machines under load less the "
            f"limits of their GPUs, an eighth of it {by_script}",
            "host.switch_port_w": "MLPerf Training 4.1, Dell: the switches of 8 machines of 8, a "
            f"port for each GPU {by_script}",
        }
    return _decoded({**values, "sources": sources})


def _decoded(values: dict[str, Any]) -> BoardPower:
    from msgspec import convert  # noqa: PLC0415

    return convert(values, BoardPower)


LOADED = 0.9
"""Machines that draw less than this part of the most of their kind are not under full load."""


def host_w(readings: Sequence[PowerReading]) -> float:
    """Return a GPU's share of what machines under full load draw beside their GPUs' limits."""
    most_w = max(each.machine_w for each in readings)
    loaded = [each for each in readings if each.machine_w >= LOADED * most_w]
    return sum(each.machine_w / 8 - each.limit_w for each in loaded) / len(loaded)


def switch_port_w(readings: Sequence[PowerReading]) -> float:
    """Return what a port of a switch between machines draws."""
    (found,) = [each for each in readings if each.switch_w is not None]
    return (found.switch_w or 0.0) / (8 * found.machines)


def _left_out(readings: Sequence[PowerReading]) -> Iterator[str]:
    """Yield each machine under full load, predicted from the others of its kind."""
    for kind in sorted({each.part for each in readings}):
        alike = [each for each in readings if each.part == kind]
        most_w = max(each.machine_w for each in alike)
        for one in alike:
            others = [each for each in alike if each is not one]
            predicted_w = 8 * (one.limit_w + host_w(others))
            error = predicted_w / one.machine_w - 1
            load = "" if one.machine_w >= LOADED * most_w else "  (not under full load)"
            yield f"  {kind} {one.workload:24}{one.machine_w:8.0f} W  {100 * error:+5.1f} %{load}"


PRODUCTS = Path(__file__).parent / "measurements" / "products-H100_80GB_HBM3.csv"
BYTES = {"bf16": 2, "f8": 1, "tf32": 4}
FLOAT8 = "f8E4M3FN"


def sustained_lines() -> Iterator[str]:
    """Yield each product that ran for seconds, beside the rate that the model sustains."""
    device = load_device("H100_80GB")
    power, limit_w, model = device.power, device.tdp_w, gemm_model(device)
    assert power is not None  # noqa: S101 - for the type checker
    assert limit_w is not None  # noqa: S101 - likewise
    lines = [line for line in PRODUCTS.read_text().splitlines() if not line.startswith("#")]
    errors: list[float] = []
    for row in csv.DictReader(lines):
        kind, m, n, k = row["type"], *(int(row[name]) for name in "mnk")
        one = Product(type_name=FLOAT8 if kind == "f8" else kind, m=m, n=n, k=k)
        boost_s = replace(model, clock=1.0).price(one).time_s
        size_bytes = float(BYTES[kind] * one.elements)
        flops = {kind: float(one.flops)}
        draw = Draw(time_s=boost_s, clocked_s=boost_s, flops=flops, size_bytes=size_bytes)
        clock = sustained_clock(power, draw, limit_w)
        rate = one.flops / replace(model, clock=clock).price(one).time_s / 1e12
        measured = float(row["sustained_tflops"])
        errors.append(rate / measured - 1)
        yield f"{kind:5}{m:6} {n:6} {k:6}{measured:8.0f}{rate:8.0f}  {100 * errors[-1]:+5.1f} %"
    yield f"mean {100 * sum(errors) / len(errors):+.1f} %, {len(errors)} products"


def main() -> None:
    """Print the figures, and write them where that is asked for."""
    parser = argparse.ArgumentParser(description="Derive the power of GPU boards.")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--measured", action="store_true")
    given = parser.parse_args()
    if given.measured:
        print("\n".join(sustained_lines()))
        return
    root, readings = data_root(), read_readings()
    loops = {part: loop_of(part, root) for part in MEASURED_ON}
    measured = shares(loops["B200_SXM"], root)
    made = {node: board(node, loops[part], measured, readings) for node, (part, _) in NODES.items()}
    for part, node in MEASURED_ON.items():
        _print_loop(part, loops[part], lambda time_s, node=node: clock_in_loop(made[node], time_s))
    for node, power in made.items():
        print(f"{node}: {power.flop_j['bf16'] * 1e12:.3g} pJ a FLOP of bf16")
    print("Machines of eight, from the others of their kind, GPUs at their limit:")
    print("\n".join(_left_out(readings)))
    if given.write:
        for node, power in made.items():
            file = PRESETS_DIRECTORY / "nodes" / node / POWER
            file.write_text(_text(power), encoding="utf-8")


def _print_loop(part: str, loop: Loop, model: Callable[[float], float]) -> None:
    print(f"{part}: {loop.boost_flops / 1e12:.0f} TFLOP/s at boost; clock by duration")
    for low, high, clock, count in loop.clocks:
        middle = (low * min(high, 4 * low)) ** 0.5
        print(f"  {1e3 * low:6.2f} ms {count:5} products {clock:.3f}, model {model(middle):.3f}")


def _text(power: BoardPower) -> str:
    from msgspec import to_builtins  # noqa: PLC0415

    values = {name: value for name, value in to_builtins(power).items() if value is not None}
    return json.dumps(values, indent=4) + "\n"


if __name__ == "__main__":
    main()
