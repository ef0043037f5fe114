"""Compilers that fail, played by shell scripts in the compiler's place."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from compilers import JOB, RESULT
from hespas.base.process import Limits
from hespas.compile import packages
from hespas.compile.cache import CompiledCache
from hespas.compile.compiler import compile_program, run_job
from hespas.compile.job import ANY_LAYOUT, Layout, job_of
from hespas.compile.options import DEFAULT_OPTIONS
from hespas.compile.targets import find_target
from hespas.errors import (
    ConfigError,
    DeviceCountError,
    ExtraMissingError,
    ProgramError,
    ToolError,
    UnsupportedError,
)

LIMITS = Limits(time_s=20, memory_bytes=3 * 2**30)
Play = Callable[[str], None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Give a function that puts a shell script in the compiler's place."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def put(script: str) -> None:
        file = tmp_path / "compiler.sh"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(file))

    return put


def kept_logs(directory: Path) -> list[Path]:
    return sorted(directory.glob("hespas-compile-*/log.txt"))


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo a check failed >&2; kill -ABRT $$", "was ended by SIGABRT: a check failed"),
        ("echo no; exit 7", "failed with code 7: no"),
        ("exit 0", "left no answer"),
        ("echo '{' > answer.json", "left no answer"),
        ("echo std::bad_alloc; kill -ABRT $$", r"ran out of memory \(it may address 3 GiB\)"),
        ("echo x.so: failed to map segment; exit 1", "ran out of memory.*; allow more"),
    ],
)
def test_the_log_of_a_compiler_that_fails_is_kept_and_named(
    play: Play, tmp_path: Path, script: str, message: str
) -> None:
    play(script)
    with pytest.raises(ToolError, match=message) as caught:
        run_job(JOB, LIMITS)
    (log,) = kept_logs(tmp_path)
    assert caught.value.location == str(log)


def test_a_compiler_that_takes_too_long_is_ended(play: Play, tmp_path: Path) -> None:
    play("echo still at it; exec sleep 30")
    with pytest.raises(ToolError, match=r"longer than 0.2 s: still at it; allow more time"):
        run_job(JOB, Limits(time_s=0.2))
    assert len(kept_logs(tmp_path)) == 1


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_nothing_stays_of_a_compilation_that_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def interrupted(*_: object, **__: object) -> None:
        assert list(tmp_path.iterdir()) != []
        raise interruption

    monkeypatch.setattr("hespas.base.question.run_program", interrupted)
    with pytest.raises(interruption):
        run_job(JOB, LIMITS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "echo 'F1 parse.cc:2] Unknown flag in XLA_FLAGS: --xla_foo=1'; kill -ABRT $$",
            "the compiler has no flag xla_foo$",
        ),
        (
            'echo "Couldn\'t interpret value hi for flag xla_bar."; kill -ABRT $$',
            "'hi' is no value of the compiler's flag xla_bar$",
        ),
    ],
)
def test_flags_that_the_compiler_refuses_are_named(
    play: Play, tmp_path: Path, script: str, message: str
) -> None:
    play(script)
    with pytest.raises(ConfigError, match=message):
        run_job(JOB, LIMITS)
    assert kept_logs(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "is_kept"),
    [
        (UnsupportedError, False),
        (ProgramError, False),
        (DeviceCountError, False),
        (ToolError, True),
    ],
)
def test_what_the_compiler_answers_is_raised(
    play: Play, tmp_path: Path, error: type[Exception], *, is_kept: bool
) -> None:
    fields = {"error": error.__name__, "message": "why", "location": "a.mlir", "hint": "so"}
    refused = json.dumps({**fields, "trace": ""})
    play(f"cat > refused.json <<'END'\n{refused}\nEND")
    with pytest.raises(error, match=r"^a\.mlir: .*why; so$") as caught:
        run_job(JOB, LIMITS)
    logs = kept_logs(tmp_path)
    assert len(logs) == is_kept
    assert all(str(log) in str(caught.value) for log in logs)


def test_the_users_flags_of_xla_do_not_reach_the_compiler(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_of_the_user")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_of_the_user")
    play("env; exit 3")
    with pytest.raises(ToolError):
        run_job(JOB, LIMITS)
    (log,) = kept_logs(tmp_path)
    assert "xla_of_the_user" not in log.read_text()


def only_jaxlib(name: str) -> str:
    if name != "jaxlib":
        raise PackageNotFoundError(name)
    return "0.10.2"


@pytest.mark.parametrize(("target", "extra"), [("H100_SXM", "gpu"), ("TPUv5e", "tpu")])
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, target: str, extra: str) -> None:
    monkeypatch.setattr(packages, "installed_version", only_jaxlib)
    with pytest.raises(ExtraMissingError, match=rf"{target} needs.*'hespas\[{extra}\]'"):
        compile_program(b"module {}", name="a.mlir", target=target)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("H100_SXM", r"jax-cuda12-pjrt 0\.9 and jaxlib 0\.10\.2 do not.*pjrt==0\.10\.2"),
        ("TPUv5e", r"libtpu 0\.9 and jaxlib 0\.10\.2 do not.*libtpu==0\.0\.42"),
    ],
)
def test_mixed_versions_are_both_named(
    monkeypatch: pytest.MonkeyPatch, target: str, message: str
) -> None:
    installed = {"jaxlib": "0.10.2", "jax-cuda12-pjrt": "0.9", "libtpu": "0.9"}
    monkeypatch.setattr(packages, "installed_version", installed.__getitem__)
    with pytest.raises(ToolError, match=message):
        compile_program(b"module {}", name="a.mlir", target=target)


def everything_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"jaxlib": "0.10.2", "jax-cuda12-pjrt": "0.10.2", "libtpu": "0.0.42"}
    monkeypatch.setattr(packages, "installed_version", installed.__getitem__)
    monkeypatch.setattr(packages, "toolkit_version", lambda: "12.9.86")


def test_hlo_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    everything_is_there(monkeypatch)
    with pytest.raises(
        ProgramError,
        match=r"a\.hlo: this is HLO, not StableHLO.*compiled program is taken as it is",
    ):
        compile_program(b"HloModule m", name="a.hlo", target="H100_SXM")


def test_a_layout_is_of_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    everything_is_there(monkeypatch)
    for name, layout in (("H100_SXM", Layout(topology="2x2")), ("TPUv5e", Layout(per_host=8))):
        with pytest.raises(ConfigError, match=r"for (TPU|GPU)s; give"):
            job_of(b"", name="", target=find_target(name), layout=layout, options=DEFAULT_OPTIONS)
    with pytest.raises(DeviceCountError, match="0 devices"):
        Layout(devices=0)


def test_what_is_cached_is_not_compiled(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything_is_there(monkeypatch)
    play("echo it ran; exit 9")
    cache = CompiledCache(directory=tmp_path / "cache")
    with pytest.raises(ToolError, match="it ran"):
        compile_program(b"module {}", name="a.mlir", target="TPUv5e", cache=cache)
    job = job_of(
        b"module {}",
        name="a.mlir",
        target=find_target("TPUv5e"),
        layout=ANY_LAYOUT,
        options=DEFAULT_OPTIONS,
    )
    cache.write(job, RESULT)
    assert compile_program(b"module {}", name="a.mlir", target="TPUv5e", cache=cache) == RESULT
