"""What a kernel does, as far as its PTX and its launch say: the numbers that a price needs."""

from __future__ import annotations

import msgspec

from hespas.price.ptx.pipes import Slots

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


class KernelAnalysis(msgspec.Struct, frozen=True, kw_only=True):
    """One block of threads, in the middle of the grid, which stands for all.

    ``slots`` are machine instructions of all its warps. ``load_sectors`` is what loads ask of L2
    if L1 holds what one straight stretch of code loads, ``fresh_sectors`` if it holds everything;
    ``neighbour_sectors`` of these a block soon after it loads too. In loops ``loop_sectors``
    different ones lie in ``loop_runs`` runs without wide gaps; the busiest loop goes round
    ``loop_rounds`` times. ``l1_lines`` are cycles of the L1 cache, ``shared_passes`` cycles of
    shared memory. ``barriers`` counts waits of the whole block.
    """

    name: str
    blocks: int
    threads: int
    slots: Slots
    load_sectors: float
    fresh_sectors: float
    store_sectors: float
    loop_sectors: float
    loop_runs: float
    loop_rounds: float
    l1_lines: float
    shared_passes: float
    shared_bytes: int
    barriers: float
    uses_tensor_cores: bool
    accesses: tuple[Access, ...]
    unknown_loops: int
    data_branches: int
    data_addresses: int
    neighbour_sectors: float = 0.0

    @property
    def warps(self) -> int:
        """Warps in a block."""
        return -(-self.threads // WARP)
