"""The packages that compile: whether they are there, and whether they belong together."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires, version

from hespas.compile import toolkit
from hespas.compile.targets import GpuTarget, Target
from hespas.errors import ExtraMissingError, ToolError

_GPU_PACKAGE = "jax-cuda12-pjrt"
_TPU_PACKAGE = "libtpu"
_PIN = re.compile(r"libtpu==([\w.]+?)(?:\.\*)?\s*;.*extra == ['\"]tpu['\"]")


def compiler_versions(target: Target) -> dict[str, str]:
    """Return the versions of the packages that compile for a target.

    Raises `ExtraMissingError` where one is missing, and `ToolError` for versions that were not
    made for each other: a compiler reads what its own jaxlib writes.
    """
    jaxlib = version("jaxlib")
    match target:
        case GpuTarget():
            plugin = _installed(_GPU_PACKAGE, target, extra="gpu")
            versions = _checked(_GPU_PACKAGE, plugin, wanted=jaxlib, jaxlib=jaxlib)
            return {**versions, toolkit.PACKAGE: toolkit.toolkit_version()}
        case _:
            plugin = _installed(_TPU_PACKAGE, target, extra="tpu")
            return _checked(_TPU_PACKAGE, plugin, wanted=_pinned_libtpu(), jaxlib=jaxlib)


def _installed(package: str, target: Target, *, extra: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError as error:
        raise ExtraMissingError(f"compiling for {target.name}", extra=extra) from error


def _pinned_libtpu() -> str | None:
    """Return the version of libtpu that the installed jax was made for, as it says itself."""
    pins = (_PIN.match(line) for line in requires("jax") or ())
    return next((pin[1] for pin in pins if pin), None)


def _checked(package: str, plugin: str, *, wanted: str | None, jaxlib: str) -> dict[str, str]:
    if wanted is not None and plugin != wanted:
        raise ToolError(
            f"{package} {plugin} and jaxlib {jaxlib} do not belong together",
            hint=f"pip install {package}=={wanted}",
        )
    return {"jaxlib": jaxlib, package: plugin}
