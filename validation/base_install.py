"""Predict as where no compiler is installed: for tests and pages that say the same everywhere."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from unittest.mock import patch

from hespas.compile import packages
from hespas.compile.targets import GpuTarget, Target
from hespas.errors import ExtraMissingError
from hespas.prediction import fidelity, report_cache
from hespas.study import entry


def _not_installed(target: Target) -> dict[str, str]:
    extra = "gpu" if isinstance(target, GpuTarget) else "tpu"
    raise ExtraMissingError(f"compiling for {target.name}", extra=extra)


def _no_compiler(part: str | None) -> None:
    """Return what `hespas.study.entry.compiler_of` does for a part of which there is none."""


@contextmanager
def base_install() -> Generator[None]:
    """Hide the installed compilers from what is decided automatically, and from nothing else."""
    decide, state = fidelity.why_not_compiled, report_cache.installed_state

    def decided(node: str) -> str:
        with patch.object(packages, "compiler_versions", _not_installed):
            return decide(node)

    with (
        patch.object(fidelity, "why_not_compiled", decided),
        patch.object(entry, "compiler_of", _no_compiler),
        patch.object(report_cache, "installed_state", lambda: f"base of {state()}"),
    ):
        yield
