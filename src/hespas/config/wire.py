"""The configuration file key by key, as msgspec structs.

The structs mirror the dataclasses of `hespas.config.run_config`, field for field, and state
what a file may hold.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from hespas.config.run_config import SeparatorPolicy, SplitStrategy

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Count: TypeAlias = Annotated[int, Meta(ge=1)]
Rate: TypeAlias = Annotated[float, Meta(gt=0)]
Ratio: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


class RooflineWire(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"tdp_w": "tdp_W"}
):
    """``hardware`` of the method ``roofline``."""

    peak_flops: Rate
    memory_bandwidth: Rate
    num_npus: Count | None = None
    per_datatype_flops: dict[str, Rate] = {}
    in_memory_only_cache: bool | None = None
    tdp_w: Rate | None = None
    hbm_power_ratio: Ratio | None = None
    error_on_unknown_type: bool | None = None
    warn_on_unknown_type: bool | None = None


class XlaTranslateWire(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"target_backends": "target-backends"},
):
    """``translate`` of the method ``xla``."""

    target_backends: Text | None = None


class XlaWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hardware`` of the method ``xla``."""

    type: Text | None = None
    num_npus: Count | None = None
    sample: bool | None = None
    translate: XlaTranslateWire | None = None
    in_memory_only_cache: bool | None = None


class IreeCompileWire(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={
        "target_backends": "target-backends",
        "extra_args": "extra-args",
        "extra_runtime_args": "extra-runtime-args",
    },
):
    """``compile`` of the method ``iree``."""

    device: Text | None = None
    target_backends: Text | None = None
    extra_args: tuple[str, ...] | None = None
    extra_runtime_args: tuple[str, ...] | None = None


class IreeWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hardware`` of the method ``iree``."""

    num_npus: Count | None = None
    sample: bool | None = None
    compile: IreeCompileWire | None = None
    in_memory_only_cache: bool | None = None


class PartWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hardware`` of the methods ``measured`` and ``kernel``."""

    node: Text
    num_npus: Count | None = None
    in_memory_only_cache: bool | None = None


class SystolicWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hardware`` of the methods that model a systolic array."""

    array_rows: Count
    array_columns: Count
    array_count: Count = 1
    clock_hz: Rate
    memory_bandwidth: Rate
    vector_flops: Rate
    dataflow: Literal["weight_stationary", "output_stationary"] = "weight_stationary"
    sram_bandwidth: Rate | None = None
    binary: Text | None = None
    num_npus: Count | None = None
    in_memory_only_cache: bool | None = None


class CalledWire(SystolicWire, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same of methods that call a program that somebody built."""

    arguments: tuple[str, ...] | None = None
    cycles_pattern: Text | None = None
    answer_file: Text | None = None
    files: dict[Text, Text] = {}


class CocossimWire(CalledWire, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hardware`` of the method ``cocossim``."""

    product_line: Text | None = None


class OnnximWire(CalledWire, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``hardware`` of the method ``onnxim``."""

    core_config: Text | None = None
    operator: Literal["MatMul", "Gemm"] | None = None
    model_options: dict[Text, str | float | bool] | None = None


class EstimatorWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``perf_estimator``; its hardware is read once the method is known."""

    method: str
    hardware: dict[str, object] = {}


class RunWire(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    mlir_file: Text | None = None
    split_strategy: SplitStrategy | None = None
    output_dir: Text | None = None
    clean: bool | None = None
    block_lim: Count | None = None
    cache_dir: Text | None = None
    merge: bool | None = None
    disable_cache: bool | None = None
    num_threads: Count | None = None
    separator: str | None = None
    separator_policy: SeparatorPolicy | None = None
    perf_estimator: EstimatorWire | None = None
