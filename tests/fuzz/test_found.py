"""Damaged files that were not refused in one line once."""

from __future__ import annotations

import gzip
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fuzz.good_files import HLO, LOOPS, PTX
from hespas.cli.commands import commands, run
from hespas.program.kernels import CompiledKernels, KernelLaunch, encode_kernels
from hespas.xla.hlo.module import read_hlo_module

Hespas = Callable[..., str]
NODE = ("--node", "A100_SXM_40GB")


@pytest.fixture
def hespas(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Hespas:
    """Return a function that runs a command and returns what it prints, an error in one line."""
    monkeypatch.chdir(tmp_path)

    def said(*words: str) -> str:
        capsys.readouterr()
        code = run(commands, "hespas", words)
        shown = capsys.readouterr()
        assert "fault of hespas" not in shown.err
        assert len(shown.err.splitlines()) == (code == 2)
        return shown.err if code else shown.out

    return said


def test_kernels_that_are_no_text(hespas: Hespas) -> None:
    Path("step.hlo").write_text(HLO)
    Path("kernels.json").write_bytes(b'{"launches": [], "ptx": {"negated": "\xff"}}')
    text = hespas("kernels", "step.hlo", "--kernels", "kernels.json", *NODE)
    assert "kernels.json: holds no kernels" in text


def test_a_buffer_of_an_algorithm_that_is_none(hespas: Hespas) -> None:
    hespas("algorithm", "ring", "--ranks", "4", "--chakra", "c")
    file = Path("c/ring_allreduce_4.0.et")
    changed, times = re.subn(
        rb"(srcbuf.{1,4}\x01)[ios]", rb"\1?", file.read_bytes(), flags=re.DOTALL
    )
    assert times
    file.write_bytes(changed)
    text = hespas("algorithm", "c/ring_allreduce_4", "--ranks", "4")
    assert "srcbuf is '?'" in text


def test_a_profile_that_is_damaged_inside(hespas: Hespas) -> None:
    Path("step.hlo").write_text(HLO)
    packed = bytearray(gzip.compress(b'{"traceEvents": []}' * 9, mtime=0))
    packed[12:20] = b"\xff" * 8
    Path("p.json.gz").write_bytes(packed)
    profile = ("--profile", "p.json.gz", "--program", "step.hlo")
    assert "p.json.gz: the profile" in hespas("calibrate", *NODE, *profile, "-o", "out")


def test_half_a_character_in_a_configuration(hespas: Hespas) -> None:
    Path("c.json").write_text('{"mlir_file": "\\ud800"}')
    assert "c.json: a text holds half of a character, \\ud800" in hespas("run", "c.json")


def test_a_number_of_thousands_of_digits(hespas: Hespas) -> None:
    Path("c.json").write_text('{"block_lim": ' + "9" * 5000 + "}")
    assert "c.json: malformed JSON: Exceeds the limit" in hespas("run", "c.json")


def test_a_computation_that_calls_itself(hespas: Hespas) -> None:
    message = read_hlo_module(HLO.encode(), name="step.hlo").message
    (body,) = (one for one in message.computations if one.name == "body")
    (fusion,) = (one for one in body.instructions if one.opcode == "fusion")
    fusion.called_computation_ids[:] = [body.id]
    Path("step.hlo").write_bytes(message.SerializeToString())
    assert "calls itself" in hespas("estimate", "step.hlo", *NODE)


def test_a_price_in_a_cache_that_was_changed(hespas: Hespas) -> None:
    Path("step.mlir").write_text(LOOPS)
    words = ("estimate", "step.mlir", *NODE, "--cache-dir", "kept")
    hespas(*words)
    with closing(sqlite3.connect("kept/estimates.sqlite")) as connection, connection:
        connection.execute("UPDATE estimates SET value = replace(value, '1', '2')")
    assert "holds an entry that is no estimate; delete" in hespas(*words)


def test_a_block_of_too_many_threads(hespas: Hespas) -> None:
    Path("step.hlo").write_text(HLO)
    launch = KernelLaunch(
        instruction="f.1",
        kernel="negated",
        grid=(1, 1, 1),
        block=(128, 2**31, 1),
        shared_memory_bytes=0,
    )
    kernels = CompiledKernels(launches=(launch,), ptx={"negated": PTX})
    Path("kernels.json").write_bytes(encode_kernels(kernels))
    text = hespas("kernels", "step.hlo", "--kernels", "kernels.json", *NODE)
    assert "f.1 launches (1, 1, 1) blocks of (128, 2147483648, 1) threads" in text


def test_a_device_in_a_list_that_is_no_number(hespas: Hespas) -> None:
    Path("step.mlir").write_text(LOOPS)
    Path("c.yml").write_text("devices: [{devices: [1x], compute_scale: 2}]")
    system = ("--system", "A100_SXM_40GB_4GPU")
    text = hespas("run", "step.mlir", *NODE, *system, "--imperfect", "c.yml")
    assert 'c.yml: $.devices[0].devices[0] is "1x"' in text
