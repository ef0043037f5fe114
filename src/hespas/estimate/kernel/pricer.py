"""Price the kernels of a compiled program by reading them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from math import prod

from hespas.cost.structure import Leaf
from hespas.errors import ProgramError
from hespas.estimate.kernel.access import SECTOR_BYTES
from hespas.estimate.kernel.analysis import KernelAnalysis
from hespas.estimate.kernel.by_kind import terms_by_kind
from hespas.estimate.kernel.kept import KeptAnalyses
from hespas.estimate.kernel.price import KernelTerms, l2_sectors, terms_of
from hespas.estimate.timed import Timed
from hespas.hardware.device import Device
from hespas.hardware.microarchitecture import Microarchitecture, load_microarchitecture
from hespas.program.kernels import CompiledKernels, KernelLaunch, encode_kernels
from hespas.program.program import Program

_SMALL_BLOCK_BYTES = 16 * 1024
"""What a multiprocessor moves through L1 in 256 cycles at 64 bytes a cycle."""

_MUCH_MORE, _LARGE_BYTES = 1.2, 4e6
"""Large kernels that load so many times what they need are asked for what neighbours share."""

_NO_KERNELS = CompiledKernels(launches=(), ptx={})
_NOT_KEPT = KeptAnalyses()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A kernel's terms, and what was read of it: None where only its HLO was there.

    ``floor_s`` is what its bytes take at the peak bandwidth.
    """

    terms: KernelTerms
    floor_s: float
    analysis: KernelAnalysis | None
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ReadKernels:
    """Prices kernels that are no products: by their PTX where it is known, else by their kind.

    An implementation of `hespas.estimate.measured.pricer.KernelPricer`.
    """

    device: Device
    gpu: Microarchitecture
    kernels: CompiledKernels
    kept: KeptAnalyses = field(default=_NOT_KEPT, compare=False, repr=False)
    known: dict[tuple[object, ...], KernelAnalysis] = field(
        default_factory=dict[tuple[object, ...], KernelAnalysis], compare=False, repr=False
    )

    @property
    def parameters(self) -> Mapping[str, object]:
        """The figures of the device, and what stands for all kernels' texts and launches."""
        figures = {
            name: getattr(self.gpu, name)
            for name in self.gpu.__dataclass_fields__
            if name != "sources"
        }
        bandwidth = self.device.memory_bandwidth_bytes_per_s
        return {
            **figures,
            "memory_bandwidth": bandwidth,
            "factor": self.factor,
            "kernels": self._fingerprint,
        }

    @property
    def factor(self) -> float:
        """By how much calibration multiplies what kernels take beside their launch."""
        return self.device.factor("kernels")

    @cached_property
    def _fingerprint(self) -> str:
        return sha256(encode_kernels(self.kernels)).hexdigest()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What it takes for granted of every kernel."""
        assumed = sorted(
            name for name, source in self.gpu.sources.items() if source.startswith("assumed")
        )
        how = (
            "kernels are read in the PTX that the compiler wrote, and their limits add as the root "
            "of their squares"
            if self.kernels.ptx
            else "no kernel's PTX is known: each is priced by its kind and its bytes"
        )
        return (
            f"kernel: {how}; assumed of the inside of {self.device.name}: {', '.join(assumed)}",
        )

    @cached_property
    def _launches(self) -> Mapping[str, KernelLaunch]:
        return self.kernels.launch_of_instruction

    def price(self, leaf: Leaf, program: Program) -> Timed | None:
        """Return the time of a kernel, its launch included; None where it is no kernel's.

        The operations of a program that is not compiled are parts of kernels not known yet.
        """
        if not program.is_scheduled:
            return None
        reading = self.read(leaf)
        return Timed(time_s=self.time_s(reading), notes=reading.notes)

    def time_s(self, reading: Reading) -> float:
        """Return how long the kernel of a reading takes, as the device is calibrated.

        No calibration makes it faster than its bytes at the peak bandwidth.
        """
        launch_s = reading.terms.launch_s
        busy_s = reading.terms.time_s - launch_s
        return max(self.factor * busy_s, min(busy_s, reading.floor_s)) + launch_s

    def read(self, leaf: Leaf) -> Reading:
        """Return what is known of an operation's kernel."""
        moved = float(leaf.work.bytes_moved)
        launch = self._launches.get(leaf.op.instruction) if leaf.op.instruction else None
        known = launch is not None and launch.kernel in self.kernels.ptx
        if launch is None or not known or self._is_small(launch, moved):
            return self._by_kind(leaf)
        try:
            analysis = self._analysis(launch, moved)
        except ProgramError as error:
            return self._by_kind(leaf, f"priced by its kind, for it can't be read: {error}")
        bandwidth = self.device.memory_bandwidth_bytes_per_s
        terms = terms_of(
            analysis, self.gpu, bytes_moved=moved, memory_bandwidth_bytes_per_s=bandwidth
        )
        return Reading(
            terms=terms, floor_s=moved / bandwidth, analysis=analysis, notes=_notes(analysis)
        )

    def _by_kind(self, leaf: Leaf, *notes: str) -> Reading:
        moved, bandwidth = float(leaf.work.bytes_moved), self.device.memory_bandwidth_bytes_per_s
        terms = terms_by_kind(
            leaf.op, self.gpu, bytes_moved=moved, memory_bandwidth_bytes_per_s=bandwidth
        )
        return Reading(
            terms=terms,
            floor_s=moved / bandwidth,
            analysis=None,
            notes=tuple(f"kernel {leaf.op.instruction}: {note}" for note in notes),
        )

    def _is_small(self, launch: KernelLaunch, bytes_moved: float) -> bool:
        """Tell whether a kernel is over before its launch is: it isn't worth reading then."""
        blocks = prod(launch.grid)
        return blocks <= self.gpu.multiprocessors and bytes_moved <= blocks * _SMALL_BLOCK_BYTES

    def _analysis(self, launch: KernelLaunch, bytes_moved: float) -> KernelAnalysis:
        key = (launch.kernel, launch.grid, launch.block, launch.shared_memory_bytes)
        if key not in self.known:
            self.known[key] = self._analysed(launch, bytes_moved)
        return self.known[key]

    def _analysed(self, launch: KernelLaunch, bytes_moved: float) -> KernelAnalysis:
        text = self.kernels.ptx[launch.kernel]
        found = self.kept.analysis(text, launch)
        through_l2 = l2_sectors(found, self.gpu) * found.blocks * SECTOR_BYTES
        is_much = through_l2 > max(_MUCH_MORE * bytes_moved, _LARGE_BYTES)
        is_loaded_again = is_much and not found.loop_sectors and not found.barriers
        return self.kept.analysis(text, launch, neighbours=True) if is_loaded_again else found


def _notes(analysis: KernelAnalysis) -> tuple[str, ...]:
    found: list[str] = []
    if analysis.unknown_loops:
        found.append(
            f"kernel {analysis.name}: {analysis.unknown_loops} loops end where data says, and are "
            "counted as going round once"
        )
    if analysis.data_addresses:
        found.append(
            f"kernel {analysis.name}: {analysis.data_addresses} accesses go where data says, and "
            "are taken to be scattered"
        )
    return tuple(found)


def kernel_pricer(
    device: Device, kernels: CompiledKernels | None, *, kept: KeptAnalyses = _NOT_KEPT
) -> ReadKernels | None:
    """Return the pricer of a device; None where its inside is not described.

    >>> from hespas.hardware.presets import load_device
    >>> kernel_pricer(load_device("TPUv3"), None) is None
    True
    """
    if device.microarchitecture is None:
        return None
    gpu = load_microarchitecture(device)
    return ReadKernels(device=device, gpu=gpu, kernels=kernels or _NO_KERNELS, kept=kept)
