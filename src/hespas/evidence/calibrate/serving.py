"""Fit an engine's step times to a log of requests."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hespas.base.files import json_bytes, write_file
from hespas.errors import ConfigError
from hespas.serve.answer import LogReport
from hespas.serve.calibration import FACTORS_FILE
from hespas.serve.options import ServeOptions
from hespas.serve.serving import serving
from hespas.serve.step_times import StepFactors


class ServingCalibration(msgspec.Struct, frozen=True, kw_only=True):
    """Factors of an engine's steps, with errors."""

    model: str
    node: str
    engine: str
    log: LogReport


def calibrated_serving(options: ServeOptions, node: str, output: Path) -> ServingCalibration:
    """Fit steps to every other logged request; write the factors."""
    report = serving(options)
    log = report.log
    if log is None:
        raise ConfigError("there is no log", hint="give the measured requests")
    calibration = ServingCalibration(
        model=options.model_name, node=node, engine=report.engine, log=log
    )
    factors = StepFactors(decode=log.decode_factor, prompts=log.prompts_factor)
    output.mkdir(parents=True, exist_ok=True)
    content = msgspec.to_builtins(calibration) | {"step_factors": msgspec.to_builtins(factors)}
    write_file(output / FACTORS_FILE, json_bytes(content))
    return calibration


def serving_calibration_text(calibration: ServingCalibration, output: Path) -> str:
    """Return the factors, the errors and the usage."""
    log = calibration.log
    served = f"{calibration.model} under {calibration.engine} on {calibration.node}"
    factors = f"{log.decode_factor:.3f} and {log.prompts_factor:.3f}"
    lines = [
        f"{served}: {log.requests} measured requests, fitted to every other one",
        "",
        f"Iterations that decode, and those of prompts, take {factors} times what is predicted",
        "",
    ]
    for name, errors in (("As predicted", log.predicted), ("Fitted", log.fitted)):
        queue = "" if errors.queue_mean is None else f", in the queue {errors.queue_mean:+.1%}"
        lines.append(
            f"{name:<13} between tokens {errors.tpot_mean:+.1%} (of a request "
            f"{errors.tpot_median:.1%}), first token {errors.ttft_mean:+.1%}{queue}"
        )
    return "\n".join([*lines, "", f"Use it: hespas serve .. --step-factors {output}"])
