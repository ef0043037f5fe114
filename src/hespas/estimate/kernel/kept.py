"""What was read of kernels, kept between runs by all that decides it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

import msgspec

from hespas.errors import OutputError
from hespas.estimate.kernel.analysis import KernelAnalysis
from hespas.files import write_file
from hespas.program.kernels import KernelLaunch
from hespas.version import __version__

_MARK = b"hespas kernel 1\n"
_DIGEST_BYTES = 32
_SUFFIX = ".kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnalyses:
    """Analyses of kernels in a directory, a small file for each; None keeps nothing.

    A file is moved into place whole. One that is damaged is made anew, and where none can be
    written, the analysis is made every time.
    """

    directory: Path | None = None

    def analysis(
        self, text: str, launch: KernelLaunch, *, neighbours: bool = False
    ) -> KernelAnalysis:
        """Return what a kernel does, with what ``neighbours`` load too where that is asked for.

        Raises `ProgramError` as `hespas.estimate.kernel.analyse.followed` does.
        """
        path = self.path_of(text, launch, neighbours=neighbours)
        found = None if path is None else _read(path)
        if found is None:
            found = _made(text, launch, neighbours=neighbours)
            if path is not None:
                _write(path, found)
        return found

    def path_of(self, text: str, launch: KernelLaunch, *, neighbours: bool = False) -> Path | None:
        """Return the file of an analysis."""
        if self.directory is None:
            return None
        shape = (launch.grid, launch.block, launch.shared_memory_bytes)
        key = msgspec.msgpack.encode((_reader(), text, shape, neighbours))
        return self.directory / f"{sha256(key).hexdigest()}{_SUFFIX}"


def _made(text: str, launch: KernelLaunch, *, neighbours: bool) -> KernelAnalysis:
    # Walking needs numpy, whose import takes longer than all else where nothing is walked.
    from hespas.estimate.kernel.analyse import (  # noqa: PLC0415
        analysis_of,
        followed,
        with_neighbour,
    )

    walked = followed(text, launch)
    found = analysis_of(walked, launch)
    return with_neighbour(found, walked, launch) if neighbours else found


@cache
def _reader() -> bytes:
    """Return what stands for the code that reads kernels: edited, it reads them again."""
    digest = sha256(__version__.encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.digest()


def _read(path: Path) -> KernelAnalysis | None:
    start = len(_MARK) + _DIGEST_BYTES
    try:
        content = path.read_bytes()
        digest, packed = content[len(_MARK) : start], content[start:]
        if not content.startswith(_MARK) or sha256(packed).digest() != digest:
            return None
        return msgspec.msgpack.decode(packed, type=KernelAnalysis)
    except (OSError, msgspec.DecodeError):
        return None


def _write(path: Path, analysis: KernelAnalysis) -> None:
    packed = msgspec.msgpack.encode(analysis)
    with suppress(OSError, OutputError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, _MARK + sha256(packed).digest() + packed)
