"""What is known of a program from before it was divided over devices, and compiled."""

from __future__ import annotations

import msgspec

from hespas.program.device_order import DeviceOrder
from hespas.program.types import Type


class Whole(msgspec.Struct, frozen=True, kw_only=True):
    """The program of all devices, as far as it is known.

    ``mesh`` has the axes of the devices' mesh with their sizes, major first, by which devices are
    numbered in order, or in the ``device_order``. ``inputs`` are the types of the arguments of all
    devices together. Both are empty where they are not known, and ``tokens`` of a step and
    ``model_flops``, which the model needs for one, are None.
    """

    mesh: tuple[tuple[str, int], ...] = ()
    inputs: tuple[Type, ...] = ()
    tokens: int | None = None
    model_flops: float | None = None
    device_order: DeviceOrder | None = None
