from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from hespas.collectives.patterns import Along, Form, Pattern
from hespas.hardware.interconnect import Dimension, Dimensions, Interconnect, Shape
from hespas.hardware.links import LinkParameters
from hespas.simulate.flow.algorithms import Pricer
from hespas.simulate.flow.groups import GroupLayout
from hespas.simulate.flow.topology import make_topology

SHAPES = (Shape.SWITCH, Shape.RING, Shape.LINE, Shape.FULLY_CONNECTED, Shape.FAT_TREE)


def dimension(shape: Shape, size: int, bandwidth: float) -> Dimension:
    is_tree = shape is Shape.FAT_TREE
    return Dimension(
        shape=shape,
        size=size,
        parameters=LinkParameters(bandwidth_bytes_per_s=bandwidth, latency_s=1e-6),
        leaf_size=2 if is_tree else None,
        oversubscription=2.0 if is_tree else 1.0,
    )


def patterns(group: GroupLayout) -> list[Pattern]:
    trees = [Pattern(Form.BOTH_TREES, line=line) for line in (*group.lines, Along.RAILS)]
    shifts = [Pattern(Form.SHIFT, 1, last, line) for line in group.lines for last in (1, 2)]
    loops = [Pattern(Form.NEIGHBOURS, line=line) for line in (Along.LOOP, Along.EVERY_AXIS)]
    return [
        *trees,
        *shifts,
        Pattern(Form.SHIFT, 1, 1, Along.RAILS),
        *(loops if group.axes else []),
        *[Pattern(Form.NEIGHBOURS, line=axis) for axis in group.axes],
    ]


@pytest.mark.parametrize(("near", "far"), [*product(SHAPES, SHAPES)])
def test_one_line_of_a_pattern_has_the_price_of_all(near: Shape, far: Shape) -> None:
    dimensions = (dimension(near, 4, 8e9), dimension(far, 6, 1e9))
    network = Interconnect(name="network", fabric=Dimensions(dimensions=dimensions))
    topology = make_topology(network)
    # With another network's prices beside it, a pricer routes every message.
    one_line, every = (
        Pricer(network, topology),
        Pricer(network, topology, Pricer(network, topology)),
    )
    members = np.array([4 * there + here for there in range(6) for here in (0, 1, 3)])
    group = GroupLayout(number=0, members=members, dimensions=dimensions)

    for pattern in patterns(group):
        assert one_line.message(group, pattern, 1000) == every.message(group, pattern, 1000)
        assert one_line.hop(group, pattern) == every.hop(group, pattern)
