"""What the tables of causal attention do not have: decoding, fp8, and sliding windows.

``configs/attention.json`` holds figures of some parts, fitted to measurements by
``validation/fit_attention.py``; other parts take those of the nearest generation.
"""

from __future__ import annotations

from functools import cache
from math import log
from pathlib import Path

import msgspec

_FILE = Path(__file__).resolve().parents[2] / "configs" / "attention.json"
_NEAREST = {"B300_SXM": "B200_SXM", "GB200": "B200_SXM", "GB300": "B200_SXM"}
_OTHERS = "H100_SXM"


class LatentFits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One query over a cache of latent vectors, which all heads share.

    It takes ``latency_s``, and the longer of the vectors at ``bandwidth_share`` of the memory
    bandwidth and of its products at ``peak_share`` of the peak.
    """

    latency_s: float
    bandwidth_share: float
    peak_share: float


class AttentionFits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Figures of one part.

    One query over a cache takes ``decode_latency_s`` and the bytes of the cache at
    ``decode_bandwidth_share`` of the memory bandwidth. ``f8_speed_up`` is how much faster fp8 is
    than bf16, by head size; ``window_factor`` how much longer a sliding window takes than causal
    attention over as many scores, by the window.
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
    """Return the part whose figures serve a part with tables.

    >>> fitted_part("H200_SXM"), fitted_part("GB300"), fitted_part("A100_SXM")
    ('H200_SXM', 'B200_SXM', 'H100_SXM')
    """
    return part if part in _read().parts else _NEAREST.get(part, _OTHERS)


def attention_fits(part: str) -> AttentionFits:
    """Return the figures that serve a part."""
    return _read().parts[fitted_part(part)]


def nearest(figures: dict[int, float], size: int) -> float:
    """Return the figure of the size that is nearest by ratio.

    >>> nearest({64: 1.2, 128: 1.4}, 96)
    1.4
    """
    return figures[min(figures, key=lambda each: (abs(log(each / size)), each))]
