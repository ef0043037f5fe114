"""The part of NVIDIA's toolkit that XLA looks for while it compiles for a GPU."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from hespas.errors import ExtraMissingError

PACKAGE = "nvidia-cuda-nvcc-cu12"
_HOME = "nvidia/cuda_nvcc"
_LIBRARY = "nvvm/libdevice/libdevice.10.bc"
# XLA hands each kernel's PTX to ptxas and keeps the machine code in an executable that is thrown
# away here: what it made of the program is settled by then. This one says the version of the
# package and writes an empty file, which takes a fifth off the time to compile, and keeps the
# result from depending on a toolkit that happens to be installed.
_ASSEMBLER = """#!/bin/sh
if [ "$1" = --version ]; then
    echo "Cuda compilation tools, release {release}, V{version}"
    exit
fi
while [ $# -gt 0 ]; do
    if [ "$1" = -o ]; then : > "$2"; fi
    shift
done
"""


def toolkit_version() -> str:
    """Return the version of the toolkit; `ExtraMissingError` where it is not installed."""
    try:
        return distribution(PACKAGE).version
    except PackageNotFoundError as error:
        raise ExtraMissingError("compiling for a GPU", extra="gpu") from error


def lay_out_toolkit(directory: Path) -> None:
    """Fill a directory as XLA expects a toolkit: its device library, and an assembler."""
    library = directory / _LIBRARY
    library.parent.mkdir(parents=True)
    library.symlink_to(Path(str(distribution(PACKAGE).locate_file(f"{_HOME}/{_LIBRARY}"))))
    version = toolkit_version()
    release = ".".join(version.split(".")[:2])
    assembler = directory / "bin" / "ptxas"
    assembler.parent.mkdir()
    assembler.write_text(_ASSEMBLER.format(release=release, version=version))
    assembler.chmod(0o700)
