from __future__ import annotations

from dataclasses import replace

import pytest

from hespas.hardware.presets import load_device
from hespas.price.attention import AttentionModel, attention_fits, attention_model
from hespas.price.estimate import Bound
from hespas.work.attention import Attention

CAUSAL = Attention(
    batch=4,
    heads=32,
    key_heads=8,
    query_length=8192,
    key_length=8192,
    head_size=128,
    value_size=128,
    is_causal=True,
    is_backward=False,
    has_bias=False,
    dropout_rate=0.0,
    window=0,
    multiplied="bf16",
)
DECODING = replace(CAUSAL, batch=32, query_length=1, is_causal=False)


@pytest.fixture
def model() -> AttentionModel:
    return attention_model(load_device("H100_80GB"))


def test_a_query_over_a_cache_takes_its_bytes(model: AttentionModel) -> None:
    # vLLM, TensorRT-LLM and SGLang take 353 to 366 us (aiconfigurator-core 0.12.0: 64 heads).
    timing = model.price(replace(DECODING, heads=64))
    assert timing.time_s == pytest.approx(360e-6, rel=0.12)
    assert timing.bound.memory_s > 0.9 * timing.time_s
    fits = attention_fits("H100_SXM")
    cache_s = DECODING.cache_bytes / (3.35e12 * fits.decode_bandwidth_share)
    assert timing.time_s == pytest.approx(cache_s + fits.decode_latency_s)
    assert "over a cache" in timing.notes[0]


@pytest.mark.parametrize(
    # SGLang and TensorRT-LLM on an H100 (aiconfigurator-core 0.12.0), 32 sequences.
    ("heads", "tokens", "measured_s"),
    [(16, 4096, 70e-6), (16, 8192, 119e-6), (128, 4096, 92e-6), (128, 8192, 150e-6)],
)
def test_a_query_over_latent_vectors_takes_their_bytes_or_its_products(
    model: AttentionModel, heads: int, tokens: int, measured_s: float
) -> None:
    latent = replace(
        DECODING,
        heads=heads,
        key_heads=1,
        key_length=tokens,
        head_size=576,
        value_size=512,
        shares_values=True,
    )
    timing = model.price(latent)
    assert timing.time_s == pytest.approx(measured_s, rel=0.2)
    assert (timing.bound.memory_s > timing.bound.compute_s) == (heads == 16)
    assert "of latent vectors" in timing.notes[0]


@pytest.mark.parametrize(
    ("part", "is_backward", "least", "most"),
    [
        # Dao, FlashAttention-2, 2023, sections 1 and 4.1, and Shah et al., FlashAttention-3, 2024,
        # section 4.1: TFLOP/s at 16 k tokens of heads of 128, 2048 in width. The tables'
        # kernels on an A100 are 9 and 12 % below the lower end.
        ("A100_SXM_80GB", False, 0.87 * 190e12, 225e12),
        ("A100_SXM_80GB", True, 0.87 * 170e12, 190e12),
        ("H100_80GB", False, 570e12, 650e12),
        ("H100_80GB", True, 400e12, 550e12),
    ],
)
def test_long_sequences_run_at_the_published_rates_of_flash_attention(
    part: str, least: float, most: float, *, is_backward: bool
) -> None:
    long = replace(CAUSAL, batch=1, heads=16, key_heads=16, query_length=16384, key_length=16384)
    asked = replace(long, is_backward=is_backward)
    time_s = attention_model(load_device(part)).price(asked).time_s
    assert least < asked.flops / time_s < most


def test_a_short_cache_takes_the_latency_alone(model: AttentionModel) -> None:
    # 15 us by TensorRT-LLM, 14 by SGLang, 17 by vLLM.
    timing = model.price(replace(DECODING, batch=1, key_length=4096))
    assert timing.time_s == pytest.approx(16e-6, rel=0.25)
    assert timing.bound == Bound(launch_s=timing.bound.launch_s, memory_s=timing.bound.memory_s), (
        "arithmetic decides nothing"
    )


@pytest.mark.parametrize(("window", "at_most"), [(128, 0.15), (1024, 0.35), (8192, 1.0)])
def test_a_window_takes_less_but_not_in_proportion(
    model: AttentionModel, window: int, at_most: float
) -> None:
    long = replace(CAUSAL, query_length=16384, key_length=16384)
    whole, cut = model.price(long), model.price(replace(long, window=window))
    share = replace(long, window=window).flops / long.flops
    assert share <= cut.time_s / whole.time_s <= at_most
    assert cut.time_s / whole.time_s > (1.3 * share if window < 8192 else 0)


def test_fp8_is_not_twice_as_fast(model: AttentionModel) -> None:
    slow, fast = model.price(CAUSAL), model.price(replace(CAUSAL, multiplied="f8E4M3FN"))
    assert slow.time_s / fast.time_s == pytest.approx(attention_fits("H100_SXM").f8_speed_up[128])
    assert 1.1 < slow.time_s / fast.time_s < 1.6
    assert any("times as fast as of bf16" in note for note in fast.notes)


@pytest.mark.parametrize("node", ["A100_SXM_80GB", "H200_141GB", "B200_180GB", "GB200_186GB"])
def test_every_part_has_figures_or_the_nearest(node: str) -> None:
    model = attention_model(load_device(node))
    for each in (DECODING, replace(CAUSAL, window=512)):
        assert 0 < model.price(each).time_s < model.price(replace(CAUSAL, batch=32)).time_s


def test_small_heads_of_a_part_that_was_timed_with_large_ones_take_less() -> None:
    """Half of a head's work takes half to all of its time, as on the part that has both sizes."""
    a100, l40s = (attention_model(load_device(name)) for name in ("A100_SXM_80GB", "L40S_48GB"))
    small = replace(CAUSAL, head_size=64, value_size=64)
    ratio = a100.price(small).time_s / a100.price(CAUSAL).time_s
    assert 0.5 < ratio < 0.7
    assert ratio == pytest.approx(l40s.price(small).time_s / l40s.price(CAUSAL).time_s, rel=0.02)
    assert any("heads below 128" in note and "L40S" in note for note in a100.price(small).notes)


def test_fp8_is_as_fast_as_bf16_where_a_part_has_no_rate_of_it() -> None:
    model = attention_model(load_device("A100_SXM_80GB"))
    timing = model.price(replace(CAUSAL, multiplied="f8E4M3FN", element_bytes=1.0))
    assert timing.time_s == model.price(CAUSAL).time_s
    assert "attention of f8E4M3FN runs at the rate of bf16" in timing.notes


@pytest.mark.parametrize("node", ["H100_80GB", "H200_141GB", "B200_180GB"])
def test_a_wider_window_takes_no_less(node: str) -> None:
    model = attention_model(load_device(node))
    long = replace(CAUSAL, query_length=16384, key_length=16384)
    windows = (1024, 1500, 2048, 4096, 6000, 8000, 8191, 8192, 10000, 16384)
    times = [model.price(replace(long, window=each)).time_s for each in windows]
    assert times == sorted(times)


def test_attention_longer_than_what_was_measured_runs_at_its_rate(model: AttentionModel) -> None:
    longest = replace(CAUSAL, query_length=16384, key_length=16384)
    longer = replace(CAUSAL, query_length=65536, key_length=65536)
    slow, fast = model.price(longest), model.price(longer)
    assert longer.flops / fast.time_s == pytest.approx(longest.flops / slow.time_s)
    assert "attention of more than 16384 tokens runs at their rate" in fast.notes


@pytest.mark.parametrize(
    # Forward and backward together: FlashAttention-2 at 300 and in Triton at about 176 TFLOP/s.
    ("kernel", "node", "published"),
    [
        ("flash_attention_2", "H100_80GB", 285e12),
        ("flash_attention_triton", "H100_80GB", 176e12),
        ("flash_attention_triton", "A100_SXM_80GB", 99e12),
    ],
)
def test_earlier_kernels_run_at_their_published_rates(
    kernel: str, node: str, published: float
) -> None:
    both = [
        replace(CAUSAL, key_heads=32, query_length=16384, key_length=16384, is_backward=backward,
                kernel=kernel)
        for backward in (False, True)
    ]  # fmt: skip
    priced = [attention_model(load_device(node)).price(each) for each in both]
    rate = sum(each.flops for each in both) / sum(each.time_s for each in priced)
    assert rate == pytest.approx(published, rel=0.1)
    assert any(kernel in note for note in priced[0].notes)


def test_attention_to_chosen_tokens_reaches_its_published_share_of_full_blocks(
    model: AttentionModel,
) -> None:
    chosen = Attention(
        batch=1,
        heads=128,
        key_heads=1,
        query_length=4096,
        key_length=2048,
        head_size=576,
        value_size=512,
        multiplied="bf16",
        shares_values=True,
        is_of_chosen=True,
    )
    time_s = model.price(chosen).time_s
    assert chosen.flops / time_s == pytest.approx(640e12, rel=0.02)
    # 16 heads are a quarter of a block.
    assert model.price(replace(chosen, heads=16)).time_s == pytest.approx(time_s / 2)
    on_blackwell = attention_model(load_device("B200_180GB"))
    assert chosen.flops / on_blackwell.price(chosen).time_s == pytest.approx(1450e12, rel=0.02)


def test_an_index_rates_below_the_peak_and_grows_with_the_pairs(model: AttentionModel) -> None:
    rating = Attention(
        batch=1,
        heads=64,
        key_heads=1,
        query_length=8192,
        key_length=8192,
        head_size=128,
        value_size=0,
        multiplied="f8E4M3FN",
        is_causal=True,
        element_bytes=1,
    )
    time_s = model.price(rating).time_s
    assert rating.flops / time_s <= model.device.rate("f8E4M3FN")
    longer = replace(rating, query_length=16384, key_length=16384)
    assert model.price(longer).time_s == pytest.approx(4 * time_s, rel=0.1)
    decoding = replace(rating, batch=32, query_length=1)
    least_s = decoding.cache_bytes / model.device.memory_bandwidth_bytes_per_s
    assert least_s < model.price(decoding).time_s < 2 * least_s + 10e-6


def test_few_keys_take_as_long_as_more_heads(model: AttentionModel) -> None:
    # Of images that attend to a text: blocks of queries are computed on their own.
    square = replace(CAUSAL, batch=1, heads=16 * 8, query_length=128, key_length=128)
    square = replace(square, is_causal=False)
    long = replace(square, heads=8, query_length=16 * 128)
    assert model.price(long).time_s == pytest.approx(model.price(square).time_s)
    assert "fewer keys" in " ".join(model.price(long).notes)
