"""Cycles of matrix products on a 128 x 128 array by every model that is at hand, side by side.

    python validation/systolic_sweep.py --tools PYTHON            print the table
    python validation/systolic_sweep.py --tools PYTHON --write    and write it

PYTHON is an interpreter with scalesim 3.0.0 and zigzag-dse 3.9.1 (the extras scalesim and
zigzag). Elements take one byte, the clock is 940 MHz, device memory gives 900 GB/s.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from msgspec.structs import replace

from hespas.price.methods import EstimatorSpec, estimator
from hespas.price.systolic import Product, Systolic, SystolicHardware

PAGE = Path("docs/reference/systolic-arrays.md")
SIZES = (
    (128, 128, 128),
    (256, 256, 256),
    (512, 512, 512),
    (300, 700, 1000),
    (1, 4096, 4096),
    (2048, 2048, 2048),
    (8192, 8192, 8192),
)
SCALE_SIM_LIMIT = 512**3
"""SCALE-Sim keeps every access: larger products take it minutes, then more memory than there is."""
_TABLE = re.compile(r"<!-- table -->\n.*?<!-- end -->", re.DOTALL)

ARRAY = SystolicHardware(
    array_rows=128,
    array_columns=128,
    clock_hz=940e6,
    memory_bandwidth=900e9,
    vector_flops=2e12,
)


def cycles(method: str, hardware: SystolicHardware, product: Product) -> int:
    """Return the cycles that a method gives a product."""
    found = estimator(method, EstimatorSpec(hardware=hardware))
    if not isinstance(found, Systolic):
        raise TypeError(f"{method} models no array")
    return round(found.timer.time_s(product, 1) * hardware.clock_hz)


def row(m: int, k: int, n: int, tools: str) -> str:
    """Return a row of the table."""
    product = Product(m=m, n=n, k=k)
    output = replace(ARRAY, dataflow="output_stationary")
    small = product.multiplications <= SCALE_SIM_LIMIT
    figures = [
        f"{-(-product.multiplications // 128**2):,}",
        f"{cycles('systolic', ARRAY, product):,}",
        f"{cycles('systolic', output, product):,}",
        f"{cycles('scalesim', replace(ARRAY, binary=tools), product):,}" if small else "not run",
        f"{cycles('scalesim', replace(output, binary=tools), product):,}" if small else "not run",
        f"{cycles('zigzag_onnx', replace(ARRAY, binary=tools), product):,}",
    ]
    return f"| {m}, {k}, {n} | " + " | ".join(figures) + " |"


def table(tools: str) -> str:
    """Return the table as Markdown."""
    head = (
        "| M, K, N | multiplications / 16,384 | `systolic` WS | `systolic` OS "
        "| `scalesim` WS | `scalesim` OS | `zigzag_onnx` |"
    )
    return "\n".join([head, "|---|" + "---|" * 6, *(row(*size, tools) for size in SIZES)])


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", required=True)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    text = table(given.tools)
    if not given.write:
        print(text)
        return
    page = PAGE.read_text()
    PAGE.write_text(_TABLE.sub(lambda _: f"<!-- table -->\n{text}\n<!-- end -->", page))


if __name__ == "__main__":
    main()
