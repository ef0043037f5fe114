"""Where the process starts: signals are seen to before anything that takes time is imported.

The documented commands are the stages of ``hespas`` under other names.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

_SIGNAL_CODE = 128


def main() -> None:
    """Run ``hespas`` with the arguments of the process."""
    start("hespas")


def start(name: str, stage: str | None = None, flags: Sequence[str] = ()) -> NoReturn:
    """Run the process's arguments as those of ``hespas``, or of one of its stages, and exit.

    ``flags`` go before the arguments.

    Until the commands are there, Ctrl-C ends the process as it ends those that don't handle it:
    nothing is under way yet.
    """
    on_interrupt = signal.getsignal(signal.SIGINT)
    if on_interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _terminate)
    import gc  # noqa: PLC0415 - after the signals

    from hespas.cli.commands import command_named, commands, run  # noqa: PLC0415 - as above

    # The process is short and makes no reference cycles worth collecting.
    gc.disable()
    command = commands if stage is None else command_named(stage)
    signal.signal(signal.SIGINT, on_interrupt)
    code = run(command, name, [*flags, *sys.argv[1:]])
    # The interpreter would otherwise look for cycles in everything that is left: 40 ms of a run.
    gc.freeze()
    sys.exit(code)


def _terminate(number: int, frame: object) -> NoReturn:  # noqa: ARG001 - the handler's signature
    """End as by Ctrl-C, so that what is half-written is removed."""
    sys.exit(_SIGNAL_CODE + number)


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
