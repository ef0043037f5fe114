"""``hespas measure``: time a step on this machine's devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hespas.base.fields import Group, refuse_unused
from hespas.cli import flags
from hespas.cli.answers import Answer, answering, check_targets, write_json
from hespas.evidence.measure.measured import MeasureOptions, measure_step
from hespas.evidence.measure.report import (
    check_comparison,
    compare,
    comparison_text,
    is_compared,
    measured_json,
    measurement_text,
    table_names,
    table_step,
)
from hespas.evidence.validate.measurements import add_step, read_steps
from hespas.prediction.options import (
    PREDICTION,
    CompileChoice,
    EstimateOptions,
    NetworkOptions,
    ProgramOptions,
)

_COMPILED = ("fidelity", "as_exported", "xla_flag")
_ESTIMATED = (
    "node",
    "method",
    "peak_flops",
    "memory_bandwidth",
    "per_datatype_flops",
    "custom_call",
    "cache_dir",
)


@answering(
    "measure",
    example="hespas measure llama3-100m --cluster 4xA100_SXM_40GB",
    checks_target=True,
)
@flags.workload_argument
@flags.derived(MeasureOptions)
@flags.derived(ProgramOptions, without=("kernels",))
@flags.derived(CompileChoice, only=_COMPILED)
@flags.derived(EstimateOptions, only=_ESTIMATED)
@flags.derived(NetworkOptions)
@flags.plain(
    "--csv",
    "csv_file",
    type=flags.FILE,
    metavar="FILE",
    group=Group.OUTPUT,
    help="Add the step to a table for hespas validate.",
)
def measure(json_file: str | None, csv_file: Path | None, **values: Any) -> Answer:
    """Time a step of WORKLOAD on this machine's devices, or on several machines.

    WORKLOAD is what hespas run takes, but for compiled programs. It is compiled for the GPUs or
    TPUs that are here, or for virtual devices of the CPU; its inputs are made up. Where the cluster
    is named that this is (--cluster 4xA100_SXM_40GB), the prediction for it is held against the
    time.
    """
    measure_options = flags.built(MeasureOptions, values)
    options = flags.requested(values)
    check_targets(json_file, csv=csv_file)
    is_predicted = is_compared(options)
    if is_predicted:
        measure_options = check_comparison(options, measure_options)
    else:
        refuse_unused(options, {PREDICTION: True})
    if csv_file is not None:
        if csv_file.exists():
            read_steps(csv_file)
        table_names(options)
    measured = measure_step(options, measure_options)
    if csv_file is not None:
        add_step(table_step(options, measured), csv_file)
    if json_file is not None and json_file != "-":
        # The measurement is written even if its prediction fails.
        write_json(json_file, measured_json(measured, None))
    if json_file != "-":
        click.echo(measurement_text(measured))
    compared = compare(options, measured) if is_predicted else None
    return Answer(
        text=lambda: "" if compared is None else f"\n{comparison_text(compared)}",
        json=lambda: measured_json(measured, compared),
    )
