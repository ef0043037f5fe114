"""``method: scalesim``: cycles from SCALE-Sim v3 (MIT), which simulates every access."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hespas.backends.tool import ToolTimer, interpreter, read_text
from hespas.errors import ToolError
from hespas.price.methods import EstimatorSpec
from hespas.price.systolic import (
    Dataflow,
    Product,
    Systolic,
    SystolicArray,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleSim:
    """SCALE-Sim 3, run by the Python that has it."""

    python: str
    array: SystolicArray

    @property
    def name(self) -> str:
        """What people call it."""
        return "SCALE-Sim 3"

    @property
    def method(self) -> str:
        """Its name in configuration files."""
        return "scalesim"

    @property
    def parameters(self) -> Mapping[str, object]:
        """Nothing besides the array."""
        return {}

    def prepare(self, product: Product, element_bytes: int, directory: Path) -> Sequence[str]:
        """Write configuration, topology and an empty layout; the element's size changes nothing."""
        del element_bytes
        text = _CONFIG.format(
            rows=self.array.rows,
            columns=self.array.columns,
            dataflow=_DATAFLOWS[self.array.dataflow],
        )
        (directory / "array.cfg").write_text(text)
        row = f"product, {product.m}, {product.n}, {product.k},\n"
        (directory / "products.csv").write_text("Layer, M, N, K,\n" + row)
        (directory / "layout.csv").write_text("Layer,\n")
        files = ["-c", "array.cfg", "-t", "products.csv", "-l", "layout.csv"]
        return [self.python, "-m", "scalesim.scale", *files, "-i", "gemm", "-p", "results"]

    def cycles(self, directory: Path) -> float:
        """Read "Total Cycles" of the report."""
        text = read_text(directory / _REPORT, name=self.name)
        try:
            # A header, and the row of the one layer.
            header, row = filter(None, csv.reader(text.splitlines(), skipinitialspace=True))
            return float(row[header.index(_COLUMN)])
        except (ValueError, IndexError, csv.Error) as error:
            raise ToolError(
                f"{self.name}'s report has no {_COLUMN!r} of one layer",
                location=str(directory / _REPORT),
            ) from error


def make(spec: EstimatorSpec) -> Systolic:
    """Return the estimator of the method ``scalesim``.

    ``binary`` of the configuration names the Python that has SCALE-Sim, where that is another.
    """
    hardware = array_hardware(spec, "scalesim")
    python = interpreter(hardware, "scalesim", what="method 'scalesim'", extra="scalesim")
    array = array_of(hardware)
    timer = ToolTimer(tool=ScaleSim(python=python, array=array), array=array)
    return with_timer(timer, hardware, spec)
