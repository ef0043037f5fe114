"""Operations that run others: control flow, calls, asynchronous ones, fusions and custom calls.

They have no work of their own: what they run is counted where it is opened.
"""

from __future__ import annotations

from dataclasses import replace

from hespas.program.operations.movement import nothing
from hespas.program.operations.traits import UNKNOWN, Category, Traits

_CONTROL = Traits(category=Category.CONTROL, has_effect=True)
_CALL = Traits(category=Category.CALL)
_ASYNCHRONOUS = Traits(category=Category.ASYNCHRONOUS)
_DYNAMIC = "its result has a size that is known only when it runs"
_QUANTIZED = "quantised types are not supported"

TRAITS = {
    "async_done": replace(_ASYNCHRONOUS, work=nothing),
    "async_start": _ASYNCHRONOUS,
    "async_update": replace(_ASYNCHRONOUS, work=nothing),
    "call": _CALL,
    "case": _CONTROL,
    "composite": _CALL,
    "custom_call": Traits(category=Category.CUSTOM_CALL, has_effect=True),
    "fusion": Traits(category=Category.FUSION),
    "if": _CONTROL,
    "set_dimension_size": replace(UNKNOWN, without_work=_DYNAMIC),
    "uniform_dequantize": replace(UNKNOWN, without_work=_QUANTIZED),
    "uniform_quantize": replace(UNKNOWN, without_work=_QUANTIZED),
    "while": _CONTROL,
}
