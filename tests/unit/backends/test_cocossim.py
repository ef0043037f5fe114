"""COCOSSim, by a stand-in that takes the documented lines of a workload."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from hespas.backends import tool
from hespas.backends.cocossim import CocossimHardware
from hespas.base.process import Limits
from hespas.errors import (
    ConfigError,
    ExtraMissingError,
    HespasError,
    ToolError,
    UnsupportedError,
)
from hespas.price.methods import EstimatorSpec, estimator
from hespas.price.systolic import Product, Systolic, SystolicHardware
from simulators import COCOSSIM, FIGURES, PATTERN, cocossim_checkout, program_file

PRODUCT = Product(m=30, n=40, k=50)
HARDWARE = CocossimHardware(
    array_rows=16,
    array_columns=16,
    clock_hz=1e9,
    memory_bandwidth=100e9,
    vector_flops=1e12,
)
OWN_ARGUMENTS = ("--layers", "{workload}", "--size", "{rows}", "-ws", "{dataflow}")
OWN = replace(HARDWARE, arguments=OWN_ARGUMENTS, cycles_pattern=PATTERN)
"""Of a build that takes other flags and prints its cycles."""

OUTPUT_STATIONARY = replace(HARDWARE, dataflow="output_stationary")
BIG = replace(HARDWARE, array_rows=128, array_columns=128, clock_hz=940e6)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(hardware: SystolicHardware) -> Systolic:
    found = estimator("cocossim", EstimatorSpec(hardware=hardware))
    assert isinstance(found, Systolic)
    return found


def usual(hardware: CocossimHardware = HARDWARE) -> CocossimHardware:
    return replace(hardware, binary=cocossim_checkout(Path("cocossim")))


def standing_in(code: str, **changes: object) -> Systolic:
    return made(hardware_of(code, **changes))


def hardware_of(code: str, **changes: object) -> CocossimHardware:
    return replace(OWN, binary=program_file(Path("perf_model"), code), **changes)


def cycles(found: Systolic, product: Product = PRODUCT) -> float:
    return found.timer.time_s(product, 2) * 1e9


def test_a_product_is_a_convolution_of_1_by_1_asked_once(here: Path) -> None:
    found = made(usual())
    assert cycles(found) == pytest.approx(4 * 3 * (48 + 30) + 1)
    assert cycles(found) == pytest.approx(4 * 3 * (48 + 30) + 1)
    assert (here / "cocossim" / "build" / "perf_model.count").read_text() == "x"
    assert not list(here.glob("hespas-*"))
    assert "'Conv 1 {k} {m} 1 {n} 1 1 0', a convolution of 1 x 1" in found.timer.assumption
    assert "an element takes 2 bytes there, whatever the program's" in found.timer.assumption


@pytest.mark.parametrize("shape", FIGURES["cocossim_ws"])
@pytest.mark.parametrize("dataflow", ["weight_stationary", "output_stationary"])
def test_its_cycles_are_those_that_it_was_seen_to_give(
    shape: tuple[int, int, int], dataflow: str
) -> None:
    m, k, n = shape
    found = made(usual(replace(BIG, dataflow=dataflow)))
    figures = FIGURES["cocossim_ws" if dataflow == "weight_stationary" else "cocossim_os"]
    assert found.timer.time_s(Product(m=m, n=n, k=k), 2) * 940e6 == pytest.approx(figures[shape])


def test_the_documented_configuration_is_the_usual_one(here: Path) -> None:
    hardware = usual(BIG)
    product = Product(m=300, n=1000, k=700)
    by_hand = replace(
        hardware,
        binary="/usr/bin/env",
        files={
            "build/perf_model": "cocossim/build/perf_model",
            "dramsim3/configs": "cocossim/dramsim3/configs",
            "dramsim3/libdramsim3.so": "cocossim/dramsim3/libdramsim3.so",
        },
    )
    flags = "-c 1 -sa_sz {rows} -vu_sz 128 -ws {dataflow} -f {clock_ghz} -i {workload} -o {output}"
    whole = replace(
        by_hand,
        arguments=("--chdir=build", "./perf_model", *flags.split()),
        answer_file="stats.txt",
        cycles_pattern="^Cycles ([0-9]+)$",
    )
    alike = (
        hardware,
        by_hand,
        replace(by_hand, binary=None),
        replace(by_hand, binary="env"),
        whole,
    )
    assert len({repr(made(each).parameters) for each in alike}) == 1
    assert made(whole).timer.time_s(product, 2) * 940e6 == pytest.approx(46_445)
    assert not list(here.glob("hespas-*"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"binary": "/usr/bin/env"}, "files name no build/perf_model for it to start"),
        (
            {"files": {"build/perf_model": "cocossim/build/perf_model"}},
            "binary is 'cocossim/build/perf_model', and files name build/perf_model as well",
        ),
        ({"array_columns": 8}, "arrays are square, and this one has 16 rows and 8 columns"),
    ],
)
def test_what_the_usual_arguments_cannot_say_is_refused(
    here: Path, changes: dict[str, object], said: str
) -> None:
    hardware = replace(usual(), binary="cocossim/build/perf_model")
    assert here.exists()
    with pytest.raises(ConfigError, match=said):
        made(replace(hardware, **changes))


def test_output_stationary_results_are_rounded_up_to_whole_arrays() -> None:
    found = made(usual(OUTPUT_STATIONARY))
    assert cycles(found) == pytest.approx(2 * 3 * (32 + 50))
    assert "rounded up to whole arrays" in found.timer.assumption
    assert "rounded up" not in made(usual()).timer.assumption
    assert found.parameters != made(usual()).parameters


def test_a_product_beyond_32_bits_is_refused(here: Path) -> None:
    found = made(usual(BIG))
    with pytest.raises(UnsupportedError, match=r"counts the 2,149,580,800 bytes of 8192 x 128 by"):
        cycles(found, Product(m=8192, n=131072, k=128))
    assert not list(here.glob("hespas-*"))
    assert cycles(found, Product(m=8192, n=130816, k=128)) > 0
    whole = made(usual(replace(BIG, dataflow="output_stationary")))
    assert cycles(whole, Product(m=8192, n=131072, k=128)) > 0


def test_arrays_share_the_columns() -> None:
    found = made(usual(replace(HARDWARE, array_count=2)))
    assert cycles(found) == pytest.approx(4 * 2 * (48 + 30) + 1)


def test_a_line_of_ones_own_is_written() -> None:
    code = "import sys; print('Total cycles:', open(sys.argv[2]).read().split()[-1])"
    hardware = hardware_of(code)
    found = made(replace(hardware, product_line="Product {m} {k} {n} 12345"))
    assert cycles(found) == pytest.approx(12345)
    assert "'Product {m} {k} {n} 12345'" in found.timer.assumption


@pytest.mark.parametrize("line", ["Product {m} {n}", "Product {m} {n} {k} {b}", "{m} {n} {k} {"])
def test_a_line_that_lacks_a_size_is_refused(line: str) -> None:
    with pytest.raises(ConfigError, match=r"product_line is .* with \{m\}, \{n\} and \{k\}"):
        made(hardware_of(COCOSSIM, product_line=line))


def test_clock_and_size_of_elements_can_be_reported() -> None:
    code = "import sys; assert sys.argv[7:] == ['1', '1000000000', '2']; print('Total cycles: 937')"
    arguments = (*OWN_ARGUMENTS, "{clock_ghz}", "{clock_hz}", "{element_bytes}")
    found = standing_in(code, arguments=arguments)
    assert cycles(found) == pytest.approx(937)
    assert "an element takes" not in found.timer.assumption
    assert "that of its build" not in found.timer.assumption
    assert "clock beside its memory's is that of its build" in standing_in(code).timer.assumption


def test_the_answer_may_stand_in_a_file() -> None:
    code = "import sys; open(sys.argv[-1], 'w').write('12,345\\ncycles 23456\\n')"
    arguments = (*OWN_ARGUMENTS, "{output}")
    found = standing_in(
        code, arguments=arguments, answer_file="made/out.txt", cycles_pattern="^cycles (.*)$"
    )
    assert cycles(found) == pytest.approx(23456)


def test_files_lie_where_it_is_started(here: Path) -> None:
    (here / "ini").mkdir()
    (here / "ini" / "dram.ini").write_text("23456")
    code = "print('Total cycles:', open('memory/dram.ini').read())"
    assert cycles(standing_in(code, files={"memory": "ini"})) == pytest.approx(23456)
    assert (here / "ini" / "dram.ini").read_text() == "23456"


def test_another_build_is_another_estimate(here: Path) -> None:
    (here / "dram.ini").write_text("1")
    hardware = hardware_of(COCOSSIM, files={"dram.ini": "dram.ini"})
    first = made(hardware).parameters
    assert made(hardware).parameters == first
    (here / "dram.ini").write_text("2")
    second = made(hardware).parameters
    program_file(here / "perf_model", COCOSSIM + "# built anew")
    third = made(hardware).parameters
    assert first != second != third


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit('segmentation fault')", "failed with code 1: segmentation fault"),
        ("import os; os.abort()", "was ended by SIGABRT"),
        ("print('done')", r"nothing in COCOSSim's answer fits cycles_pattern .*Total"),
        ("print('Total cycles: -5')", "gives -5 cycles for 30 x 50 by 50 x 40"),
        ("print('Total cycles: 0')", "gives 0 cycles"),
        ("print('Total cycles: nan')", "gives nan cycles"),
        ("print('Total cycles: inf')", "gives inf cycles"),
        ("print('Total cycles: 234')", "234 cycles .* 256 multipliers need 234.375 at least"),
        ("print('Total cycles: many')", "finds 'many', which is no number"),
        (
            "print('Total cycles: 500\\nTotal cycles: 600')",
            "2 different counts .*: 500, 600; make it fit one",
        ),
    ],
)
def test_an_answer_that_cannot_be_is_refused_and_kept(here: Path, code: str, said: str) -> None:
    with pytest.raises(ToolError, match=said) as caught:
        cycles(standing_in(code))
    (kept,) = here.glob("hespas-cocossim-*")
    assert caught.value.location.startswith(str(kept))
    assert (kept / "workload.txt").read_text() == "Conv 1 50 30 1 40 1 1 0\n"


def test_the_same_count_twice_is_one() -> None:
    assert cycles(standing_in("print('Total cycles: 500\\nTotal cycles: 500')")) == 500


def test_a_program_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "LIMITS", Limits(time_s=0.3))
    with pytest.raises(ToolError, match=r"took longer than 0\.3 s"):
        cycles(standing_in("import time; time.sleep(60)"))


def test_an_answer_file_that_is_not_there_is_named() -> None:
    with pytest.raises(HespasError, match=r"wrote no out\.txt"):
        cycles(standing_in("print('Total cycles: 500')", answer_file="out.txt"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"arguments": ()}, r"lack \{workload\}"),
        ({"arguments": ("{workload}", "{rows}")}, r"lack \{dataflow\}, 1 for"),
        ({"arguments": ("{workload}", "{dataflow}")}, r"lack \{rows\}"),
        ({"arguments": ("{worklod}",)}, r"hold \{worklod\}; did you mean 'workload'"),
        ({"arguments": ("{rows:3}",)}, r"hold \{rows:3\}"),
        ({"arguments": ("{}",)}, r"hold \{\}"),
        ({"arguments": ("{rows",)}, "'{rows' is malformed"),
        ({"cycles_pattern": "cycles"}, "has 0 groups"),
        ({"cycles_pattern": "(c)(d)"}, "has 2 groups"),
        ({"cycles_pattern": "(c"}, "cycles_pattern is '\\(c': missing"),
        ({"answer_file": "/out.txt"}, "'/out.txt' is no name beneath"),
        ({"files": {"../dram.ini": "dram.ini"}}, "'../dram.ini' is no name beneath"),
        ({"files": {"log.txt": "dram.ini"}}, "where 'log.txt' is written"),
        ({"files": {"a": "dram.ini"}, "answer_file": "a/out"}, "where 'a/out' is written"),
        ({"files": {"a": "dram.ini", "a/b": "dram.ini"}}, "where 'a/b' is written"),
        ({"files": {"dram.ini": "dram.ini"}}, "dram.ini: cannot be read: No such file"),
    ],
)
def test_what_is_missing_or_malformed_is_named(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        standing_in(COCOSSIM, **changes)


def test_a_file_of_a_name_that_hespas_writes_is_refused(here: Path) -> None:
    (here / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"'workload\.txt', which hespas writes"):
        cycles(standing_in(COCOSSIM, files={"workload.txt": "mine.txt"}))
    assert not list(here.glob("hespas-*"))
    assert (here / "mine.txt").read_text() == "mine"


def test_an_array_that_is_not_square_needs_its_columns_reported() -> None:
    with pytest.raises(ConfigError, match=r"lack \{columns\}"):
        made(hardware_of(COCOSSIM, array_columns=8))


def test_what_would_have_no_effect_is_refused() -> None:
    with pytest.raises(ConfigError, match="sram_bandwidth has no effect on method 'cocossim'"):
        made(hardware_of(COCOSSIM, sram_bandwidth=1e12))
    with pytest.raises(ConfigError, match="the configuration is of another method"):
        made(
            SystolicHardware(
                array_rows=16,
                array_columns=16,
                clock_hz=1e9,
                memory_bandwidth=100e9,
                vector_flops=1e12,
            )
        )


def test_the_program_is_looked_for(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"needs binary, .*github\.com/mc186/cocossim"):
        made(HARDWARE)
    with pytest.raises(ToolError, match="there is no program nowhere/perf_model"):
        made(replace(HARDWARE, binary="nowhere/perf_model"))
    with pytest.raises(ToolError, match="there is no program nowhere/perf_model"):
        made(replace(OWN, binary="nowhere/perf_model"))
    hardware = hardware_of("print('Total cycles: 937')")
    Path("perf_model").chmod(0o644)
    with pytest.raises(ToolError, match="is not executable"):
        made(hardware)
    Path("bin").mkdir()
    program_file(Path("bin/on_the_path"), "print('Total cycles: 937')")
    monkeypatch.setenv("PATH", str(here / "bin"), prepend=":")
    assert cycles(made(replace(OWN, binary="on_the_path"))) == pytest.approx(937)


def test_scale_sim_takes_no_such_program_for_a_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        del name

    monkeypatch.setattr(tool, "find_spec", nothing)
    with pytest.raises(ExtraMissingError, match="scalesim"):
        estimator("scalesim", EstimatorSpec(hardware=hardware_of(COCOSSIM)))


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("dramsim3/libdramsim3.so", "cannot open shared object file"),
        ("dramsim3/configs", "no ../dramsim3/configs"),
    ],
)
def test_what_lies_beside_the_program_is_needed(here: Path, missing: str, said: str) -> None:
    hardware = usual()
    (here / "cocossim" / missing).rename(here / "elsewhere")
    with pytest.raises(ToolError, match=said):
        cycles(made(hardware))
    assert cycles(made(replace(hardware, files={missing: "elsewhere"}))) == pytest.approx(937)


def test_the_stand_in_refuses_what_is_malformed() -> None:
    with pytest.raises(ToolError, match="usage"):
        cycles(made(hardware_of(COCOSSIM)))
    with pytest.raises(ToolError, match="no convolution"):
        cycles(made(replace(usual(), product_line="Conv {m} {n} {k}")))
