"""What a program reads: files, and variables of the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from inspect import currentframe
from types import FrameType
from typing import Any

from hespas.torch.places import is_users

_INSTALLED = (f"{sys.base_prefix}/", f"{sys.prefix}/")
_OF_MACHINE = ("/proc/", "/sys/", "/dev/")
_READING_VARIABLES = ("<frozen os>", "<frozen _collections_abc>")
_GIVEN = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"})
"""Variables that hespas sets for the program, as its request says."""


@dataclass(slots=True)
class Inputs:
    """Files and variables that a program reads, and what it imports.

    Files of packages, of Python and of directories that are ``not_inputs`` are left out.
    """

    not_inputs: tuple[str, ...]
    _files: dict[str, None] = field(default_factory=dict[str, None])
    _variables: dict[str, None] = field(default_factory=dict[str, None])

    def follow(self) -> None:
        """Note what is read from now on."""
        sys.addaudithook(self._audited)
        environment: Any = type(os.environ)
        read = environment.__getitem__
        # It asks for a variable itself, once.
        is_users(__file__)

        def noted(variables: Any, name: str) -> str:
            if _is_asked_by_user(currentframe()):
                self._variables[name] = None
            return read(variables, name)

        environment.__getitem__ = noted

    def files(self, given: Iterable[str]) -> list[str]:
        """Return the given files, those of imported modules, and those that were opened."""
        modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        return sorted({*given, *filter(self._is_input, filter(None, modules)), *self._files})

    def variables(self) -> list[str]:
        """Return the variables that were asked for, set or not."""
        return sorted(self._variables.keys() - _GIVEN)

    def _audited(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str | os.PathLike):
            return
        file, mode, flags = arguments
        is_read = mode.startswith("r") if mode else flags & os.O_ACCMODE == os.O_RDONLY
        path = os.path.abspath(os.fsdecode(file))  # noqa: PTH100 - called often
        if is_read and self._is_input(path):
            self._files[path] = None

    def _is_input(self, path: str) -> bool:
        is_installed = "site-packages" in path or "__pycache__" in path
        # Modules that are no files have relative names.
        return (
            path.startswith("/")
            and not is_installed
            and not path.startswith((*_INSTALLED, *_OF_MACHINE, *self.not_inputs))
        )


def _is_asked_by_user(frame: FrameType | None) -> bool:
    """Return whether neither torch nor Python's library asks for a variable."""
    frame = frame and frame.f_back
    while frame is not None and frame.f_code.co_filename in _READING_VARIABLES:
        frame = frame.f_back
    return frame is not None and is_users(frame.f_code.co_filename)
