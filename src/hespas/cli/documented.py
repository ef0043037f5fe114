"""The documented commands, which are the stages of ``hespas`` under other names."""

from __future__ import annotations

import sys

from hespas.cli.analyze_command import command as analyze
from hespas.cli.main import run
from hespas.cli.split_command import command as split
from hespas.cli.trace_command import command as trace


def chakra_gen() -> None:
    """``hespas_chakra_gen`` is ``hespas trace``."""
    sys.exit(run(trace, "hespas_chakra_gen", sys.argv[1:]))


def mlir_splitter() -> None:
    """``hespas_mlir_splitter`` is ``hespas split``."""
    sys.exit(run(split, "hespas_mlir_splitter", sys.argv[1:]))


def mlir_analyzer() -> None:
    """``hespas_mlir_analyzer`` is ``hespas analyze``."""
    sys.exit(run(analyze, "hespas_mlir_analyzer", sys.argv[1:]))
