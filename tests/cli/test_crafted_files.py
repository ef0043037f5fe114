"""Files that are made to run code, to write elsewhere, or to put a script on a page."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from fuzz.good_files import CLUSTER, LOOPS, STUDY, SWAP
from hespas.cli.commands import commands, run

SCRIPT = "</script><script>alert(1)</script>"
ON = ("--cluster", "4xA100_SXM_40GB", "--as-exported")
APPLY = '!!python/object/apply:os.system ["touch ran"]'


@pytest.fixture(autouse=True)
def in_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    return tmp_path


def hespas(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run a command, and return what it answers, or its one line of error."""
    capsys.readouterr()
    code = run(commands, "hespas", words)
    shown = capsys.readouterr()
    assert code in {0, 2}
    assert not Path("ran").exists()
    assert len(shown.err.splitlines()) == (code == 2)
    return shown.err if code else shown.out


class Touch:
    """What leaves a file where it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (Path("ran"),)


def test_names_of_a_program_are_text_on_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    named = LOOPS.replace("@scaled", f'@"{SCRIPT}"').replace(
        "-> tensor<64x128xf32>\n    %g", f'-> tensor<64x128xf32> loc("{SCRIPT}")\n    %g'
    )
    assert named.count(SCRIPT) == 3
    Path("step.mlir").write_text(named)
    hespas(capsys, "run", "step.mlir", *ON, "--json", "run.json")
    assert SCRIPT in Path("run.json").read_text()
    hespas(capsys, "report", "run.json", "-o", "page.html")
    page = Path("page.html").read_text()
    assert "alert(1)" in page
    assert "<script>alert" not in page


def test_a_name_of_a_function_is_no_path(
    capsys: pytest.CaptureFixture[str], in_a_directory: Path
) -> None:
    Path("step.mlir").write_text(LOOPS.replace("@scaled", '@"../up"'))
    hespas(capsys, "run", "step.mlir", *ON, "-o", "out")
    assert [each.name for each in in_a_directory.iterdir()] == ["inside"]


@pytest.mark.parametrize("name", ["../up", "/tmp/hespas-up", "..", "a/b"])  # noqa: S108 - refused
def test_a_name_of_an_algorithm_is_no_path(
    capsys: pytest.CaptureFixture[str], in_a_directory: Path, name: str
) -> None:
    Path("swap.xml").write_text(SWAP.replace('name="swap"', f'name="{name}"'))
    said = hespas(capsys, "algorithm", "swap.xml", "--chakra", "c")
    assert "is no file's name" in said
    assert [each.name for each in in_a_directory.iterdir()] == ["inside"]
    assert not Path("c").exists()


def test_yaml_makes_no_objects(capsys: pytest.CaptureFixture[str]) -> None:
    Path("step.mlir").write_text(LOOPS)
    Path("c.yml").write_text(CLUSTER.replace("seed: 7", f"seed: {APPLY}"))
    said = hespas(capsys, "run", "step.mlir", *ON, "--imperfect", "c.yml")
    assert "malformed YAML" in said
    Path("study.yml").write_text(STUDY.replace("title: Two ways", f"title: {APPLY}"))
    said = hespas(capsys, "study", "run", "study.yml", "-o", "out")
    assert "malformed YAML" in said


def test_nothing_is_unpickled(capsys: pytest.CaptureFixture[str]) -> None:
    crafted = pickle.dumps(Touch())
    for file in ("step.mlir", "step.hlo", "run.json"):
        Path(file).write_bytes(crafted)
    Path("kept").mkdir()
    Path("kept/estimates.sqlite").write_bytes(crafted)
    for words in (
        ("run", "step.mlir", *ON),
        ("estimate", "step.hlo", "--node", "A100_SXM_40GB"),
        ("report", "run.json", "-o", "page.html"),
        ("simulate", "step.mlir", "--system", "A100_SXM_40GB_4GPU"),
    ):
        assert "hespas: error:" in hespas(capsys, *words)
    Path("step.mlir").write_text(LOOPS)
    assert "damaged" in hespas(capsys, "run", "step.mlir", *ON, "--cache-dir", "kept")


def test_names_of_files_are_never_a_shells(capsys: pytest.CaptureFixture[str]) -> None:
    program = Path("step; touch ran; $(touch ran).mlir")
    program.write_text(LOOPS)
    assert "Step time" in hespas(capsys, "run", str(program), *ON)
    hespas(capsys, "trace", str(program), "--node", "A100_SXM_40GB", "-o", "t")
    words = ("simulate", "t", "--system", "A100_SXM_40GB_4GPU", "--backend", "htsim")
    said = hespas(
        capsys, *words, "--backend-program", "/bin/echo", "--backend-argument=; $(touch ran)"
    )
    assert "hespas: error:" in said


def test_a_condition_of_a_study_runs_no_code(capsys: pytest.CaptureFixture[str]) -> None:
    Path("step.mlir").write_text(LOOPS)
    condition = "where: __import__('os').system('touch ran') == 0"
    Path("study.yml").write_text(
        STUDY.replace("where: memory.fits and cluster.devices <= 8", condition)
    )
    assert "hespas: error:" in hespas(capsys, "study", "run", "study.yml", "-o", "out")
