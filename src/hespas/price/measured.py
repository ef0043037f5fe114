"""``method: measured``: price each operation by the tables that fit it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from hespas.base.frozen import frozen
from hespas.base.units import format_time
from hespas.hardware.device import Device, table_of
from hespas.price.attention import AttentionModel, attention_fits, attention_model
from hespas.price.driver import estimate_region
from hespas.price.estimate import Bound, Estimate, Price, Timing, larger_of
from hespas.price.experts import ExpertsModel
from hespas.price.gemm import (
    GemmModel,
    Product,
    as_product,
    convolution_time,
    gemm_model,
    narrow_time,
)
from hespas.price.graph import no_power
from hespas.price.kernel import Kernel, Writer, kernel_of
from hespas.price.methods import EstimatorSpec
from hespas.price.ptx.kernels import KernelPricer, kernel_pricer
from hespas.price.roofline import Rates, Roofline, device_at
from hespas.price.tables import FORMAT, PartWire
from hespas.program.program import Program
from hespas.split.regions import Compute
from hespas.work.expand import Leaf
from hespas.work.gemm import TILE_ROWS, Gemm, GroupedGemm


@frozen
class Streaming:
    """Prices kernels that only move data by their bytes.

    A long one reaches a part of the memory bandwidth, measured on each part; every one takes a
    fixed time beside, measured as the shortest. Its arithmetic at the peak rates is a lower bound.
    So the time is ``overhead + max(bytes / (efficiency bandwidth), FLOPs / peak)``, which grows
    with all of its terms; the part of the bandwidth that is reached grows with the size.

    ``overhead_s`` is the fixed time of a kernel in a compiled program, where kernels are known.
    Elsewhere an operation is a part of some kernel, and has no overhead.
    """

    roofline: Roofline
    efficiency: float
    overhead_s: float
    factor: float = 1.0

    @staticmethod
    def of(about: PartWire, roofline: Roofline) -> Streaming:
        """Return the model of a device, from measurements of a part.

        The overhead is the device's ``launch_overhead_s`` where it has one, else the shortest time
        measured, of kernels replayed one behind another.
        """
        overhead_s = roofline.device.launch_overhead_s
        return Streaming(
            roofline=roofline,
            efficiency=about.streaming_efficiency,
            overhead_s=about.streaming_latency_s if overhead_s is None else overhead_s,
            factor=roofline.device.factor("kernels"),
        )

    @property
    def parameters(self) -> Mapping[str, object]:
        """The model's three figures."""
        return {
            "efficiency": self.efficiency,
            "overhead_s": self.overhead_s,
            "factor": self.factor,
        }

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions for every kernel."""
        share, beside = f"{100 * self.efficiency:.0f} %", format_time(self.overhead_s)
        streamed = (
            f"measured: kernels that are no products move their bytes at {share} of the memory "
            f"bandwidth, the part that long ones were measured to reach, and take {beside} beside "
            "if the program is compiled"
        )
        return (streamed,)

    def moving_s(self, size_bytes: float) -> float:
        """Return the time in which a long kernel moves bytes."""
        at_peak_s = size_bytes / self.roofline.device.memory_bandwidth_bytes_per_s
        return max(1.0, self.factor / self.efficiency) * at_peak_s

    def price(self, leaf: Leaf, *, is_kernel: bool) -> Timing:
        """Return the time of an operation that is no product."""
        peak = self.roofline.at_peaks(leaf.op.name, leaf.work)
        overhead_s = self.overhead_s if is_kernel else 0.0
        moving_s = self.moving_s(leaf.work.bytes_moved)
        busy_s = max(moving_s, peak.compute_time_at_peak_s)
        bound = larger_of(busy_s, compute_s=peak.compute_time_at_peak_s, memory_s=moving_s)
        return Timing(time_s=overhead_s + busy_s, bound=bound + Bound(launch_s=overhead_s))


_MEMORY_LATENCY_S = 0.27e-6
"""478.8 cycles of an H100 at 1.755 GHz. Source: W. Luo et al., Benchmarking and Dissecting the
Nvidia Hopper GPU Architecture via Microbenchmarking, arXiv 2402.13499, table of latencies."""
_RECURRENCE = (
    "a loop that carries states along a sequence is one kernel: each state has a multiprocessor, "
    "at its part of the peak, which waits for memory once a turn"
)
_LARGE = 8192
_OF_PRODUCTS = frozenset({"bf16", "f8", "tf32"})
_TRITON = (
    "products in kernels of Triton run at the rate of a large one in the tables, "
    f"{_LARGE} x {_LARGE} x {_LARGE}"
)
_AT_PEAK = "{} is priced at the peak rate of its arithmetic: no table has what its library reaches"
_LIKELY = (
    "no tables are of {device}: it is taken to reach as much of its peaks, by size of "
    "product, as {part} does, the measured part with the nearest memory bandwidth; steps on eight "
    "measured GPUs come out 28 % shorter to 9 % longer when the tables of another generation take "
    "the place of their own; method roofline gives the bound at the peak rates"
)
"""The error is from ``validation/own_hardware.py``."""
_GROUPED = (
    "products of groups of rows take as long as one of all rows, those of each group filled up to "
    f"tiles of {TILE_ROWS}, or as products of equal groups where rows are summed over"
)


@frozen
class Measured:
    """Prices regions by tables.

    Matrix products go to ``gemm``, fused attention to ``attention``, and everything else to
    ``kernels``, or to ``streaming`` where that is None or doesn't know a kernel. Each of them
    applies the device's calibration.

    ``clock`` is the device's clock, as a part of its boost clock; None where each table keeps the
    clock at which it was measured. Products of experts go to ``experts`` in programs that engines
    serve.
    """

    method: str = "measured"
    gemm: GemmModel
    attention: AttentionModel
    streaming: Streaming
    kernels: KernelPricer | None = None
    clock: float | None = None
    experts: ExpertsModel | None = None

    def at_rates(self, rates: Rates) -> Measured:
        """Return the estimator of the device with scaled rates.

        Tables are scaled as for a device without tables: by peak rates and memory bandwidth.
        """
        streaming = self.streaming
        return replace(
            self,
            gemm=self.gemm.at_rates(rates),
            attention=replace(self.attention, device=device_at(self.attention.device, rates)),
            streaming=replace(
                streaming,
                roofline=streaming.roofline.at_rates(rates),
                overhead_s=streaming.overhead_s * rates.launch,
            ),
            kernels=None if self.kernels is None else self.kernels.at_rates(rates),
            experts=None if self.experts is None else self.experts.at_rates(rates),
        )

    @property
    def device(self) -> Device:
        """The device that it estimates for."""
        return self.gemm.device

    def at_clock(self, clock: float) -> Measured:
        """Return the estimator at a part of the boost clock.

        Raises `HardwareError` for a device whose power is not described.
        """
        device = self.device
        if device.power is None:
            raise no_power(device)
        clock_hz = clock * device.power.boost_clock_hz
        return replace(
            self,
            gemm=replace(self.gemm, clock=clock),
            attention=replace(self.attention, clock=clock),
            kernels=None if self.kernels is None else self.kernels.at_clock(clock_hz),
            clock=clock,
        )

    @property
    def parameters(self) -> Mapping[str, object]:
        """What decides the answer besides the operation."""
        device = self.device
        about = self.gemm.part.about
        return {
            **self.streaming.roofline.parameters,
            "tables": about.part,
            "tables_format": FORMAT,
            "tables_version": about.version,
            "attention": msgspec.to_builtins(attention_fits(about.part), str_keys=True),
            "factors": {} if device.measured is None else dict(device.measured.factors),
            "reached": {} if device.measured is None else dict(device.measured.reached),
            "streaming": dict(self.streaming.parameters),
            "kernels": None if self.kernels is None else dict(self.kernels.parameters),
            "clock": self.clock,
            "is_served": self.experts is not None,
        }

    def assumptions(self, program: Program) -> tuple[str, ...]:
        """Return the assumptions for every region, compiled or not.

        Assumptions on operations other than products are in the operations' notes.
        """
        del program
        device, texts = self.device, [self._products_assumption]
        if device.measured is not None and device.measured.factors:
            factors = sorted(device.measured.factors.items())
            listed = ", ".join(f"{name} x {factor:g}" for name, factor in factors)
            texts.append(
                f"measured: times are multiplied as {device.name} was calibrated: {listed}"
            )
        if device.measured is not None and device.measured.reached:
            shares = sorted(device.measured.reached.items())
            listed = ", ".join(f"{share:.0%} ({name})" for name, share in shares)
            texts.append(
                f"measured: large products reach as much of the peaks of {device.name} as of those "
                f"of {device.measured.part}, times {listed}"
            )
        return tuple(texts)

    @property
    def _products_assumption(self) -> str:
        about = self.gemm.part.about
        products = (
            f"measured: matrix products take what tables say, measured on {about.measured_on} with "
            "operands that may have been in the cache"
        )
        if not about.alone_s:
            return f"{products} and in a CUDA graph, as the program runs"
        return (
            f"{products}, and {format_time(about.alone_s)} more each if the program is compiled, "
            "as they are launched one by one"
        )

    def estimate(self, region: Compute, program: Program) -> Estimate:
        """Add up the region's operations; raise `CostError` for unknown work."""
        return estimate_region(
            self, region, program, custom_calls=self.streaming.roofline.custom_calls
        )

    def price(self, leaf: Leaf, *, is_kernel: bool) -> Price:
        """Price one operation; a kernel's launch is included."""
        timing = self.time(leaf, is_kernel=is_kernel)
        device = self.device
        if device.measured is None:
            part = self.gemm.part.about.measured_on
            likely = _LIKELY.format(device=device.name, part=part)
            timing = replace(timing, notes=(likely, *timing.notes))
        return self.streaming.roofline.price_timed(leaf, timing)

    def time(self, leaf: Leaf, *, is_kernel: bool) -> Timing:
        """Return the time of one operation, with its assumptions."""
        kernel = kernel_of(leaf.op)
        if kernel.rounds:
            return self._recurrence(leaf, kernel)
        if kernel.multiplies:
            is_alone = is_kernel and not (kernel.grouped and self.experts)
            return self._library_time(leaf, self._products_of(leaf, kernel), is_alone=is_alone)
        if is_kernel and self.kernels is not None:
            moving, assumed = self.kernels.price(leaf), self.kernels.assumptions
        else:
            moving = self.streaming.price(leaf, is_kernel=is_kernel)
            assumed = self.streaming.assumptions if moving.time_s else ()
        moving = replace(moving, notes=(*moving.notes, *assumed))
        if kernel.writer is Writer.TRITON:
            return self._with_products(leaf, moving)
        if is_kernel and self.kernels is not None and kernel.writer is not Writer.COMPILER:
            return self._with_arithmetic(leaf, moving)
        return moving

    def _recurrence(self, leaf: Leaf, kernel: Kernel) -> Timing:
        """Return the time of a kernel whose blocks go through dependent rounds.

        Blocks that are fewer than multiprocessors leave the others idle; each round waits for
        memory once.
        """
        moving = self.streaming.price(leaf, is_kernel=True)
        share = 1.0
        if self.kernels is not None:
            share = min(1.0, kernel.blocks / self.kernels.gpu.multiprocessors)
        peak = self.streaming.roofline.at_peaks(leaf.op.name, leaf.work)
        overhead_s, compute_s = moving.bound.launch_s, peak.compute_time_at_peak_s / share
        waiting_s = kernel.rounds * _MEMORY_LATENCY_S
        busy_s = max(moving.time_s - overhead_s, compute_s)
        bound = larger_of(busy_s, compute_s=compute_s, memory_s=moving.time_s - overhead_s)
        return Timing(
            time_s=overhead_s + busy_s + waiting_s,
            notes=(_RECURRENCE,),
            bound=bound + Bound(launch_s=overhead_s, memory_s=waiting_s),
        )

    def _products_of(self, leaf: Leaf, kernel: Kernel) -> Timing:
        timings = [self.attention.price(attention) for attention in kernel.attentions]
        timings.extend(map(self._gemm, kernel.products))
        timings.extend(map(self._grouped, kernel.grouped))
        if not kernel.products:
            for convolution in kernel.convolutions:
                product = as_product(convolution)
                timing = convolution_time(self.gemm, product, leaf.work.bytes_moved)
                timings.append(timing * (convolution.flops_per_product / 2))
        return sum(timings, Timing(time_s=0.0))

    def _gemm(self, gemm: Gemm) -> Timing:
        product = Product(type_name=gemm.multiplied, m=gemm.m, n=gemm.n, k=gemm.k, batch=gemm.batch)
        bits = gemm.lhs.element.bits, gemm.rhs.element.bits + gemm.scale_bits
        return narrow_time(self.gemm, product, bits) * (gemm.flops_per_product / 2)

    def _grouped(self, grouped: GroupedGemm) -> Timing:
        """Return the time of grouped products.

        Groups of rows are one product of all rows; where rows are summed over, they are a batch of
        equal groups.
        """
        served = None if self.experts is None else self.experts.price(grouped)
        if served is not None:
            return served
        groups = max(1, grouped.groups)
        divided = grouped.is_divided
        product = Product(
            type_name=grouped.multiplied,
            m=grouped.k if divided else grouped.rows,
            n=grouped.n,
            k=-(-sum(grouped.group_rows) // groups) if divided else grouped.k,
            batch=grouped.batch * (groups if divided else 1),
        )
        timing = narrow_time(self.gemm, product, grouped.operand_bits)
        timing *= grouped.flops_per_product / 2
        return replace(timing, notes=(*timing.notes, _GROUPED))

    def _library_time(self, leaf: Leaf, products: Timing, *, is_alone: bool) -> Timing:
        """Return a kernel's time, at least its bytes' time.

        Tables were measured kernel behind kernel in one graph, with the same operands; one that
        stands alone between others takes somewhat longer. Experts were measured in whole layers.
        """
        about = self.gemm.part.about
        uncached = max(0, leaf.work.bytes_moved - about.cache_bytes)
        moving_s = self.streaming.moving_s(uncached)
        bound = products.bound if products.time_s >= moving_s else Bound(memory_s=moving_s)
        alone_s = about.alone_s if is_alone else 0.0
        return Timing(
            time_s=max(products.time_s, moving_s) + alone_s,
            notes=(*products.notes, self._products_assumption),
            bound=bound + Bound(launch_s=alone_s),
        )

    def _with_arithmetic(self, leaf: Leaf, timing: Timing) -> Timing:
        """Return the time of a library's kernel, at least its arithmetic's."""
        peak = self.streaming.roofline.at_peaks(leaf.op.name, leaf.work)
        launch_s, compute_s = timing.bound.launch_s, peak.compute_time_at_peak_s
        if launch_s + compute_s <= timing.time_s:
            return timing
        return Timing(
            time_s=launch_s + compute_s,
            notes=(*timing.notes, _AT_PEAK.format(leaf.op.kind)),
            bound=Bound(compute_s=compute_s, launch_s=launch_s),
        )

    def _with_products(self, leaf: Leaf, timing: Timing) -> Timing:
        products = [(name, n) for name, n in leaf.work.flops if table_of(name) in _OF_PRODUCTS]
        busy_s = sum(flops / self._reached_rate(name) for name, flops in products)
        if busy_s <= timing.time_s:
            return timing
        notes = (*timing.notes, _TRITON)
        return Timing(time_s=busy_s, notes=notes, bound=Bound(compute_s=busy_s))

    def _reached_rate(self, type_name: str) -> float:
        large = Product(type_name=type_name, m=_LARGE, n=_LARGE, k=_LARGE)
        return large.flops / self.gemm.price(large).time_s


def make(spec: EstimatorSpec) -> Measured:
    """Return the estimator of the method ``measured``.

    Raises `ConfigError` without a device, `HardwareError` for a device that no tables serve.
    """
    device = spec.needed_device("measured")
    pricer = kernel_pricer(
        device,
        spec.kernels,
        directory=spec.kernels_directory,
        in_graphs=spec.in_graphs or spec.is_served,
    )
    return measured(spec, kernels=pricer)


def measured(spec: EstimatorSpec, *, kernels: KernelPricer | None) -> Measured:
    """Return the estimator with ``kernels`` for everything but products."""
    roofline = Roofline.of(spec, "measured")
    gemm = gemm_model(roofline.device, in_graphs=spec.in_graphs)
    return Measured(
        gemm=gemm,
        attention=attention_model(roofline.device),
        streaming=Streaming.of(gemm.part.about, roofline),
        kernels=kernels,
        experts=ExpertsModel(device=roofline.device, part=gemm.part) if spec.is_served else None,
    )
