"""Price matrix products from measured tables of this or another part.

A table holds times over m, n and k of one type on one part. For another type or device every cell
is scaled first, ``floor + (time - floor) * (roofline there / roofline here)``, where the floor is
the shortest time of the table: the time of a kernel beside its work stays as it is. Then cells are
made monotone, so that no size grows without the time growing.

A product takes the same time, within 1 to 3 % (the median of the tables), when m and n are
exchanged, so the smaller of the two is looked up as m, which has the finer grid.

A library's convolution multiplies as much as a matrix product with the unfolded image, but reads
the image once: its window finds neighbours in the cache. So it is assumed to reach the same part of
its own roofline as that product reaches of its roofline,

    time = table(product) x roofline(convolution) / roofline(product)

where both rooflines have the same arithmetic, and the bytes are those of image, kernel and result,
or of the three matrices. A product that is limited by its arithmetic is not scaled at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace
from functools import lru_cache
from itertools import product as combinations
from math import ceil, exp, log, prod

import msgspec

from hespas.base.frozen import frozen
from hespas.errors import HardwareError, MeasurementError, option
from hespas.hardware.device import Device, factor_of, table_of
from hespas.hardware.power import clock_in_loop
from hespas.price.estimate import Bound, Timing, larger_of
from hespas.price.roofline import Rates, device_at
from hespas.price.tables import Axis, Grid, Part, completed, load_part, monotone, part_names, read
from hespas.program.types import PRODUCT_TYPES, NumberKind
from hespas.work.convolution import Convolution, Direction

_BYTES = {"bf16": 2.0, "f4": 0.5, "f8": 1.0, "tf32": 4.0}
_SCALED_FROM = {"f4": ("f4", "f8"), "f8": ("f8",)}
"""Tables that serve types other than bf16, nearest first; bf16 serves the rest."""
_RATED_AS = {"f4": "f4E2M1FN", "f8": "f8E4M3FN"}


@frozen
class Product:
    """``batch`` products of matrices, m x k by k x n."""

    type_name: str
    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def flops(self) -> int:
        """A multiplication and an addition for every m, n and k."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def elements(self) -> int:
        """Elements of the three matrices."""
        return self.batch * (self.m * self.k + self.n * self.k + self.m * self.n)


@frozen
class GemmModel:
    """Times of matrix products on a device.

    >>> from hespas.hardware.presets import load_device
    >>> model = gemm_model(load_device("H100_80GB"))
    >>> round(model.price(Product(type_name="bf16", m=4096, n=4096, k=4096)).time_s * 1e6)
    175
    """

    device: Device
    part: Part
    grids: dict[str, Grid] = field(default_factory=dict[str, Grid], compare=False, repr=False)
    clock: float | None = None

    def price(self, product: Product) -> Timing:
        """Return the time of a product.

        A batch counts as more rows or columns, whichever shares the smaller matrix among its
        members. The time is never below that of the peak rate, nor that of the memory for the bytes
        that don't fit the cache. ``clock`` is the device's clock, as a part of its boost clock;
        None means the clocks at which the table was measured.
        """
        if not product.flops:
            return Timing(time_s=0.0)
        if self.device.per_datatype_flops and self.device.served_by(product.type_name) is None:
            floor_s, kind = self.floor_s(product), product.type_name
            note = f"no table serves products of {kind}: they take their peak rate's time"
            return Timing(time_s=floor_s, notes=(note,), bound=Bound(compute_s=floor_s))
        product = replace(product, type_name=self.device.multiplied_as(product.type_name))
        grid = self._grid(product.type_name)
        low, high = sorted(_fold_batch(product))
        reading = read(grid, (low, high, product.k))
        factor = self.device.factor(factor_of(product.type_name), "gemm")
        floor_s = self.floor_s(product)
        time_s = max(reading.time_s * factor, floor_s)
        # The first cell of a monotone table is the smallest.
        bound = self._bound(product, time_s, least_s=exp(grid.log_times[0]) * factor)
        notes = self._notes(product, reading.outside)
        timing = Timing(time_s=time_s, notes=notes, bound=bound)
        power = self.device.power
        if self.clock is None or power is None:
            return timing
        timing = timing.slowed(clock_in_loop(power, reading.time_s) / self.clock)
        return timing if timing.time_s >= floor_s else replace(timing, time_s=floor_s)

    def _bound(self, product: Product, time_s: float, *, least_s: float) -> Bound:
        launch_s = min(time_s, least_s)
        size = _bytes(product.type_name)
        busy = larger_of(
            time_s - launch_s,
            compute_s=product.flops / self.device.rate(product.type_name),
            memory_s=product.elements * size / self.device.memory_bandwidth_bytes_per_s,
        )
        return busy + Bound(launch_s=launch_s)

    def at_rates(self, rates: Rates) -> GemmModel:
        """Return the model of the device with scaled rates.

        ``rates.launch`` scales ``alone_s``, the launch of a product that is launched by itself. The
        grids are shared if only launches change.
        """
        grids = self.grids if rates.is_of_launches_alone else {}
        device = device_at(self.device, rates)
        return replace(self, device=device, grids=grids).launched(rates.launch)

    def launched(self, factor: float) -> GemmModel:
        """Return the model with ``factor`` times the launch of single products."""
        alone_s = self.part.about.alone_s * factor
        about = msgspec.structs.replace(self.part.about, alone_s=alone_s)
        return replace(self, part=replace(self.part, about=about))

    def floor_s(self, product: Product) -> float:
        """Return a product's least time, by peak rate and memory."""
        rate, size = self.device.rate(product.type_name), _bytes(product.type_name)
        uncached = max(0.0, product.elements * size - self.part.about.cache_bytes)
        return max(product.flops / rate, uncached / self.device.memory_bandwidth_bytes_per_s)

    def _grid(self, type_name: str) -> Grid:
        if type_name not in self.grids:
            self.grids[type_name] = self._build_grid(type_name)
        return self.grids[type_name]

    def _base_table(self, type_name: str) -> str:
        tables = _SCALED_FROM.get(table_of(type_name), ())
        return next((table for table in tables if f"gemm.{table}" in self.part.tables), "bf16")

    def _build_grid(self, type_name: str) -> Grid:
        base, device = self._base_table(type_name), self.device
        measured_rates = self._rates_of_part(base)
        device_rates = _Rates(
            flops=device.scaled_rate(type_name),
            memory=device.memory_bandwidth_bytes_per_s,
            size=_bytes(type_name),
        )
        grid = completed(self.part.tables[f"gemm.{base}"].grid)
        scaled = _scale_grid(grid, measured_rates, device_rates)
        if type_name == "tf32" and "gemm.tf32" in self.part.tables:
            as_bf16 = monotone(_scale_grid(grid, measured_rates, self._rates_of_part("tf32")))
            scaled = _correct_grid(scaled, as_bf16, completed(self.part.tables["gemm.tf32"].grid))
        return monotone(scaled)

    def _rates_of_part(self, table: str) -> _Rates:
        about = self.part.about
        return _Rates(
            flops=about.peak_flops[table], memory=about.memory_bandwidth, size=_BYTES[table]
        )

    def _notes(self, product: Product, outside: tuple[str, ...]) -> tuple[str, ...]:
        about, name = self.part.about, product.type_name
        base = self._base_table(name)
        is_float = PRODUCT_TYPES[name].kind is NumberKind.FLOAT
        if f"gemm.{name}" in self.part.tables or (is_float and base == table_of(name) != "bf16"):
            notes = [f"products of {name} from tables measured on {about.measured_on}"]
        else:
            scaled = f"products of {name} are scaled by peak rates from tables of {base} measured"
            notes = [f"{scaled} on {about.measured_on}"]
        if self.device.measured is not None and self._is_transferred(base):
            notes.append(
                f"{self.device.name} has no tables: those of {about.part} are scaled by peak "
                "rates and memory bandwidth"
            )
        if outside:
            notes.append(
                f"products of {name} outside the measured sizes (in {', '.join(outside)}) take as "
                "long as the smallest, or are extrapolated at the rate of the largest"
            )
        return tuple(notes)

    def _is_transferred(self, base: str) -> bool:
        about = self.part.about
        same_memory = about.memory_bandwidth == self.device.memory_bandwidth_bytes_per_s
        return not same_memory or about.peak_flops[base] != self.device.rate(
            _RATED_AS.get(base, base)
        )


@frozen
class _Rates:
    """Peak FLOP/s, bytes/s, and bytes an element."""

    flops: float
    memory: float
    size: float


def gemm_model(device: Device, *, in_graphs: bool = False) -> GemmModel:
    """Return the model of a device. Raises as `part_of` does.

    ``in_graphs`` says that CUDA graphs launch products, as they did when tables were measured.
    """
    model = GemmModel(device=device, part=part_of(device))
    return model.launched(0.0) if in_graphs else model


def part_of(device: Device) -> Part:
    """Return the measured part whose tables serve a device.

    That is the part that its ``node.json`` names, or else the nearest in memory bandwidth, and
    among equals in the peak of bf16. Raises `HardwareError` for a TPU, `MeasurementError` for
    tables that are missing, damaged or of another version.

    >>> mine = Device(name="mine", peak_flops=900e12, memory_bandwidth_bytes_per_s=3.2e12)
    >>> part_of(mine).about.part
    'H100_SXM'
    """
    if device.measured is None:
        if device.clock_hz is not None:
            raise HardwareError(
                "no tables of measured kernels serve this device",
                location=device.name,
                hint=f"use {option('method')} roofline",
            )
        return nearest_part(device, map(load_part, part_names()))
    try:
        return load_part(device.measured.part)
    except MeasurementError as error:
        error.location = error.location or device.measured.location
        raise


def nearest_part(device: Device, parts: Iterable[Part]) -> Part:
    """Return the part nearest by memory bandwidth, then by peak of bf16."""

    def distance(part: Part) -> tuple[float, float]:
        about = part.about
        bandwidth = device.memory_bandwidth_bytes_per_s / about.memory_bandwidth
        return abs(log(bandwidth)), abs(log(device.rate("bf16") / about.peak_flops["bf16"]))

    return min(parts, key=distance)


def _bytes(type_name: str) -> float:
    return PRODUCT_TYPES[type_name].bits / 8


def _fold_batch(product: Product) -> tuple[int, int]:
    """Fold a batch into the rows or columns of one product."""
    if product.n <= product.m:
        return product.batch * product.m, product.n
    return product.m, product.batch * product.n


@lru_cache(maxsize=64)
def _scale_grid(grid: Grid, here: _Rates, there: _Rates) -> Grid:
    if here == there:
        return grid
    floor_s = exp(min(grid.log_times))
    before, after = _roofline_times_s(grid.axes, here), _roofline_times_s(grid.axes, there)
    times = [
        log(floor_s + (exp(time) - floor_s) * scaled / own)
        for time, own, scaled in zip(grid.log_times, before, after, strict=True)
    ]
    return replace(grid, log_times=tuple(times))


@lru_cache(maxsize=64)
def _roofline_times_s(axes: tuple[Axis, ...], rates: _Rates) -> tuple[float, ...]:
    """Return the time of each cell's product at some peak rates."""
    peak, size, memory = rates.flops, rates.size, rates.memory
    return tuple(
        [
            max(2 * m * n * k / peak, size * (m * k + n * k + m * n) / memory)
            for m, n, k in combinations(*(axis.sizes for axis in axes))
        ]
    )


def _correct_grid(grid: Grid, expected: Grid, measured: Grid) -> Grid:
    """Scale a grid by measured over expected times."""
    factors = _log_factors(grid.axes, expected, measured)
    times = [time + factor for time, factor in zip(grid.log_times, factors, strict=True)]
    return replace(grid, log_times=tuple(times))


@lru_cache(maxsize=64)
def _log_factors(axes: tuple[Axis, ...], expected: Grid, measured: Grid) -> tuple[float, ...]:
    """Return the logarithm of measured over expected times."""
    ratios = [
        time - log(read(expected, cell).time_s)
        for cell, time in zip(measured.cells(), measured.log_times, strict=True)
    ]
    ratio = replace(measured, log_times=tuple(ratios))
    rims = [(axis.sizes[0], axis.sizes[-1]) for axis in measured.axes]
    nearest = [
        [min(max(size, low), high) for size in axis.sizes]
        for axis, (low, high) in zip(axes, rims, strict=True)
    ]
    return tuple([log(read(ratio, cell).time_s) for cell in combinations(*nearest)])


_VECTOR_BITS = 128
CONVOLUTIONS = (
    "convolutions reach the part of their roofline that matrix products of their sizes were "
    "measured to reach of theirs"
)


def convolution_time(gemm: GemmModel, product: Product, bytes_moved: float) -> Timing:
    """Return the time of a convolution that is ``product`` but moves ``bytes_moved``.

    >>> from hespas.price.gemm import gemm_model
    >>> from hespas.hardware.presets import load_device
    >>> gemm = gemm_model(load_device("A100_SXM_40GB"))
    >>> unfolded = Product(type_name="f16", m=802816, n=64, k=576)
    >>> image_and_result = 2 * 2 * 802816 * 64
    >>> alone, convolved = gemm.price(unfolded), convolution_time(gemm, unfolded, image_and_result)
    >>> convolved.time_s < alone.time_s / 2
    True
    """
    timed = gemm.price(product)
    size = PRODUCT_TYPES[product.type_name].bits / 8
    whole_s = _roofline_s(gemm.device, product, product.elements * size)
    own_s = _roofline_s(gemm.device, product, bytes_moved)
    part = min(1.0, own_s / whole_s) if whole_s else 1.0
    return timed * part + Timing(time_s=0.0, notes=(CONVOLUTIONS,))


NARROW = (
    "products that read operands in fewer bits than they multiply reach the part of their roofline "
    "that products without such operands were measured to reach of theirs, beside the shortest time"
)


def narrow_time(gemm: GemmModel, product: Product, operand_bits: tuple[float, float]) -> Timing:
    """Return the time of a product whose operands are stored in ``operand_bits``.

    Where no unit multiplies the stored types, kernels widen the operands as they load them, as
    Marlin does. Operands as wide as the multiplied type, or wider, take the table's time.

    >>> from hespas.hardware.presets import load_device
    >>> gemm = gemm_model(load_device("H100_80GB"))
    >>> product = Product(type_name="bf16", m=16, n=8192, k=8192)
    >>> bf16, mixed = gemm.price(product), narrow_time(gemm, product, (16, 4))
    >>> 3 < bf16.time_s / mixed.time_s < 4
    True
    """
    timed, device = gemm.price(product), gemm.device
    multiplied = replace(product, type_name=device.multiplied_as(product.type_name))
    bits = PRODUCT_TYPES[multiplied.type_name].bits
    sides = (product.batch * product.m * product.k, product.batch * product.k * product.n)
    spared_bytes = sum(
        side * max(0, bits - operand_width) / 8
        for side, operand_width in zip(sides, operand_bits, strict=True)
    )
    if not spared_bytes:
        return timed
    moved_bytes = multiplied.elements * bits / 8
    part = _roofline_s(device, multiplied, moved_bytes - spared_bytes) / _roofline_s(
        device, multiplied, moved_bytes
    )
    if part == 1:
        return timed
    launch_s = timed.bound.launch_s
    at_launch = Timing(time_s=launch_s, bound=Bound(launch_s=launch_s), notes=(NARROW,))
    busy = replace(timed, time_s=timed.time_s - launch_s, bound=replace(timed.bound, launch_s=0.0))
    return busy * part + at_launch


def _roofline_s(device: Device, product: Product, bytes_moved: float) -> float:
    rate = device.rate(product.type_name)
    return max(product.flops / rate, bytes_moved / device.memory_bandwidth_bytes_per_s)


def as_product(convolution: Convolution) -> Product:
    """Return the matrix product that a convolution is, its image unfolded.

    Forward: places of the result x output features x (window x input features). A backward one
    exchanges the dimension that is summed over. Groups are a batch. Products with padding count,
    since a tile of the product has places at the rim beside others; those with the holes of a
    dilated image don't. Kernels for tensor cores read 16 bytes of input features at a time, so the
    features are rounded up to that, except in grouped convolutions, which have kernels of their
    own.
    """
    attrs = convolution.attrs
    groups = attrs.feature_group_count * attrs.batch_group_count
    output, image, kernel = convolution.result, convolution.image, convolution.kernel
    places = output.element_count // output.shape[attrs.output_feature]
    features_out = ceil(output.shape[attrs.output_feature] / groups)
    features_in = ceil(image.shape[attrs.input_feature] / groups)
    vector = 1 if groups > 1 else max(1, _VECTOR_BITS // PRODUCT_TYPES[convolution.multiplied].bits)
    padding = ceil(features_in / vector) * vector / features_in
    window = prod(kernel.shape[axis] for axis in attrs.kernel_spatial)
    match convolution.direction:
        case Direction.FORWARD:
            rows, columns = places, features_out
        case Direction.BACKWARD_INPUT:
            rows, columns = image.element_count // image.shape[attrs.input_feature], features_in
        case Direction.BACKWARD_FILTER:
            rows, columns = window * features_in, features_out
    multiplied = places * window * features_in * features_out
    if any(step > 1 for step in attrs.lhs_dilation):
        multiplied = convolution.products // groups
    summed = max(1, round(multiplied / (rows * columns)))
    match convolution.direction:
        case Direction.FORWARD:
            summed = round(summed * padding)
        case Direction.BACKWARD_INPUT:
            columns = round(columns * padding)
        case Direction.BACKWARD_FILTER:
            rows = round(rows * padding)
    return Product(type_name=convolution.multiplied, m=rows, n=columns, k=summed, batch=groups)
