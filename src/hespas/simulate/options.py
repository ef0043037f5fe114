"""Name the network models and the collective algorithms of options."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

from hespas.base.fields import Group, Use, declare
from hespas.base.frozen import frozen
from hespas.base.suggest import suggestion
from hespas.errors import ConfigError, option

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


MESSAGES = Use(f" on this {option('backend')}")


@frozen
class AstraSettings:
    """Settings of ASTRA-sim, and of its model, beside the system; None is the default, 1."""

    GROUP: ClassVar[Group] = Group.NETWORK
    APPLIES_TO: ClassVar[tuple[Use, ...]] = (MESSAGES,)

    num_queues_per_dim: int | None = declare(
        help="Queues for chunks in each dimension of the network.", least=1, default_text="1"
    )
    rendezvous_protocol: bool = declare(
        help="Messages wait for a control message of their receiver.", default=False
    )
    injection_scale: float | None = declare(
        help="Multiply the system's endpoint delay.",
        unit="",
        least=0,
        metavar="FACTOR",
        default_text="1",
    )

    @property
    def queues(self) -> int:
        """The queues in each dimension."""
        return 1 if self.num_queues_per_dim is None else self.num_queues_per_dim

    @property
    def scale(self) -> float:
        """The factor of the endpoint delay."""
        return 1.0 if self.injection_scale is None else self.injection_scale


USUAL = AstraSettings()
