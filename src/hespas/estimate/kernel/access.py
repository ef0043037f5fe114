"""One access to memory, and the units in which a GPU's memory answers."""

from __future__ import annotations

import msgspec

WARP = 32
SECTOR_BYTES = 32
LINE_BYTES = 128


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """One load or store of global memory by one block of threads.

    ``bytes`` is what its threads ask for, ``sectors`` what L2 sees, ``stride`` the distance
    between neighbouring threads in bytes.
    """

    is_store: bool
    width_bytes: int
    stride: int
    bytes: float
    sectors: float

    @property
    def amplification(self) -> float:
        """Bytes of sectors per byte asked for; below 1 where threads read the same."""
        return self.sectors * SECTOR_BYTES / self.bytes if self.bytes else 0.0
