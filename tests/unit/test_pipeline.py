"""One composition: the same options give the same prediction, whoever asks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

import hespas
from hespas import pipeline
from hespas.calibrate.step_model import PipelineSteps
from hespas.calibrate.steps import Workload
from hespas.cli import run_command
from hespas.errors import ConfigError
from hespas.estimate.cache import MemoryStore
from hespas.estimate.driver import Estimator
from hespas.estimate.estimate import Estimate, OpEstimate
from hespas.estimate.methods import DeviceUse, EstimatorSpec, Method
from hespas.files import json_bytes
from hespas.hardware.cluster import Cluster, LinkOverride
from hespas.hardware.presets import load_device, load_system
from hespas.hardware.sized import find_system
from hespas.hardware.system import bare_system
from hespas.options import (
    CompileChoice,
    EstimateOptions,
    Fidelity,
    NetworkOptions,
    PredictOptions,
    ProgramOptions,
)
from hespas.program.program import Program
from hespas.report.run import run_json, run_report
from hespas.schedule.tasks import as_job
from hespas.simulate.astra.messages import ContentionModel
from hespas.simulate.models import Model
from hespas.split.regions import Compute
from hespas.validate.measurements import read_steps
from hespas.validate.recompute import Sources, recompute

NODE, SYSTEM = "H100_80GB", "H100_80GB_4GPU"
BAD_LINK = LinkOverride(link="0->1", bandwidth_scale=0.5)
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
    by_command = CliRunner().invoke(run_command.command, words).stdout.encode()
    predicted = hespas.predict(program, NODE, SYSTEM, method=method, fidelity="compiled")
    by_api = json_bytes(run_json(run_report(predicted)))
    by_pipeline = json_bytes(run_json(run_report(pipeline.predict(options_for(program, method)))))
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
    by_validate = run_json(run_report(recomputed.predictions[method]))
    # It says itself that the program is a compiled one.
    asked = {"fidelity": "compiled", **json.loads(by_command)["options"]}
    assert by_validate["options"] == asked
    assert {**json.loads(by_command), "options": asked} == by_validate


def test_calibration_predicts_the_step_of_the_same_prediction(program: Path) -> None:
    steps = PipelineSteps(system=load_system(SYSTEM))
    step_s = steps.step_s(Workload(file=program), load_device(NODE))
    assert step_s == pipeline.predict(options_for(program)).step_time_s


def test_a_divided_program_serves_several_methods_and_models(program: Path) -> None:
    options = options_for(program)
    prepared = pipeline.prepare(options)
    for method in ("measured", "roofline"):
        for model in Model:
            chosen = replace(
                options,
                estimate=replace(options.estimate, method=method),
                network=replace(options.network, model=model),
            )
            estimates = pipeline.price(prepared, chosen, store=MemoryStore())
            shared = pipeline.finish(prepared, estimates, chosen)
            assert run_json(run_report(shared)) == run_json(run_report(pipeline.predict(chosen)))


@pytest.mark.parametrize(
    ("system", "given", "model"),
    [
        (SYSTEM, NetworkOptions(), "hespas"),
        ("24xH100_80GB", NetworkOptions(), "hespas"),
        ("V100_32GB_4GPU", NetworkOptions(), "astra-sim"),
        ("TPUv4_4x4x4", NetworkOptions(), "astra-sim"),
        (SYSTEM, NetworkOptions(model=Model.ASTRA_SIM), "astra-sim"),
        (SYSTEM, NetworkOptions(network=ContentionModel.CONGESTION_AWARE), "astra-sim"),
        ("V100_32GB_4GPU", NetworkOptions(algorithm="ring"), "hespas"),
        ("V100_32GB_4GPU", NetworkOptions(imperfect=Cluster(links=(BAD_LINK,))), "hespas"),
    ],
)
def test_the_network_model_follows_from_the_system_unless_it_is_chosen(
    system: str, given: NetworkOptions, model: str
) -> None:
    assert pipeline.model_of(given, find_system(system)).model.value == model


def test_systems_that_are_not_described_to_astra_sim_have_our_model() -> None:
    preset = load_system(SYSTEM)
    own = bare_system("own", interconnect=preset.interconnect)
    assert pipeline.model_of(NetworkOptions(), own).model is Model.HESPAS
    bare = replace(preset, interconnect=None)
    assert pipeline.model_of(NetworkOptions(), bare).model is Model.ASTRA_SIM


def test_traces_are_simulated_as_astra_sim_does(program: Path) -> None:
    prediction = hespas.predict(program, NODE, SYSTEM)
    assert prediction.timeline is not None
    assert prediction.timeline.model == "hespas"
    ours = hespas.simulate(prediction.tasks, SYSTEM)
    assert ours.step_time_s == pytest.approx(prediction.step_time_s, rel=1e-9)
    assert hespas.simulate(as_job(prediction.tasks), SYSTEM).model == "astra-sim"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantHardware:
    """What another package's method takes as its configuration."""

    region_time_s: float
    num_npus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """Another package's estimator: every region takes the same time."""

    region_time_s: float
    method: str = "constant"

    @property
    def parameters(self) -> Mapping[str, object]:
        return {"region_time_s": self.region_time_s}

    def assumptions(self, program: Program) -> tuple[str, ...]:
        del program
        return ("constant: every region takes the same time",)

    def estimate(self, region: Compute, program: Program) -> Estimate:
        del region, program
        return Estimate(per_op={"region": OpEstimate(count=1.0, time_s=self.region_time_s)})


def _constant(spec: EstimatorSpec) -> Estimator:
    assert isinstance(spec.hardware, ConstantHardware)
    return Constant(region_time_s=spec.hardware.region_time_s)


CONSTANT = Method(
    name="constant",
    summary="every region takes the same time",
    factory=_constant,
    configuration=ConstantHardware,
    device_use=DeviceUse.NONE,
)


@pytest.fixture
def _added(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name = "constant"

        def load(self) -> Method:
            return CONSTANT

    def entry_points(*, group: str) -> list[Point]:
        return [Point()] if group == "hespas.estimators" else []

    monkeypatch.setattr(metadata, "entry_points", entry_points)


@pytest.mark.usefixtures("_added")
def test_a_method_of_another_package_is_configured_like_ours(program: Path, tmp_path: Path) -> None:
    file = tmp_path / "c.json"

    def configure(hardware: Mapping[str, object]) -> None:
        estimator = {"method": "constant", "hardware": hardware}
        file.write_text(json.dumps({"mlir_file": str(program), "perf_estimator": estimator}))

    configure({"region_time_s": 0.5, "num_npus": 4})
    words = [str(file), "--system", SYSTEM, "--json", "-"]
    done = CliRunner().invoke(run_command.command, words)
    assert json.loads(done.stdout)["compute_s"] == 0.5
    assert hespas.predict(program, file, SYSTEM).compute_s == 0.5
    configure({"region_tim_s": 0.5})
    with pytest.raises(ConfigError, match=r"unknown key 'region_tim_s'.*'region_time_s'"):
        hespas.predict(program, file, SYSTEM)
    configure({"region_time_s": "fast"})
    with pytest.raises(ConfigError, match=r'region_time_s is "fast"; give a number'):
        hespas.predict(program, file, SYSTEM)
    with pytest.raises(ConfigError, match="node has no effect on method constant"):
        hespas.predict(program, NODE, SYSTEM, method="constant")


@pytest.mark.usefixtures("_added")
def test_an_unknown_method_is_reported_from_those_that_are_there(program: Path) -> None:
    with pytest.raises(ConfigError, match=r"no method 'konstant'.*did you mean 'constant'"):
        hespas.predict(program, NODE, SYSTEM, method="konstant")
