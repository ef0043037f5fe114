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
    terminal = _Terminal(outer)
    terminal.answer("[llama3-8b]: ", "llama3-8bb")
    terminal.read_to("did you mean 'llama3-8b'")
    terminal.answer("[llama3-8b]: ", "gemm")
    terminal.answer("[8xH100_80GB]: ", "1xH100")
    terminal.read_to("did you mean 'H100_80GB'")
    terminal.answer("[8xH100_80GB]: ", "1xH100_80GB")
    terminal.read_to("Step time")
    process.kill()
    process.wait()
    os.close(outer)
    assert "hespas run --fidelity fused gemm --cluster 1xH100_80GB" in terminal.text


class _Terminal:
    """A terminal's text, read up to what is waited for."""

    def __init__(self, file: int) -> None:
        self.file, self.text, self.place = file, "", 0

    def answer(self, question: str, answer: str) -> None:
        """Wait for a question, and write the answer."""
        self.read_to(question)
        os.write(self.file, f"{answer}\n".encode())

    def read_to(self, awaited: str) -> None:
        """Read to the end of a text that comes after what was read to before."""
        while (found := self.text.find(awaited, self.place)) < 0:
            try:
                self.text += os.read(self.file, 4096).decode()
            except OSError:
                pytest.fail(self.text)
        self.place = found + len(awaited)
