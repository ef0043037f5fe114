"""Where estimates are kept, from the command line or else from the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hespas.errors import ConfigError
from hespas.estimate.cache import DiskStore, MemoryStore, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheWish:
    """What one source, the command line or a configuration, says of the cache.

    Raises `ConfigError` where it says two things of which one would have no effect.
    """

    source: str
    disabled: bool
    in_memory: bool
    directory: Path | None

    def __post_init__(self) -> None:
        said = {
            "disable_cache": self.disabled,
            "in_memory_only_cache": self.in_memory,
            "cache_dir": self.directory is not None,
        }
        named = [name for name, given in said.items() if given]
        if len(named) > 1:
            raise ConfigError(
                f"{named[1]} has no effect with {named[0]}", location=self.source, hint="drop one"
            )

    @property
    def says_something(self) -> bool:
        """Whether it decides anything."""
        return self.disabled or self.in_memory or self.directory is not None

    def store(self, beside: Path | None) -> Store | None:
        """Return the store: in ``beside``, the output, where nothing else is said.

        None is for no reuse at all.
        """
        if self.disabled:
            return None
        if self.directory is not None:
            return DiskStore(directory=self.directory)
        if self.in_memory or beside is None:
            return MemoryStore()
        return DiskStore(directory=beside / "cache")
