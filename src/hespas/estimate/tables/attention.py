"""Fused attention from measured tables of causal attention of bf16.

The tables have no gradients, no partial masks and no other types: those are scaled by FLOPs,
which the notes say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from hespas.cost.attention import Attention
from hespas.errors import MeasurementError
from hespas.estimate.driver import Timing
from hespas.estimate.tables.files import Part, load_part
from hespas.estimate.tables.grid import Grid, completed, monotone, read
from hespas.hardware.device import Device

_TABLE = "attention.causal.bf16"


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
        time_s = max(
            reading.time_s * share * self.device.factor("attention"), attention.flops / here
        )
        return Timing(time_s=time_s, notes=self._notes(attention, reading.outside))

    def _notes(self, attention: Attention, outside: tuple[str, ...]) -> tuple[str, ...]:
        notes = [f"fused attention from tables measured on {self.part.about.measured_on}"]
        if attention.is_backward:
            notes.append("gradients of attention run at the measured rate of attention")
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
