"""How equal devices differ in speed, and a group's slowest.

The slowest of n independent draws from a distribution F is one draw of ``F^-1(u^(1/n))`` with u
uniform: a group of 100,000 devices costs as much as one of two.
"""

from __future__ import annotations

from math import erfc, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from msgspec import Meta, Struct

from hespas.base.decode import decode, preset_path, read_document
from hespas.base.figures import CountOrZero, NotNegative, Text
from hespas.hardware.presets import PRESETS_DIRECTORY

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.floating[Any]]

PRESETS = PRESETS_DIRECTORY / "variation"
NONE = "none"
CALIBRATED = "variation.json"
"""The file in a directory of ``hespas calibrate``."""
_REACH = 9.0
"""Deviations to which the normal distribution is tabulated: 1e-19 lies beyond."""
_POINTS = 4001

Deviation = Annotated[float, Meta(ge=0, lt=0.5)]


class SlowDevices(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A share of devices, slower by ``factor``."""

    share: Annotated[float, Meta(gt=0, lt=0.5)]
    factor: Annotated[float, Meta(ge=1, le=100)]


class Variation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Deviations of durations relative to a typical device.

    ``sigma`` applies to kernels that arithmetic bounds, ``memory_sigma`` to those that memory
    bounds, ``device_sigma`` to all computation: a device keeps them. ``step_sigma`` varies from
    step to step, ``kernel_sigma`` from kernel to kernel. A device enters each collective late by
    ``collective_delay_s`` on average (exponential).
    """

    source: Text
    sigma: Deviation = 0.0
    memory_sigma: Deviation = 0.0
    device_sigma: Deviation = 0.0
    step_sigma: Deviation = 0.0
    kernel_sigma: Annotated[float, Meta(ge=0, lt=5)] = 0.0
    collective_delay_s: NotNegative = 0.0
    slow: SlowDevices | None = None
    seed: CountOrZero = 0


EQUAL = Variation(source=NONE)
"""Every device is as specified."""


def read_variation(name: str | Path) -> Variation:
    """Return the variation of a preset, a file or ``none``.

    A directory is one that ``hespas calibrate --ranks`` wrote.

    >>> read_variation("GPU_SC22").sigma
    0.0148
    """
    if str(name) == NONE:
        return EQUAL
    path = preset_path(name, PRESETS, option_name="variation", other_names=(NONE,))
    if path.is_dir():
        path = path / CALIBRATED
    return decode(read_document(path), Variation, location=str(name))


class Slowest:
    """The distribution of the slowest duration factor in a group."""

    def __init__(self, *, sigma: float, slow: SlowDevices | None = None) -> None:
        import numpy as np  # noqa: PLC0415 - few clusters vary

        # Points lie dense about each kind of device, however far apart the kinds are.
        reach = _REACH * sigma
        kinds = [1.0] if slow is None else [1.0, slow.factor]
        near = [kind * np.linspace(1.0 - reach, 1.0 + reach, _POINTS) for kind in kinds]
        between = np.linspace(1.0 - reach, kinds[-1] * (1.0 + reach), _POINTS)
        factors = np.unique(np.concatenate([*near, between]))

        def slower(typical: float) -> Floats:
            """Return the share of devices slower than each factor."""
            if sigma > 0:
                deviations = [(factor / typical - 1.0) / sigma for factor in factors]
                return np.array([erfc(deviation / sqrt(2.0)) / 2.0 for deviation in deviations])
            return np.array([float(factor < typical) for factor in factors])

        beyond = slower(1.0)
        if slow is not None:
            beyond = (1.0 - slow.share) * beyond + slow.share * slower(slow.factor)
        self._factors = factors
        # np.interp wants ascending numbers: the rarer, the larger.
        self._rarity = -np.log(np.maximum(beyond, 1e-300))

    def factors(self, uniform: Floats, count: int, *, without: float = 0.0) -> Floats:
        """Return the slowest of ``count`` factors for each uniform draw.

        ``without`` is the share of slowest devices that is excluded before.
        """
        import numpy as np  # noqa: PLC0415 - as above

        # The probability that a device is slower than the slowest of them.
        slower = -np.expm1(np.log(uniform) / count)
        slower = without + (1.0 - without) * slower
        return np.interp(-np.log(np.maximum(slower, 1e-300)), self._rarity, self._factors)

    def mean(self, count: int, *, without: float = 0.0) -> float:
        """Return the mean factor of the slowest of ``count`` devices.

        >>> round(Slowest(sigma=0.01).mean(1), 4), round(Slowest(sigma=0.01).mean(8192), 4)
        (1.0, 1.038)
        """
        import numpy as np  # noqa: PLC0415 - as above

        uniform = (np.arange(_POINTS) + 0.5) / _POINTS
        return float(self.factors(uniform, count, without=without).mean())


def latest_of(count: int) -> float:
    """Return the mean maximum of ``count`` unit exponential delays.

    >>> latest_of(2)
    1.5
    """
    return sum(1.0 / number for number in range(1, count + 1))
