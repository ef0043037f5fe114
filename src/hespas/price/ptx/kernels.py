"""Price the kernels of a compiled program by reading their PTX."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from math import prod
from pathlib import Path

import msgspec

from hespas.base.cache import ContentCache, code_digest, made_once
from hespas.base.frozen import frozen
from hespas.base.version import __version__
from hespas.errors import ProgramError
from hespas.hardware.device import Device
from hespas.hardware.microarchitecture import (
    Microarchitecture,
    launching_in_graphs,
    load_microarchitecture,
    microarchitecture_at,
)
from hespas.price.driver import estimate_region
from hespas.price.estimate import Bound, Estimate, Price, Timing
from hespas.price.kernel import COPY, kernel_of
from hespas.price.methods import EstimatorSpec
from hespas.price.ptx.categories import indexed_by, terms_by_category
from hespas.price.ptx.terms import (
    SECTOR_BYTES,
    KernelAnalysis,
    KernelTerms,
    added_terms,
    l2_sectors,
    terms_of,
)
from hespas.price.roofline import Rates, Roofline, device_at
from hespas.program.kernels import CompiledKernels, KernelLaunch, encode_kernels
from hespas.program.program import Program
from hespas.split.regions import Compute
from hespas.work.expand import Leaf


def kept_analysis(
    directory: Path | None, text: str, launch: KernelLaunch, *, neighbours: bool = False
) -> KernelAnalysis:
    """Return the analysis of a kernel, with ``neighbours``' sectors if asked for.

    It is kept in a file of the directory, if there is one and it can be written. Raises
    `ProgramError` as `hespas.price.ptx.reading.walk_middle` does.
    """

    def analysed() -> KernelAnalysis:
        # Walking needs numpy, whose import takes longer than all else if nothing is walked.
        from hespas.price.ptx.reading import (  # noqa: PLC0415
            analysis_of,
            walk_middle,
            with_neighbour,
        )

        walked = walk_middle(text, launch)
        analysis = analysis_of(walked, launch)
        return with_neighbour(analysis, walked, launch) if neighbours else analysis

    if directory is None:
        return analysed()
    files = ContentCache(
        directory=directory,
        suffix=".kernel",
        mark=b"hespas kernel 2\n",
        content_name="analyses of kernels",
        optional=True,
    )
    key = analysis_key(text, launch, neighbours=neighbours)
    return made_once(files, key, KernelAnalysis, analysed)


def analysis_key(text: str, launch: KernelLaunch, *, neighbours: bool = False) -> str:
    """Return the name of an analysis in its directory."""
    shape = (launch.grid, launch.block, launch.shared_memory_bytes, launch.integers)
    reader = (__version__, code_digest("price/ptx"))
    return sha256(msgspec.msgpack.encode((*reader, text, shape, neighbours))).hexdigest()


_SMALL_BLOCK_BYTES = 16 * 1024
"""The bytes that a multiprocessor moves through L1 in 256 cycles at 64 bytes a cycle."""

_MUCH_MORE, _LARGE_BYTES = 1.2, 4e6
"""Large kernels that load this many times what they need are checked for shared neighbours."""

_ANYWHERE = "kernel: what is gathered and scattered is taken to lie anywhere in its table"

_READ = (
    "kernels are read in the PTX that the compiler wrote, and their limits add as the root of "
    "their squares"
)
_BY_CATEGORY = "no kernel's PTX is known: each is priced by its category and its bytes"
_NO_KERNELS = CompiledKernels(launches=(), ptx={})


@frozen
class Reading:
    """A kernel's terms and analysis; the analysis is None without PTX.

    ``category`` is the kernel's category. ``floor_s`` is the time of its bytes at the peak
    bandwidth.
    """

    terms: KernelTerms
    category: str
    floor_s: float
    analysis: KernelAnalysis | None
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class KernelPricer:
    """Prices non-product kernels by their PTX, or else by category."""

    device: Device
    gpu: Microarchitecture
    kernels: CompiledKernels
    tensor_flops_per_cycle: Mapping[str, float] = field(compare=False, repr=False)
    directory: Path | None = field(default=None, compare=False, repr=False)
    analyses: dict[tuple[object, ...], KernelAnalysis] = field(
        default_factory=dict[tuple[object, ...], KernelAnalysis], compare=False, repr=False
    )

    @property
    def parameters(self) -> Mapping[str, object]:
        """The device's figures, and a fingerprint of all kernels' texts and launches."""
        figures = msgspec.structs.asdict(self.gpu)
        del figures["sources"]
        return {
            **figures,
            "memory_bandwidth": self.device.memory_bandwidth_bytes_per_s,
            "factor": self.factor,
            "kernels": self._fingerprint,
        }

    @property
    def factor(self) -> float:
        """The calibration factor on the kernels' time beside their launch."""
        return self.device.factor("kernels")

    @cached_property
    def _fingerprint(self) -> str:
        return sha256(encode_kernels(self.kernels)).hexdigest()

    @cached_property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions for every kernel."""
        sources = self.gpu.sources.items()
        assumed = sorted(name for name, source in sources if source.startswith("assumed"))
        how = _READ if self.kernels.ptx else _BY_CATEGORY
        inside = f"assumed of the inside of {self.device.name}: {', '.join(assumed)}"
        return (f"kernel: {how}; {inside}",)

    @cached_property
    def _launches(self) -> Mapping[str, tuple[KernelLaunch, ...]]:
        return self.kernels.launches_of_instruction

    def at_rates(self, rates: Rates) -> KernelPricer:
        """Return the pricer of the device with scaled rates."""
        gpu = microarchitecture_at(self.gpu, arithmetic=rates.arithmetic, launch=rates.launch)
        tensor = {
            datatype: flops * rates.arithmetic
            for datatype, flops in self.tensor_flops_per_cycle.items()
        }
        device = device_at(self.device, rates)
        return replace(self, device=device, gpu=gpu, tensor_flops_per_cycle=tensor)

    def at_clock(self, clock_hz: float) -> KernelPricer:
        """Return the pricer of the device at another clock."""
        return replace(self, gpu=msgspec.structs.replace(self.gpu, clock_hz=clock_hz))

    def price(self, leaf: Leaf) -> Timing:
        """Return the time of a kernel, its launch included."""
        reading = self.read(leaf)
        time_s, launch_s = self.time_s(reading), reading.terms.launch_s
        bound = reading.terms.bound(time_s - launch_s) + Bound(launch_s=launch_s)
        return Timing(time_s=time_s, notes=reading.notes, bound=bound)

    def time_s(self, reading: Reading) -> float:
        """Return the time of a reading's kernel, as the device is calibrated.

        No calibration makes it faster than its bytes at the peak bandwidth.
        """
        launch_s = reading.terms.launch_s
        busy_s = reading.terms.time_s - launch_s
        return max(self.factor * busy_s, min(busy_s, reading.floor_s)) + launch_s

    def bytes_moved(self, leaf: Leaf) -> float:
        """Return the bytes of device memory that a kernel moves."""
        return leaf.work.bytes_moved + indexed_by(kernel_of(leaf.op), self.gpu).memory_bytes

    def read(self, leaf: Leaf) -> Reading:
        """Read the kernel of an operation, or all that it launches.

        Of several configurations the fastest counts: the runtime times them before it launches one.
        """
        instruction, moved_bytes = leaf.op.instruction, self.bytes_moved(leaf)
        launches = self._launches.get(instruction, ()) if instruction else ()
        if len(launches) <= 1:
            return self._read(leaf, moved_bytes, launches[0] if launches else None)
        if len({launch.configuration for launch in launches}) == len(launches):
            readings = [self._read(leaf, moved_bytes, launch) for launch in launches]
            return min(readings, key=self.time_s)
        times = Counter((launch.kernel, launch.grid, launch.block) for launch in launches)
        first = {(launch.kernel, launch.grid, launch.block): launch for launch in launches}
        return _combine_readings(
            [(self._read(leaf, moved_bytes, first[key]), times[key]) for key in times]
        )

    def _read(self, leaf: Leaf, moved: float, launch: KernelLaunch | None) -> Reading:
        has_ptx = launch is not None and launch.kernel in self.kernels.ptx
        if launch is None or not has_ptx or self._is_small(launch, moved):
            return self._by_category(leaf, moved, launch)
        try:
            analysis = self._analysis(launch, moved)
        except ProgramError as error:
            note = f"priced by its category, for it can't be read: {error}"
            return self._by_category(leaf, moved, launch, note)
        bandwidth = self.device.memory_bandwidth_bytes_per_s
        return Reading(
            terms=terms_of(
                analysis,
                self.gpu,
                bytes_moved=moved,
                memory_bandwidth_bytes_per_s=bandwidth,
                tensor_flops_per_cycle=self.tensor_flops_per_cycle,
            ),
            category=kernel_of(leaf.op).category,
            floor_s=moved / bandwidth,
            analysis=analysis,
            notes=_notes(analysis),
        )

    def _by_category(
        self, leaf: Leaf, moved: float, launch: KernelLaunch | None, *notes: str
    ) -> Reading:
        kernel, bandwidth = kernel_of(leaf.op), self.device.memory_bandwidth_bytes_per_s
        # All kernels of a compiled program are launched: the runtime copies what has no launch.
        is_copy = launch is None and bool(self._launches) and kernel.only_moves
        category = COPY if is_copy else kernel.category
        terms = terms_by_category(
            kernel,
            self.gpu,
            category=category,
            launch=launch,
            bytes_moved=moved,
            memory_bandwidth_bytes_per_s=bandwidth,
        )
        kernels, passes = (1, 1) if launch is not None else kernel.launches
        if kernels > 1:
            terms = replace(added_terms([(terms, passes)]), launch_s=self.gpu.launch_s * kernels)
        kernel_notes = [f"kernel {leaf.op.instruction}: {note}" for note in notes]
        if moved > leaf.work.bytes_moved:
            kernel_notes.append(_ANYWHERE)
        return Reading(
            terms=terms,
            category=category,
            floor_s=moved / bandwidth * passes,
            analysis=None,
            notes=tuple(kernel_notes),
        )

    def _is_small(self, launch: KernelLaunch, bytes_moved: float) -> bool:
        """Return whether a kernel ends before its launch does."""
        blocks = prod(launch.grid)
        return blocks <= self.gpu.multiprocessors and bytes_moved <= blocks * _SMALL_BLOCK_BYTES

    def _analysis(self, launch: KernelLaunch, bytes_moved: float) -> KernelAnalysis:
        key = (
            launch.kernel,
            launch.grid,
            launch.block,
            launch.shared_memory_bytes,
            launch.integers,
        )
        if key in self.analyses:
            return self.analyses[key]
        text = self.kernels.ptx[launch.kernel]
        analysis = kept_analysis(self.directory, text, launch)
        through_l2 = l2_sectors(analysis, self.gpu) * analysis.blocks * SECTOR_BYTES
        is_much = through_l2 > max(_MUCH_MORE * bytes_moved, _LARGE_BYTES)
        if is_much and not analysis.loop_sectors and not analysis.barriers:
            analysis = kept_analysis(self.directory, text, launch, neighbours=True)
        self.analyses[key] = analysis
        return analysis


def _combine_readings(readings: Sequence[tuple[Reading, int]]) -> Reading:
    """Combine the readings of kernels that one operation launches in sequence.

    Each passes over all of its data, as the stages of a sort do.
    """
    longest = max(readings, key=lambda each: each[0].terms.time_s * each[1])[0]
    return Reading(
        terms=added_terms([(reading.terms, count) for reading, count in readings]),
        category=longest.category,
        floor_s=sum(reading.floor_s * count for reading, count in readings),
        analysis=longest.analysis,
        notes=tuple(dict.fromkeys(note for reading, _ in readings for note in reading.notes)),
    )


def _notes(analysis: KernelAnalysis) -> tuple[str, ...]:
    assumed = {
        "datatypes of products take tensor cores as others take pipes, uncounted in FLOPs": len(
            analysis.products
        ),
        "loops end where data says, and are counted as going round once": analysis.unknown_loops,
        "accesses go where data says, and are taken to be scattered": analysis.data_addresses,
    }
    return tuple(
        f"kernel {analysis.name}: {count} {assumption}"
        for assumption, count in assumed.items()
        if count
    )


def kernel_pricer(
    device: Device,
    kernels: CompiledKernels | None,
    *,
    directory: Path | None = None,
    in_graphs: bool = False,
) -> KernelPricer | None:
    """Return a device's pricer; None without its microarchitecture.

    ``in_graphs`` says that CUDA graphs launch the kernels. Their analyses are kept in a
    ``directory``.

    >>> from hespas.hardware.presets import load_device
    >>> kernel_pricer(load_device("TPUv3"), None) is None
    True
    """
    if device.microarchitecture is None:
        return None
    return _pricer(device, kernels, directory=directory, in_graphs=in_graphs)


def _pricer(
    device: Device, kernels: CompiledKernels | None, *, directory: Path | None, in_graphs: bool
) -> KernelPricer:
    gpu = load_microarchitecture(device)
    cycles_per_s = gpu.multiprocessors * gpu.clock_hz
    return KernelPricer(
        device=device,
        gpu=launching_in_graphs(gpu) if in_graphs else gpu,
        kernels=kernels or _NO_KERNELS,
        tensor_flops_per_cycle={
            name: flops / cycles_per_s for name, flops in device.per_datatype_flops.items()
        },
        directory=directory,
    )


_LIBRARY = "kernel: libraries' kernels have no PTX here, and are priced by the roofline"
_UNCOMPILED = (
    "kernel: the program is not compiled: every operation is priced as a kernel of its own, "
    "without its launch"
)


@frozen
class KernelEstimator:
    """Prices regions by reading their kernels."""

    method: str = "kernel"
    kernels: KernelPricer
    roofline: Roofline

    @property
    def parameters(self) -> Mapping[str, object]:
        """The parameters of the kernel pricer and of the roofline."""
        return {"kernels": dict(self.kernels.parameters), **self.roofline.parameters}

    def at_rates(self, rates: Rates) -> KernelEstimator:
        """Return the estimator of the device with scaled rates."""
        kernels, roofline = self.kernels.at_rates(rates), self.roofline.at_rates(rates)
        return replace(self, kernels=kernels, roofline=roofline)

    def assumptions(self, program: Program) -> tuple[str, ...]:
        """Return the assumptions for every region, compiled or not."""
        del program
        return (*self.kernels.assumptions, _LIBRARY)

    def estimate(self, region: Compute, program: Program) -> Estimate:
        """Add up the region's operations; raise `CostError` for unknown work."""
        total = estimate_region(self, region, program, custom_calls=self.roofline.custom_calls)
        return total if program.is_scheduled else total + Estimate(notes=(_UNCOMPILED,))

    def price(self, leaf: Leaf, *, is_kernel: bool) -> Price:
        """Price one operation; a kernel's launch is included."""
        return self.roofline.price_timed(leaf, self._time(leaf, is_kernel=is_kernel))

    def _time(self, leaf: Leaf, *, is_kernel: bool) -> Timing:
        """Return the time of an operation, at least its arithmetic's at peak."""
        peak = self.roofline.at_peaks(leaf.op.name, leaf.work)
        if leaf.op.traits.is_of_library:
            launch_s = self.kernels.gpu.launch_s if is_kernel else 0.0
            bound = peak.bound + Bound(launch_s=launch_s)
            return Timing(time_s=peak.time_s + launch_s, bound=bound)
        reading = self.kernels.read(leaf)
        launch_s = reading.terms.launch_s if is_kernel else 0.0
        products_s = sum(
            totals.time_at_peak_s
            for name, totals in peak.per_type.items()
            if name in self.roofline.device.per_datatype_flops
        )
        kernel_s = self.kernels.time_s(reading) - (reading.terms.launch_s - launch_s)
        if kernel_s < products_s:
            bound = Bound(compute_s=products_s)
            return Timing(time_s=products_s, notes=reading.notes, bound=bound)
        bound = reading.terms.bound(kernel_s - launch_s) + Bound(launch_s=launch_s)
        return Timing(time_s=kernel_s, notes=reading.notes, bound=bound)


def make(spec: EstimatorSpec) -> KernelEstimator:
    """Return the estimator of the method ``kernel``.

    Raises `ConfigError` without a device, `HardwareError` without a described microarchitecture.
    """
    roofline = Roofline.of(spec, "kernel")
    kernels = _pricer(
        roofline.device,
        spec.kernels,
        directory=spec.kernels_directory,
        in_graphs=spec.in_graphs,
    )
    return KernelEstimator(kernels=kernels, roofline=roofline)
