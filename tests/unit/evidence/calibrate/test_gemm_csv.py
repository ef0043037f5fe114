from __future__ import annotations

from pathlib import Path

import pytest

from hespas.errors import MeasurementError
from hespas.evidence.calibrate.factors import fit_factors
from hespas.evidence.calibrate.gemm_csv import gemm_groups
from hespas.evidence.calibrate.samples import FactorFit
from hespas.hardware.presets import load_device
from hespas.price.gemm import Product, gemm_model

DEVICE = load_device("H100_80GB")
MODEL = gemm_model(DEVICE)


def fitted(tmp_path: Path, *lines: str) -> tuple[FactorFit, ...]:
    file = tmp_path / "gemm.csv"
    file.write_text("\n".join(lines) + "\n")
    return fit_factors(gemm_groups(file, DEVICE), DEVICE)


def reported_us(m: int, n: int, k: int, kind: str = "bf16", batch: int = 1) -> float:
    product = Product(type_name=kind, m=m, n=n, k=k, batch=batch)
    return MODEL.price(product).time_s * 1e6


@pytest.mark.parametrize(
    ("header", "scale"),
    [("latency_us", 1), ("Latency (ms)", 1e-3), ("time[ns]", 1e3), ("duration_s", 1e-6)],
)
def test_the_factor_is_what_was_slower_in_any_unit(
    tmp_path: Path, header: str, scale: float
) -> None:
    lines = [
        f"{s},{s},{s},bfloat16,{1.25 * reported_us(s, s, s) * scale!r}" for s in (512, 1024, 4096)
    ]
    (fit,) = fitted(tmp_path, f"m,n,k,dtype,{header}", *lines)
    assert (fit.name, fit.factor) == ("gemm.bf16", 1.25)
    assert fit.median_error_before == pytest.approx(0.2)
    assert max(abs(sample.error_after) for sample in fit.samples) < 1e-9


def test_types_are_fitted_apart_and_an_outlier_pulls_none(tmp_path: Path) -> None:
    times = [1.1, 1.1, 1.1, 1.1, 3.0]
    sizes = [256, 512, 1024, 2048, 4096]
    lines = [
        f"{s},{s},{s},bf16,{x * reported_us(s, s, s)}" for s, x in zip(sizes, times, strict=True)
    ]
    lines.append(f"4096,4096,4096,fp8,{0.97 * reported_us(4096, 4096, 4096, 'f8E4M3FN')}")
    found = fitted(tmp_path, "m,n,k,dtype,latency_us", *lines)
    assert [(fit.name, fit.factor) for fit in found] == [("gemm.bf16", 1.1), ("gemm.f8", 0.97)]


def test_a_mark_of_the_byte_order_is_no_part_of_the_header(tmp_path: Path) -> None:
    file = tmp_path / "gemm.csv"
    file.write_text("m,n,k,dtype,latency_us\n512,512,512,bf16,4\n", encoding="utf-8-sig")
    (group,) = gemm_groups(file, DEVICE)
    assert group.cases[0].measured_s == 4e-6


def test_lines_that_disagree_are_named(tmp_path: Path) -> None:
    lines = ["2048,1024,512,bf16,5.1", "512,512,512,bf16,4.9", "1024,2048,512,bf16,6.6"]
    (fit,) = fitted(tmp_path, "m,n,k,dtype,latency_us", *lines)
    (note,) = fit.notes
    assert "gemm.csv:2: 2048 x 1024 x 512 of bf16 takes 5.1 us here, but 6.6 us in " in note
    assert note.endswith("gemm.csv:4")


def test_no_product_gets_faster_than_its_peak(tmp_path: Path) -> None:
    lines = ["8192,8192,8192,bf16,1112"] + ["512,512,512,bf16,2.5"] * 3
    (fit,) = fitted(tmp_path, "m,n,k,dtype,latency_us", *lines)
    peak_s = 2 * 8192**3 / DEVICE.per_datatype_flops["bf16"]
    assert fit.samples[0].predicted_s * fit.factor < peak_s
    assert fit.samples[0].fitted_s == pytest.approx(peak_s)


def test_a_batch_may_stand_in_a_column_of_its_own(tmp_path: Path) -> None:
    time_us = reported_us(512, 512, 512, batch=64)
    (fit,) = fitted(tmp_path, "batch,m,n,k,dtype,latency_us", f"64,512,512,512,bf16,{time_us}")
    assert fit.factor == 1.0


@pytest.mark.parametrize(
    ("node", "type_name", "time_us"), [("V100_32GB", "bf16", 1500), ("H100_80GB", "f4E2M1FN", 60)]
)
def test_a_type_whose_rate_the_node_does_not_name_is_refused_as_such(
    tmp_path: Path, node: str, type_name: str, time_us: float
) -> None:
    file = tmp_path / "gemm.csv"
    file.write_text(f"m,n,k,dtype,latency_us\n4096,4096,4096,{type_name},{time_us}\n")
    message = (
        rf"gemm\.csv:2: .* of {type_name} in .* {node} names no rate of {type_name}.*; name it"
    )
    with pytest.raises(MeasurementError, match=message):
        gemm_groups(file, load_device(node))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["m,n,k,dtype,latency_ns", "4096,4096,4096,bf16,180"],
            r"gemm\.csv:2: .* in 180 ns is below the physical floor of 138\.9 us; correct the unit",
        ),
        (
            ["m,n,k,dtype,latency_us", "32,32,32,bf16,0.003"],
            r"gemm\.csv:2: .* in 3 ns is below the physical floor of 500 ns",
        ),
        (
            ["m,n,k,dtype,latency_ms", "4096,4096,4096,bf16,180"],
            r"gemm\.csv:2: .* in 180 ms is 10\d\d times the 17\d\.\d us expected; correct the unit",
        ),
        (
            [
                "m,n,k,dtype,latency_us",
                "512,512,512,bf16,4",
                "1024,512,512,bf16,5",
                "512,512,512,bf16,9",
            ],
            r"gemm\.csv:2: .* takes 4 us here, but 9 us in .*gemm\.csv:4; measure again",
        ),
        (["m,n,k,dtype,latency", "1,2,3,bf16,4"], r"gemm\.csv:1: .*one time with its unit"),
        (["m,n,dtype,latency_us", "1,2,bf16,4"], r"gemm\.csv:1: the table has no column 'k'"),
        (["m,n,k,dtype,latency_us", "1,2,3,bf61,4"], r"gemm\.csv:2: there is no type 'bf61'"),
        (["m,n,k,dtype,latency_us", "1,2,x,bf16,4"], r"gemm\.csv:2: k is 'x'"),
        (["m,n,k,dtype,latency_us", "1,2,3,bf16,soon"], r"gemm\.csv:2: latency_us is 'soon'"),
        (["m,n,k,dtype,latency_us", "1,2,3,bf16"], r"gemm\.csv:2: latency_us is ''; give"),
        (["m,n,k,m,dtype,latency_us", "1,2,3,9,bf16,4"], r"gemm\.csv:1: .* has two columns 'm'"),
        (["m,n,k,dtype,type,time_us", "1,2,3,f8,bf16,4"], r"csv:1: .* has two columns 'dtype'"),
        (["m,n,k,dtype,latency_us"], "there is no measurement"),
        (["m,n,k,dtype,latency_us", "64,64,64,bf16,nan"], r"gemm\.csv:2: latency_us is 'nan'"),
        (["m,n,k,dtype,latency_us", "64,64,64,bf16,inf"], r"gemm\.csv:2: latency_us is 'inf'"),
        (
            ["m,n,k,dtype,latency_us", "64,64,64,bf16,-9"],
            r"gemm\.csv:2: latency_us is '-9'; give a",
        ),
        (["64,64,64,bf16,9"], r"gemm\.csv:1: there is no header; the first line must be the head"),
        ([""], r"gemm\.csv: the file is empty; the first line must be the header: m,n,k,dtype,lat"),
        (
            ["m,n,k,dtype,latency_us", "2048,4096,2048,bf16,50", "4096,2048,2048,bf16,120"],
            r"gemm\.csv:2: .* takes 50 us here, but 120 us in .*gemm\.csv:3",
        ),
        (
            ["m,n,k,dtype,latency_us", "4096,4096,4096,float32,400"],
            r"gemm\.csv:2: .* below the physical floor of 2\.051 ms; correct .*, or write tf32",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(
    tmp_path: Path, lines: list[str], message: str
) -> None:
    with pytest.raises(MeasurementError, match=message):
        fitted(tmp_path, *lines)
