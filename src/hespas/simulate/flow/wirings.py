"""The wiring of any network."""

from __future__ import annotations

from typing import assert_never

from hespas.hardware.interconnect import Dimensions, Dragonfly, Graph, Interconnect
from hespas.simulate.flow.dimension_wiring import DimensionWiring
from hespas.simulate.flow.graph_wiring import dragonfly_wiring, graph_wiring
from hespas.simulate.flow.ways import Wiring


def make_wiring(interconnect: Interconnect) -> Wiring:
    """Return the links of a network by number."""
    match interconnect.fabric:
        case Dimensions():
            return DimensionWiring(interconnect.fabric)
        case Dragonfly():
            return dragonfly_wiring(interconnect.fabric)
        case Graph():
            return graph_wiring(interconnect.fabric)
        case _:
            assert_never(interconnect.fabric)
