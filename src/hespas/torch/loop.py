"""Training loops of programs: the step lies between two updates by one optimiser."""

from __future__ import annotations

import runpy
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

from torch import multiprocessing
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from hespas.errors import ConfigError
from hespas.torch.places import BACKWARD
from hespas.torch.tape import Tape


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

    def refuse_words(_parser: ArgumentParser, message: str) -> NoReturn:
        raise ConfigError(
            f"the script refuses its words: {message}", location=file, hint="see its --help"
        )

    with patch.object(ArgumentParser, "error", refuse_words):
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
