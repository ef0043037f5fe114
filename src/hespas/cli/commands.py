"""Find and run commands; report errors in one line."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TextIO, cast

import click

from hespas.base.version import __version__
from hespas.cli.help import Commands, usage_message, wants_colour
from hespas.cli.resident import INTERRUPTED, INTERRUPTED_CODE
from hespas.errors import HespasError

ERROR_CODE = 2

# Each command's module is imported only when it is called: this keeps --help fast.
_COMMANDS = {
    "Predict": {
        "run": "Predict a step: how long it takes, and why.",
        "explain": "Show what would make a step faster, and by how much.",
        "compare": "Show what differs between two results of a run.",
        "report": "Write one page with charts of one or more results.",
        "memory": "Show how much device memory a step needs, and for what.",
        "kernels": "Show which kernels take longest, and why.",
        "schema": "Print the JSON Schema of what run answers.",
    },
    "By mouse": {
        "app": "Ask questions on a local page, and see answers as knobs move.",
    },
    "Serve": {
        "serve": "Predict latencies and throughput of a model under load.",
    },
    "Compare many": {
        "study": "Compare many configurations, and find the best.",
        "sweep": "Predict a step on several clusters: how it scales.",
        "search": "Find the best mesh for a model on a cluster.",
    },
    "Programs": {
        "export": "Write a model or function as StableHLO.",
        "partition": "Divide a sharded program over its devices.",
        "compile": "Optimise and schedule a program as a target's compiler does.",
        "analyze": "Count the operations of a program.",
    },
    "Stages of a prediction": {
        "split": "Cut a program into regions and write them as modules.",
        "estimate": "Price the computation of a program on a device.",
        "trace": "Write the Chakra traces of all devices.",
        "simulate": "Run Chakra traces on a system.",
    },
    "Hardware and measurements": {
        "hardware": "List the presets of nodes, systems and links.",
        "models": "List the models, and what each needs.",
        "algorithm": "Verify, show and convert a collective algorithm.",
        "measure": "Run a step on the devices that are there, and time it.",
        "validate": "Compare predictions with measured steps.",
        "calibrate": "Make a preset from measurements of one's own cluster.",
    },
}
_MODULES = {
    "predict_commands": ("explain", "memory", "kernels"),
    "result_commands": ("compare", "report", "schema", "hardware", "models"),
    "study_command": ("study", "sweep", "search"),
    "program_commands": ("export", "partition", "compile"),
    "stage_commands": ("split", "estimate", "trace", "analyze"),
}
"""The modules that commands share; other commands have their own."""


def command_named(name: str) -> click.Command:
    """Import a command and return it."""
    shared = (module for module, names in _MODULES.items() if name in names)
    module = importlib.import_module(f"hespas.cli.{next(shared, f'{name}_command')}")
    # The function of a command named like a builtin ends in an underscore.
    command: click.Command = vars(module).get(name) or vars(module)[f"{name}_"]
    command.short_help = next(
        summaries[name] for summaries in _COMMANDS.values() if name in summaries
    )
    return command


_NO_MEMORY = "failed to map segment"
"""The system's message for a library that it has no memory for."""


class _Commands(Commands):
    """The commands, which are imported when they are called."""

    start = "hespas run llama3-100m --mesh fsdp=4 --cluster 4xA100_SXM_40GB"

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [name for summaries in _COMMANDS.values() for name in summaries]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return command_named(cmd_name) if cmd_name in self.list_commands(ctx) else None

    def listed(self) -> Mapping[str, Mapping[str, str]]:
        return _COMMANDS


@click.group(cls=_Commands, invoke_without_command=True)
@click.version_option(__version__, prog_name="hespas")
@click.pass_context
def commands(ctx: click.Context) -> None:
    """Predict how a distributed machine-learning step runs on a cluster you don't have."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(command: click.Command, name: str, arguments: Sequence[str]) -> int:
    """Run a command, and return its exit code.

    The code is 0, 2 (error) or 130 (interrupted). An error is one line on standard error;
    ``--debug`` adds the traceback.
    """
    debug = "--debug" in arguments
    colour = wants_colour(os.environ)
    spelling: dict[str, str] = {}
    if cast("TextIO | None", sys.stdout) is None:
        click.echo(f"{name}: error: standard output is closed; give it a place to go to", err=True)
        return ERROR_CODE
    try:
        code = command.main(
            list(arguments),
            prog_name=name,
            standalone_mode=False,
            obj=spelling,
            color=colour,
            help_option_names=["-h", "--help"],
        )
        sys.stdout.flush()
    except (KeyboardInterrupt, click.Abort):
        click.echo(f"{name}: {INTERRUPTED}", err=True)
        return INTERRUPTED_CODE
    except BrokenPipeError:
        return _silence_output(0)
    except SystemExit as stop:
        # click ends this way if the reader of its output has gone.
        return _silence_output(0) if stop.code == 1 else _code(stop.code)
    except Exception as error:  # noqa: BLE001 - the last resort: no traceback reaches a user
        if debug:
            traceback.print_exception(error)
        mark = click.style("error:", fg="red", bold=True)
        text = _one_line(error, spelling, debug=debug)
        click.echo(f"{name}: {mark} {text}", err=True, color=colour)
        return _silence_output(ERROR_CODE) if isinstance(error, OSError) else ERROR_CODE
    return _code(code)


def _code(value: object) -> int:
    return value if isinstance(value, int) else 0


def _silence_output(code: int) -> int:
    """Drop standard output's buffer, which Python can't write at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _one_line(error: Exception, spelling: Mapping[str, str], *, debug: bool) -> str:
    match error:
        case HespasError():
            from hespas.cli.flags import flag  # noqa: PLC0415 - keeps --help fast

            text = error.text(lambda option: spelling.get(option) or flag(option))
        case click.UsageError():
            text = usage_message(error)
        case click.ClickException():
            text = error.format_message()
        case OSError():
            text = f"{error.filename or 'standard output'}: {error.strerror or error}"
        case OverflowError():
            text = (
                "a figure is beyond what can be computed with; "
                "check the rates, bandwidths, times and sizes that are given"
            )
        case RecursionError():
            text = "the input is nested too deeply"
        case MemoryError():
            text = "there is not enough memory"
        case ImportError() if _NO_MEMORY in str(error):
            text = f"there is not enough memory: {error}"
        case _:
            hint = "" if debug else "; this is a fault of hespas, --debug shows where"
            text = f"{type(error).__name__}: {error}{hint}"
    return " ".join(text.split())
