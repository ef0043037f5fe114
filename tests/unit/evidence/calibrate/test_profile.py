from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from hespas.errors import MeasurementError
from hespas.evidence.calibrate.factors import fit_factors
from hespas.evidence.calibrate.profile import profile_groups, read_profile
from hespas.evidence.calibrate.samples import FactorFit
from hespas.frontend.load import load_source
from hespas.hardware.presets import load_device
from hespas.program.program import Program

PROGRAM = """HloModule step, is_scheduled=true, num_partitions=1

%fused (p: bf16[4096,16384]) -> bf16[4096,16384] {
  %p = bf16[4096,16384] parameter(0)
  ROOT %n = bf16[4096,16384] negate(%p)
}

ENTRY %main (a: bf16[4096,2048], b: bf16[2048,16384]) -> bf16[4096,16384] {
  %a = bf16[4096,2048] parameter(0)
  %b = bf16[2048,16384] parameter(1)
  %d = bf16[4096,16384] dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %f.1 = bf16[4096,16384] fusion(%d), kind=kLoop, calls=%fused
  ROOT %f.2 = bf16[4096,16384] fusion(%f.1), kind=kLoop, calls=%fused
}
"""
DEVICE = load_device("H100_80GB")


def program() -> Program:
    return load_source(PROGRAM.encode(), name="step.hlo")


def event(name: str, duration_us: float, **more: object) -> dict[str, object]:
    return {
        "ph": "X",
        "name": f"{name}_kernel",
        "dur": duration_us,
        "args": {"hlo_op": name, "hlo_module": "step"},
        **more,
    }


def written(tmp_path: Path, *events: object) -> Path:
    file = tmp_path / "host.trace.json.gz"
    host = {"ph": "X", "name": "PjitFunction(step)", "dur": 9000}
    file.write_bytes(gzip.compress(json.dumps({"traceEvents": [host, *events]}).encode()))
    return file


def fitted(path: Path) -> dict[str, FactorFit]:
    groups = profile_groups(path, program(), DEVICE)
    return {fit.name: fit for fit in fit_factors(groups, DEVICE)}


def test_runs_and_devices_are_averaged_and_kernels_of_one_instruction_added(tmp_path: Path) -> None:
    once = [event("d", 300.0), event("d", 100.0), event("f.1", 90.0), event("f.2", 110.0)]
    file = written(tmp_path, *once, *once)
    assert {each.instruction: round(each.time_s * 1e6, 6) for each in read_profile(file)} == {
        "d": 400.0,
        "f.1": 90.0,
        "f.2": 110.0,
    }


def test_products_and_kernels_get_factors_of_their_own(tmp_path: Path) -> None:
    found = fitted(written(tmp_path, event("d", 600), event("f.1", 110), event("f.2", 110)))
    assert set(found) == {"gemm.bf16", "kernels"}
    (product,) = found["gemm.bf16"].samples
    assert product.case.label == "d"
    assert product.fitted_s == pytest.approx(600e-6, rel=1e-3)
    assert found["gemm.bf16"].factor > 600e-6 / product.predicted_s
    kernels = found["kernels"]
    assert [each.fitted_s for each in kernels.samples] == pytest.approx([110e-6] * 2, rel=1e-3)


@pytest.mark.parametrize(
    ("product_us", "kernel_us", "message"),
    [
        (1e-6, 1e-6, r"gz: d in 1 ps is below the physical floor of 27\d\.\d us; give a profile"),
        (
            600,
            1e-6,
            r"gz: f\.1 in 1 ps is below the physical floor of \d\d\.\d* us; give a profile",
        ),
        (1e9, 1e9, r"gz: d in 1000 s is 25\d{5} times the \d*\.\d us expected; give a profile"),
        (600, 1e9, r"gz: f\.1 in 1000 s is .* times the .* us expected; give a profile"),
        (600, float("nan"), "f.1 has the duration nan"),
        (600, -5, "f.1 has the duration -5"),
    ],
)
def test_times_that_cannot_be_are_refused(
    tmp_path: Path, product_us: float, kernel_us: float, message: str
) -> None:
    file = written(tmp_path, event("d", product_us), event("f.1", kernel_us), event("f.2", 110))
    with pytest.raises(MeasurementError, match=message):
        fitted(file)


def test_a_profile_of_another_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"none of its 1 instructions is in step\.hlo"):
        fitted(written(tmp_path, event("loop_add_fusion.7", 5)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x1f\x8bnot gzip", "cannot be read|no JSON"),
        (b"not json", "the profile is no JSON"),
        (b'{"displayTimeUnit": "ns"}', "has no traceEvents"),
        (b'{"traceEvents": [{"ph": "X", "name": "a", "dur": 3}]}', "no event names an instruction"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "trace.json.gz"
    file.write_bytes(content)
    with pytest.raises(MeasurementError, match=message):
        read_profile(file)


def test_a_missing_profile_is_named(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"gone\.gz: the profile cannot be read"):
        read_profile(tmp_path / "gone.gz")


def test_products_of_integers_have_a_factor_of_their_own(tmp_path: Path) -> None:
    text = PROGRAM.replace("%a = bf16", "%a = s8").replace("%b = bf16", "%b = s8")
    text = text.replace("a: bf16", "a: s8").replace("b: bf16", "b: s8")
    quantised = load_source(text.encode(), name="step.hlo")
    file = written(tmp_path, event("d", 600), event("f.1", 110), event("f.2", 110))
    names = [group.name for group in profile_groups(file, quantised, DEVICE)]
    assert names == ["gemm.i8", "kernels"]
