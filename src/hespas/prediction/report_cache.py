"""A cache of reports, to make no prediction twice.

A report's key is made of all that decides it: the options, the content of the program, the
installed packages, and the settings of JAX and XLA in the environment. Where that is not known, no
report is cached: of functions and dumps, where another option names a file, where a method runs
something, and where a directory for caches is named, or caches are disabled.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from hespas.base.cache import ContentCache, installed_state
from hespas.base.frozen import frozen
from hespas.base.home import cache_home
from hespas.prediction.figures.schema import RunReport
from hespas.prediction.options import PredictOptions

_METHODS = ("roofline", "measured", "kernel", "compiler", "tensor_core", "systolic")
"""Methods that hespas itself computes; others run programs."""
_ENVIRONMENT = ("JAX_", "XLA_", "LIBTPU_")
_MOST_BYTES = 2**26


@frozen
class ReportCache:
    """The cache entry of one report.

    Unreadable and unwritable entries count as missing.
    """

    key: str

    def read(self) -> RunReport | None:
        """Return the report, if it is cached."""
        return self._files.value(self.key, RunReport)

    def write(self, report: RunReport) -> None:
        """Store the report."""
        self._files.keep(self.key, report)

    @property
    def _files(self) -> ContentCache:
        return ContentCache(
            directory=cache_home() / "reports",
            suffix=".report",
            mark=b"hespas reports 1\n",
            content_name="reports",
            limit_bytes=_MOST_BYTES,
            optional=True,
        )


def report_cache(options: PredictOptions, *, has_charts: bool) -> ReportCache | None:
    """Return a prediction's cache entry, if its key is complete."""
    estimate, output = options.estimate, options.output
    is_elsewhere = estimate.cache_dir is not None or output.directory is not None
    if is_elsewhere or estimate.disable_cache or estimate.in_memory_only_cache:
        return None
    if estimate.method not in (None, *_METHODS):
        return None
    try:
        program = _program_state(options.program.file)
        other_options = replace(options, program=replace(options.program, file=None))
        if program is None or any(_is_file(text) for text in _texts(other_options)):
            return None
    except OSError:
        return None
    described = repr(options)
    # An object without a description has its address.
    if " at 0x" in described:
        return None
    set_here = sorted(item for item in os.environ.items() if item[0].startswith(_ENVIRONMENT))
    parts = (described, program, has_charts, set_here, installed_state())
    return ReportCache(key=sha256(repr(parts).encode()).hexdigest())


def _program_state(file: Path | None) -> str | None:
    """Return a program's digest.

    It is empty for a model, and None where neither is known.
    """
    if file is None or file.is_dir() or (":" in str(file) and not file.exists()):
        return None
    return sha256(file.read_bytes()).hexdigest() if file.exists() else ""


def _is_file(text: str | Path) -> bool:
    try:
        return Path(text).exists()
    except OSError:  # a text that is too long for a name
        return False


def _texts(value: object) -> Iterator[str | Path]:
    """Yield the texts and paths among the values of options."""
    if isinstance(value, str | Path):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _texts(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for item in cast("Mapping[Any, object]", value).values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in cast("list[object]", value):
            yield from _texts(item)
