"""Slices of TPUs: the network between their chips, and between several slices.

The chips of a slice are a torus or a mesh, whose axes close to rings where the slice is large
enough; each link joins two neighbours. Slices are joined by the network of the data centre, to
which every host has its cards. The figures are those of the part's ``node.json``, with their
sources; how collectives run is what libtpu writes beside them (``docs/evidence/tpus.md``).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hespas.base.figures import Count, NotNegative, Positive
from hespas.hardware.interconnect import Dimension, Dimensions, Interconnect, Shape
from hespas.hardware.links import LinkParameters

_MULTI_AXIS, _LOOP = "multi-axis-rings", "hamiltonian-ring"
_TOGETHER = 2


class Slice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``slice`` of a TPU's ``node.json``: the links of one device, in bytes/s and direction.

    An axis closes to a ring where its length is a multiple of ``closed_axis``, or (``cube``) all
    lengths are multiples of ``cube``. ``on_chip_bandwidth`` joins the devices of one chip, where it
    has several. ``dcn_bandwidth`` is a device's share of its host's cards, ``dcn_latency_s`` the
    time of a message between slices.
    """

    link_bandwidth: Positive
    link_latency_s: NotNegative
    closed_axis: Count | None = None
    cube: Count | None = None
    on_chip_bandwidth: Positive | None = None
    dcn_bandwidth: Positive
    dcn_latency_s: NotNegative

    def axis_shapes(self, sides: Sequence[int]) -> tuple[Shape, ...]:
        """Return which axes of a slice close to rings, by its chips along each.

        >>> part = Slice(
        ...     link_bandwidth=5e10, link_latency_s=1e-6, closed_axis=16, dcn_bandwidth=1e9,
        ...     dcn_latency_s=1e-5,
        ... )
        >>> [shape.value for shape in part.axis_shapes([8, 16])]
        ['line', 'ring']
        """
        is_of_cubes = self.cube is not None and all(side % self.cube == 0 for side in sides)
        return tuple(
            Shape.RING
            if is_of_cubes or (self.closed_axis is not None and side % self.closed_axis == 0)
            else Shape.LINE
            for side in sides
        )


def slice_network(
    part: Slice, sides: Sequence[int], *, name: str, on_chip: int = 1, slices: int = 1
) -> Interconnect:
    """Return the network of slices with so many chips along each axis.

    Devices are numbered along the devices of a chip, then the axes, then the slices.
    """
    link = LinkParameters(bandwidth_bytes_per_s=part.link_bandwidth, latency_s=part.link_latency_s)
    axes = [
        Dimension(shape=shape, size=side, parameters=link)
        for side, shape in zip(sides, part.axis_shapes(sides), strict=True)
        if side > 1
    ]
    chip = [
        Dimension(
            shape=Shape.FULLY_CONNECTED,
            size=on_chip,
            parameters=LinkParameters(
                bandwidth_bytes_per_s=part.on_chip_bandwidth or part.link_bandwidth,
                latency_s=part.link_latency_s,
            ),
        )
    ]
    between = [
        Dimension(
            shape=Shape.SWITCH,
            size=slices,
            parameters=LinkParameters(
                bandwidth_bytes_per_s=part.dcn_bandwidth, latency_s=part.dcn_latency_s
            ),
        )
    ]
    dimensions = [*(chip if on_chip > 1 else []), *axes, *(between if slices > 1 else [])]
    if not dimensions:
        dimensions = [Dimension(shape=Shape.RING, size=1, parameters=link)]
    # libtpu takes one loop through slices as narrow as two chips of a generation with two axes.
    is_narrow = len(sides) == _TOGETHER and min(sides) <= _TOGETHER
    return Interconnect(
        name=name,
        fabric=Dimensions(dimensions=tuple(dimensions)),
        algorithms={
            "all_reduce": (_LOOP if is_narrow else _MULTI_AXIS,),
            "all_gather": (_LOOP,),
            "reduce_scatter": (_LOOP,),
        },
    )
