"""The documented commands, which are the stages of ``hespas`` under other names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hespas.cli.main import start


@dataclass(frozen=True, slots=True, kw_only=True)
class Documented:
    """The stage that a documented command is, and the flags that make it print as documented."""

    stage: str
    flags: tuple[str, ...] = ()


COMMANDS: Mapping[str, Documented] = {
    "hespas_chakra_gen": Documented(stage="trace", flags=("--estimator-times",)),
    "hespas_mlir_splitter": Documented(stage="split"),
    "hespas_mlir_analyzer": Documented(stage="analyze"),
}


def chakra_gen() -> None:
    """``hespas_chakra_gen`` is ``hespas trace``."""
    _start("hespas_chakra_gen")


def mlir_splitter() -> None:
    """``hespas_mlir_splitter`` is ``hespas split``."""
    _start("hespas_mlir_splitter")


def mlir_analyzer() -> None:
    """``hespas_mlir_analyzer`` is ``hespas analyze``."""
    _start("hespas_mlir_analyzer")


def estimator(method: str) -> None:
    """``python -m hespas.estimator.METHOD`` is ``hespas estimate --method METHOD``."""
    name = f"python -m hespas.estimator.{method}"
    start(name, "estimate", ("--estimator-times", "--method", method))


def _start(name: str) -> None:
    command = COMMANDS[name]
    start(name, command.stage, command.flags)
