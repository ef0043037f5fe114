"""The documented commands, which are the stages of ``hespas`` under other names."""

from __future__ import annotations

from collections.abc import Mapping

from hespas.cli.main import start

COMMANDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "hespas_chakra_gen": ("trace", ("--estimator-times",)),
    "hespas_mlir_splitter": ("split", ()),
    "hespas_mlir_analyzer": ("analyze", ()),
}
"""The stage that a documented command is, and the flags that make it print as documented."""


def chakra_gen() -> None:
    """``hespas_chakra_gen`` is ``hespas trace``."""
    start("hespas_chakra_gen", *COMMANDS["hespas_chakra_gen"])


def mlir_splitter() -> None:
    """``hespas_mlir_splitter`` is ``hespas split``."""
    start("hespas_mlir_splitter", *COMMANDS["hespas_mlir_splitter"])


def mlir_analyzer() -> None:
    """``hespas_mlir_analyzer`` is ``hespas analyze``."""
    start("hespas_mlir_analyzer", *COMMANDS["hespas_mlir_analyzer"])


def estimator(method: str) -> None:
    """``python -m hespas.estimator.METHOD`` is ``hespas estimate --method METHOD``."""
    name = f"python -m hespas.estimator.{method}"
    start(name, "estimate", ("--estimator-times", "--method", method))
