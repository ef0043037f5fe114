"""``hespas run``, ``explain``, ``memory`` and ``kernels``: a step, predicted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hespas.base.fields import options_in
from hespas.cli import flags
from hespas.cli.answers import Answer, answering, check_targets
from hespas.cli.outputs import estimate_into, output_of, write_prediction, write_tasks
from hespas.errors import ConfigError, option
from hespas.memory.usage import memory_use
from hespas.prediction import checks, composition, machines
from hespas.prediction.explain.changes import all_changes
from hespas.prediction.figures.assumptions import grouped_assumptions
from hespas.prediction.figures.communication import communication_rows
from hespas.prediction.figures.step import explain_rows, run_report
from hespas.prediction.goodput import GoodputOptions
from hespas.prediction.options import (
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
from hespas.prediction.result import Prediction
from hespas.report.run import explain_text, run_text
from hespas.report.text import assumption_lines
from hespas.split.flatten import MOST_OPERATIONS

if TYPE_CHECKING:
    from hespas.prediction.answer import PipelinePrediction


@answering(
    "run",
    example="hespas run llama3-100m --mesh fsdp=4 --cluster 4xA100_SXM_40GB",
    checks_target=True,
)
@flags.workload_argument
@flags.derived(PredictOptions)
@flags.timeline_option
def run(json_file: str | None, timeline: Path | None, **given: Any) -> Answer:
    """Predict how long one step of WORKLOAD takes, and why.

    WORKLOAD is a model (hespas export --list), a program (StableHLO, HLO, what jax.export wrote, or
    a directory of XLA's dumps), one's own package.module:function, or a configuration (.json).
    Where the node's compiler is installed, the program is compiled first. With --output the traces
    and regions are written too.
    """
    options = flags.requested(given)
    flags.check_verbose(options.report, json_file)
    if not options.is_pipeline:
        options = checks.checked(options)
    check_targets(json_file, timeline, options.output.directory)
    prediction = _predicted(options, whole=timeline is not None)
    if timeline is not None:
        write_prediction(prediction, timeline)
    report = run_report(prediction)

    def details() -> object:
        # Texts need none of it.
        from hespas.report.answers import detailed  # noqa: PLC0415

        return msgspec.to_builtins(detailed(report, prediction))

    return Answer(text=lambda: run_text(report, verbose=options.report.verbose), json=details)


def _predicted(options: PredictOptions, *, whole: bool) -> Prediction | PipelinePrediction:
    """Predict a step, and write its regions and traces where they are asked for."""
    if options.is_pipeline:
        # Few models are divided into stages.
        from hespas.prediction import staged  # noqa: PLC0415

        if options.output.directory is not None:
            raise ConfigError(
                f"{option('output')} has no effect on a pipeline of several programs",
                hint="drop it",
            )
        return staged.predict_pipeline(options)
    if options.output.directory is None and not whole:
        return composition.predict_folded(options, whole_up_to=MOST_OPERATIONS)
    with output_of(options) as output:
        prepared = composition.prepare(options)
        estimates = estimate_into(prepared, options, output)
        prediction = composition.finish(prepared, estimates, options)
        write_tasks(prediction.tasks, output)
    return prediction


_NOT_OF_CHANGES = [
    each.name
    for section in (OutputOptions, ReportOptions, GoodputOptions, EnergyOptions, StepOptions)
    for each in options_in(section)
    if each.name != "verbose"
]


@answering("explain", checks_target=True)
@flags.workload_argument
@flags.derived(PredictOptions, without=_NOT_OF_CHANGES)
def explain(json_file: str | None, **given: Any) -> Answer:
    """Show what would make one step of WORKLOAD faster, and by how much.

    The step is predicted as by hespas run, and then again with one thing changed at a time: the
    memory bandwidth, the peak rates, the launches of kernels, the links, and what is not perfect.
    Attention that is not fused, and kernels that are far from what their bytes take, are named.
    """
    options = flags.requested(given)
    flags.check_verbose(options.report, json_file)
    check_targets(json_file, None)
    prediction = composition.predict(options)
    changes = all_changes(prediction)
    return Answer(
        text=lambda: explain_text(prediction, changes, verbose=options.report.verbose),
        json=lambda: {
            "step_time_s": prediction.step_time_s,
            "explain": explain_rows(changes),
            "communication": communication_rows(prediction),
            "notes": [each.note for each in changes if each.note],
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
def memory(top: int, **given: Any) -> Answer:
    """Show how much memory one step of WORKLOAD needs on a device, and what for.

    WORKLOAD is a program or a configuration (.json). Where its node is given, the program is
    compiled for it first. As exported no operations are fused, which takes far more memory.
    """
    from hespas.report.stages import memory_json, memory_text  # noqa: PLC0415 - of no use to run

    options = checks.checked(flags.requested(given))
    program = composition.load_alone(options)
    device = machines.device_of(options.estimate)
    capacity_bytes = None if device is None else device.memory_capacity_bytes
    use = memory_use(program)
    assumptions = [group.text for group in grouped_assumptions(program.assumptions)]

    def text() -> str:
        shown = memory_text(use, capacity_bytes, source=program.source, shown=top)
        head = f"{program.source}: the memory of one device for one step\n"
        return "\n".join([head, shown, *_listed(assumptions)])

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
def kernels(top: int, **given: Any) -> Answer:
    """Show which kernels of WORKLOAD take longest on a device, and why.

    WORKLOAD is compiled for the node, unless it was compiled before; its kernels' PTX is then
    given with --kernels, without which they are priced by their kind. Launches count every
    round of a loop. Matrix products, convolutions and fused attention, which libraries run, stand
    in one line.
    """
    from hespas.price.measured import Measured  # noqa: PLC0415 - of no use to run
    from hespas.price.ptx.kernels import (  # noqa: PLC0415 - as above
        AnalysisCache,
        KernelEstimator,
        kernel_pricer,
    )
    from hespas.report.kernels import kernel_table, kernels_json, kernels_text  # noqa: PLC0415

    options = checks.checked(flags.requested(given))
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
    cache = AnalysisCache(directory=machines.compiled_directory(options.estimate))
    pricer = kernel_pricer(device, program.kernels, cache=cache)
    if pricer is None:
        raise ConfigError(
            f"the microarchitecture of {device.name} is not described",
            hint="give a GPU's preset, or a node with a microarchitecture.json",
        )
    prepared = composition.divide(program, options)
    # As hespas run prices them: at the clock that the whole computation sustains.
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
