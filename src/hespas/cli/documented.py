"""The documented commands: stages of ``hespas`` under other names."""

from __future__ import annotations

from collections.abc import Mapping

from hespas.cli.main import start

COMMANDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "hespas_chakra_gen": ("trace", ("--estimator-times",)),
    "hespas_mlir_splitter": ("split", ()),
    "hespas_mlir_analyzer": ("analyze", ()),
}
"""The stage of a documented command, and flags for its documented output."""


def chakra_gen() -> None:
    """Run ``hespas_chakra_gen`` as ``hespas trace``."""
    start("hespas_chakra_gen", *COMMANDS["hespas_chakra_gen"])


def mlir_splitter() -> None:
    """Run ``hespas_mlir_splitter`` as ``hespas split``."""
    start("hespas_mlir_splitter", *COMMANDS["hespas_mlir_splitter"])


def mlir_analyzer() -> None:
    """Run ``hespas_mlir_analyzer`` as ``hespas analyze``."""
    start("hespas_mlir_analyzer", *COMMANDS["hespas_mlir_analyzer"])


def estimator(method: str) -> None:
    """Run ``python -m hespas.estimator.METHOD`` as ``hespas estimate --method METHOD``."""
    name = f"python -m hespas.estimator.{method}"
    start(name, "estimate", ("--estimator-times", "--method", method))
