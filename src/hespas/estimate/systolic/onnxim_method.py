"""``method: onnxim``: cycles from ONNXim (MIT, github.com/PSAL-POSTECH/ONNXim).

What is taken as its public interface, unless the configuration says otherwise: ``Simulator
--config CORES --models_list LIST``, where LIST names models with their batch sizes, which stand as
``models/NAME/NAME.onnx`` in the folder that the variable ONNXIM_HOME names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hespas.config.run_config import OnnximProgram
from hespas.errors import ConfigError
from hespas.estimate.methods import Wanted
from hespas.estimate.systolic.array import Product
from hespas.estimate.systolic.estimator import Systolic
from hespas.estimate.systolic.method import array_hardware, array_of, with_timer
from hespas.estimate.systolic.onnx_model import Operator, need_onnx, write_product_model
from hespas.estimate.systolic.onnxim_cores import checked_cores
from hespas.estimate.systolic.simulator import (
    PLACE,
    BuiltProgram,
    Interface,
    built_program,
    digest,
)
from hespas.estimate.systolic.tool import ToolTimer
from hespas.files import json_bytes

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
    example='["--config", "{config}", "--models_list", "{workload}"]',
    usual=("--config", "{config}", "--models_list", "{workload}"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Onnxim:
    """ONNXim, as somebody built it, with its own description of the cores."""

    program: BuiltProgram
    core_config: Path
    core_digest: str
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
        }

    def prepare(self, product: Product, element_bytes: int, directory: Path) -> Sequence[str]:
        """Write the model and the list that names it; ``directory`` is ONNXim's home."""
        model = directory / "models" / _MODEL / f"{_MODEL}.onnx"
        model.parent.mkdir(parents=True)
        write_product_model(model, product, element_bytes=element_bytes, operator=self.operator)
        listed = {"models": [{"name": _MODEL, **self.model_options}]}
        (directory / _LIST).write_bytes(json_bytes(listed))
        values = {"config": self.core_config, "workload": directory / _LIST, "model": model}
        command = self.program.command(values, directory)
        return ["/usr/bin/env", f"ONNXIM_HOME={directory}", *command]

    def cycles(self, directory: Path) -> float:
        """Read what the pattern finds."""
        return self.program.cycles(directory)


def make(wanted: Wanted) -> Systolic:
    """Return the estimator of the method ``onnxim``.

    Raises `ConfigError` for a configuration that lacks a part of how the program is called, or
    whose array is not the one of ``core_config``, `ToolError` where there is no program, and
    `ExtraMissingError` without the package onnx.
    """
    hardware = array_hardware(wanted, "onnxim")
    simulator = hardware.simulator
    if not isinstance(simulator, OnnximProgram):
        raise ConfigError(
            "the configuration is of another method", hint="set perf_estimator.method to onnxim"
        )
    program = built_program(hardware, simulator.call, _INTERFACE)
    if simulator.core_config is None:
        raise ConfigError(
            "method 'onnxim' needs core_config, the path of ONNXim's JSON file of the cores",
            location=PLACE,
            hint="give one, such as a file of ONNXim's configs/",
        )
    need_onnx()
    array = array_of(hardware)
    cores = Path(simulator.core_config).absolute()
    silent = checked_cores(cores, array)
    tool = Onnxim(
        program=program,
        core_config=cores,
        core_digest=digest(cores),
        operator=simulator.operator or "MatMul",
        model_options=_options(simulator.model_options, program),
    )
    notes = _notes(tool, silent)
    timer = ToolTimer(tool=tool, array=array, simulates_all=True, notes=notes)
    return with_timer(timer, hardware, wanted)


def _options(
    given: Mapping[str, str | float | bool] | None, program: BuiltProgram
) -> Mapping[str, str | float | bool]:
    if given is None:
        return _USUAL_OPTIONS
    if not any("{workload}" in text for text in program.arguments):
        raise ConfigError(
            "model_options has no effect: no argument holds {workload}, the list of models",
            location=PLACE,
            hint="drop it",
        )
    if "name" in given:
        raise ConfigError("model_options gives a name", location=PLACE, hint="leave it to hespas")
    return given


def _notes(tool: Onnxim, silent: Sequence[str]) -> tuple[str, ...]:
    """Say what was taken for granted, the interface above all."""
    model = f"a product is an ONNX model of one {tool.operator}"
    arguments = " ".join(tool.program.arguments)
    called = f"it is called with '{arguments}' and models in ONNXIM_HOME"
    notes = [
        f"{model}, and {called}, which was not checked against a build",
        "the size of an element in memory is core_config's",
    ]
    if silent:
        notes.append(f"core_config has no {', '.join(silent)} to compare with the array")
    return tuple(notes)
