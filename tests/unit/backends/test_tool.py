"""SCALE-Sim and ZigZag, with stand-ins that read and write their files."""

from __future__ import annotations

import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hespas.backends import tool
from hespas.backends.tool import ToolTimer
from hespas.errors import ConfigError, ExtraMissingError, HespasError, ToolError
from hespas.price.methods import EstimatorSpec, estimator
from hespas.price.systolic import Product, Systolic, SystolicHardware

SCALE_SIM = """
import configparser, csv, os, sys
flags = dict(zip(sys.argv[3::2], sys.argv[4::2]))
config = configparser.ConfigParser()
config.read(flags["-c"])
array = config["architecture_presets"]
(_, m, n, k, _), = list(csv.reader(open(flags["-t"]), skipinitialspace=True))[1:]
assert sys.argv[1:3] == ["-m", "scalesim.scale"] and flags["-i"] == "gemm"
assert os.path.exists(flags["-l"])
made = os.path.join(flags["-p"], config["general"]["run_name"])
os.makedirs(made)
number = 1000 * int(m) + 10 * int(n) + int(k) + int(array["ArrayHeight"]) + (
    {"ws": 0, "os": 1}[array["Dataflow"]])
open("../count", "a").write("x")
open(os.path.join(made, "COMPUTE_REPORT.csv"), "w").write(
    "LayerID, Total Cycles (incl. prefetch), Total Cycles, Stall Cycles,\\n"
    f"0, 77, {number}, 0,\\n")
"""

ZIGZAG = """
import json, sys
assert sys.argv[1] == "driver.py"
array, (mapping,), (layer,) = (
    json.load(open(name)) for name in ("array.yaml", "mapping.yaml", "workload.json"))
sizes = dict(zip(layer["loop_dims"], layer["loop_sizes"]))
width = array["memories"]["dram"]["ports"][0]["bandwidth_max"]
assert mapping["spatial_mapping"] == {"D1": ["K, 8"], "D2": ["D, 4"]}
json.dump({"cycles": sizes["C"] * 1e6 + sizes["D"] * 1e3 + sizes["K"] + width / 1e4},
          open("answer.json", "w"))
"""

PRODUCT = Product(m=3, n=5, k=7)


def standing_in(directory: Path, code: str) -> str:
    file = directory / "python"
    file.write_text(f"#!{sys.executable}\n{code}")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def made(method: str, binary: str | None, *, dataflow: str = "weight_stationary") -> Systolic:
    hardware = SystolicHardware(
        array_rows=4,
        array_columns=8,
        clock_hz=1e9,
        memory_bandwidth=100e9,
        vector_flops=1e12,
        dataflow="output_stationary" if dataflow == "output_stationary" else "weight_stationary",
        binary=binary,
    )
    found = estimator(method, EstimatorSpec(hardware=hardware))
    assert isinstance(found, Systolic)
    return found


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_scale_sim_is_asked_once_for_each_product(tmp_path: Path) -> None:
    timer = made("scalesim", standing_in(tmp_path, SCALE_SIM)).timer
    assert timer.time_s(PRODUCT, 2) * 1e9 == pytest.approx(3000 + 50 + 7 + 4)
    assert timer.time_s(PRODUCT, 2) * 1e9 == pytest.approx(3061)
    assert (tmp_path / "count").read_text() == "x"
    assert not list(tmp_path.glob("hespas-*"))


def test_scale_sim_is_reported_the_dataflow(tmp_path: Path) -> None:
    binary = standing_in(tmp_path, SCALE_SIM)
    timer = made("scalesim", binary, dataflow="output_stationary").timer
    assert timer.time_s(PRODUCT, 2) * 1e9 == pytest.approx(3062)


def test_zigzag_is_reported_the_memory(tmp_path: Path) -> None:
    timer = made("zigzag_onnx", standing_in(tmp_path, ZIGZAG)).timer
    assert timer.time_s(PRODUCT, 2) * 1e9 == pytest.approx(3e6 + 7e3 + 5 + 800 / 1e4)


@pytest.mark.parametrize("method", ["scalesim", "zigzag_onnx"])
def test_a_tool_that_fails_keeps_its_log(tmp_path: Path, method: str) -> None:
    timer = made(method, standing_in(tmp_path, "raise SystemExit('out of memory')")).timer
    with pytest.raises(ToolError, match="failed with code 1: out of memory") as caught:
        timer.time_s(PRODUCT, 2)
    assert "out of memory" in Path(caught.value.location).read_text()


@pytest.mark.parametrize("method", ["scalesim", "zigzag_onnx"])
def test_a_tool_that_writes_nothing_is_named(tmp_path: Path, method: str) -> None:
    timer = made(method, standing_in(tmp_path, "")).timer
    with pytest.raises(HespasError, match="wrote no "):
        timer.time_s(PRODUCT, 2)


@pytest.mark.parametrize(("method", "extra"), [("scalesim", "scalesim"), ("zigzag_onnx", "zigzag")])
def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, method: str, extra: str) -> None:
    def nothing(name: str) -> None:
        del name

    monkeypatch.setattr(tool, "find_spec", nothing)
    with pytest.raises(ExtraMissingError, match=rf"pip install 'hespas\[{extra}\]'"):
        made(method, None)


def test_zigzag_maps_no_output_stationary_arrays(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="maps products weight stationary"):
        made("zigzag_onnx", standing_in(tmp_path, ""), dataflow="output_stationary")


def test_fewer_cycles_than_the_multipliers_need_are_refused(tmp_path: Path) -> None:
    code = SCALE_SIM.replace("{number}", "5")
    timer = made("scalesim", standing_in(tmp_path, code)).timer
    with pytest.raises(ToolError, match="gives 5 cycles for 30 x 70 by 70 x 50, where 32"):
        timer.time_s(Product(m=30, n=50, k=70), 2)


HEADER = "LayerID, Total Cycles, Stall Cycles,\\n"
BROKEN_REPORTS = {
    "": "no 'Total Cycles' of one layer",
    HEADER: "no 'Total Cycles' of one layer",
    HEADER + "0\\n": "no 'Total Cycles' of one layer",
    HEADER + "0, many, 0,\\n": "no 'Total Cycles' of one layer",
    HEADER + "0, 500, 0,\\n1, 700, 0,\\n": "no 'Total Cycles' of one layer",
    '"' + "x" * 200_000: "no 'Total Cycles' of one layer",
    "\\xff\\xfe": "no 'Total Cycles' of one layer",
    HEADER + "0, nan, 0,\\n": "gives nan cycles",
    HEADER + "0, inf, 0,\\n": "gives inf cycles",
    HEADER + "0, 0, 0,\\n": "gives 0 cycles",
    HEADER + "0, -77, 0,\\n": "gives -77 cycles",
    HEADER + "0, 1.02384, 0,\\n": "gives 1.02384 cycles",
}


@pytest.mark.parametrize("error", [ValueError("no float"), KeyError("cycles"), OSError("gone")])
def test_an_adapter_that_fails_to_read_is_an_error_with_the_programs_name(error: Exception) -> None:
    def prepare(product: Product, element_bytes: int, directory: Path) -> Sequence[str]:
        del product, element_bytes, directory
        return [sys.executable, "-c", ""]

    def cycles(directory: Path) -> float:
        del directory
        raise error

    other = made("scalesim", sys.executable).timer
    assert isinstance(other, ToolTimer)
    timer = ToolTimer(
        name="Hasty", method="hasty", array=other.array, prepare=prepare, cycles=cycles
    )
    with pytest.raises(ToolError, match="Hasty's answer cannot be read"):
        timer.time_s(PRODUCT, 2)


BROKEN_ANSWERS = {
    "": "answer has no cycles",
    "[1]": "answer has no cycles",
    '{"cycles": null}': "answer has no cycles",
    '{"cycles": %s}' % ("9" * 400): "answer has no cycles",
    "\\xff\\xfe": "answer has no cycles",
    '{"cycles": NaN}': "gives nan cycles",
    '{"cycles": Infinity}': "gives inf cycles",
    '{"cycles": 1.02384}': "gives 1.02384 cycles",
}


@pytest.mark.parametrize("report", BROKEN_REPORTS)
def test_a_report_without_cycles_is_an_error(tmp_path: Path, report: str) -> None:
    """Of 3 x 7 by 7 x 5 there are 105 multiplications, for 32 multipliers at least 3.28 cycles."""
    code = (
        "import os\n"
        "os.makedirs('results/hespas')\n"
        f"open('results/hespas/COMPUTE_REPORT.csv', 'wb').write(b'{report}')"
    )
    timer = made("scalesim", standing_in(tmp_path, code)).timer
    with pytest.raises(ToolError, match=BROKEN_REPORTS[report]):
        timer.time_s(PRODUCT, 2)


@pytest.mark.parametrize("answer", BROKEN_ANSWERS)
def test_an_answer_without_cycles_is_an_error(tmp_path: Path, answer: str) -> None:
    code = f"open('answer.json', 'wb').write(b'{answer}')"
    timer = made("zigzag_onnx", standing_in(tmp_path, code)).timer
    with pytest.raises(ToolError, match=BROKEN_ANSWERS[answer]):
        timer.time_s(PRODUCT, 2)


def test_the_version_is_named_where_another_takes_other_flags(tmp_path: Path) -> None:
    code = "import sys; sys.exit('error: unrecognized arguments: -l layout.csv')"
    timer = made("scalesim", standing_in(tmp_path, code)).timer
    with pytest.raises(ToolError, match=r"SCALE-Sim 3 failed .*unrecognized arguments: -l"):
        timer.time_s(PRODUCT, 2)
