"""A mistake is reported before anything that takes time: export, partitioning, compilation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from hespas.cli import commands as cli
from hespas.cli.commands import commands
from hespas.compile import job
from hespas.errors import ExtraMissingError

MODEL = ("run", "llama3-8b", "--mesh", "fsdp=8,tp=4", "--cluster", "32xH100_80GB")
PROGRAM = ("run", "sharded.mlir", "--cluster", "8xH100_80GB", "--model", "hespas")


@pytest.fixture(autouse=True)
def expensive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let every step that takes time fail the test."""

    def called(command: Sequence[str], **settings: object) -> None:
        raise AssertionError(f"this takes time: {command} {settings.get('name')}")

    def started(**settings: object) -> None:
        raise AssertionError(f"this takes time: {settings}")

    monkeypatch.setattr("hespas.base.question.run_program", called)
    monkeypatch.setattr("hespas.base.question.Worker", started)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("file").write_text("")
    Path("sharded.mlir").write_text(
        'module attributes {mhlo.num_partitions = 8 : i32} {\n  sdy.mesh @mesh = <["x"=8]>\n'
        "  func.func @main(%a: tensor<8x8xf32> {sdy.sharding = "
        '#sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x8xf32> {\n'
        "    %b = stablehlo.transpose %a, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>\n"
        "    return %b : tensor<8x8xf32>\n  }\n}\n"
    )
    Path("late.yml").write_text("devices: [{devices: 99, compute_scale: 2}]")
    Path("link.yml").write_text("links: [{link: no such link, bandwidth_scale: 0.5}]")
    Path("empty.yml").write_text("{}")
    Path("taken").mkdir()
    Path("taken/hespas_output.json").write_text('{"workload": "other", "content": "0"}')


MISTAKES = [
    (("--cluster", "30xH100_80GB"), "30 devices do not fill nodes of 8"),
    (("--cluster", "32xH100"), "did you mean 'H100_80GB'"),
    (("--cluster", "H100_80GB_8GPUS"), "did you mean 'H100_80GB_8GPU'"),
    (("--cluster", "64xL40S_48GB"), "how nodes of L40S_48GB are connected is not known"),
    (("--system", "H100_80GB_8GPU"), "--system has no effect with --cluster"),
    (("--node", "H100"), "did you mean 'H100_80GB'"),
    (("--node", "TPUv5e"), "TPUv5e is a TPU"),
    (("--devices", "7"), "7 devices are asked for, but the system has"),
    (("--imperfect", "absent.yml"), "absent.yml: cannot be read"),
    (("--imperfect", "empty.yml"), "the file describes nothing"),
    (("--imperfect", "late.yml"), "device 99 is not among the"),
    (("--imperfect", "link.yml", "--model", "hespas"), "there is no link 'no such link'"),
    (("--imperfect", "link.yml", "--model", "astra-sim"), "links that differ have no model"),
    (("--algorithm", "rign", "--model", "hespas"), "did you mean 'ring'"),
    (("--network", "congestion-aware", "--model", "hespas"), "--network has no effect on the mod"),
    (("--method", "rooflin"), "did you mean 'roofline'"),
    (("--method", "systolic"), "needs a description of the array"),
    (("--method", "kernel", "--launch-overhead", "3us"), "no effect on method kernel"),
    (("--threads", "0"), "--threads is 0"),
    (("--peak-flops", "3"), "3 without a unit"),
    (("--json", "no/where.json"), "no/where.json: cannot be written: no is no directory"),
    (("--timeline", "no/where.json"), "cannot be written: no is no directory"),
    (("--json", "a.json", "--timeline", "a.json"), "is named for both"),
    (("--log-path", "no/log.txt"), "the log cannot be written"),
    (("--output", "file"), "is a file, not a directory"),
    (("--output", "taken"), "holds the files of another workload (other)"),
    (("--cache-dir", "file"), "cannot be used"),
    (("--clean",), "--clean has no effect without --output"),
]
OF_MODELS = [
    (("--cuda-graphs",), "llama3-8b: --cuda-graphs has no effect: the program is no recorded"),
    (("--cuda-graphs", "--mesh", "pipe=4,tp=8"), "--cuda-graphs has no effect"),
    (("--host-launch", "10us"), "llama3-8b: --host-launch has no effect: the program is no"),
    (("--mesh", "fsdp=8,tp=2"), "the mesh fsdp=8,tp=2 has 16 devices, and there are 32"),
    (("--mesh", "fsdp=8;tp=4"), "is not AXIS=SIZE"),
    (("--mesh", "fsdp=8,pp=4"), "mesh axis pp divides nothing in this model"),
    (("--mesh", "tp=32"), "kv_heads = 8 cannot be divided by tp=32"),
    (("--batch", "0"), "batch is '0'"),
    (("--global-batch", "4"), "cannot be divided over the 8 data-parallel parts"),
    (("--batch", "1", "--global-batch", "8"), "no effect with"),
    (("--batch", "4", "--micro-batch", "3"), "does not divide the batch"),
    (("--remat", "all"), "remat is 'all'"),
    (("--dtype", "f8"), "dtype is 'f8'"),
    (("--set", "layer=2"), "did you mean 'layers'"),
    (("--set", "layers"), "--set is 'layers'; write NAME=VALUE"),
    (("--optimise", "--kernels", "absent.json"), "absent.json: cannot be read"),
    (("--optimise", "--cluster", "8xMI300X", "--mesh", "fsdp=8"), "no compiler at hand"),
    (("--optimise", "--disable-passes", "a b"), "is not the name of a pass"),
    (("--optimise", "--xla-flag", "foo=1"), "'foo' is not a flag of XLA"),
]


def refused(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command, and return its one-line error."""
    code = cli.run(commands, "hespas", words)
    said = capsys.readouterr()
    assert code == cli.ERROR_CODE, said.out
    assert len(said.err.splitlines()) == 1, said.err
    assert "this takes time" not in said.err
    return said.err


def instead(base: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return a command with words in the place of the options that they give."""
    options = zip(base[2::2], base[3::2], strict=True)
    kept = [word for option in options if option[0] not in words for word in option]
    return [*base[:2], *kept, *words]


@pytest.mark.parametrize("base", [MODEL, PROGRAM], ids=["model", "program"])
@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=str)
def test_a_mistake_is_found_before_the_work(
    base: tuple[str, ...], words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(instead(base, words), capsys)


@pytest.mark.parametrize(("words", "message"), OF_MODELS, ids=str)
def test_a_mistake_about_a_model_is_found_before_it_is_exported(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(instead(MODEL, words), capsys)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "lama3-8b"), "did you mean 'llama3-8b'"),
        (("run", "absent.mlir"), "absent.mlir: no such file"),
        (("run",), "no program is given"),
        (("run", "llama3-8b", "--node", "H100_80GB"), "give --cluster 4xPART"),
        (("estimate", "llama3-8b"), "no device is given"),
        (("kernels", "llama3-8b"), "no device is given; give --node, or --cluster"),
        (("memory", "llama3-8b", "--node", "nothing"), "no device preset or file is named"),
        (("trace", "llama3-8b", "--node", "H100_80GB"), "no output directory is given"),
        (("compile", "lama3-8b", "--target", "H100_SXM"), "did you mean 'llama3-8b'"),
    ],
    ids=str,
)
def test_a_workload_or_device_that_is_not_there(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(words, capsys)


def test_a_compiler_that_is_not_installed_is_missed_before_the_export(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(target: object) -> dict[str, str]:
        raise ExtraMissingError("compiling for a GPU", extra="gpu")

    monkeypatch.setattr(job, "compiler_versions", missing)
    assert "hespas[gpu]" in refused([*MODEL, "--optimise"], capsys)


def test_without_a_mistake_the_work_begins(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (MODEL, PROGRAM):
        assert cli.run(commands, "hespas", words) == cli.ERROR_CODE
        assert "this takes time" in capsys.readouterr().err


@pytest.mark.parametrize("step", ["--prefill", "--decode"])
def test_a_long_run_is_of_training(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("run", "Qwen/Qwen3-8B", "--cluster", "8xH100_80GB", step, "--goodput")
    assert "--goodput has no effect on Qwen/Qwen3-8B:" in refused(words, capsys)
