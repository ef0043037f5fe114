"""Types of the figures in files: what msgspec checks when a file is decoded."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from hespas.limits import MOST_DEVICES

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Count: TypeAlias = Annotated[int, Meta(ge=1)]
DeviceCount: TypeAlias = Annotated[int, Meta(ge=1, le=MOST_DEVICES)]
CountOrZero: TypeAlias = Annotated[int, Meta(ge=0)]
Positive: TypeAlias = Annotated[float, Meta(gt=0)]
NotNegative: TypeAlias = Annotated[float, Meta(ge=0)]
Fraction: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
FractionOrZero: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
