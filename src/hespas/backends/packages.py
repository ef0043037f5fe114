"""Run array simulators in Python: ``method: scalesim`` and ``method: zigzag_onnx``.

SCALE-Sim v3 (MIT) simulates every access, ZigZag (MIT) searches for the best mapping.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from hespas.backends.tool import ToolTimer, interpreter, read_text
from hespas.errors import ConfigError, ToolError
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
# Memories large enough for any operand: device memory is priced separately.
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
    """Return the estimator of the method ``scalesim``."""
    hardware = array_hardware(spec, "scalesim", SystolicHardware)
    python = interpreter(hardware, "scalesim", method="scalesim", extra="scalesim")
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
        # A header, and the row of the only layer.
        header, row = filter(None, csv.reader(text.splitlines(), skipinitialspace=True))
        return float(row[header.index(_COLUMN)])
    except (ValueError, IndexError, csv.Error) as error:
        raise ToolError(
            f"{_NAME}'s report has no {_COLUMN!r} of one layer",
            location=str(directory / _REPORT),
        ) from error


_ANSWER = "answer.json"
_SRAM_BYTES = 32 * 2**20
_LOOPS = 4
"""The number of a product's loops that ZigZag orders (``lpf_limit``); more was only slower."""

_DRIVER = f"""import json
from zigzag.api import get_hardware_performance_zigzag
_, latency, _ = get_hardware_performance_zigzag(
    json.load(open("workload.json")), "array.yaml", "mapping.yaml", lpf_limit={_LOOPS},
    dump_folder="dump", loma_show_progress_bar=False)
json.dump({{"cycles": float(latency)}}, open("{_ANSWER}", "w"))
"""


def make_zigzag(spec: EstimatorSpec) -> Systolic:
    """Return the estimator of the method ``zigzag_onnx``."""
    hardware = array_hardware(spec, "zigzag_onnx", SystolicHardware)
    array = array_of(hardware)
    if array.dataflow is not Dataflow.WEIGHT_STATIONARY:
        raise ConfigError(
            "method 'zigzag_onnx' maps products weight stationary",
            hint="drop dataflow, or use the method systolic or scalesim",
        )
    python = interpreter(hardware, "zigzag", method="zigzag_onnx", extra="zigzag")
    timer = ToolTimer(
        name="ZigZag",
        method="zigzag_onnx",
        array=array,
        settings={
            "memory_bandwidth": hardware.memory_bandwidth,
            "sram_bytes": _SRAM_BYTES,
            "loops": _LOOPS,
        },
        prepare=partial(
            _prepare_zigzag, python=python, array=array, memory_bandwidth=hardware.memory_bandwidth
        ),
        cycles=_zigzag_cycles,
    )
    return with_timer(timer, hardware, spec)


def _prepare_zigzag(
    product: Product,
    element_bytes: int,
    directory: Path,
    *,
    python: str,
    array: SystolicArray,
    memory_bandwidth: float,
) -> Sequence[str]:
    bits = 8 * element_bytes
    mapping = {
        "name": "default",
        "spatial_mapping": {"D1": [f"K, {array.columns}"], "D2": [f"D, {array.rows}"]},
        "memory_operand_links": {"O": "O", "W": "I2", "I": "I1"},
    }
    layer = {
        "id": 0,
        "name": "product",
        "operator_type": "Gemm",
        "equation": "O[c][k]+=I[c][d]*W[d][k]",
        "loop_dims": ["C", "D", "K"],
        "loop_sizes": [product.m, product.k, product.n],
        "operand_precision": {"O": bits, "O_final": bits, "I": bits, "W": bits},
        "operand_source": {"I": 0, "W": 0},
    }
    documents = {
        "array.yaml": _accelerator(array, memory_bandwidth, bits),
        "mapping.yaml": [mapping],
        "workload.json": [layer],
    }
    for name, document in documents.items():
        # JSON is YAML.
        (directory / name).write_text(json.dumps(document, indent=1))
    (directory / "driver.py").write_text(_DRIVER)
    return [python, "driver.py"]


def _zigzag_cycles(directory: Path) -> float:
    text = read_text(directory / _ANSWER, name="ZigZag")
    try:
        return float(json.loads(text)["cycles"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ToolError(
            "ZigZag's answer has no cycles", location=str(directory / _ANSWER)
        ) from error


_EVERY_WAY = {"I1": ("fh", "tl"), "O": ("fh", "tl", "fl", "th")}


def _accelerator(array: SystolicArray, memory_bandwidth: float, bits: int) -> dict[str, object]:
    memory_bits = max(1, int(8 * memory_bandwidth / array.clock_hz))
    bandwidth_bytes_per_s = array.sram_bandwidth_bytes_per_s
    sram_bits = bits * (array.rows + array.columns)
    if bandwidth_bytes_per_s is not None:
        sram_bits = max(1, int(8 * bandwidth_bytes_per_s / array.clock_hz))
    axes = ["D1", "D2"]
    device_operands = {"I1": ("fh", "tl"), "I2": ("fh", "tl"), "O": _EVERY_WAY["O"]}
    return {
        "name": "array",
        "memories": {
            "weights": _memory(8 * bits, bits, {"I2": ("fh", "tl")}, served=[]),
            "sums": _registers(bits, "O"),
            "sram": _memory(8 * _SRAM_BYTES, sram_bits, _EVERY_WAY, served=axes),
            "dram": _memory(10**15, memory_bits, device_operands, served=axes),
        },
        "operational_array": {
            "unit_energy": 0.0,
            "unit_area": 1.0,
            "dimensions": axes,
            "sizes": [array.columns, array.rows],
        },
    }


def _memory(
    size_bits: int, width_bits: int, operands: Mapping[str, Sequence[str]], *, served: list[str]
) -> dict[str, object]:
    """Describe a memory with read and write ports.

    In ZigZag's terms "fh" and "fl" write into a memory from above and below, "tl" and "th" read
    from it downwards and upwards.
    """
    moved = [(name, direction) for name in operands for direction in operands[name]]
    reads, writes = (
        [f"{name}, {direction}" for name, direction in moved if direction[0] == first]
        for first in "tf"
    )
    return {
        "size": size_bits,
        "r_cost": 0.0,
        "w_cost": 0.0,
        "area": 0,
        "latency": 1,
        "operands": list(operands),
        "ports": [
            _port("r_port_1", "read", width_bits, reads),
            _port("w_port_1", "write", width_bits, writes),
        ],
        "served_dimensions": served,
    }


def _registers(bits: int, operand: str) -> dict[str, object]:
    """Describe a pass-through register with concurrent ports, one a direction."""
    directions_of_kind = {"read": ("tl", "th"), "write": ("fh", "fl")}
    ports = [
        _port(f"{kind[0]}_port_{number}", kind, bits, [f"{operand}, {direction}"])
        for kind, directions in directions_of_kind.items()
        for number, direction in enumerate(directions, 1)
    ]
    return {**_memory(bits, bits, {operand: ()}, served=[]), "ports": ports}


def _port(name: str, kind: str, width_bits: int, allocation: list[str]) -> dict[str, object]:
    return {
        "name": name,
        "type": kind,
        "bandwidth_min": width_bits,
        "bandwidth_max": width_bits,
        "allocation": allocation,
    }
