"""Products of experts take what layers of experts were measured to take."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hespas.hardware.presets import load_device
from hespas.price.experts import ExpertsModel, kind_of
from hespas.price.gemm import gemm_model
from hespas.price.measured import measured
from hespas.price.methods import EstimatorSpec
from hespas.price.roofline import Rates
from hespas.work.gemm import GroupedGemm, spread

H100 = load_device("H100_80GB")
MODEL = ExpertsModel(device=H100, part=gemm_model(H100).part)


def grouped(
    tokens: int, *, experts: int, inner: int, hidden: int = 4096, bits: tuple[float, float] = (8, 8)
) -> GroupedGemm:
    """Return one of the products of a layer's experts, with their weights in some bits."""
    return GroupedGemm(
        batch=1,
        group_rows=spread(tokens, experts),
        n=inner,
        k=hidden,
        is_divided=False,
        multiplied="f8E4M3FN" if bits == (8, 8) else "bf16",
        flops_per_product=2,
        operand_bits=bits,
    )


@pytest.mark.parametrize(
    ("tokens", "layer_us"), [(8, 126.5), (64, 215.0), (1024, 413), (8192, 1991)]
)
def test_a_layer_takes_what_was_measured(tokens: int, layer_us: float) -> None:
    # TensorRT-LLM 1.3.0rc20, FP8: 128 experts of 4096 x 1536, 8 chosen, on 4 devices. A layer has
    # more than its three products.
    timing = MODEL.price(grouped(2 * tokens, experts=32, inner=1536))
    assert timing is not None
    assert 0.7 * layer_us < 3e6 * timing.time_s < 1.05 * layer_us


@given(tokens=st.integers(1, 200_000), more=st.integers(1, 200_000), experts=st.integers(1, 128))
def test_more_rows_never_take_less(tokens: int, more: int, experts: int) -> None:
    few, many = (
        MODEL.price(grouped(rows, experts=experts, inner=1024)) for rows in (tokens, tokens + more)
    )
    assert few is not None
    assert many is not None
    assert few.time_s <= many.time_s * 1.0001


def test_both_ways_through_an_expert_take_the_same() -> None:
    there = grouped(512, experts=32, inner=1536)
    back = replace(there, n=there.k, k=there.n)
    assert MODEL.price(there) == MODEL.price(back)


@pytest.mark.parametrize(
    ("bits", "kind"),
    [
        ((16, 16), "bf16"),
        ((8, 8.0), "f8"),
        ((16, 4.25), "mxfp4"),
        ((16, 4.5), "int4"),
        ((4, 4.5), "nvfp4"),
    ],
)
def test_bits_say_the_kind_of_weights(bits: tuple[float, float], kind: str) -> None:
    assert kind_of(grouped(8, experts=8, inner=256, bits=bits)) == kind


def test_faster_memory_makes_reading_weights_faster() -> None:
    read = grouped(16, experts=32, inner=1536)
    own, fast = MODEL.price(read), MODEL.at_rates(Rates(memory=2.0)).price(read)
    assert own is not None
    assert fast is not None
    assert fast.time_s == pytest.approx(own.time_s / 2)


def test_what_no_table_is_of_has_no_time() -> None:
    even = grouped(64, experts=8, inner=1536)
    assert MODEL.price(replace(even, is_divided=True)) is None
    assert MODEL.price(replace(even, group_rows=(40, 8, 8, 8, 0, 0, 0, 0))) is None
    assert MODEL.price(grouped(64, experts=8, inner=1536, bits=(4, 4.5))) is None


def test_only_programs_that_engines_serve_read_tables_of_experts() -> None:
    spec = EstimatorSpec(device=H100)
    assert measured(spec, kernels=None).experts is None
    assert measured(replace(spec, is_served=True), kernels=None).experts is not None
