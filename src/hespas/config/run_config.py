"""The run configuration as values.

Every field that a file leaves out is None, so that a command-line flag can tell "not given"
from a value; the defaults that the fields document are the reader's to fill in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

from hespas.errors import ConfigError

SplitStrategy: TypeAlias = Literal["linear_split", "individual_split"]
SeparatorPolicy: TypeAlias = Literal["isolated", "end_block", "start_block"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineHardware:
    """The ``hardware`` of the method ``roofline``.

    Rates are in FLOP/s, ``memory_bandwidth`` in bytes/s, ``tdp_w`` (the key ``tdp_W``) in W.
    """

    peak_flops: float
    memory_bandwidth: float
    num_npus: int | None = None
    per_datatype_flops: Mapping[str, float] = field(default_factory=dict[str, float])
    in_memory_only_cache: bool | None = None
    tdp_w: float | None = None
    hbm_power_ratio: float | None = None
    error_on_unknown_type: bool | None = None
    warn_on_unknown_type: bool | None = None

    def __post_init__(self) -> None:
        frozen = MappingProxyType(dict(self.per_datatype_flops))
        object.__setattr__(self, "per_datatype_flops", frozen)


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaTranslate:
    """``translate`` of the method ``xla``; ``target_backends`` is the key ``target-backends``."""

    target_backends: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaHardware:
    """The ``hardware`` of the method ``xla``."""

    type: str | None = None
    num_npus: int | None = None
    sample: bool | None = None
    translate: XlaTranslate | None = None
    in_memory_only_cache: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IreeCompile:
    """``compile`` of the method ``iree``; keys have dashes where the fields have underscores."""

    device: str | None = None
    target_backends: str | None = None
    extra_args: tuple[str, ...] | None = None
    extra_runtime_args: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IreeHardware:
    """The ``hardware`` of the method ``iree``."""

    num_npus: int | None = None
    sample: bool | None = None
    compile: IreeCompile | None = None
    in_memory_only_cache: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHardware:
    """The ``hardware`` of methods that know parts by name: ``measured`` and ``kernel``.

    ``node`` is a preset's name, or the path of one's own.
    """

    node: str
    num_npus: int | None = None
    in_memory_only_cache: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorCall:
    """How a simulator that somebody built is called, and where its answer stands.

    ``arguments`` hold placeholders such as ``{workload}``; ``cycles_pattern`` is a regular
    expression with one group, the cycles, in ``answer_file`` or else in what the program prints.
    ``files`` are those that it looks for where it is started: their names there, and their paths.
    """

    arguments: tuple[str, ...] | None = None
    cycles_pattern: str | None = None
    answer_file: str | None = None
    files: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", MappingProxyType(dict(self.files)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CocossimProgram:
    """What the method ``cocossim`` is told besides the array.

    ``product_line`` is the workload's line for a matrix product, with ``{m}``, ``{n}``, ``{k}``.
    """

    call: SimulatorCall = field(default_factory=SimulatorCall)
    product_line: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnximProgram:
    """What the method ``onnxim`` is told besides the array.

    ``core_config`` is the path of ONNXim's own description of the cores, ``operator`` the ONNX
    operator that a product becomes, ``model_options`` what the models list says of it.
    """

    call: SimulatorCall = field(default_factory=SimulatorCall)
    core_config: str | None = None
    operator: Literal["MatMul", "Gemm"] | None = None
    model_options: Mapping[str, str | float | bool] | None = None

    def __post_init__(self) -> None:
        if self.model_options is not None:
            frozen = MappingProxyType(dict(self.model_options))
            object.__setattr__(self, "model_options", frozen)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystolicHardware:
    """The ``hardware`` of the methods ``systolic``, ``scalesim`` and of documented simulators.

    ``array_count`` arrays share the columns of a product. Rates are in Hz, FLOP/s and bytes/s.
    ``vector_flops`` is the rate of everything that is no
    matrix product or convolution; ``binary`` the path of a simulator that is a program, and
    ``simulator`` how that is called, where it is no Python package.
    """

    array_rows: int
    array_columns: int
    array_count: int = 1
    clock_hz: float
    memory_bandwidth: float
    vector_flops: float
    dataflow: Literal["weight_stationary", "output_stationary"] = "weight_stationary"
    sram_bandwidth: float | None = None
    binary: str | None = None
    simulator: CocossimProgram | OnnximProgram | None = None
    num_npus: int | None = None
    in_memory_only_cache: bool | None = None


EstimatorHardware: TypeAlias = (
    RooflineHardware | XlaHardware | IreeHardware | NodeHardware | SystolicHardware
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorConfig:
    """An estimator by its method, and the hardware that it estimates for."""

    method: str
    hardware: EstimatorHardware


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """What a configuration file says; None for what it doesn't.

    Documented defaults: ``split_strategy`` linear_split, ``block_lim`` 1024, ``cache_dir``
    ``<output_dir>/cache``, ``separator`` is_communication_op.
    """

    mlir_file: str | None = None
    split_strategy: SplitStrategy | None = None
    output_dir: str | None = None
    clean: bool | None = None
    block_lim: int | None = None
    cache_dir: str | None = None
    merge: bool | None = None
    disable_cache: bool | None = None
    num_threads: int | None = None
    separator: str | None = None
    separator_policy: SeparatorPolicy | None = None
    perf_estimator: EstimatorConfig | None = None


def roofline_hardware(config: RunConfig, *, location: str = "") -> RooflineHardware:
    """Return the roofline hardware of ``config``.

    Raises `ConfigError`, naming ``place``, when the configuration has no ``perf_estimator``, or
    one of another method.

    >>> device = RooflineHardware(peak_flops=1e12, memory_bandwidth=1e11)
    >>> estimator = EstimatorConfig(method="roofline", hardware=device)
    >>> roofline_hardware(RunConfig(perf_estimator=estimator)).peak_flops
    1000000000000.0
    """
    estimator = config.perf_estimator
    if estimator is None:
        raise ConfigError(
            "no perf_estimator is given",
            location=location,
            hint="add one, or use a file of configs/nodes/*/roofline",
        )
    if not isinstance(estimator.hardware, RooflineHardware):
        raise ConfigError(
            f"method {estimator.method!r} describes no device by its rates",
            location=location,
            hint="use a configuration of the method roofline",
        )
    return estimator.hardware
