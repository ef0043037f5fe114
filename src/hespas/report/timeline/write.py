"""Write a chart to a file, in the format that the file's name asks for."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path

from hespas.base.files import replaced_file
from hespas.report.timeline.chart import Chart, with_notes_shown
from hespas.report.timeline.chrome import chrome_json
from hespas.report.timeline.perfetto import perfetto_packets

PERFETTO_SUFFIXES = frozenset({".pftrace", ".perfetto-trace"})
_COMPRESSED = ".gz"
_NOTES = "about this timeline"
_LEVEL = 6


def write_chart(chart: Chart, file: Path) -> None:
    """Write a chart, at once or not at all; equal charts give equal bytes.

    A name that ends in ``.pftrace`` or ``.perfetto-trace`` gets Perfetto's own format, any other
    one JSON; ``.gz`` behind it compresses either. Raises `hespas.errors.OutputError` where the file
    can't be written.
    """
    is_compressed = file.suffix == _COMPRESSED
    suffix = Path(file.stem).suffix if is_compressed else file.suffix
    shown = with_notes_shown(chart, name=_NOTES)
    pieces = perfetto_packets(shown) if suffix in PERFETTO_SUFFIXES else chrome_json(shown)
    with replaced_file(file) as temporary, temporary.open("wb") as output:
        output.writelines(_compressed(pieces) if is_compressed else pieces)


def _compressed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    # The time and the file's name stay out of it.
    yield gzip.compress(b"".join(pieces), compresslevel=_LEVEL, mtime=0)
