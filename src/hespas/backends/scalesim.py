"""``method: scalesim``: cycles from SCALE-Sim v3 (MIT), which simulates every access."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hespas.backends.tool import ToolTimer, interpreter, read_text
from hespas.errors import ToolError
from hespas.price.methods import EstimatorSpec
from hespas.price.systolic import (
    Dataflow,
    Product,
    Systolic,
    SystolicArray,
    SystolicHardware,
    array_hardware,
    array_of,
    with_timer,
)

_DATAFLOWS = {Dataflow.WEIGHT_STATIONARY: "ws", Dataflow.OUTPUT_STATIONARY: "os"}
_REPORT = Path("results", "hespas", "COMPUTE_REPORT.csv")
_COLUMN = "Total Cycles"
# Memories large enough for any operand: what device memory takes is priced apart.
_CONFIG = """[general]
run_name = hespas
[run_presets]
InterfaceBandwidth = CALC
UseRamulatorTrace = False
[architecture_presets]
ArrayHeight = {rows}
ArrayWidth = {columns}
IfmapSramSzkB = 1048576
FilterSramSzkB = 1048576
OfmapSramSzkB = 1048576
IfmapOffset = 0
FilterOffset = 1000000000
OfmapOffset = 2000000000
Dataflow = {dataflow}
Bandwidth = 10
ReadRequestBuffer = 32
WriteRequestBuffer = 32
[layout]
IfmapCustomLayout = False
FilterCustomLayout = False
IfmapSRAMBankBandwidth = 10
IfmapSRAMBankNum = 10
IfmapSRAMBankPort = 2
FilterSRAMBankBandwidth = 10
FilterSRAMBankNum = 10
FilterSRAMBankPort = 2
[sparsity]
SparsitySupport = False
SparseRep = ellpack_block
OptimizedMapping = False
BlockSize = 8
RandomNumberGeneratorSeed = 40
"""


_NAME = "SCALE-Sim 3"


def make(spec: EstimatorSpec) -> Systolic:
    """Return the estimator of the method ``scalesim``.

    ``binary`` of the configuration names the Python that has SCALE-Sim, where that is another.
    """
    hardware = array_hardware(spec, "scalesim", SystolicHardware)
    python = interpreter(hardware, "scalesim", what="method 'scalesim'", extra="scalesim")
    array = array_of(hardware)
    timer = ToolTimer(
        name=_NAME,
        method="scalesim",
        array=array,
        prepare=partial(_prepare, python, array),
        cycles=_cycles,
    )
    return with_timer(timer, hardware, spec)


def _prepare(
    python: str, array: SystolicArray, product: Product, element_bytes: int, directory: Path
) -> Sequence[str]:
    """Write configuration, topology and an empty layout; the element's size changes nothing."""
    del element_bytes
    text = _CONFIG.format(
        rows=array.rows, columns=array.columns, dataflow=_DATAFLOWS[array.dataflow]
    )
    (directory / "array.cfg").write_text(text)
    row = f"product, {product.m}, {product.n}, {product.k},\n"
    (directory / "products.csv").write_text("Layer, M, N, K,\n" + row)
    (directory / "layout.csv").write_text("Layer,\n")
    files = ["-c", "array.cfg", "-t", "products.csv", "-l", "layout.csv"]
    return [python, "-m", "scalesim.scale", *files, "-i", "gemm", "-p", "results"]


def _cycles(directory: Path) -> float:
    text = read_text(directory / _REPORT, name=_NAME)
    try:
        # A header, and the row of the one layer.
        header, row = filter(None, csv.reader(text.splitlines(), skipinitialspace=True))
        return float(row[header.index(_COLUMN)])
    except (ValueError, IndexError, csv.Error) as error:
        raise ToolError(
            f"{_NAME}'s report has no {_COLUMN!r} of one layer",
            location=str(directory / _REPORT),
        ) from error
