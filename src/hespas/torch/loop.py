"""Training loops of programs: the step lies between two updates by one optimiser."""

from __future__ import annotations

import math
import runpy
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import multiprocessing
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from hespas.errors import ConfigError
from hespas.torch.places import BACKWARD, Places
from hespas.torch.tape import Tape
from hespas.torch.unknown import UnknownNumber, ValueUnknownError

_OF_FINITE = {"isfinite": True, "isnan": False, "isinf": False}
"""What functions of `math` answer of finite numbers."""


class StepEnded(BaseException):
    """The second step of a loop is recorded: the program need not go on."""


@dataclass(slots=True)
class Loop:
    """Follows the updates of the optimiser that is called first.

    ``begin`` is called after its first update, and ``end`` after the next one with a backward pass
    between them. Optimisers that update a part of the parameters at a time are called several
    times a step.
    """

    tape: Tape
    begin: Callable[[], None]
    end: Callable[[], None]
    has_ended: bool = False
    _optimizer: Any = None

    @property
    def has_begun(self) -> bool:
        """Whether an optimiser has made an update."""
        return self._optimizer is not None

    @contextmanager
    def followed(self) -> Generator[None]:
        """Follow optimisers; whatever a program does when its step has ended changes nothing."""
        handle = register_optimizer_step_post_hook(self._updated)
        try:
            yield
        except BaseException:
            if not self.has_ended:
                raise
        finally:
            handle.remove()

    def _updated(self, optimizer: Any, *_arguments: Any) -> None:
        if self._optimizer is None:
            self._optimizer = optimizer
            self.begin()
        elif optimizer is self._optimizer and not self.has_ended and self._has_gradients():
            self.end()
            self.has_ended = True
        if self.has_ended:
            raise StepEnded

    def _has_gradients(self) -> bool:
        return any(getattr(call, "phase", "") == BACKWARD for call in self.tape.calls)


def run_script(file: str, words: Sequence[str]) -> None:
    """Run a file as ``python FILE WORDS`` does; `ConfigError` for words that it refuses."""
    path = Path(file).resolve()
    sys.argv[:] = [file, *words]
    sys.path.insert(0, str(path.parent))

    def refuse(_parser: ArgumentParser, message: str) -> NoReturn:
        raise ConfigError(
            f"the script refuses its words: {message}", location=file, hint="see its --help"
        )

    with _replaced(ArgumentParser, {"error": refuse}):
        runpy.run_path(str(path), run_name="__main__")


def run_in_one_process(local_rank: int) -> None:
    """Let this process load data, and be the rank of those that ``spawn`` starts on its host."""
    iterator = DataLoader._get_iterator

    def iterate(loader: Any) -> Any:
        loader.num_workers, loader.timeout = 0, 0
        return iterator(loader)

    def run_rank(function: Any, args: Sequence[Any] = (), **_options: Any) -> None:
        function(local_rank, *args)

    DataLoader._get_iterator, multiprocessing.spawn = iterate, run_rank


@contextmanager
def unknown_numbers(places: Places) -> Generator[None]:
    """Let a program read numbers that it prints: each is an `UnknownNumber`."""
    tensors: Any = torch.Tensor
    item, form, shown = tensors.item, tensors.__format__, tensors.__repr__

    def read(tensor: torch.Tensor) -> Any:
        try:
            return item(tensor)
        except ValueUnknownError:
            return UnknownNumber(places.line())

    def formatted(tensor: torch.Tensor, spec: str) -> str:
        return format(tensor.item(), spec) if _is_number(tensor) else form(tensor, spec)

    def text(tensor: torch.Tensor, **options: Any) -> str:
        return f"tensor({tensor.item()})" if _is_number(tensor) else shown(tensor, **options)

    tests = {
        name: _answering(getattr(math, name), answer=answer) for name, answer in _OF_FINITE.items()
    }
    of_tensors = {"item": read, "__format__": formatted, "__repr__": text}
    with _replaced(tensors, of_tensors), _replaced(math, tests):
        yield


@contextmanager
def _replaced(owner: Any, functions: Mapping[str, Callable[..., Any]]) -> Generator[None]:
    before = {name: getattr(owner, name) for name in functions}
    for name, function in functions.items():
        setattr(owner, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(owner, name, function)


def _is_number(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.dim() == 0


def _answering(test: Callable[[Any], bool], *, answer: bool) -> Callable[[Any], bool]:
    """Return a test of numbers that has an answer for unknown ones."""
    return lambda number: answer if isinstance(number, UnknownNumber) else test(number)
