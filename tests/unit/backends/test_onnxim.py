"""ONNXim, by a stand-in that takes its usual command line, and checks the models by onnx."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

import pytest
from msgspec.structs import replace

from hespas.backends import onnxim, tool
from hespas.backends.onnxim import (
    OnnximHardware,
    Operator,
    need_onnx,
    product_mapping,
    write_product_model,
)
from hespas.base.process import Limits
from hespas.errors import ConfigError, ExtraMissingError, ToolError, UnsupportedError
from hespas.price.methods import EstimatorSpec, estimator
from hespas.price.systolic import (
    Dataflow,
    Product,
    Systolic,
    SystolicArray,
    SystolicHardware,
)
from simulators import CORES, FIGURES, HAS_ONNX, ONNXIM, PATTERN, do_without_onnx, program_file

needs_onnx = pytest.mark.skipif(not HAS_ONNX, reason="onnx is not installed")

PRODUCT = Product(m=30, n=40, k=50)
HARDWARE = OnnximHardware(
    array_rows=16,
    array_columns=16,
    clock_hz=1e9,
    memory_bandwidth=100e9,
    vector_flops=1e12,
    binary="Simulator",
    core_config="cores.json",
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    do_without_onnx(monkeypatch)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    program_file(tmp_path / "Simulator", ONNXIM)
    write_cores()
    return tmp_path


def write_cores(changes: Mapping[str, object] = MappingProxyType({})) -> None:
    Path("cores.json").write_text(json.dumps({**CORES, **changes}))


def made(hardware: SystolicHardware = HARDWARE) -> Systolic:
    found = estimator("onnxim", EstimatorSpec(hardware=hardware))
    assert isinstance(found, Systolic)
    return found


def cycles(found: Systolic, product: Product = PRODUCT) -> float:
    return found.timer.time_s(product, 2) * 1e9


@pytest.mark.parametrize("operator", [None, "MatMul", "Gemm"])
def test_a_product_is_a_model(here: Path, operator: Operator | None) -> None:
    found = made(replace(HARDWARE, operator=operator))
    assert cycles(found) == pytest.approx(30 * 4 * 3 + 1000)
    assert not list(here.glob("hespas-*"))
    assert f"an ONNX model of one {operator or 'MatMul'}" in found.timer.assumption


@pytest.mark.parametrize("shape", FIGURES["onnxim_ws"])
def test_its_cycles_are_those_that_it_was_seen_to_give(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    write_cores({"core_freq": 940, **core(core_height=128, core_width=128)})
    found = made(replace(HARDWARE, array_rows=128, array_columns=128, clock_hz=940e6))
    time_s = found.timer.time_s(Product(m=m, n=n, k=k), 2)
    assert time_s * 940e6 == pytest.approx(FIGURES["onnxim_ws"][shape])


def test_its_cores_share_a_product() -> None:
    write_cores({"num_cores": 2})
    found = made(replace(HARDWARE, array_count=2))
    assert cycles(found) == pytest.approx(30 * 4 * 3 / 2 + 1000)
    assert "on 2 arrays of 16 x 16" in found.timer.assumption
    assert found.peak_flops == 2 * 2 * 256 * 1e9


@pytest.mark.parametrize(
    "product",
    [Product(m=1, n=64, k=64), Product(m=64, n=1, k=64), Product(m=16, n=40, k=50)],
)
def test_thin_products_are_cut_for_several_cores(product: Product) -> None:
    write_cores({"num_cores": 4})
    found = made(replace(HARDWARE, array_count=4))
    assert cycles(found, product) > 1000
    assert "too thin for its cores" in found.timer.assumption
    assert "too thin" not in written_and_made().timer.assumption


def written_and_made() -> Systolic:
    write_cores()
    return made()


def test_how_a_product_is_cut() -> None:
    two = SystolicArray(
        rows=128, columns=128, clock_hz=940e6, count=2, dataflow=Dataflow.WEIGHT_STATIONARY
    )
    assert product_mapping(Product(m=128, n=256, k=128), two) == (
        "[T] N128 C128 M256 - [O] N1 C1 M2 - [I] N128 C128 M128"
    )
    assert product_mapping(Product(m=1, n=300, k=4096), two) == (
        "[T] N1 C4096 M300 - [O] N1 C32 M3 - [I] N1 C128 M128"
    )
    assert product_mapping(Product(m=256, n=256, k=1), two) is None


def test_output_stationary_cores_are_refused_before_they_never_end() -> None:
    write_cores(core(core_type="systolic_os"))
    with pytest.raises(ConfigError, match="ONNXim never ends for output-stationary cores"):
        made(replace(HARDWARE, dataflow="output_stationary"))


def test_cores_that_are_not_square_are_refused() -> None:
    write_cores(core(core_width=8))
    with pytest.raises(ConfigError, match=r"square: .* array_rows 16, .* array_columns 8"):
        made(replace(HARDWARE, array_columns=8))


def test_elements_of_another_size_than_the_cores_are_refused(here: Path) -> None:
    with pytest.raises(
        UnsupportedError,
        match=r"cores\.json: precision is 2 bytes, and the elements of a product 30 x 50 by .* 4",
    ):
        made().timer.time_s(PRODUCT, 4)
    assert not list(here.glob("hespas-*"))
    Path("cores.json").write_text(json.dumps({k: v for k, v in CORES.items() if k != "precision"}))
    found = made()
    assert found.timer.time_s(PRODUCT, 4) > 0
    assert "no precision to compare" in found.timer.assumption


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"precision": "2"}, r'\$\.precision is "2"'),
        ({"precision": True}, r"\$\.precision is true"),
        ({"precision": 2.5}, r"\$\.precision is 2\.5"),
        ({"core_freq": "1000"}, r'\$\.core_freq is "1000"'),
        ({"num_cores": True}, r"\$\.num_cores is true"),
    ],
)
def test_figures_that_are_none_are_refused(changes: dict[str, object], said: str) -> None:
    write_cores(changes)
    with pytest.raises(ConfigError, match=rf"cores\.json: {said}"):
        made()


def test_what_takes_long_is_announced_before_it_starts(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program_file(here / "Simulator", "raise SystemExit('it started')")
    found = made()
    for product in (PRODUCT, Product(m=4096, n=32000, k=128)):
        with pytest.raises(ToolError, match="it started"):
            cycles(found, product)
    (record,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert record.getMessage() == (
        "ONNXim simulates 4096 x 128 by 128 x 32000, which takes some 286 s; it is ended after "
        "1800 s"
    )


def core(**changes: object) -> dict[str, object]:
    shown = {"core_type": "systolic_ws", "core_height": 16, "core_width": 16}
    return {"core_config": {"core_0": shown | changes}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (core(core_height=128), "core_height is 128, array_rows of the array 16"),
        (core(core_width=8), "core_width is 8, array_columns of the array 16"),
        ({"core_width": 8}, "core_width is 8"),
        ({"core_freq": 940}, "core_freq is 940, clock_hz, in MHz, of the array 1000"),
        ({"num_cores": 4}, "num_cores is 4, array_count of the array 1"),
        (core(core_type="systolic_os"), "core_type is systolic_os, dataflow .* systolic_ws"),
        (core(core_type="stonne"), "core_type is stonne"),
    ],
)
def test_other_cores_than_the_array_are_refused(changes: dict[str, object], said: str) -> None:
    write_cores(changes)
    with pytest.raises(ConfigError, match=rf"cores\.json: {said}.*; make the two agree"):
        made()


def test_what_the_cores_do_not_say_is_reported() -> None:
    Path("cores.json").write_text('{"core_freq": 1000.0}')
    assert "core_config has no core_height, core_width, num_cores, core_type to compare" in (
        made().timer.assumption
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [("[]", r"\$ is \[\]; give an object"), ("{", "malformed JSON"), (None, "cannot be read")],
)
def test_a_description_that_is_none_is_refused(text: str | None, said: str) -> None:
    Path("cores.json").unlink()
    if text is not None:
        Path("cores.json").write_text(text)
    with pytest.raises(ConfigError, match=rf"cores\.json.*{said}"):
        made()


def test_other_cores_are_another_estimate() -> None:
    first = made().parameters
    write_cores({"precision": 1})
    assert made().parameters != first
    write_cores()
    assert made().parameters == first
    options = replace(HARDWARE, model_options={"batch_size": 1, "request_time": 0})
    assert made(options).parameters != first


def test_the_usual_interface_can_be_changed(here: Path) -> None:
    (here / "mapping").mkdir()
    (here / "mapping" / "here").touch()
    code = (
        "import json, os, sys\n"
        "assert sys.argv[1] == '-c' and os.path.basename(sys.argv[2]) == 'cores.json'\n"
        "assert sys.argv[4].endswith('/models/product/product.onnx'), sys.argv\n"
        "assert os.path.isfile(sys.argv[4])\n"
        "assert os.path.isfile(os.path.join(os.environ['ONNXIM_HOME'], 'configs', 'here'))\n"
        "model, = json.load(open(sys.argv[3]))['models']\n"
        "print('Total cycles:', 1000 * model['batch_size'] + model['request_time'])\n"
    )
    program_file(here / "Simulator", code)
    hardware = replace(
        HARDWARE,
        arguments=("-c", "{config}", "{workload}", "{model}"),
        files={"configs": "mapping"},
        model_options={"batch_size": 2, "request_time": 5},
        cycles_pattern=PATTERN,
    )
    assert cycles(made(hardware)) == pytest.approx(2005)


@pytest.mark.parametrize(
    ("hardware", "said"),
    [
        (replace(HARDWARE, core_config=None), "needs core_config, the path of ONNXim's JSON file"),
        (replace(HARDWARE, model_options={"name": "a"}), "model_options gives a name"),
        (
            replace(HARDWARE, arguments=("{workload}",)),
            r"lack \{config\}, the path of core_config",
        ),
        (
            replace(HARDWARE, arguments=("{config}",)),
            r"lack \{workload\}, the list of models or \{model\}, the ONNX file",
        ),
        (
            replace(HARDWARE, arguments=("{config}", "{rows}", "{model}")),
            r"arguments hold \{rows\}",
        ),
        (
            replace(
                HARDWARE,
                arguments=("{config}", "{model}"),
                model_options={"batch_size": 2},
            ),
            "model_options has no effect",
        ),
        (
            SystolicHardware(
                array_rows=16,
                array_columns=16,
                clock_hz=1e9,
                memory_bandwidth=100e9,
                vector_flops=1e12,
            ),
            "the configuration is of another method",
        ),
    ],
)
def test_what_is_missing_or_has_no_effect_is_refused(hardware: SystolicHardware, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made(hardware)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit('no such layer')", "failed with code 1: no such layer"),
        ("print('done')", "nothing in ONNXim's answer fits"),
        ("print('Simulation Finished at 7 cycle')", "gives 7 cycles .* 234.375 at least"),
        (
            "for each in (300, 301): print('Simulation Finished at', each, 'cycle')",
            "2 different counts",
        ),
    ],
)
def test_an_answer_that_cannot_be_is_refused(here: Path, code: str, said: str) -> None:
    program_file(here / "Simulator", code)
    with pytest.raises(ToolError, match=said):
        cycles(made())


def test_a_program_that_hangs_is_ended(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program_file(here / "Simulator", "import time; time.sleep(60)")
    monkeypatch.setattr(tool, "LIMITS", Limits(time_s=0.3))
    with pytest.raises(ToolError, match=r"ONNXim took longer than 0\.3 s"):
        cycles(made())


def test_a_program_that_is_none_is_refused(here: Path) -> None:
    (here / "Simulator").write_bytes(b"\x7fELF for another machine")
    with pytest.raises(ToolError, match="ONNXim failed with code"):
        cycles(made())
    (here / "Simulator").unlink()
    with pytest.raises(ToolError, match="there is no program Simulator"):
        made()


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        del name

    monkeypatch.setattr(onnxim, "find_spec", nothing)
    with pytest.raises(ExtraMissingError, match=r"pip install 'hespas\[onnxim\]'"):
        need_onnx()


@needs_onnx
@pytest.mark.parametrize("operator", ["MatMul", "Gemm"])
@pytest.mark.parametrize("element_bytes", [2, 4, 8])
def test_models_are_valid(here: Path, operator: Operator, element_bytes: int) -> None:
    onnx = import_module("onnx")

    path = here / "model.onnx"
    write_product_model(path, PRODUCT, element_bytes=element_bytes, operator=operator)
    first = path.read_bytes()
    onnx.checker.check_model(str(path), full_check=True)
    graph = onnx.load(str(path)).graph
    kinds = {each.type.tensor_type.elem_type for each in (*graph.input, *graph.output)}
    assert kinds == {graph.initializer[0].data_type}
    assert [node.op_type for node in graph.node] == [operator]
    assert onnx.numpy_helper.to_array(graph.initializer[0]).itemsize == element_bytes
    write_product_model(path, PRODUCT, element_bytes=element_bytes, operator=operator)
    assert path.read_bytes() == first


@needs_onnx
def test_large_weights_stand_beside_the_model(here: Path) -> None:
    onnx = import_module("onnx")

    path = here / "model.onnx"
    large = Product(m=1, n=2**15, k=2**17)
    write_product_model(path, large, element_bytes=2, operator="MatMul")
    onnx.checker.check_model(str(path), full_check=True)
    assert path.stat().st_size < 1000
    assert (here / "model.data").stat().st_size == 2**33
    assert (here / "model.data").stat().st_blocks * 512 < 2**20


@needs_onnx
def test_elements_that_no_operator_takes_are_refused(here: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"MatMul takes .* not of 1"):
        write_product_model(here / "m.onnx", PRODUCT, element_bytes=1, operator="MatMul")
