"""The documented commands, which are the stages of ``hespas`` under other names."""

from __future__ import annotations

from functools import partial

from hespas.cli.main import command_named, start


def chakra_gen() -> None:
    """``hespas_chakra_gen`` is ``hespas trace``."""
    start("hespas_chakra_gen", partial(command_named, "trace"))


def mlir_splitter() -> None:
    """``hespas_mlir_splitter`` is ``hespas split``."""
    start("hespas_mlir_splitter", partial(command_named, "split"))


def mlir_analyzer() -> None:
    """``hespas_mlir_analyzer`` is ``hespas analyze``."""
    start("hespas_mlir_analyzer", partial(command_named, "analyze"))
