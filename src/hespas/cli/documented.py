"""The documented commands, which are the stages of ``hespas`` under other names."""

from __future__ import annotations

from hespas.cli.main import start


def chakra_gen() -> None:
    """``hespas_chakra_gen`` is ``hespas trace``."""
    start("hespas_chakra_gen", "trace")


def mlir_splitter() -> None:
    """``hespas_mlir_splitter`` is ``hespas split``."""
    start("hespas_mlir_splitter", "split")


def mlir_analyzer() -> None:
    """``hespas_mlir_analyzer`` is ``hespas analyze``."""
    start("hespas_mlir_analyzer", "analyze")
