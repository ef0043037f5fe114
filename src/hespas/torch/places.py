"""Where a program is while it runs: module, phase, and the user's line."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from inspect import currentframe
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakSet

import torch

FORWARD, RECOMPUTE, BACKWARD, OPTIMIZER = "forward", "recompute", "backward", "optimizer"
_NO_TASK = -1
_MOST_NODES = 1_000_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call is made: module path, phase, and user's file and line."""

    scope: str = ""
    phase: str = ""
    line: str = ""


@dataclass(slots=True)
class Places:
    """Follows modules, autograd and optimisers while a step runs.

    Operations of the backward pass get module and line of the operation whose gradient they are:
    autograd numbers its nodes as the forward pass makes them. ``notes`` say what is recorded
    otherwise than it runs on GPUs.
    """

    root: Path
    modules: WeakSet[Any] = field(default_factory=WeakSet[Any])
    optimizers: WeakSet[Any] = field(default_factory=WeakSet[Any])
    notes: dict[str, None] = field(default_factory=dict[str, None])
    _running: list[Any] = field(default_factory=list[Any])
    _in_optimizer: int = 0
    _in_backward: int = 0
    _of_nodes: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])
    _names: dict[int, str] = field(default_factory=dict[int, str])
    _kernel: Place | None = None

    def now(self) -> Place:
        """Return where the program is."""
        phase = self._phase()
        scope, line = self._scope(), ""
        if phase == BACKWARD:
            scope, line = self._of_nodes.get(_node_number(), ("", ""))
        kernel = self._kernel
        if kernel is None:
            return Place(scope=scope, phase=phase, line=line or self.line())
        # Generated code runs without gradients and without modules' calls.
        is_better = not phase or (phase, kernel.phase) == (BACKWARD, RECOMPUTE)
        return Place(
            scope=".".join(filter(None, (scope, kernel.scope))),
            phase=kernel.phase if is_better else phase,
            line=kernel.line or line or self.line(),
        )

    @property
    def is_outside(self) -> bool:
        """Whether neither a module nor a backward pass runs."""
        return not self._running and torch._C._current_graph_task_id() == _NO_TASK

    @property
    def is_in_model(self) -> bool:
        """Whether a module with weights runs."""
        return any(next(module.parameters(), None) is not None for module in self._running[-1:])

    def enter_kernel(self, origin: Place) -> None:
        """Record the origin of the next generated kernel, relative to the compiled code."""
        self._kernel = origin

    def leave_kernels(self) -> None:
        """Note that generated code ends."""
        self._kernel = None

    def user_line(self, file: str, number: int) -> str:
        """Return a line as messages show it; empty outside the user's files."""
        return f"{shown_path(file, self.root)}:{number}" if is_users(file) else ""

    def note_node(self) -> None:
        """Note where the last node of autograd was made, with its first operation."""
        if torch._C._current_graph_task_id() != _NO_TASK and not torch.is_grad_enabled():
            return
        number = torch._C._autograd._get_sequence_nr() - 1
        if number not in self._of_nodes:
            if len(self._of_nodes) > _MOST_NODES:
                self._of_nodes.clear()
            self._of_nodes[number] = (self._scope(), self.line())

    def name_modules(self) -> None:
        """Name all modules by their paths from the outermost ones."""
        self._of_nodes.clear()
        self._names = {id(module): name for _, name, module in self.named_modules() if name}

    def named_modules(self) -> Iterator[tuple[Any, str, Any]]:
        """Yield the outermost modules, and the names of the modules in them."""
        modules = list(self.modules)
        inner = {
            id(child) for module in modules for child in module.modules() if child is not module
        }
        for root in modules:
            if id(root) not in inner:
                for name, module in root.named_modules():
                    yield root, clean_name(name), module

    def enter_module(self, module: Any) -> None:
        """Note that a module's forward pass begins."""
        self.modules.add(module)
        self._running.append(module)

    def leave_module(self) -> None:
        """Note that it ends."""
        self._running.pop()

    @contextmanager
    def backward(self) -> Generator[None]:
        """Run what belongs to a backward pass, also beside autograd."""
        self._in_backward += 1
        try:
            yield
        finally:
            self._in_backward -= 1

    def begin_optimizer(self, optimizer: Any) -> None:
        """Note that an optimiser's step begins."""
        self.optimizers.add(optimizer)
        self._in_optimizer += 1

    def end_optimizer(self) -> None:
        """Note that an optimiser's step ends."""
        self._in_optimizer -= 1

    def line(self) -> str:
        """Return file and line of the user's innermost frame, or empty."""
        frame = user_frame(currentframe())
        if frame is None:
            return ""
        return f"{shown_path(frame.f_code.co_filename, self.root)}:{frame.f_lineno}"

    def _phase(self) -> str:
        if torch._C._current_graph_task_id() != _NO_TASK:
            is_forward = torch.is_grad_enabled() or bool(self._running)
            return RECOMPUTE if is_forward else BACKWARD
        if self._in_optimizer:
            return OPTIMIZER
        if self._in_backward:
            return BACKWARD
        return FORWARD if self._running or torch.is_grad_enabled() else ""

    def _scope(self) -> str:
        for module in reversed(self._running):
            name = self._names.get(id(module))
            if name is not None:
                return name
        return ""


def _node_number() -> int:
    node = torch._C._current_autograd_node()
    return _NO_TASK if node is None else node._sequence_nr()


_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.", "_fsdp_wrapped_module.", "module.")


def clean_name(name: str) -> str:
    """Return a module's path without the names that wrappers add."""
    text = f"{name}."
    for wrapper in _WRAPPERS[:-1]:
        text = text.replace(wrapper, "")
    return text.removeprefix(_WRAPPERS[-1]).removesuffix(".")


@cache
def _libraries() -> tuple[str, ...]:
    """Return directories of files that are no user's: torch's, Triton's, ours, generated ones."""
    own = str(Path(__file__).parent.parent)
    packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    known = [f"{path}/{name}/" for path in packages for name in ("torch", "triton", "torchgen")]
    generated = os.environ.get("TORCHINDUCTOR_CACHE_DIR", own)
    return (f"{own}/", f"{generated}/", f"{Path(str(torch.__file__)).parent}/", *known)


@cache
def is_users(file: str) -> bool:
    """Return whether a file is the user's, or of a package that it imports."""
    if file.startswith(("<", *_libraries())):
        return False
    standard = sysconfig.get_path("stdlib")
    return "site-packages" in file or not file.startswith(f"{standard}/")


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame, from this one outwards, of a file of the user."""
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_line(error: BaseException, root: Path) -> str:
    """Return file and line of the user's innermost call in a traceback, if any."""
    lines = [
        f"{shown_path(entry.tb_frame.f_code.co_filename, root)}:{entry.tb_lineno}"
        for entry in _entries(error)
        if is_users(entry.tb_frame.f_code.co_filename)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{shown_path(error.filename, root)}:{error.lineno}"
    return lines[-1] if lines else ""


def _entries(error: BaseException) -> Iterable[Any]:
    entry = error.__traceback__
    while entry is not None:
        yield entry
        entry = entry.tb_next


@cache
def shown_path(file: str, root: Path) -> str:
    """Return a path relative to the user's directory or to packages."""
    _, found, package = file.rpartition("site-packages/")
    if found:
        return package
    path = Path(file)
    return str(path.relative_to(root)) if path.is_relative_to(root) else file
