"""Options that several commands share, spelled as documented and with dashes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import click

from hespas.errors import OutputError

Function = TypeVar("Function", bound=Callable[..., Any])
Decorator = Callable[[Function], Function]


class _File(click.Path):
    """A path; an empty one, as an unset shell variable gives it, is refused."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


FILE = _File()


def combined(*decorators: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Return one decorator that adds all options, in the order given."""

    def decorate(function: Function) -> Function:
        return reduce(lambda inner, add: add(inner), reversed(decorators), function)

    return decorate


def both(name: str, *more: str, **settings: Any) -> Callable[[Any], Any]:
    """Make an option that is spelled with underscores, as documented, and with dashes."""
    dashed = name.replace("_", "-")
    names = dict.fromkeys([f"--{dashed}", f"--{name}", *more])
    return click.option(*names, name.replace("-", "_"), **settings)


workload_argument = click.argument("workload", type=FILE, required=False)

debug = click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")

common = combined(
    debug,
    both(
        "log_level",
        type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
        help="How much to log on standard error, or in --log-path.",
    ),
    both("log_path", type=FILE, help="Log to this file."),
)

program = combined(
    both("mlir_file", type=FILE, help="The program, where the argument is a configuration."),
    both(
        "devices",
        "--num_npus",
        "--num-npus",
        type=int,
        help="How many devices, for a program that doesn't say.",
    ),
    both(
        "trip_count",
        multiple=True,
        metavar="[LINE=]N",
        help="How often loops run whose count can't be read; LINE, or its name in HLO, picks one.",
    ),
    both(
        "branch_weights",
        multiple=True,
        metavar="[LINE=]W,W..",
        help="How often each branch is taken.",
    ),
)

optimising = combined(
    click.option(
        "--optimise", is_flag=True, default=None, help="Compile the program for the node first."
    ),
    both("disable_passes", metavar="PASS,..", help="With it: passes of XLA to leave out."),
    click.option(
        "--matmuls",
        type=click.Choice(["cublas", "triton"]),
        help="With it: what multiplies matrices on a GPU (default cublas).",
    ),
    click.option(
        "--latency-hiding-scheduler/--no-latency-hiding-scheduler",
        default=None,
        help="With it: put work between a collective's start and its end (default).",
    ),
    both("xla_flag", multiple=True, metavar="NAME=VALUE", help="With it: a flag of XLA's own."),
)

kernels = click.option(
    "--kernels",
    type=FILE,
    help="The kernels of a compiled WORKLOAD, as hespas compile --kernels writes them.",
)

splitting = combined(
    both(
        "split_fn",
        "--split",
        type=click.Choice(["linear_split", "individual_split"]),
        help="How to cut the program (default linear_split).",
    ),
    both("block_lim", type=int, help="Most operations in a block (default 1024)."),
    click.option("--merge/--no-merge", default=None, help="Join regions, delaying no collective."),
    both("separator", help="is_communication_op (default), or an operation's name."),
    both(
        "separator_policy",
        type=click.Choice(["isolated", "end_block", "start_block"]),
        help="Where a computing separator goes (default isolated).",
    ),
)

device = combined(
    click.option("--node", help="The device: a preset's name, or a configuration's path."),
    click.option(
        "--method",
        metavar="METHOD",
        help="Who estimates: roofline, measured, kernel, systolic, xla, iree, ... (default "
        "roofline; measured for compiled programs, where there are tables of the device).",
    ),
    both("peak_flops", help="FLOP/s of types that have no rate of their own, as in 9.7TFLOP/s."),
    both("memory_bandwidth", help="Memory bandwidth, as in 1555GB/s."),
    both("per_datatype_flops", metavar="TYPE=RATE,..", help="FLOP/s by type, as in bf16=312e12."),
    both(
        "launch_overhead",
        metavar="TIME",
        help="What a kernel of a compiled program takes beside its work, as in 3us.",
    ),
    both(
        "custom_call",
        multiple=True,
        metavar="TARGET=COST",
        help="What an unknown custom call does: traffic, or flops:N,type:T,bytes:N.",
    ),
)

caching = combined(
    both("cache_dir", type=FILE, help="Where estimates are kept (default OUTPUT/cache)."),
    both("disable_cache", is_flag=True, default=None, help="Estimate every region by itself."),
    both("in_memory_only_cache", is_flag=True, default=None, help="Keep no estimates on disk."),
    both("threads", "--num_threads", type=int, help="Estimators that run at a time (default 1)."),
)

network_option = click.option(
    "--network",
    type=click.Choice(["congestion-unaware", "congestion-aware"]),
    help="How transfers share links (default congestion-unaware).",
)

model = combined(
    click.option(
        "--model",
        type=click.Choice(["astra-sim", "hespas"]),
        help="Who times communication: ASTRA-sim's model, to the ns, or hespas' own, with streams "
        "that overlap and links that are shared (default astra-sim).",
    ),
    click.option(
        "--algorithm",
        type=click.Choice(
            [
                "told",
                "auto",
                "direct",
                "dissemination",
                "doubleBinaryTree",
                "halvingDoubling",
                "hierarchical",
                "inSwitch",
                "binomialTree",
                "ring",
                "bidirectionalRing",
            ]
        ),
        help="How collectives run in hespas' own model: as the system tells (default), the "
        "cheapest way, or all by one algorithm where it can run them.",
    ),
    click.option(
        "--cluster",
        type=FILE,
        metavar="FILE",
        help="What is not perfect: slow devices, bad links, jitter (YAML or JSON).",
    ),
)

network = combined(
    click.option("--system", help="The cluster: a preset's name, or a directory."),
    network_option,
    model,
)

output = combined(
    both("output", "--output_dir", "-o", type=FILE, help="Directory for the files of the run."),
    click.option("--clean", is_flag=True, default=None, help="Replace another workload's files."),
)

timeline_option = click.option(
    "--timeline", type=FILE, metavar="FILE", help="Write a timeline for ui.perfetto.dev."
)

json_option = click.option(
    "--json",
    "json_file",
    metavar="[FILE]",
    is_flag=False,
    flag_value="-",
    help='Write results as JSON; "-", or no file, is standard output.',
)


def start_logging(level: str | None, path: Path | None) -> None:
    """Log from ``level`` on, to a file or standard error; nothing where neither is given."""
    logger = logging.getLogger("hespas")
    for old in list(logger.handlers):
        logger.removeHandler(old)
        old.close()
    if level is None and path is None:
        logger.setLevel(logging.NOTSET)
        return
    try:
        handler = logging.StreamHandler() if path is None else logging.FileHandler(path)
    except OSError as error:
        raise OutputError(
            f"the log cannot be written: {error.strerror}",
            location=str(path),
            hint="check --log-path",
        ) from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel((level or "info").upper())
