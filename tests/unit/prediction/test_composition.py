"""One composition: the same options give the same prediction, whoever asks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

import hespas
from hespas.base.files import json_bytes
from hespas.cli import run_command
from hespas.evidence.calibrate.steps import PipelineSteps, Workload
from hespas.evidence.validate.measurements import read_steps
from hespas.evidence.validate.recompute import Sources, recompute
from hespas.hardware.presets import load_device, load_system
from hespas.prediction import composition
from hespas.prediction.options import (
    CompileChoice,
    EstimateOptions,
    Fidelity,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.price.cache import MemoryStore
from hespas.report.answers import full_report
from hespas.simulate.options import Model
from hespas.tasks.graph import as_job

NODE, SYSTEM = "H100_80GB", "H100_80GB_4GPU"
COMPILED = """HloModule step, is_scheduled=true, replica_count=4

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}

ENTRY %main (a: bf16[4096,4096], b: f32[1048576]) -> f32[1048576] {
  %a = bf16[4096,4096]{1,0} parameter(0)
  %b = f32[1048576]{0} parameter(1)
  %d = bf16[4096,4096]{1,0} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %r = f32[1048576]{0} all-reduce(%b), replica_groups={{0,1,2,3}}, to_apply=%add
}
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "step.hlo"
    file.write_text(COMPILED)
    return file


def options_for(program: Path, method: str = "measured") -> PredictOptions:
    return PredictOptions(
        program=ProgramOptions(file=program),
        compile=CompileChoice(fidelity=Fidelity.COMPILED),
        estimate=EstimateOptions(node=NODE, method=method),
        network=NetworkOptions(system=SYSTEM),
    )


@pytest.mark.parametrize("method", ["measured", "roofline"])
def test_the_command_the_api_and_validate_predict_the_same_bytes(
    program: Path, tmp_path: Path, method: str
) -> None:
    words = [str(program), "--node", NODE, "--system", SYSTEM, "--method", method, "--json", "-"]
    words += ["--fidelity", "compiled"]
    by_command = CliRunner().invoke(run_command.run, words).stdout.encode()
    predicted = hespas.predict(program, NODE, SYSTEM, method=method, fidelity="compiled")
    by_api = json_bytes(msgspec.to_builtins(full_report(predicted)))
    by_pipeline = json_bytes(
        msgspec.to_builtins(full_report(composition.predict(options_for(program, method))))
    )
    assert by_command == by_api == by_pipeline
    table = tmp_path / "steps.csv"
    table.write_text(f"workload,node,system,step_s\n{program},{NODE},{SYSTEM},2e-4\n")
    (step,) = read_steps(table)
    recomputed = recompute(
        step,
        Sources(cache_dir=None),
        method="measured",
        model=None,
        location="steps.csv:2",
    )
    by_validate = msgspec.to_builtins(full_report(recomputed.predictions[method]))
    # It says itself that the program is a compiled one.
    asked = {"fidelity": "compiled", **json.loads(by_command)["options"]}
    assert by_validate["options"] == asked
    assert {**json.loads(by_command), "options": asked} == by_validate


def test_calibration_predicts_the_step_of_the_same_prediction(program: Path) -> None:
    steps = PipelineSteps(node=load_device(NODE), system=load_system(SYSTEM))
    step_s = steps.step_s(Workload(file=program), load_device(NODE))
    assert step_s == composition.predict(options_for(program)).step_time_s


def test_calibration_predicts_a_program_that_is_not_compiled_as_a_run_does() -> None:
    file = Path("examples", "attention_block.mlir")
    steps = PipelineSteps(node=load_device(NODE), system=load_system(SYSTEM))
    step_s = steps.step_s(Workload(file=file), load_device(NODE))
    assert step_s == hespas.predict(file, NODE, SYSTEM).step_time_s


def test_a_divided_program_serves_several_methods_and_models(program: Path) -> None:
    options = options_for(program)
    prepared = composition.prepare(options)
    for method in ("measured", "roofline"):
        for model in Model:
            chosen = replace(
                options,
                estimate=replace(options.estimate, method=method),
                network=replace(options.network, model=model),
            )
            estimates = composition.price(prepared, chosen, store=MemoryStore())
            shared = composition.finish(prepared, estimates, chosen)
            assert msgspec.to_builtins(full_report(shared)) == msgspec.to_builtins(
                full_report(composition.predict(chosen))
            )


def test_traces_are_simulated_as_astra_sim_does(program: Path) -> None:
    prediction = hespas.predict(program, NODE, SYSTEM)
    assert prediction.timeline is not None
    assert prediction.timeline.model == "hespas"
    ours = hespas.stages.simulate(prediction.tasks, SYSTEM)
    assert ours.step_time_s == pytest.approx(prediction.step_time_s, rel=1e-9)
    assert hespas.stages.simulate(as_job(prediction.tasks), SYSTEM).model == "astra-sim"
