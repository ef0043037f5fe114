"""``hespas``: finds the command, runs it, and turns errors into one line."""

from __future__ import annotations

import gc
import importlib
import sys
import traceback
from collections.abc import Sequence

import click

from hespas.errors import HespasError
from hespas.version import __version__

ERROR_CODE = 2
INTERRUPTED_CODE = 130

# Each command's module is imported only when it is called: this keeps --help fast.
_COMMANDS = {
    "run": "Predict a step: split, estimate, trace and simulate.",
    "analyze": "Count the operations of a program.",
    "split": "Cut a program into regions and write them as modules.",
    "estimate": "Price the computation of a program on a device.",
    "trace": "Write the Chakra traces of all devices.",
    "simulate": "Run Chakra traces on a system.",
    "hardware": "List the presets of nodes and systems.",
}


class _Commands(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"hespas.cli.{cmd_name}_command")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hespas")
def commands() -> None:
    """Predict how a distributed machine-learning step runs on a cluster you don't have.

    Start with: hespas run examples/llama3_100m_fsdp4.mlir --node A100_SXM_40GB --system
    A100_SXM_40GB_4GPU
    """


def main() -> None:
    """Run ``hespas`` with the arguments of the process."""
    sys.exit(run(commands, "hespas", sys.argv[1:]))


def run(command: click.Command, name: str, arguments: Sequence[str]) -> int:
    """Run a command and return its exit code: 0, 2 after an error, 130 when interrupted.

    An error is one line on standard error; ``--debug`` adds the traceback.
    """
    # The process is short and makes no reference cycles worth collecting.
    gc.disable()
    try:
        command.main(list(arguments), prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return ERROR_CODE
    except (KeyboardInterrupt, click.Abort):
        click.echo(f"{name}: interrupted; nothing was left half-written", err=True)
        return INTERRUPTED_CODE
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as error:  # noqa: BLE001 - the last resort: no traceback reaches a user
        return _report(error, name, debug="--debug" in arguments)
    return 0


def _report(error: Exception, name: str, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    if isinstance(error, HespasError):
        click.echo(f"{name}: error: {error}", err=True)
    else:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        mend = "" if debug else "; this is a fault of hespas, --debug shows where"
        click.echo(f"{name}: error: {what}{mend}", err=True)
    return ERROR_CODE
