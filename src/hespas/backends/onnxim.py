"""``method: onnxim``: cycles from ONNXim (MIT, github.com/PSAL-POSTECH/ONNXim).

Its build a1e8629 was run, as ``Simulator --config CORES --models_list LIST``, where LIST names
models with their batch sizes, which stand as ``models/NAME/NAME.onnx`` in the folder that the
variable ONNXIM_HOME names. It never ends for output-stationary cores, takes their height for their
width, and divides by zero where several cores share a product too thin for them, unless a file
beside the model says how it is cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from math import ceil, isclose
from pathlib import Path
from typing import Literal, TypeAlias, cast

from hespas.backends.built_program import (
    LOCATION,
    BuiltProgram,
    Interface,
    built_program,
    digest,
)
from hespas.backends.tool import ToolTimer
from hespas.base.config_files import read_json
from hespas.base.figures import Text
from hespas.base.files import json_bytes
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
_USUAL_OPTIONS: Mapping[str, str | float | bool] = {"batch_size": 1}

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Onnxim:
    """ONNXim, as somebody built it, with its own description of the cores.

    ``precision_bytes`` is the size of an element there, where it says that.
    """

    program: BuiltProgram
    core_config: Path
    core_digest: str
    precision_bytes: int | None
    array: SystolicArray
    operator: Operator
    model_options: Mapping[str, str | float | bool]

    @property
    def name(self) -> str:
        """What people call it."""
        return "ONNXim"

    @property
    def method(self) -> str:
        """Its name in configuration files."""
        return "onnxim"

    @property
    def parameters(self) -> Mapping[str, object]:
        """The program, the cores by their file's content, and how a product is written."""
        return {
            "program": dict(self.program.parameters),
            "core_config": self.core_digest,
            "operator": self.operator,
            "model_options": dict(self.model_options),
            "mapped": self.array.count > 1,
        }

    def prepare(self, product: Product, element_bytes: int, directory: Path) -> Sequence[str]:
        """Write the model and the list that names it; ``directory`` is ONNXim's home.

        Raises `UnsupportedError` for elements of another size than the cores'.
        """
        if self.precision_bytes not in (None, element_bytes):
            raise UnsupportedError(
                f"precision is {self.precision_bytes} bytes, and the elements of a product "
                f"{product.m} x {product.k} by {product.k} x {product.n} have {element_bytes}",
                location=str(self.core_config),
                hint="make the two agree",
            )
        model = directory / "models" / _MODEL / f"{_MODEL}.onnx"
        model.parent.mkdir(parents=True)
        write_product_model(model, product, element_bytes=element_bytes, operator=self.operator)
        mapping = product_mapping(product, self.array)
        if mapping is not None:
            model.with_suffix(".mapping").write_text(f"{mapping}\n")
        listed = {"models": [{"name": _MODEL, **self.model_options}]}
        (directory / _LIST).write_bytes(json_bytes(listed))
        values = {"config": self.core_config, "workload": directory / _LIST, "model": model}
        command = self.program.command(values, directory)
        return ["/usr/bin/env", f"ONNXIM_HOME={directory}", *command]

    def cycles(self, directory: Path) -> float:
        """Read what the pattern finds."""
        return self.program.cycles(directory)


def product_mapping(product: Product, array: SystolicArray) -> str | None:
    """Return how ONNXim is to cut a product for its cores; None where it finds a way by itself.

    It finds none where a product has fewer tiles of an array's size than there are cores, along
    its rows or its columns. The line holds the loops of all (T), those over tiles (O) and those in
    a tile (I): N are rows, C what is summed over, M columns.

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
    inside = {name: min(size, sides[name]) for name, size in sizes.items()}
    over = {name: ceil(size / inside[name]) for name, size in sizes.items()}
    parts = {"T": sizes, "O": over, "I": inside}
    return " - ".join(
        f"[{part}] {' '.join(f'{name}{count}' for name, count in loops.items())}"
        for part, loops in parts.items()
    )


class OnnximHardware(SimulatorHardware, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hardware`` of the method ``onnxim``.

    ``core_config`` is the path of ONNXim's own description of the cores, ``operator`` the ONNX
    operator that a product becomes, ``model_options`` what the models list says of it.
    """

    core_config: Text | None = None
    operator: Operator | None = None
    model_options: dict[Text, str | float | bool] | None = None


def make(spec: EstimatorSpec) -> Systolic:
    """Return the estimator of the method ``onnxim``.

    Raises `ConfigError` for a configuration that lacks a part of how the program is called, or
    whose array is not the one of ``core_config``, `ToolError` where there is no program, and
    `ExtraMissingError` without the package onnx.
    """
    hardware = array_hardware(spec, "onnxim")
    if not isinstance(hardware, OnnximHardware):
        raise ConfigError(
            "the configuration is of another method", hint="set perf_estimator.method to onnxim"
        )
    program = built_program(hardware, _INTERFACE)
    array = array_of(hardware)
    _check_array(array)
    if hardware.core_config is None:
        raise ConfigError(
            "method 'onnxim' needs core_config, the path of ONNXim's JSON file of the cores",
            location=LOCATION,
            hint="give one, such as a file of ONNXim's configs/",
        )
    need_onnx()
    cores = Path(hardware.core_config).absolute()
    silent = checked_cores(cores, array)
    tool = Onnxim(
        program=program,
        core_config=cores,
        core_digest=digest(cores),
        precision_bytes=_precision_bytes(cores),
        array=array,
        operator=hardware.operator or "MatMul",
        model_options=_options(hardware.model_options, program),
    )
    notes = _notes(tool, silent)
    timer = ToolTimer(
        tool=tool,
        array=array,
        simulates_all=True,
        notes=notes,
        simulated_bytes_per_s=_SIMULATED_BYTES_PER_S,
    )
    return with_timer(timer, hardware, spec)


def _check_array(array: SystolicArray) -> None:
    if array.dataflow is Dataflow.OUTPUT_STATIONARY:
        raise ConfigError(
            "ONNXim never ends for output-stationary cores",
            location=LOCATION,
            hint="make the dataflow weight_stationary, or use another method",
        )
    if array.rows != array.columns:
        raise ConfigError(
            f"ONNXim's cores are square: it takes their height, array_rows {array.rows}, for their "
            f"width, array_columns {array.columns}",
            location=LOCATION,
            hint="make the two equal, or use another method",
        )


def _precision_bytes(path: Path) -> int | None:
    """Return the size of an element that the file gives; `ConfigError` where that is no number."""
    stated = list(_stated(cast("Mapping[str, object]", read_json(path)), "precision"))
    for each in stated:
        if isinstance(each, bool) or not isinstance(each, int) or each != stated[0]:
            raise ConfigError(
                f"precision is {_shown(each)}",
                location=str(path),
                hint="give one size of an element, in bytes",
            )
    return cast("int", stated[0]) if stated else None


def _options(
    given: Mapping[str, str | float | bool] | None, program: BuiltProgram
) -> Mapping[str, str | float | bool]:
    if given is None:
        return _USUAL_OPTIONS
    if not any("{workload}" in text for text in program.arguments):
        raise ConfigError(
            "model_options has no effect: no argument holds {workload}, the list of models",
            location=LOCATION,
            hint="drop it",
        )
    if "name" in given:
        raise ConfigError(
            "model_options gives a name", location=LOCATION, hint="leave it to hespas"
        )
    return given


def _notes(tool: Onnxim, silent: Sequence[str]) -> tuple[str, ...]:
    """Say what was taken for granted, the interface above all."""
    notes = [f"a product is an ONNX model of one {tool.operator}"]
    if tool.array.count > 1:
        notes.append("a product too thin for its cores is cut into tiles of an array's size")
    if silent:
        notes.append(f"core_config has no {', '.join(silent)} to compare with the array")
    if tool.precision_bytes is None:
        notes.append("core_config has no precision to compare with the size of elements")
    return tuple(notes)


_CORE_TYPE = "systolic_ws"
_MHZ = 1e6


def checked_cores(path: Path, array: SystolicArray) -> tuple[str, ...]:
    """Return the names of what the file doesn't say, so that it could not be compared.

    Raises `ConfigError`, with both figures, where file and array disagree, and for a file that is
    no JSON object. ``core_height`` is held against the rows, ``core_width`` against the columns,
    ``core_freq``, in MHz, against the clock, at the top of the file or for each core.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise ConfigError(
            "is no JSON object", location=str(path), hint="give ONNXim's configuration"
        )
    top = cast("Mapping[str, object]", value)
    silent: list[str] = []
    for key, (name, own) in _figures(array).items():
        stated = list(_stated(top, key))
        for each in stated:
            if not _same(each, own):
                raise ConfigError(
                    f"{key} is {_shown(each)}, {name} of the array {_shown(own)}",
                    location=str(path),
                    hint="make the two agree",
                )
        if not stated:
            silent.append(key)
    return tuple(silent)


def _figures(array: SystolicArray) -> dict[str, tuple[str, float | str]]:
    """Return what the array has of each of ONNXim's keys."""
    return {
        "core_height": ("array_rows", array.rows),
        "core_width": ("array_columns", array.columns),
        "core_freq": ("clock_hz, in MHz,", array.clock_hz / _MHZ),
        "num_cores": ("array_count", array.count),
        "core_type": ("dataflow", _CORE_TYPE),
    }


def _stated(top: Mapping[str, object], key: str) -> Iterator[object]:
    if key in top:
        yield top[key]
    cores = top.get("core_config")
    if isinstance(cores, dict):
        for core in cast("Mapping[str, object]", cores).values():
            if isinstance(core, dict) and key in core:
                yield cast("Mapping[str, object]", core)[key]


def _same(stated: object, own: float | str) -> bool:
    if isinstance(own, str):
        return stated == own
    if isinstance(stated, bool) or not isinstance(stated, int | float):
        return False
    return isclose(stated, own, rel_tol=1e-9)


def _shown(value: object) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)


Operator: TypeAlias = Literal["MatMul", "Gemm"]

_TYPES = {2: "FLOAT16", 4: "FLOAT", 8: "DOUBLE"}
_OPSET = 13
_IR_VERSION = 8
_MOST_INSIDE_BYTES = 2**28
"""Larger weights stand beside the model: a file of protocol buffers ends at 2 GiB."""


def need_onnx() -> None:
    """Raise `ExtraMissingError` where the package onnx is not installed."""
    if find_spec("onnx") is None:
        raise ExtraMissingError("method 'onnxim'", extra="onnxim")


def write_product_model(
    path: Path, product: Product, *, element_bytes: int, operator: Operator
) -> None:
    """Write a model whose one node multiplies its input, m x k, with weights of zeros.

    MatMul has weights of k x n; Gemm of n x k, transposed, as fully connected layers have them.
    Weights above 256 MiB go to a sparse file beside ``path``, of the same name with ``.data``.
    Raises `UnsupportedError` for elements of a size that the operators don't take.
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
        beside = path.with_suffix(".data")
        with beside.open("wb") as file:
            file.truncate(size_bytes)
        weights.data_location = onnx.TensorProto.EXTERNAL
        weights.external_data.add(key="location", value=beside.name)
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
