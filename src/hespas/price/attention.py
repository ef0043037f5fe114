"""Price fused attention from measured tables of causal attention of bf16.

The tables have no gradients, no partial masks and no other types: those are scaled by FLOPs, and a
note says so. Gradients reach a smaller part of the peak than attention itself, by a ratio that was
published for each generation of GPUs. One query over a cache, fp8 and sliding windows have figures
of their own: ``configs/attention.json`` holds those of some parts, fitted to measurements by
``validation/fit_attention.py``; other parts use those of the nearest generation.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import log

import msgspec

from hespas.base.configs import CONFIGS
from hespas.base.frozen import frozen
from hespas.base.units import format_time
from hespas.errors import MeasurementError
from hespas.hardware.device import Device
from hespas.price.estimate import Bound, Timing, larger_of
from hespas.price.gemm import part_of
from hespas.price.tables import Grid, Part, Reading, completed, load_part, monotone, read
from hespas.work.attention import Attention

_FILE = CONFIGS / "attention.json"
_NEAREST_FITTED = {"B300_SXM": "B200_SXM", "GB200": "B200_SXM", "GB300": "B200_SXM"}
_OTHERS = "H100_SXM"


class LatentFits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Figures of one query over a cache of shared latent vectors.

    It takes ``latency_s``, plus the longer of two times: that of the vectors at ``bandwidth_share``
    of the memory bandwidth, and that of its products at ``peak_share`` of the peak.
    """

    latency_s: float
    bandwidth_share: float
    peak_share: float


class AttentionFits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fitted figures of attention on one part.

    One query over a cache takes ``decode_latency_s``, plus the bytes of the cache at
    ``decode_bandwidth_share`` of the memory bandwidth. ``f8_speed_up`` is the speed of fp8 over
    bf16, by head size; ``window_factor``, by window, is the time of a sliding window over that of
    causal attention with as many scores.
    """

    decode_latency_s: float
    decode_bandwidth_share: float
    latent: LatentFits
    f8_speed_up: dict[int, float]
    window_factor: dict[int, float]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: str
    parts: dict[str, AttentionFits]


@cache
def _read() -> _File:
    return msgspec.json.decode(_FILE.read_bytes(), type=_File, strict=False)


def fitted_part(part: str) -> str:
    """Return the part whose fitted figures serve a part with tables.

    >>> fitted_part("H200_SXM"), fitted_part("GB300"), fitted_part("A100_SXM")
    ('H200_SXM', 'B200_SXM', 'H100_SXM')
    """
    return part if part in _read().parts else _NEAREST_FITTED.get(part, _OTHERS)


def attention_fits(part: str) -> AttentionFits:
    """Return the fitted figures that serve a part."""
    return _read().parts[fitted_part(part)]


def nearest(figures: dict[int, float], size: int) -> float:
    """Return the figure of the size that is nearest by ratio.

    >>> nearest({64: 1.2, 128: 1.4}, 96)
    1.4
    """
    return figures[min(figures, key=lambda each: (abs(log(each / size)), each))]


_TABLE = "attention.causal.bf16"


@frozen
class BackwardRate:
    """The rate of attention gradients over that of attention, in FLOP/s."""

    generation: str
    of_forward: float
    source: str


AMPERE = BackwardRate(
    generation="Ampere",
    of_forward=0.86,
    source="FlashAttention-2: up to 63 % of an A100's peak backward, 73 % forward",
)
"""The means of the ranges agree: 170 to 190 TFLOP/s backward, 190 to 225 forward (0.84 to 0.89).

Source: T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work
Partitioning", arXiv 2307.08691, sections 1 and 4.1, A100 SXM 80GB, bf16 or f16."""

HOPPER = BackwardRate(
    generation="Hopper",
    of_forward=0.77,
    source=(
        "FlashAttention-3 and cuDNN on an H100: 400 to 550 TFLOP/s backward, 570 to 650 forward, "
        "0.70 to 0.85 by length and head size"
    ),
)
"""The means of the ranges, 475 / 610.

Source: J. Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and
Low-precision", arXiv 2407.08608, section 4.1, H100 SXM 80GB, f16."""

_PUBLISHED = {"A100_SXM": AMPERE, "H100_SXM": HOPPER, "H200_SXM": HOPPER}
# Ada multiplies matrices with Ampere's instructions; Blackwell's succeed Hopper's.
_NEAREST = {"L40S": AMPERE}


@frozen
class KernelRate:
    """The rate of an implementation over the table's, forward and backward."""

    forward: float
    backward: float
    source: str


_TRITON = (
    "T. Dao, FlashAttention-2, arXiv 2307.08691, section 4.1: 1.3 to 2.5 times as fast as "
    "FlashAttention in Triton"
)
_FASTER = 1.9
"""The mean of that range; divides the published rates of FlashAttention-2."""
_FLASH_2_ON_HOPPER = KernelRate(
    forward=0.51,
    backward=0.53,
    source="measured beside cuDNN on an H100, heads of 128, 2,048 to 8,192 tokens "
    "(validation/measurements/attention-H100_80GB_HBM3.csv)",
)
_TRITON_ON_AMPERE = KernelRate(
    # 207.5 forward and 180 backward are the means of FlashAttention-2's published rates; the table
    # has 174 and 150.
    forward=round(207.5 / _FASTER / 174, 2),
    backward=round(180 / _FASTER / 150, 2),
    source=_TRITON,
)
_TRITON_ON_HOPPER = KernelRate(
    # FlashAttention-2 reaches 335 forward and backward on an H100 (section 4.1); the table has 503.
    forward=round(335 / _FASTER / 503, 2),
    backward=round(335 / _FASTER / 503, 2),
    source=_TRITON,
)
_BY_KERNEL = {
    ("flash_attention_2", "H100_SXM"): _FLASH_2_ON_HOPPER,
    ("flash_attention_2", "H200_SXM"): _FLASH_2_ON_HOPPER,
    ("flash_attention_triton", "A100_SXM"): _TRITON_ON_AMPERE,
    ("flash_attention_triton", "H100_SXM"): _TRITON_ON_HOPPER,
    ("flash_attention_triton", "H200_SXM"): _TRITON_ON_HOPPER,
}
"""Rates of implementations other than those of the tables, by kernel and part."""
_LATENT_BYTES = 2
"""Of a number of the caches of latent vectors that were measured."""


@frozen
class ChosenRate:
    """The peak's share that attention to chosen vectors reaches.

    Source: deepseek-ai/FlashMLA, README: prompts reach 640 TFLOP/s on an H800 of 989.5, and 1,450
    on a B200 of 2,250; vLLM, ``flashmla_sparse.py``: heads are filled up.
    """

    of_peak: float
    heads: int

    def filled(self, heads: int) -> int:
        """Return the heads of whole blocks."""
        return -(-heads // self.heads) * self.heads


_CHOSEN_ON_HOPPER = ChosenRate(of_peak=0.65, heads=64)
_CHOSEN_ON_BLACKWELL = ChosenRate(of_peak=0.64, heads=128)
_BLACKWELL = frozenset({"B200_SXM", *_NEAREST_FITTED})
_SMALLER_HEADS = {"A100_SXM": "L40S"}
"""Parts whose table lacks small heads, and the part of the nearest generation that has them."""


@frozen
class AttentionModel:
    """Times of fused attention on a device.

    ``clock`` is the device's clock, as a part of the boost clock at which the table was measured.
    """

    device: Device
    part: Part
    clock: float = 1.0

    def price(self, attention: Attention) -> Timing:
        """Return the time of an attention.

        It is the table's time of the same head size, heads of all batches, and number of keys,
        times the FLOPs of this attention over those of the table's; never faster than the peak.
        """
        kind = self._price_full
        if attention.is_decoding:
            kind = self._price_decoding
        elif attention.is_of_chosen:
            kind = self._price_chosen
        return kind(attention).slowed(1 / self.clock)

    def _price_chosen(self, attention: Attention) -> Timing:
        is_blackwell = self.part.about.part in _BLACKWELL
        rate = _CHOSEN_ON_BLACKWELL if is_blackwell else _CHOSEN_ON_HOPPER
        heads = rate.filled(attention.heads)
        flops = attention.flops * heads / attention.heads
        reached = rate.of_peak * self.device.rate(attention.multiplied)
        time_s = flops / reached * self.device.factor("attention")
        note = (
            f"attention to chosen tokens reaches {100 * rate.of_peak:.0f} % of the peak, as "
            "FlashMLA's README says of prompts"
        )
        if heads > attention.heads:
            note += f", with {attention.heads} heads in a block of {heads}"
        return Timing(time_s=time_s, notes=(note,), bound=Bound(compute_s=time_s))

    def _price_full(self, attention: Attention) -> Timing:
        base, heads = self._base(attention)
        reading = self._read(base, heads)
        share = attention.flops / (base.flops * heads) / self._speed_up(attention)
        if is_windowed(attention):
            share *= window_factor(self._fits, attention)
        if attention.is_backward:
            share /= backward_rate(self.part.about.part).of_forward
        rate = _BY_KERNEL.get((attention.kernel, self.part.about.part))
        if rate is not None:
            share /= rate.backward if attention.is_backward else rate.forward
        time_s = max(
            reading.time_s * share * self.device.factor("attention"),
            attention.flops / self.device.rate(attention.multiplied),
        )
        notes = self._notes(attention, reading.outside)
        return Timing(time_s=time_s, notes=notes, bound=Bound(compute_s=time_s))

    @property
    def _fits(self) -> AttentionFits:
        return attention_fits(self.part.about.part)

    @property
    def _longest_length(self) -> int:
        """The largest measured number of tokens."""
        return _grid(self.part.about.part).axes[-1].sizes[-1]

    def _base(self, attention: Attention) -> tuple[Attention, int]:
        """Return one head of the table's attention, and the head count.

        For a sliding window the head is as long as two windows; a causal mask leaves each
        query one in the mean, and the number of heads grows accordingly. It also grows where there
        are more queries than keys: kernels compute blocks of queries on their own. Attention longer
        than the longest that was measured uses that one: all longer ones run at its rate.
        """
        length = 2 * attention.window if is_windowed(attention) else attention.key_length
        length = min(length, self._longest_length)
        heads = attention.batch * attention.heads
        if is_windowed(attention) or attention.query_length > attention.key_length:
            heads = max(1, round(heads * attention.query_length / length))
        head = replace(
            attention,
            batch=1,
            heads=1,
            query_length=length,
            key_length=length,
            value_size=attention.head_size,
            is_causal=True,
            is_backward=False,
            window=0,
            attended=1.0,
        )
        return head, heads

    def _read(self, base: Attention, heads: int) -> Reading:
        """Read the table's time, scaled for small heads."""
        part, size = self.part.about.part, base.head_size
        sizes = (size, heads, base.key_length)
        smallest = _grid(part).axes[0].sizes[0]
        with_small_heads = _SMALLER_HEADS.get(part)
        if with_small_heads is None or size >= smallest:
            return read(_grid(part), sizes)
        reading = read(_grid(part), (smallest, *sizes[1:]))
        ratio = read(_grid(with_small_heads), sizes).time_s
        ratio /= read(_grid(with_small_heads), (smallest, *sizes[1:])).time_s
        return replace(reading, time_s=reading.time_s * ratio)

    def _speed_up(self, attention: Attention) -> float:
        measured_peak = self.part.about.peak_flops["bf16"]
        if attention.multiplied.startswith("f8"):
            reached = 1.0
            if self.device.names(attention.multiplied):
                reached = nearest(self._fits.f8_speed_up, attention.head_size)
            return self.device.rate("bf16") / measured_peak * reached
        return self.device.rate(attention.multiplied) / measured_peak

    def _price_decoding(self, attention: Attention) -> Timing:
        fits, of_peak = self._fits, 1.0
        latency_s, share = fits.decode_latency_s, fits.decode_bandwidth_share
        subject = f"attention of {attention.query_length} over a cache"
        if attention.only_rates:
            subject = "an index that rates what is cached"
        if attention.shares_values:
            latency_s, share = fits.latent.latency_s, fits.latent.bandwidth_share
            of_peak = fits.latent.peak_share
            subject = f"{subject} of latent vectors"
        factor = self.device.factor("attention")
        memory_s = attention.cache_bytes / (self.device.memory_bandwidth_bytes_per_s * share)
        compute_s = attention.flops / (self.device.rate(attention.multiplied) * of_peak)
        time_s = latency_s * factor + max(memory_s * factor, compute_s)
        busy = larger_of(time_s - latency_s * factor, compute_s=compute_s, memory_s=memory_s)
        reached = f"{100 * share:.0f} % of the memory bandwidth"
        if attention.shares_values:
            reached = f"{reached} or {100 * of_peak:.0f} % of the peak"
        if attention.shares_values and attention.element_bytes < _LATENT_BYTES:
            reached = f"{reached}, here of a cache in 8 bits"
        note = (
            f"{subject} takes {format_time(latency_s)} and {reached}, as kernels for decoding were "
            f"measured to take on {fitted_part(self.part.about.part)}"
        )
        return Timing(time_s=time_s, notes=(note,), bound=busy + Bound(launch_s=latency_s * factor))

    def _notes(self, attention: Attention, outside: tuple[str, ...]) -> tuple[str, ...]:
        subject = "fused attention"
        if attention.only_rates:
            subject = "an index that rates tokens as fast as fused attention multiplies"
        notes = [f"{subject} from tables measured on {self.part.about.measured_on}"]
        if attention.is_backward:
            notes.append(_backward_note(self.part.about.part))
        whose = fitted_part(self.part.about.part)
        if is_windowed(attention):
            notes.append(
                "attention within a sliding window takes as long as causal attention of two "
                f"windows, times a factor measured on {whose}"
            )
        elif not attention.is_causal or attention.window:
            notes.append("attention without a causal mask runs at the rate of one with it")
        notes += _length_notes(attention)
        with_small_heads = _SMALLER_HEADS.get(self.part.about.part)
        smallest = _grid(self.part.about.part).axes[0].sizes[0]
        if with_small_heads is not None and attention.head_size < smallest:
            notes.append(
                f"attention of heads below {smallest} takes the part of the time of {smallest} "
                f"that was measured on {with_small_heads}"
            )
        notes += self._notes_of_type(attention)
        rate = _BY_KERNEL.get((attention.kernel, self.part.about.part))
        if rate is not None:
            part = rate.backward if attention.is_backward else rate.forward
            notes.append(
                f"{attention.kernel} runs at {part:g} of the measured rate ({rate.source})"
            )
        if attention.key_length > self._longest_length and not is_windowed(attention):
            notes.append(f"attention of more than {self._longest_length} tokens runs at their rate")
        if outside:
            notes.append(
                f"attention outside the measured sizes (in {', '.join(outside)}) takes as long as "
                "the smallest, or is extrapolated at the rate of the largest"
            )
        return tuple(notes)

    def _notes_of_type(self, attention: Attention) -> list[str]:
        if attention.multiplied == "bf16":
            return []
        if not attention.multiplied.startswith("f8"):
            return [f"attention of {attention.multiplied} is scaled from bf16 by peak rates"]
        if not self.device.names(attention.multiplied):
            return [f"attention of {attention.multiplied} runs at the rate of bf16"]
        reached = nearest(self._fits.f8_speed_up, attention.head_size)
        note = (
            f"attention of {attention.multiplied} is {reached:g} times as fast as of bf16, as "
            f"TensorRT-LLM's was measured on {fitted_part(self.part.about.part)}"
        )
        return [note]


def _length_notes(attention: Attention) -> list[str]:
    if attention.query_length > attention.key_length:
        return ["attention to fewer keys than queries takes as long as of more heads"]
    if attention.query_length < attention.key_length:
        return ["attention of unequal lengths is scaled from equal ones by FLOPs"]
    return []


def is_windowed(attention: Attention) -> bool:
    """Return whether a sliding window leaves fewer scores than a causal mask."""
    return 0 < 2 * attention.window < attention.key_length


def window_factor(fits: AttentionFits, attention: Attention) -> float:
    """Return a window's time over that of causal attention.

    Beyond the largest window that was measured the factor falls, in the logarithm of the window, to
    1 for half of the keys, from where on attention is causal with a few scores less.
    """
    largest, half = max(fits.window_factor), attention.key_length / 2
    if not largest < attention.window < half:
        return nearest(fits.window_factor, attention.window)
    remaining = log(half / attention.window) / log(half / largest)
    return 1 + (fits.window_factor[largest] - 1) * remaining


def backward_rate(part: str) -> BackwardRate:
    """Return the rate of gradients on a part, or on the nearest.

    >>> backward_rate("A100_SXM").of_forward, backward_rate("B200_SXM").of_forward
    (0.86, 0.77)
    """
    return _PUBLISHED.get(part) or _NEAREST.get(part, HOPPER)


def _backward_note(part: str) -> str:
    rate = backward_rate(part)
    whose = f"as published for {rate.generation}"
    if part not in _PUBLISHED:
        whose = f"published for {rate.generation}, the nearest generation to {part}'s"
    return (
        f"gradients of attention run at {rate.of_forward:g} of the measured rate of attention, "
        f"{whose} ({rate.source})"
    )


def attention_model(device: Device) -> AttentionModel:
    """Return the attention model of a device; raise `MeasurementError` without a table."""
    part = part_of(device)
    if _TABLE not in part.tables:
        message = f"the tables of {part.about.part} have no attention"
        raise MeasurementError(message, location=device.name)
    return AttentionModel(device=device, part=part)


@cache
def _grid(part: str) -> Grid:
    return monotone(completed(load_part(part).tables[_TABLE].grid))
