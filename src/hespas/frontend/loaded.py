"""What a frontend returns: the program of one device, or why a sharded source has none yet."""

from __future__ import annotations

from dataclasses import dataclass

from hespas.errors import UnpartitionedError
from hespas.frontend.overrides import UsedOverrides
from hespas.program.program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The program of one device, and which of the user's overrides had an effect on it.

    An override is a trip count or a branch weight of `hespas.frontend.overrides.LoadOptions`. Those
    that are not in ``used`` changed nothing, so that a caller can refuse them without reading the
    program again. ``undivided`` is the program of all devices, where the source held that.
    """

    program: Program
    used: UsedOverrides
    undivided: Program | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpartitioned:
    """A sharded source that does not hold the program of one device yet, and why.

    ``undivided`` is the program of all devices, where it was read.
    """

    message: str
    location: str
    hint: str
    undivided: Program | None = None

    def error(self) -> UnpartitionedError:
        """Return the error for a caller that cannot partition."""
        return UnpartitionedError(self.message, location=self.location, hint=self.hint)
