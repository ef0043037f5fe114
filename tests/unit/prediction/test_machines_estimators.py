"""Methods of other packages, which are configured, and reported, as ours are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

import hespas
from hespas.cli import run_command
from hespas.errors import ConfigError
from hespas.price.driver import Estimator
from hespas.price.estimate import Estimate, OpEstimate
from hespas.price.methods import DeviceUse, EstimatorSpec, Method
from hespas.program.program import Program
from hespas.split.regions import Compute

NODE, SYSTEM = "H100_80GB", "H100_80GB_4GPU"
STEP = """HloModule step, is_scheduled=true, replica_count=4

ENTRY %main (a: bf16[4096,4096]) -> bf16[4096,4096] {
  %a = bf16[4096,4096]{1,0} parameter(0)
  ROOT %d = bf16[4096,4096]{1,0} dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "step.hlo"
    file.write_text(STEP)
    return file


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
    done = CliRunner().invoke(run_command.run, words)
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
