"""``hespas explain``, ``memory`` and ``kernels``: details of a step."""

from __future__ import annotations

from typing import Any

import click

from hespas.base.fields import options_in, refuse_unused
from hespas.cli import flags
from hespas.cli.answers import Answer, answering, check_targets
from hespas.errors import ConfigError, option
from hespas.memory.usage import memory_use
from hespas.prediction import checks, composition, machines
from hespas.prediction.explain.changes import all_changes
from hespas.prediction.explain.kernels import kernel_table
from hespas.prediction.figures.assumptions import grouped_assumptions
from hespas.prediction.figures.communication import communication_rows
from hespas.prediction.figures.step import explain_rows
from hespas.prediction.goodput import GoodputOptions
from hespas.prediction.options import (
    TEXT,
    CompileChoice,
    EnergyOptions,
    EstimateOptions,
    Fidelity,
    NetworkOptions,
    OutputOptions,
    PredictOptions,
    ProgramOptions,
    ReportOptions,
    StepOptions,
)
from hespas.price.measured import Measured
from hespas.price.ptx.kernels import KernelEstimator, kernel_pricer
from hespas.report.stages import (
    explain_text,
    kernels_json,
    kernels_text,
    memory_json,
    memory_text,
)
from hespas.report.text import assumption_lines

_NOT_OF_CHANGES = [
    field.name
    for section in (OutputOptions, ReportOptions, GoodputOptions, EnergyOptions, StepOptions)
    for field in options_in(section)
    if field.name != "verbose"
]


@answering("explain", checks_target=True)
@flags.workload_argument
@flags.derived(PredictOptions, without=_NOT_OF_CHANGES)
def explain(json_file: str | None, **values: Any) -> Answer:
    """Show what would make one step of WORKLOAD faster, and by how much.

    The step is predicted as by hespas run, and then again with one thing changed at a time: the
    memory bandwidth, the peak rates, the launches of kernels, the links, and what is not perfect.
    Attention that is not fused, and kernels that are far from what their bytes take, are named.
    """
    options = flags.requested(values)
    refuse_unused(options.report, {TEXT: json_file == "-"})
    check_targets(json_file)
    prediction = composition.predict(options)
    changes = all_changes(prediction)
    return Answer(
        text=lambda: explain_text(prediction, changes, verbose=options.report.verbose),
        json=lambda: {
            "step_time_s": prediction.step_time_s,
            "explain": explain_rows(changes),
            "communication": communication_rows(prediction),
            "notes": [change.note for change in changes if change.note],
            "assumptions": list(prediction.assumptions),
            "warnings": list(prediction.warnings),
        },
    )


@answering("memory", example="hespas memory step.mlir --node H100_80GB")
@flags.workload_argument
@flags.derived(ProgramOptions, without=("kernels",))
@flags.derived(CompileChoice)
@flags.derived(EstimateOptions, only=("node",))
@flags.derived(NetworkOptions, only=("cluster", "system"))
@flags.plain(
    "--top",
    type=click.IntRange(min=0),
    default=10,
    metavar="N",
    help="How many buffers to show (default: 10).",
)
def memory(top: int, **values: Any) -> Answer:
    """Show how much device memory a step of WORKLOAD needs, and for what.

    WORKLOAD is a program or a configuration (.json). Where its node is given, the program is
    compiled for it first. As exported no operations are fused, which takes far more memory.
    """
    options = checks.checked(flags.requested(values))
    program = composition.load_alone(options)
    device = machines.device_of(options.estimate)
    capacity_bytes = None if device is None else device.memory_capacity_bytes
    use = memory_use(program)
    assumptions = [group.text for group in grouped_assumptions(program.assumptions)]

    def text() -> str:
        use_text = memory_text(use, capacity_bytes, source=program.source, shown=top)
        head = f"{program.source}: the memory of one device for one step\n"
        return "\n".join([head, use_text, *_listed(assumptions)])

    return Answer(
        text=text,
        json=lambda: {
            **memory_json(use, capacity_bytes, shown=top),
            "assumptions": assumptions,
        },
    )


def _listed(assumptions: list[str]) -> list[str]:
    return ["", *assumption_lines(assumptions, ())] if assumptions else []


@answering("kernels", example="hespas kernels step.mlir --node H100_80GB")
@flags.workload_argument
@flags.derived(ProgramOptions)
@flags.derived(CompileChoice)
@flags.derived(EstimateOptions, only=("custom_call", "node", "power_limit_w", "clocks"))
@flags.derived(NetworkOptions, only=("cluster", "system"))
@flags.plain(
    "--top",
    type=click.IntRange(min=1),
    default=20,
    metavar="N",
    help="How many kernels to show (default: 20).",
)
def kernels(top: int, **values: Any) -> Answer:
    """Show which kernels of WORKLOAD take longest on a device, and why.

    WORKLOAD is compiled for the node, unless it was compiled before; its kernels' PTX is then
    given with --kernels, without which they are priced by their kind. Launches count every
    round of a loop. Matrix products, convolutions and fused attention, which libraries run, stand
    in one line.
    """
    options = checks.checked(flags.requested(values))
    device = machines.device_of(options.estimate)
    if device is None:
        raise ConfigError(
            "no device is given", hint=f"give {option('node')}, or {option('cluster')}"
        )
    program = composition.load_alone(options)
    if not program.is_scheduled:
        raise ConfigError(
            "a program that is not compiled has no kernels",
            location=program.source,
            hint=f"give {option('fidelity')} {Fidelity.COMPILED.value}",
        )
    directory = machines.compiled_directory(options.estimate)
    pricer = kernel_pricer(device, program.kernels, directory=directory)
    if pricer is None:
        raise ConfigError(
            f"the microarchitecture of {device.name} is not described",
            hint="give a GPU's preset, or a node with a microarchitecture.json",
        )
    prepared = composition.divide(program, options)
    # At the clock that the whole computation sustains, as in hespas run.
    method = composition.price(prepared, options, store=None).estimator
    if not isinstance(method, Measured | KernelEstimator):
        raise TypeError(f"{type(method).__name__} does not price single kernels")
    custom_calls = options.estimate.custom_calls
    table = kernel_table(prepared.graph, method, pricer, custom_calls=custom_calls)
    groups = grouped_assumptions((*prepared.graph.assumptions, *table.notes))
    assumptions = [group.text for group in groups]
    head = f"{program.source} on {device.name}\n"
    return Answer(
        text=lambda: "\n".join([head, kernels_text(table, shown=top), *_listed(assumptions)]),
        json=lambda: {**kernels_json(table), "assumptions": assumptions},
    )
