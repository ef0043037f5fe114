"""The installed compilers: their versions, NVIDIA's toolkit, and XLA's passes."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hespas.base.version import installed_version
from hespas.compile.options import WORKFLOW_DISABLES
from hespas.compile.targets import GpuTarget, Target
from hespas.errors import ExtraMissingError, ToolError

if TYPE_CHECKING:
    import mmap
    from importlib.metadata import Distribution

_GPU_PACKAGE = "jax-cuda12-pjrt"
_TPU_PACKAGE = "libtpu"
_TOOLKIT_PACKAGE = "nvidia-cuda-nvcc-cu12"
_GPU_LIBRARY = "jax_plugins/xla_cuda12/xla_cuda_plugin.so"
_TPU_LIBRARY = "libtpu/libtpu.so"
_PIN = re.compile(r"libtpu==([\w.]+?)(?:\.\*)?\s*;.*extra == ['\"]tpu['\"]")


def compiler_versions(target: Target) -> dict[str, str]:
    """Return the versions of the packages that compile for a target.

    Raises `ExtraMissingError` if one is missing, and `ToolError` for versions that were not made
    for each other: a compiler reads what its own jaxlib writes.
    """
    jaxlib = installed_version("jaxlib")
    is_gpu = isinstance(target, GpuTarget)
    package = _GPU_PACKAGE if is_gpu else _TPU_PACKAGE
    try:
        installed = installed_version(package)
    except ModuleNotFoundError as error:
        extra = "gpu" if is_gpu else "tpu"
        raise ExtraMissingError(f"compiling for {target.name}", extra=extra) from error
    required = jaxlib if is_gpu else _pinned_libtpu()
    if required is not None and installed != required:
        raise ToolError(
            f"{package} {installed} and jaxlib {jaxlib} do not belong together",
            hint=f"pip install {package}=={required}",
        )
    versions = {"jaxlib": jaxlib, package: installed}
    return {**versions, _TOOLKIT_PACKAGE: toolkit_version()} if is_gpu else versions


def _distribution(package: str) -> Distribution:
    # Cached programs need not wait for this import.
    from importlib.metadata import distribution  # noqa: PLC0415

    return distribution(package)


def _pinned_libtpu() -> str | None:
    """Return the version of libtpu that the installed jax requires, if any."""
    pins = (_PIN.match(line) for line in _distribution("jax").requires or ())
    return next((pin[1] for pin in pins if pin), None)


TOOLKIT = "toolkit"
"""The directory of a compilation that XLA takes for NVIDIA's toolkit."""

_TOOLKIT_HOME = "nvidia/cuda_nvcc"
_DEVICE_LIBRARY = "nvvm/libdevice/libdevice.10.bc"
# XLA gives each kernel's PTX to ptxas and puts the machine code into an executable that hespas
# throws away; by then the module is final. This replacement prints the version of the package and
# writes an empty file, which saves a fifth of the compile time and makes the result independent of
# an installed toolkit.
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
    """Return the version of NVIDIA's toolkit; raise `ExtraMissingError` without it."""
    try:
        return installed_version(_TOOLKIT_PACKAGE)
    except ModuleNotFoundError as error:
        raise ExtraMissingError("compiling for a GPU", extra="gpu") from error


def write_toolkit(directory: Path) -> None:
    """Write XLA's expected toolkit: a device library and an assembler."""
    library = directory / _DEVICE_LIBRARY
    library.parent.mkdir(parents=True)
    installed = _distribution(_TOOLKIT_PACKAGE).locate_file(f"{_TOOLKIT_HOME}/{_DEVICE_LIBRARY}")
    library.symlink_to(Path(str(installed)))
    toolkit = toolkit_version()
    release = ".".join(toolkit.split(".")[:2])
    assembler = directory / "bin" / "ptxas"
    assembler.parent.mkdir()
    assembler.write_text(_ASSEMBLER.format(release=release, version=toolkit))
    assembler.chmod(0o700)


def compiler_environment(xla_flags: str) -> dict[str, str]:
    """Return a compiling process's environment, without the user's settings of XLA."""
    return {
        "XLA_FLAGS": xla_flags,
        "LIBTPU_INIT_ARGS": "",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_LOG_DIR": "disabled",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


_FLAG_NAME = re.compile(rb"(?:xla|jax|tpu|megascale|deepsea|barna_core)_[a-z0-9_]{3,}")


def known_flags(target: Target) -> frozenset[str]:
    """Return the words in the compiler's library that look like flags.

    They are a superset of its flags. Reading the library takes some seconds.
    """
    with _library(target) as content:
        words = {match.decode() for match in _FLAG_NAME.findall(content)}
    # A byte that follows a name in the library may look like a digit of it.
    return frozenset(word for word in words if not (word[-1].isdigit() and word[:-1] in words))


@contextmanager
def _library(target: Target) -> Generator[mmap.mmap]:
    import mmap  # noqa: PLC0415 - few flags are looked up

    is_gpu = isinstance(target, GpuTarget)
    package, library = (_GPU_PACKAGE, _GPU_LIBRARY) if is_gpu else (_TPU_PACKAGE, _TPU_LIBRARY)
    path = Path(str(_distribution(package).locate_file(library)))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield content


def absent_passes(target: Target, flags: Mapping[str, str]) -> tuple[str, ...]:
    """Note each disabled pass that the compiler lacks.

    XLA ignores unknown names. A name that is nowhere in the compiler's library is no pass's name.
    """
    disabled = flags.get("xla_disable_hlo_passes", "").split(",")
    names = [name for name in disabled if name and name not in WORKFLOW_DISABLES]
    if not names:
        return ()
    with _library(target) as content:
        absent = [name for name in names if content.find(name.encode()) < 0]
    return tuple(f"the compiler has no pass {name}: leaving it out did nothing" for name in absent)
