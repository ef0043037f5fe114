"""The ways of many messages at once, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers: TypeAlias = NDArray[np.int64]
    Reals: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Which message crosses which link: entry k says that ``message[k]`` crosses ``link[k]``.

    ``latency_ns`` and ``kinds`` have one entry a message: the sum over its links, and a set of
    bits for the kinds of links, as `Wiring.parameters` numbers them.
    """

    message: Integers
    link: Integers
    latency_ns: Reals
    kinds: Integers


class Wiring(Protocol):
    """The links of a network by number, and which of them a message crosses."""

    @property
    def device_count(self) -> int:
        """The number of devices."""
        ...

    def routes(self, sources: Sequence[int] | Integers, targets: Sequence[int] | Integers) -> Ways:
        """Return the ways of messages from sources to targets, one by one."""
        ...

    def bytes_per_ns(self, links: Sequence[int] | Integers) -> Reals:
        """Return the bandwidth of links."""
        ...

    def name(self, link: int) -> str:
        """Return what people call a link."""
        ...

    def link_named(self, name: str) -> int | None:
        """Return the number of a link; None if none has that name."""
        ...
