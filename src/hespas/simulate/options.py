"""Name the network models and the collective algorithms of options."""

from __future__ import annotations

from enum import Enum

from hespas.base.suggest import suggestion
from hespas.errors import ConfigError

AUTO = "auto"
"""Each collective runs by the algorithm that is fastest on an idle network."""
SPECIFIED = "specified"
"""Each collective runs by the algorithm that the network specifies, else by the fastest one."""
HIERARCHICAL = "hierarchical"
"""The network's dimensions in turn, each by its fastest algorithm."""

MULTI_AXIS = "multi-axis-rings"
"""The data is divided among the axes of a torus; each part runs along the axes in turn."""
HAMILTONIAN = "hamiltonian-ring"
"""One ring from neighbour to neighbour through a torus or a mesh, in both directions."""

# Only the names, because importing all algorithms takes as long as all other options.
ALGORITHMS = (
    "bidirectional-ring", "binomial-tree", "direct", "dissemination", "double-binary-tree",
    "halving-doubling", "in-switch", "ring",
)  # fmt: skip
ON_AXES = (MULTI_AXIS, HAMILTONIAN)
"""The algorithms along the axes of a torus or a mesh."""
NETWORK_WIDE = (HIERARCHICAL, *ON_AXES)
"""The algorithms of a network rather than of a list of members."""
CHOICES = (SPECIFIED, AUTO, *ALGORITHMS, *NETWORK_WIDE)
_BY_SPELLING = {name.replace("-", ""): name for name in CHOICES} | {"told": SPECIFIED}


def choice_named(text: str) -> str | None:
    """Return the choice named in any spelling, or None.

    >>> choice_named("halvingDoubling"), choice_named("halving_doubling")
    ('halving-doubling', 'halving-doubling')
    """
    return _BY_SPELLING.get(text.replace("-", "").replace("_", "").lower())


def parse_choice(text: str) -> str:
    """Return the named choice; `ConfigError` if there is none."""
    choice = choice_named(text)
    if choice is None:
        raise ConfigError(f"the algorithm is {text!r}", hint=suggestion(text, CHOICES))
    return choice


class Model(Enum):
    """The network model, which times communication."""

    ASTRA_SIM = "astra-sim"
    HESPAS = "hespas"


class ContentionModel(Enum):
    """How messages share links."""

    CONGESTION_UNAWARE = "congestion-unaware"
    CONGESTION_AWARE = "congestion-aware"
