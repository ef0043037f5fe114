"""Read a run configuration from its file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hespas.config import wire
from hespas.config.decode import decode
from hespas.config.files import read_json
from hespas.config.run_config import (
    CocossimProgram,
    EstimatorConfig,
    EstimatorHardware,
    IreeCompile,
    IreeHardware,
    NodeHardware,
    OnnximProgram,
    RooflineHardware,
    RunConfig,
    SimulatorCall,
    SystolicHardware,
    XlaHardware,
    XlaTranslate,
)
from hespas.config.suggest import suggestion
from hespas.config.wire import RunWire
from hespas.errors import ConfigError
from hespas.program.types import ELEMENT_TYPES

if TYPE_CHECKING:
    from hespas.config.wire import (
        CalledWire,
        CocossimWire,
        EstimatorWire,
        IreeCompileWire,
        IreeWire,
        OnnximWire,
        PartWire,
        RooflineWire,
        SystolicWire,
        XlaWire,
    )

_PARTS = ("measured", "kernel", "compiler")
_ARRAYS = ("systolic", "scalesim", "zigzag_onnx")
METHODS = ("roofline", *_PARTS, "xla", "iree", *_ARRAYS, "cocossim", "onnxim")
_HARDWARE = "$.perf_estimator.hardware"


def load_config(path: str | Path) -> RunConfig:
    """Return the configuration that the JSON file ``path`` holds; None for what it leaves out.

    Raises `ConfigError` with the file and the JSON path for malformed JSON
    (``file:line:column``), an unknown or missing key, a wrong type, an impossible figure, and
    a method that this version can't read.
    """
    location = str(path)
    wire = decode(read_json(Path(path)), RunWire, location=location)
    estimator = None if wire.perf_estimator is None else _estimator(wire.perf_estimator, location)
    return RunConfig(
        mlir_file=wire.mlir_file,
        split_strategy=wire.split_strategy,
        output_dir=wire.output_dir,
        clean=wire.clean,
        block_lim=wire.block_lim,
        cache_dir=wire.cache_dir,
        merge=wire.merge,
        disable_cache=wire.disable_cache,
        num_threads=wire.num_threads,
        separator=wire.separator,
        separator_policy=wire.separator_policy,
        perf_estimator=estimator,
    )


def _estimator(wire: EstimatorWire, location: str) -> EstimatorConfig:
    hardware = hardware_of(wire.method, wire.hardware, location)
    return EstimatorConfig(method=wire.method, hardware=hardware)


def hardware_of(method: str, data: dict[str, object], location: str) -> EstimatorHardware:
    """Return the ``hardware`` of one of our methods."""
    match method:
        case "roofline":
            return _roofline(
                decode(data, wire.RooflineWire, location=location, at=_HARDWARE), location
            )
        case "xla":
            return _xla(decode(data, wire.XlaWire, location=location, at=_HARDWARE))
        case "iree":
            return _iree(decode(data, wire.IreeWire, location=location, at=_HARDWARE))
        case "cocossim" | "onnxim":
            return _simulated(method, data, location)
        case _ if method in _PARTS:
            return _part(decode(data, wire.PartWire, location=location, at=_HARDWARE))
        case _ if method in _ARRAYS:
            return _systolic(decode(data, wire.SystolicWire, location=location, at=_HARDWARE))
        case _:
            hint = suggestion(method, METHODS)
            raise ConfigError(
                f'$.perf_estimator.method is "{method}"', location=location, hint=hint
            )


def _roofline(wire: RooflineWire, location: str) -> RooflineHardware:
    for name in wire.per_datatype_flops:
        if name not in ELEMENT_TYPES:
            raise ConfigError(
                f"unknown element type {name!r} in {_HARDWARE}.per_datatype_flops",
                location=location,
                hint=suggestion(name, ELEMENT_TYPES),
            )
    return RooflineHardware(
        peak_flops=wire.peak_flops,
        memory_bandwidth=wire.memory_bandwidth,
        num_npus=wire.num_npus,
        per_datatype_flops=wire.per_datatype_flops,
        in_memory_only_cache=wire.in_memory_only_cache,
        tdp_w=wire.tdp_w,
        hbm_power_ratio=wire.hbm_power_ratio,
        error_on_unknown_type=wire.error_on_unknown_type,
        warn_on_unknown_type=wire.warn_on_unknown_type,
    )


def _part(wire: PartWire) -> NodeHardware:
    return NodeHardware(
        node=wire.node,
        num_npus=wire.num_npus,
        in_memory_only_cache=wire.in_memory_only_cache,
    )


def _systolic(wire: SystolicWire) -> SystolicHardware:
    return SystolicHardware(
        array_rows=wire.array_rows,
        array_columns=wire.array_columns,
        array_count=wire.array_count,
        clock_hz=wire.clock_hz,
        memory_bandwidth=wire.memory_bandwidth,
        vector_flops=wire.vector_flops,
        dataflow=wire.dataflow,
        sram_bandwidth=wire.sram_bandwidth,
        binary=wire.binary,
        num_npus=wire.num_npus,
        in_memory_only_cache=wire.in_memory_only_cache,
    )


def _simulated(method: str, data: dict[str, object], location: str) -> SystolicHardware:
    if method == "cocossim":
        return _cocossim(decode(data, wire.CocossimWire, location=location, at=_HARDWARE))
    return _onnxim(decode(data, wire.OnnximWire, location=location, at=_HARDWARE))


def _cocossim(wire: CocossimWire) -> SystolicHardware:
    program = CocossimProgram(call=_call(wire), product_line=wire.product_line)
    return replace(_systolic(wire), simulator=program)


def _onnxim(wire: OnnximWire) -> SystolicHardware:
    program = OnnximProgram(
        call=_call(wire),
        core_config=wire.core_config,
        operator=wire.operator,
        model_options=wire.model_options,
    )
    return replace(_systolic(wire), simulator=program)


def _call(wire: CalledWire) -> SimulatorCall:
    return SimulatorCall(
        arguments=wire.arguments,
        cycles_pattern=wire.cycles_pattern,
        answer_file=wire.answer_file,
        files=wire.files,
    )


def _xla(wire: XlaWire) -> XlaHardware:
    given = wire.translate
    translate = None if given is None else XlaTranslate(target_backends=given.target_backends)
    return XlaHardware(
        type=wire.type,
        num_npus=wire.num_npus,
        sample=wire.sample,
        translate=translate,
        in_memory_only_cache=wire.in_memory_only_cache,
    )


def _iree(wire: IreeWire) -> IreeHardware:
    return IreeHardware(
        num_npus=wire.num_npus,
        sample=wire.sample,
        compile=None if wire.compile is None else _iree_compile(wire.compile),
        in_memory_only_cache=wire.in_memory_only_cache,
    )


def _iree_compile(wire: IreeCompileWire) -> IreeCompile:
    return IreeCompile(
        device=wire.device,
        target_backends=wire.target_backends,
        extra_args=wire.extra_args,
        extra_runtime_args=wire.extra_runtime_args,
    )
