from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.errors import HardwareError
from hespas.hardware.device import MeasuredTables
from hespas.hardware.presets import device_names, load_device
from hespas.price.gemm import GemmModel, Product, gemm_model

H100 = gemm_model(load_device("H100_80GB"))
A100_40GB = gemm_model(load_device("A100_SXM_40GB"))
A100_80GB = gemm_model(load_device("A100_SXM_80GB"))
SIZES = st.integers(1, 100_000)


def time_us(model: GemmModel, m: int, n: int, k: int, *, kind: str = "bf16", b: int = 1) -> float:
    return model.price(Product(type_name=kind, m=m, n=n, k=k, batch=b)).time_s * 1e6


@pytest.mark.parametrize(
    ("m", "n", "k", "a100_us", "h100_us"),
    [
        (1, 4096, 4096, 24.08, 15.05),
        (128, 4096, 4096, 37.42, 17.22),
        (512, 512, 512, 6.52, 3.72),
        (1024, 1024, 1024, 17.89, 6.16),
        (4096, 4096, 4096, 539.5, 166.0),
        (8192, 8192, 8192, 3743, 1542),
        (4096, 65536, 8192, 14914, 5365),
    ],
)
def test_products_take_what_vllm_measured_within_the_spread_of_frameworks(
    m: int, n: int, k: int, a100_us: float, h100_us: float
) -> None:
    assert time_us(A100_80GB, m, n, k) == pytest.approx(a100_us, rel=0.14)
    assert time_us(H100, m, n, k) == pytest.approx(h100_us, rel=0.14)


@pytest.mark.parametrize("name", [name for name in device_names() if load_device(name).measured])
def test_no_type_beats_the_rate_that_the_roofline_gives_it(name: str) -> None:
    model = gemm_model(load_device(name))
    for kind in ("bf16", "f16", "tf32", "f32", "f64", "f8E4M3FN", "f8E4M3FNUZ", "i8", "ui8"):
        product = Product(type_name=kind, m=4096, n=4096, k=4096)
        assert model.price(product).time_s >= product.flops / model.device.rate(kind)


@given(SIZES, SIZES, SIZES, st.integers(1, 64), st.sampled_from(["bf16", "tf32", "f8E5M2", "f64"]))
def test_no_product_beats_the_peak(m: int, n: int, k: int, b: int, kind: str) -> None:
    product = Product(type_name=kind, m=m, n=n, k=k, batch=b)
    peak = H100.device.per_datatype_flops[kind]
    assert H100.price(product).time_s >= product.flops / peak


@given(SIZES, SIZES, SIZES, st.integers(1, 64), st.sampled_from("mnkb"))
def test_a_larger_product_never_takes_less(m: int, n: int, k: int, b: int, grown: str) -> None:
    sizes = {"m": m, "n": n, "k": k, "b": b}
    larger = {**sizes, grown: sizes[grown] + max(1, sizes[grown] // 3)}
    before, after = (
        time_us(A100_40GB, each["m"], each["n"], each["k"], b=each["b"]) for each in (sizes, larger)
    )
    assert before <= after * (1 + 1e-9)


def test_m_and_n_may_be_exchanged() -> None:
    assert time_us(H100, 4096, 576, 2016) == time_us(H100, 576, 4096, 2016)


def test_memory_bounds_what_the_cache_cannot_hold() -> None:
    product = Product(type_name="bf16", m=1, n=65536, k=65536)
    uncached = 2 * product.elements - H100.part.about.cache_bytes
    assert H100.price(product).time_s >= uncached / 3350e9


def test_an_empty_product_takes_no_time() -> None:
    assert time_us(H100, 0, 8, 8) == 0


def test_a_slower_memory_slows_what_memory_bounds_and_says_so() -> None:
    assert time_us(A100_40GB, 4096, 4096, 4096) == pytest.approx(
        time_us(A100_80GB, 4096, 4096, 4096)
    )
    ratio = time_us(A100_40GB, 1, 16384, 16384) / time_us(A100_80GB, 1, 16384, 16384)
    assert ratio == pytest.approx(2039 / 1555, rel=0.02)
    product = Product(type_name="bf16", m=4096, n=4096, k=4096)
    assert any("A100_SXM_40GB has no tables" in note for note in A100_40GB.price(product).notes)
    assert not any("has no tables" in note for note in A100_80GB.price(product).notes)


def test_a_type_without_a_table_is_scaled_and_says_so() -> None:
    f64 = Product(type_name="f64", m=4096, n=4096, k=4096)
    found = A100_80GB.price(f64)
    assert found.time_s == pytest.approx(
        time_us(A100_80GB, 4096, 4096, 4096) * 1e-6 * 312 / 19.5, rel=0.01
    )
    scaled = "products of f64 are scaled by peak rates from tables of bf16 measured on "
    assert f"{scaled}NVIDIA A100-SXM4-80GB" in found.notes
    assert not any("from tables measured" in note for note in found.notes)


def test_outside_the_measured_sizes_the_result_says_so() -> None:
    inside = H100.price(Product(type_name="bf16", m=4096, n=65536, k=576))
    outside = H100.price(Product(type_name="bf16", m=4096, n=131072, k=576))
    assert outside.time_s == pytest.approx(2 * inside.time_s)
    assert any("outside the measured sizes (in n)" in note for note in outside.notes)
    assert not any("outside" in note for note in inside.notes)


def test_calibration_multiplies() -> None:
    device = load_device("H100_80GB")
    factors = {"gemm.bf16": 1.5, "all": 1.1}
    slower = gemm_model(replace(device, measured=MeasuredTables(part="H100_SXM", factors=factors)))
    plain, f8 = time_us(H100, 4096, 4096, 4096), time_us(H100, 4096, 4096, 4096, kind="f8E4M3FN")
    assert time_us(slower, 4096, 4096, 4096) == pytest.approx(1.65 * plain)
    assert time_us(slower, 4096, 4096, 4096, kind="f8E4M3FN") == pytest.approx(1.1 * f8)


def test_a_device_without_tables_is_refused() -> None:
    with pytest.raises(
        HardwareError, match=r"TPUv3: no tables of measured kernels.*use method roofline"
    ):
        gemm_model(load_device("TPUv3"))


# TFLOP/s of four bf16 products at a time on an H100, as openxla/xla has them in its
# matmul_perf_table (sm_90): by m and k, and in a row by n, each of 1024, 2048 and 4096.
XLA_MEASURED = {
    (1024, 1024): (499.4, 601.2, 679.8),
    (1024, 2048): (642.2, 721.1, 714.4),
    (1024, 4096): (749.3, 740.6, 769.8),
    (2048, 1024): (597.9, 685.4, 688.3),
    (2048, 2048): (722.3, 723.2, 751.3),
    (2048, 4096): (740.6, 775.3, 800.7),
    (4096, 1024): (677.7, 690.2, 722.3),
    (4096, 2048): (716.5, 758.2, 759.5),
    (4096, 4096): (773.5, 804.7, 788.7),
}


def test_batches_grow_as_xla_measured_them() -> None:
    errors: list[float] = []
    for (m, k), rates in XLA_MEASURED.items():
        for n, rate in zip((1024, 2048, 4096), rates, strict=True):
            measured_us = 2 * 4 * m * n * k / (rate * 1e6)
            errors.append(abs(time_us(H100, m, n, k, b=4) / measured_us - 1))
    assert median(errors) < 0.08


def test_integers_are_calibrated_by_themselves() -> None:
    device = load_device("H100_80GB")
    tables = MeasuredTables(part="H100_SXM", factors={"gemm.f8": 3.0, "gemm.i8": 2.0})
    slower = gemm_model(replace(device, measured=tables))
    for kind, factor in (("f8E4M3FN", 3.0), ("i8", 2.0)):
        product = Product(type_name=kind, m=2048, n=2048, k=2048)
        plain_s = gemm_model(device).price(product).time_s
        assert slower.price(product).time_s == pytest.approx(factor * plain_s)


@pytest.mark.parametrize(("kind", "share"), [("bf16", 0.654), ("f8E4M3FNUZ", 0.585)])
def test_what_large_products_reach_slows_none_that_wait_for_memory(kind: str, share: float) -> None:
    """AMD publishes large products alone, which says nothing of those that stream weights."""
    device = load_device("MI300X")
    assert device.measured is not None
    as_tables = gemm_model(replace(device, measured=replace(device.measured, reached={})))
    model = gemm_model(device)
    large, thin = ((8192, 8192, 8192), (8, 16384, 8192))
    slower = time_us(model, *large, kind=kind) / time_us(as_tables, *large, kind=kind)
    assert slower == pytest.approx(1 / share, rel=0.02)
    assert time_us(model, *thin, kind=kind) == time_us(as_tables, *thin, kind=kind)


def test_a_share_in_per_cent_is_refused() -> None:
    with pytest.raises(HardwareError, match=r"reached\.bf16 is 65; give a share of at most 2, as"):
        MeasuredTables(part="H200_SXM", reached={"bf16": 65})


def test_a_rate_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(HardwareError, match=r"no type of reached products 'bf17'; did .*'bf16'"):
        MeasuredTables(part="H200_SXM", reached={"bf17": 0.5})
