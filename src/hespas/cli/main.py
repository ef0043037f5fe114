"""Start the process: set up signals before any slow import."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from hespas.cli.resident import answered

_SIGNAL_CODE = 128


def main() -> None:
    """Run ``hespas`` here or in the resident process."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = answered(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(_SIGNAL_CODE + signal.SIGINT)
    if code is not None:
        sys.exit(code)
    start("hespas")


def start(name: str, stage: str | None = None, flags: Sequence[str] = ()) -> NoReturn:
    """Run the process's arguments as a command, and exit.

    ``stage`` names the command; None is ``hespas`` itself. ``flags`` go before the arguments. Until
    the commands are imported, Ctrl-C ends the process without a message: no work has started yet.
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
    # Otherwise the interpreter looks for cycles in all remaining objects at exit: 40 ms of a run.
    gc.freeze()
    sys.exit(code)


def _terminate(number: int, frame: object) -> NoReturn:  # noqa: ARG001 - the handler's signature
    """End as by Ctrl-C, so that half-written files are removed."""
    sys.exit(_SIGNAL_CODE + number)
