"""``method: onnxim``: cycles from ONNXim (MIT, github.com/PSAL-POSTECH/ONNXim).

Tested with its build a1e8629, as ``Simulator --config CORES --models_list LIST``, where LIST names
models with their batch sizes, which are files ``models/NAME/NAME.onnx`` in the folder that the
variable ONNXIM_HOME names. It never ends for output-stationary cores, uses their height as their
width, and divides by zero if several cores share a product too thin for them, unless a file beside
the model says how to cut it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from math import ceil, isclose
from pathlib import Path
from typing import Literal, TypeAlias, cast

from msgspec import Struct

from hespas.backends.tool import (
    BuiltProgram,
    Interface,
    ToolTimer,
    built_program,
    digest,
    refusal,
)
from hespas.base.decode import decode, read_json
from hespas.base.figures import Text
from hespas.base.files import json_bytes
from hespas.base.frozen import frozen
from hespas.errors import ConfigError, ExtraMissingError, UnsupportedError
from hespas.price.methods import EstimatorSpec
from hespas.price.systolic import (
    Dataflow,
    Product,
    SimulatorHardware,
    Systolic,
    SystolicArray,
    array_hardware,
    array_of,
    with_timer,
)

_MODEL = "product"
_LIST = "models_list.json"
_USUAL_OPTIONS: Mapping[str, object] = {"batch_size": 1}

_INTERFACE = Interface(
    method="onnxim",
    name="ONNXim",
    source="github.com/PSAL-POSTECH/ONNXim",
    placeholders={
        "config": "the path of core_config",
        "workload": "the list of models",
        "model": "the ONNX file",
        "output": "the path of answer_file",
    },
    needed=(("config",), ("workload", "model")),
    usual=("--config", "{config}", "--models_list", "{workload}"),
    pattern="Simulation Finished at ([0-9]+) cycle",
)
_SIMULATED_BYTES_PER_S = 0.95e6
"""2048 x 2048 by 2048 x 2048 took 26 s, 4096 x 128 by 128 x 32000 took 294 s: 0.97 and 0.92 MB/s of
operands and results."""


@frozen
class _Cores:
    """ONNXim's description of the cores, and their array.

    ``precision_bytes`` is its element size, if stated; ``silent`` are the missing keys, which could
    not be compared.
    """

    path: Path
    precision_bytes: int | None
    array: SystolicArray
    silent: tuple[str, ...]


def _prepare(
    product: Product,
    element_bytes: int,
    directory: Path,
    *,
    program: BuiltProgram,
    cores: _Cores,
    model_options: Mapping[str, object],
    operator: Operator,
) -> Sequence[str]:
    """Write the model and its list; return the command.

    ``directory`` is ONNXim's home. Raises `UnsupportedError` if the elements' size differs from the
    cores'.
    """
    if cores.precision_bytes not in (None, element_bytes):
        raise UnsupportedError(
            f"precision is {cores.precision_bytes} bytes, and the elements of a product "
            f"{product.m} x {product.k} by {product.k} x {product.n} have {element_bytes}",
            location=str(cores.path),
            hint="make the two agree",
        )
    model = directory / "models" / _MODEL / f"{_MODEL}.onnx"
    model.parent.mkdir(parents=True)
    write_product_model(model, product, element_bytes=element_bytes, operator=operator)
    mapping = product_mapping(product, cores.array)
    if mapping is not None:
        model.with_suffix(".mapping").write_text(f"{mapping}\n")
    models_list = {"models": [{"name": _MODEL, **model_options}]}
    (directory / _LIST).write_bytes(json_bytes(models_list))
    values = {"config": cores.path, "workload": directory / _LIST, "model": model}
    return ["/usr/bin/env", f"ONNXIM_HOME={directory}", *program.command(values, directory)]


def product_mapping(product: Product, array: SystolicArray) -> str | None:
    """Return a product's mapping to ONNXim's cores, or None.

    ONNXim finds a mapping itself unless a product has fewer tiles of an array's size than there are
    cores, along its rows or its columns. The line holds all loops (T), the loops over tiles (O) and
    the loops in a tile (I): N are rows, C the contracted dimension, M columns.

    >>> array = SystolicArray(rows=128, columns=128, clock_hz=940e6, count=2,
    ...                       dataflow=Dataflow.WEIGHT_STATIONARY)
    >>> product_mapping(Product(m=128, n=256, k=128), array)
    '[T] N128 C128 M256 - [O] N1 C1 M2 - [I] N128 C128 M128'
    """
    tiles = min(ceil(product.m / array.rows), ceil(product.n / array.columns))
    if tiles >= array.count:
        return None
    sizes = {"N": product.m, "C": product.k, "M": product.n}
    sides = {"N": array.rows, "C": array.rows, "M": array.columns}
    tile_sizes = {name: min(size, sides[name]) for name, size in sizes.items()}
    tile_counts = {name: ceil(size / tile_sizes[name]) for name, size in sizes.items()}
    parts = {"T": sizes, "O": tile_counts, "I": tile_sizes}
    return " - ".join(
        f"[{part}] {' '.join(f'{name}{count}' for name, count in loops.items())}"
        for part, loops in parts.items()
    )


class OnnximHardware(SimulatorHardware, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hardware`` of the method ``onnxim``.

    ``core_config`` is the path of ONNXim's own description of the cores, ``operator`` the ONNX
    operator of a product, ``model_options`` its entries in the models list.
    """

    core_config: Text | None = None
    operator: Operator | None = None
    model_options: dict[Text, str | float | bool] | None = None


def make(spec: EstimatorSpec) -> Systolic:
    """Return the estimator of the method ``onnxim``."""
    hardware = array_hardware(spec, "onnxim", OnnximHardware)
    program = built_program(hardware, _INTERFACE)
    array = array_of(hardware)
    _check_array(array)
    if hardware.core_config is None:
        message = "method 'onnxim' needs core_config, the path of ONNXim's JSON file of the cores"
        raise refusal(message, "give one, such as a file of ONNXim's configs/")
    need_onnx()
    cores = _cores(Path(hardware.core_config).absolute(), array)
    options = _options(hardware.model_options, program)
    operator = hardware.operator or "MatMul"
    timer = ToolTimer(
        name=_INTERFACE.name,
        method=_INTERFACE.method,
        array=array,
        settings={
            "program": program.settings,
            "core_config": digest(cores.path),
            "operator": operator,
            "model_options": dict(options),
            "mapped": array.count > 1,
        },
        prepare=partial(
            _prepare, program=program, cores=cores, model_options=options, operator=operator
        ),
        cycles=program.cycles,
        simulates_all=True,
        notes=_notes(cores, operator),
        simulated_bytes_per_s=_SIMULATED_BYTES_PER_S,
    )
    return with_timer(timer, hardware, spec)


def _check_array(array: SystolicArray) -> None:
    if array.dataflow is Dataflow.OUTPUT_STATIONARY:
        raise refusal(
            "ONNXim never ends for output-stationary cores",
            "make the dataflow weight_stationary, or use another method",
        )
    if array.rows != array.columns:
        raise refusal(
            f"ONNXim's cores are square: it takes their height, array_rows {array.rows}, for their "
            f"width, array_columns {array.columns}",
            "make the two equal, or use another method",
        )


def _options(
    model_options: Mapping[str, object] | None, program: BuiltProgram
) -> Mapping[str, object]:
    if model_options is None:
        return _USUAL_OPTIONS
    if not any("{workload}" in text for text in program.arguments):
        message = "model_options has no effect: no argument holds {workload}, the list of models"
        raise refusal(message, "drop it")
    if "name" in model_options:
        raise refusal("model_options gives a name", "leave it to hespas")
    return model_options


def _notes(cores: _Cores, operator: Operator) -> tuple[str, ...]:
    """Return the assumptions of the interface."""
    notes = [f"a product is an ONNX model of one {operator}"]
    if cores.array.count > 1:
        notes.append("a product too thin for its cores is cut into tiles of an array's size")
    if cores.silent:
        notes.append(f"core_config has no {', '.join(cores.silent)} to compare with the array")
    if cores.precision_bytes is None:
        notes.append("core_config has no precision to compare with the size of elements")
    return tuple(notes)


_MHZ = 1e6


class _Core(Struct, frozen=True, kw_only=True):
    """A description of all cores or of one."""

    core_height: int | float | None = None
    core_width: int | float | None = None
    core_freq: int | float | None = None
    num_cores: int | None = None
    core_type: str | None = None
    precision: int | None = None


class _Description(_Core, frozen=True, kw_only=True):
    core_config: dict[str, _Core] = {}


def _cores(path: Path, array: SystolicArray) -> _Cores:
    """Return the cores; `ConfigError` if file and array disagree."""
    file = decode(read_json(path), _Description, location=str(path))
    figures: Mapping[str, tuple[str, float | str]] = {
        "core_height": ("array_rows", array.rows),
        "core_width": ("array_columns", array.columns),
        "core_freq": ("clock_hz, in MHz,", array.clock_hz / _MHZ),
        "num_cores": ("array_count", array.count),
        "core_type": ("dataflow", "systolic_ws"),
    }
    silent: list[str] = []
    for key, (name, expected) in figures.items():
        stated = _values_in_file(file, key)
        different = next((value for value in stated if not _is_same(value, expected)), None)
        if different is not None:
            raise ConfigError(
                f"{key} is {_shown(different)}, {name} of the array {_shown(expected)}",
                location=str(path),
                hint="make the two agree",
            )
        if not stated:
            silent.append(key)
    precisions = _values_in_file(file, "precision")
    if len({*precisions}) > 1:
        hint = "give one size of an element, in bytes"
        raise ConfigError(f"precision is {precisions}", location=str(path), hint=hint)
    size_bytes = cast("int", precisions[0]) if precisions else None
    return _Cores(path=path, precision_bytes=size_bytes, array=array, silent=tuple(silent))


def _values_in_file(file: _Description, key: str) -> list[float | str]:
    values = [getattr(core, key) for core in (file, *file.core_config.values())]
    return [value for value in values if value is not None]


def _is_same(stated: float | str, own: float | str) -> bool:
    if isinstance(stated, str) or isinstance(own, str):
        return stated == own
    return isclose(stated, own, rel_tol=1e-9)


def _shown(value: float | str) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)


Operator: TypeAlias = Literal["MatMul", "Gemm"]

_TYPES = {2: "FLOAT16", 4: "FLOAT", 8: "DOUBLE"}
_OPSET = 13
_IR_VERSION = 8
_MOST_INSIDE_BYTES = 2**28
"""Larger weights get their own file: a file of protocol buffers ends at 2 GiB."""


def need_onnx() -> None:
    """Raise `ExtraMissingError` if the package onnx is not installed."""
    if find_spec("onnx") is None:
        raise ExtraMissingError("method 'onnxim'", extra="onnxim")


def write_product_model(
    path: Path, product: Product, *, element_bytes: int, operator: Operator
) -> None:
    """Write a one-node model: input times zero weights.

    MatMul has weights of k x n; Gemm of n x k, transposed, as in fully connected layers.
    Weights above 256 MiB go to a sparse file beside ``path``, of the same name with ``.data``.
    """
    onnx = import_module("onnx")
    helper = import_module("onnx.helper")
    if element_bytes not in _TYPES:
        raise UnsupportedError(
            f"ONNX's {operator} takes elements of 2, 4 or 8 bytes, not of {element_bytes}",
            hint="use another method for this program",
        )
    kind = getattr(onnx.TensorProto, _TYPES[element_bytes])
    shape = [product.k, product.n] if operator == "MatMul" else [product.n, product.k]
    weights = onnx.TensorProto(name="weights", data_type=kind, dims=shape)
    size_bytes = product.k * product.n * element_bytes
    if size_bytes <= _MOST_INSIDE_BYTES:
        weights.raw_data = bytes(size_bytes)
    else:
        weights_file = path.with_suffix(".data")
        with weights_file.open("wb") as file:
            file.truncate(size_bytes)
        weights.data_location = onnx.TensorProto.EXTERNAL
        weights.external_data.add(key="location", value=weights_file.name)
    attributes = {} if operator == "MatMul" else {"transB": 1}
    node = helper.make_node(operator, ["input", "weights"], ["output"], "product", **attributes)
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("input", kind, [product.m, product.k])],
        [helper.make_tensor_value_info("output", kind, [product.m, product.n])],
        initializer=[weights],
    )
    opset = helper.make_opsetid("", _OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION)
    path.write_bytes(model.SerializeToString(deterministic=True))
