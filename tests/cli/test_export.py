"""``hespas export`` and ``hespas partition`` as people use them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

Call = Callable[..., CompletedProcess[str]]
PRESETS = ("--node", "A100_SXM_40GB", "--system", "A100_SXM_40GB_4GPU")


def test_a_model_is_exported_partitioned_and_predicted(call: Call, tmp_path: Path) -> None:
    small = ("--set", "m=256", "--mesh", "x=4", "--dtype", "f16")
    done = call("hespas", "export", "gemm-contracting", *small, "-o", "whole.mlir")
    assert done.returncode == 0, done.stderr
    assert "whole.mlir: gemm-contracting for 4 devices" in done.stdout
    sharded = call(
        "hespas", "export", "gemm-contracting", *small, "--unpartitioned", "-o", "sharded.mlir"
    )
    assert "sdy.sharding" in (tmp_path / "sharded.mlir").read_text(), sharded.stderr
    divided = call("hespas", "partition", "sharded.mlir", "-o", "divided.mlir")
    assert divided.returncode == 0, divided.stderr
    assert (tmp_path / "divided.mlir").read_bytes() == (tmp_path / "whole.mlir").read_bytes()
    predictions = [
        call("hespas", "run", name, "--verbose", *PRESETS)
        for name in ("whole.mlir", "sharded.mlir")
    ]
    assert [one.returncode for one in predictions] == [0, 0]
    assert "came sharded, not partitioned" not in predictions[0].stdout
    assert "came sharded, not partitioned" in predictions[1].stdout
    # Divided or not, the axis of the mesh has its name, and the step its model FLOPs.
    assert all("all_reduce x" in one.stdout for one in predictions)
    whole = call("hespas", "run", "gemm-contracting", *small, "--verbose", *PRESETS)
    needed = [line.split("/")[0] for line in whole.stdout.splitlines() if "(MFU)" in line]
    assert all(line in one.stdout for one in predictions for line in needed)
    assert needed


def test_models_are_listed_with_their_options(call: Call) -> None:
    shown = call("hespas", "export", "--list").stdout
    assert "llama3-100m: Llama-3-like training step" in shown
    assert "embedding=576 heads=9" in shown
    one = call("hespas", "export", "--list", "openai/gpt-oss-20b").stdout.splitlines()
    assert one[0].startswith("openai/gpt-oss-20b: ")
    assert len(one) == 2
    assert "did you mean" in call("hespas", "export", "--list", "llama3-8c").stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no source is given"),
        (("gemm",), "no output is given"),
        (("gemm", "-o", "no/where.mlir"), "cannot be written"),
        (("gemm", "-o", "a.mlir", "--set", "m"), "--set is 'm'; write NAME=VALUE"),
        (("gemm", "-o", "a.mlir", "--set", "m=1", "--set", "m=2"), "--set is given twice for m"),
        (("gemm", "-o", "a.mlir", "--batch", "1", "--set", "batch=2"), "both given; keep one"),
        (("gemm", "-o", "a.mlir", "--devices", "3"), "--devices is for a function"),
        (("gemm", "-o", "a.mlir", "--remat", "full"), "gemm has no option 'remat'"),
        (("gemm", "-o", "a.mlir", "--module", "step"), "--module is for a directory"),
        (("nothing:here", "-o", "a.mlir"), "No module named 'nothing'"),
        (("nothing:here", "-o", "a.mlir", "--dtype", "f32"), "--dtype has no effect on a function"),
        ((".", "-o", "a.mlir"), "no modules of XLA"),
        (("gemn", "-o", "a.mlir"), "did you mean 'gemm'"),
    ],
)
def test_what_cannot_be_exported(call: Call, words: tuple[str, ...], message: str) -> None:
    done = call("hespas", "export", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_debug_shows_where_a_function_failed(call: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def step():\n    raise ValueError('not today')\n")
    done = call("hespas", "export", "mine:step", "-o", "a.mlir")
    assert done.stderr.startswith("hespas: error: mine:step: ValueError: not today")
    assert len(done.stderr.splitlines()) == 1
    shown = call("hespas", "export", "mine:step", "-o", "a.mlir", "--debug").stderr
    assert f'File "{tmp_path}/mine.py", line 2, in step' in shown


def test_a_program_is_no_artifact_of_jax_export(call: Call, block: Path) -> None:
    done = call("hespas", "export", block, "-o", "a.mlir")
    assert "not what jax.export serialises; give a program that is sharded" in done.stderr


def test_a_partitioned_program_is_not_partitioned_again(call: Call, block: Path) -> None:
    done = call("hespas", "partition", block, "-o", "a.mlir")
    assert done.returncode == 2
    assert "there is nothing to partition" in done.stderr
    assert "no output is given" in call("hespas", "partition", block).stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("maxtext", "model_name=x"), "a step of MaxText is made for a cluster; give --cluster"),
        (("maxtext", "model_name", "--cluster", "8xH100_80GB", "x"), "'x' is no setting"),
        (
            ("maxtext", "--cluster", "8xH100_80GB", "--batch", "2"),
            "--batch has no effect on a step",
        ),
        (("maxtext", "--cluster", "8xH100_80GB", "--devices", "4"), "has 8 devices"),
        (("maxtext", "--cluster", "8xH100_80GB"), "has no maxtext; name one that has"),
        (("gemm-contracting", "a=1"), "a=1 stands behind gemm-contracting"),
        (("gemm-contracting", "--target", "H100_SXM"), "only steps of MaxText have it"),
    ],
)
def test_settings_of_maxtext_are_for_maxtext(
    call: Call, words: tuple[str, ...], message: str
) -> None:
    done = call("hespas", "export", *words, "-o", "x.mlir")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "a=1"), "a step of MaxText is made for a cluster, and none is given"),
        (
            ("--cluster", "8xH100_80GB", "--mesh", "fsdp=8"),
            "--mesh has no effect on a step of MaxText",
        ),
        (("--cluster", "8xH100_80GB", "--set", "a=1"), "has no maxtext; name one that has"),
    ],
)
def test_a_step_of_maxtext_is_a_workload(call: Call, words: tuple[str, ...], message: str) -> None:
    done = call("hespas", "run", "maxtext:base.yml", *words)
    assert done.returncode == 2
    assert message in done.stderr
