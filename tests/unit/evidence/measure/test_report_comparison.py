from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from hespas.errors import ConfigError, HardwareError
from hespas.evidence.measure.measured import Measurement, MeasureOptions, Platform
from hespas.evidence.measure.report import check_comparison, compare, is_compared, is_of_part
from hespas.prediction.options import (
    CompileChoice,
    EstimateOptions,
    Fidelity,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)

BLOCK = ProgramOptions(file=Path("examples/attention_block.mlir"))
ON_A100 = PredictOptions(
    program=BLOCK,
    compile=CompileChoice(fidelity=Fidelity.EXPORTED),
    network=NetworkOptions(cluster="4xA100_SXM_40GB"),
)
ON_TPU = PredictOptions(program=BLOCK, network=NetworkOptions(cluster="4xTPUv5e"))


def test_a_cluster_a_node_or_a_method_asks_for_a_prediction() -> None:
    assert not is_compared(PredictOptions(program=BLOCK))
    assert is_compared(ON_A100)
    assert is_compared(PredictOptions(program=BLOCK, estimate=EstimateOptions(method="xla")))


def test_the_platform_follows_from_the_part() -> None:
    assert check_comparison(ON_A100, MeasureOptions()).platform is Platform.GPU
    assert check_comparison(ON_TPU, MeasureOptions()).platform is Platform.TPU


def test_no_other_platform_is_held_against_a_part() -> None:
    with pytest.raises(ConfigError, match="prediction is for A100_SXM_40GB, and platform cpu"):
        check_comparison(ON_A100, MeasureOptions(platform=Platform.CPU))
    with pytest.raises(ConfigError, match="prediction is for TPUv5e, and platform gpu"):
        check_comparison(ON_TPU, MeasureOptions(platform=Platform.GPU))


def test_regions_timed_here_are_compared_on_any_platform() -> None:
    here = PredictOptions(program=BLOCK, estimate=EstimateOptions(method="xla"))
    how = MeasureOptions(platform=Platform.CPU)
    assert check_comparison(here, how) == how


def test_an_unknown_cluster_is_refused() -> None:
    unknown = replace(ON_A100, network=NetworkOptions(cluster="4xA101"))
    with pytest.raises(HardwareError, match="A101"):
        check_comparison(unknown, MeasureOptions())


def test_the_error_is_predicted_over_measured_less_one(measured: Measurement) -> None:
    compared = compare(ON_A100, measured)
    expected = compared.prediction.step_time_s / 0.03 - 1
    assert compared.error == measured.error_of(compared.prediction) == pytest.approx(expected)
    assert not compared.notes


def test_another_part_and_another_count_are_noted(measured: Measurement) -> None:
    other = structs.replace(measured, device_kind="NVIDIA H100 80GB HBM3", devices=8)
    kind, count = compare(ON_A100, other).notes
    assert "predicted for A100_SXM_40GB" in kind
    assert count == "measured on 8 devices, predicted for 4"


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("NVIDIA H100 80GB HBM3", "H100_80GB"),
        ("NVIDIA H200", "H200_141GB"),
        ("Tesla V100-SXM2-32GB", "V100_32GB"),
        ("TPU v5 lite", "TPUv5e"),
        ("TPU v6 lite", "TPUv6e"),
        ("TPU v5", "TPUv5p"),
        ("TPU v4", "TPUv4"),
        ("TPU7x", "TPUv7x"),
    ],
)
def test_names_of_devices_are_those_of_parts(kind: str, part: str) -> None:
    assert is_of_part(kind, part)


@pytest.mark.parametrize(
    ("kind", "part"),
    [("TPU v5 lite", "TPUv5p"), ("NVIDIA A40", "A100_SXM_40GB"), ("TPU v4", "TPUv5e")],
)
def test_other_names_are_not(kind: str, part: str) -> None:
    assert not is_of_part(kind, part)
