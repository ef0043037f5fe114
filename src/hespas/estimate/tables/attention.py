"""Fused attention from measured tables of causal attention of bf16.

The tables have no gradients, no partial masks and no other types: those are scaled by FLOPs,
which the notes say. Gradients reach a smaller part of the peak than attention itself, by a ratio
that was published for each generation of GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from hespas.cost.attention import Attention
from hespas.errors import MeasurementError
from hespas.estimate.bound import Bound
from hespas.estimate.driver import Timing
from hespas.estimate.tables.files import Part, load_part
from hespas.estimate.tables.grid import Grid, completed, monotone, read
from hespas.hardware.device import Device

_TABLE = "attention.causal.bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardRate:
    """The FLOP/s of gradients of attention, as a part of those of attention itself."""

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
# Ada multiplies matrices by the instructions of Ampere; Blackwell's come after Hopper's.
_NEAREST = {"L40S": AMPERE}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionModel:
    """Times of fused attention on a device."""

    device: Device
    part: Part

    def price(self, attention: Attention) -> Timing:
        """Return how long it takes.

        The table's time of the same head size, heads of all batches, and number of keys, times
        the FLOPs of this attention over those of the table's; never faster than the peak.
        """
        base = replace(
            attention,
            query_length=attention.key_length,
            value_size=attention.head_size,
            is_causal=True,
            is_backward=False,
            window=0,
        )
        heads = attention.batch * attention.heads
        reading = read(_grid(self.part.about.part), (base.head_size, heads, base.key_length))
        there = self.part.about.peak_flops["bf16"]
        here = self.device.rate(attention.multiplied)
        share = attention.flops / base.flops * there / here
        if attention.is_backward:
            share /= backward_rate(self.part.about.part).of_forward
        time_s = max(
            reading.time_s * share * self.device.factor("attention"), attention.flops / here
        )
        notes = self._notes(attention, reading.outside)
        return Timing(time_s=time_s, notes=notes, bound=Bound(compute_s=time_s))

    def _notes(self, attention: Attention, outside: tuple[str, ...]) -> tuple[str, ...]:
        notes = [f"fused attention from tables measured on {self.part.about.measured_on}"]
        if attention.is_backward:
            notes.append(_backward_note(self.part.about.part))
        if not attention.is_causal or attention.window:
            notes.append("attention without a causal mask runs at the rate of one with it")
        if attention.query_length != attention.key_length:
            notes.append("attention of unequal lengths is scaled from equal ones by FLOPs")
        if attention.multiplied != "bf16":
            notes.append(f"attention of {attention.multiplied} is scaled from bf16 by peak rates")
        if outside:
            notes.append(
                f"attention outside the measured sizes (in {', '.join(outside)}) takes as long as "
                "the smallest, or is extrapolated at the rate of the largest"
            )
        return tuple(notes)


def backward_rate(part: str) -> BackwardRate:
    """Return the rate of gradients on a part with measured tables; the nearest if unpublished.

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
    """Return the model of a device. Raises `MeasurementError` where there is no table."""
    name = "" if device.measured is None else device.measured.part
    part = load_part(name)
    if _TABLE not in part.tables:
        raise MeasurementError(f"the tables of {name} have no attention", location=device.name)
    return AttentionModel(device=device, part=part)


@cache
def _grid(part: str) -> Grid:
    return monotone(completed(load_part(part).tables[_TABLE].grid))
