"""What ``hespas run`` asks for at a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from hespas.cli.run_command import completed


def test_nothing_is_asked_without_a_terminal() -> None:
    given = {"workload": None, "cluster": None}
    assert completed(given) is given


def test_a_terminal_is_asked_and_shown_the_command() -> None:
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "hespas", "run", "--fidelity", "fused"],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        start_new_session=True,
    )
    os.close(inner)
    said = _until(outer, b"[llama3-8b]: ")
    os.write(outer, b"llama3-8bb\n")
    said += _until(outer, b"did you mean 'llama3-8b'")
    said += _until(outer, b"[llama3-8b]: ")
    os.write(outer, b"gemm\n")
    said += _until(outer, b"[8xH100_80GB]: ")
    os.write(outer, b"1xH100\n")
    said += _until(outer, b"did you mean 'H100_80GB'")
    said += _until(outer, b"[8xH100_80GB]: ")
    os.write(outer, b"1xH100_80GB\n")
    said += _until(outer, b"Step time")
    process.kill()
    process.wait()
    os.close(outer)
    assert b"hespas run --fidelity fused gemm --cluster 1xH100_80GB" in said


def _until(terminal: int, text: bytes) -> bytes:
    said = b""
    while text not in said:
        try:
            said += os.read(terminal, 4096)
        except OSError:
            pytest.fail(said.decode())
    return said
