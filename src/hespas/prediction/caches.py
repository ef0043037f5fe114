"""Where predictions keep what they make: prices, and exported and compiled programs."""

from __future__ import annotations

from pathlib import Path

from hespas.base.files import cache_home
from hespas.prediction.options import EstimateOptions
from hespas.price.cache import DiskStore, MemoryStore, Store
from hespas.split.modules import RegionModules

_WORTH_KEEPING = 32


def compiled_directory(options: EstimateOptions) -> Path | None:
    """Return where compiled programs, and what is read of their kernels, are cached."""
    if options.disable_cache or options.in_memory_only_cache:
        return None
    # Where nothing is kept, nothing waits for it.
    from hespas.compile.cache import default_directory  # noqa: PLC0415

    return options.cache_dir or default_directory()


def made_directory(options: EstimateOptions) -> Path | None:
    """Return where exported and partitioned programs are cached."""
    if compiled_directory(options) is None:
        return None
    return options.cache_dir or cache_home() / "exported"


def store_of(options: EstimateOptions, *, beside: Path | None = None) -> Store | None:
    """Return where prices are cached: in memory, or on disk; None for nowhere.

    ``beside`` is the output directory, which holds the cache unless the options name another.
    """
    if options.disable_cache:
        return None
    if options.cache_dir is not None:
        return DiskStore(directory=options.cache_dir)
    if options.in_memory_only_cache or beside is None:
        return MemoryStore()
    return DiskStore(directory=beside / "cache")


def prices_of(options: EstimateOptions, modules: RegionModules) -> Store | None:
    """Return where prices of compiled programs are kept without being asked for, if anywhere.

    Those of few regions are made in less time than it takes to look for them.
    """
    if compiled_directory(options) is None or len(modules.modules) < _WORTH_KEEPING:
        return None
    # Programs that are not compiled need not wait for it.
    from hespas.price.cache import KeptStore  # noqa: PLC0415

    return KeptStore(directory=options.cache_dir or cache_home() / "prices")


def check_caches(options: EstimateOptions) -> None:
    """Raise what a cache that can't be written raises, before there is anything to keep."""
    # Of use to few commands, and half of what they import.
    from hespas.sources.workload import export_cache  # noqa: PLC0415

    directory = compiled_directory(options)
    if directory is not None:
        export_cache(directory).check()
