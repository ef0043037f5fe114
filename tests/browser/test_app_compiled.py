"""A compilation that is really under way: its progress, its end, and the answer after it."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

import pytest
from playwright.sync_api import Browser, expect

from app_pages import STATE, WAIT_MS, Server, children_of, copied, needs_the_app, printed_by, show
from compilers import needs_gpu

pytestmark = [*needs_the_app, needs_gpu, pytest.mark.finds_compilers]
_COMPILER = b"hespas.xla.compile"
_LONG_MS = 300_000


def _compilers(server: Server) -> list[Path]:
    """Return the processes that compile, and the workers that they answer."""
    started = {
        Path(f"/proc/{worker}"): [Path(f"/proc/{child}") for child in children_of(worker)]
        for worker in server.workers()
    }
    return [
        process
        for worker, children in started.items()
        for child in children
        if _is_compiler(child)
        for process in (worker, child)
    ]


def _is_compiler(process: Path) -> bool:
    with suppress(OSError):
        return _COMPILER in (process / "cmdline").read_bytes()
    return False


def test_a_compilation_is_cancelled_in_the_middle_and_made_when_asked_again(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing that was compiled before is there.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    server = Server(tmp_path / "home")
    server.start()
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    status = page.locator("#predict .status")
    try:
        show(page, server, STATE)
        expect(page.get_by_role("progressbar", name="compiling")).to_be_visible()
        modelled = str(page.text_content("#cards strong"))
        end_s = monotonic() + WAIT_MS / 1000
        while not (compiling := _compilers(server)) and monotonic() < end_s:
            sleep(0.1)
        assert len(compiling) == 2
        page.get_by_role("button", name="Cancel").click()
        expect(status).to_contain_text("cancelled: the modelled answer stands")
        while any(process.exists() for process in compiling) and monotonic() < end_s:
            sleep(0.1)
        assert [process for process in compiling if process.exists()] == []
        assert page.text_content("#cards strong") == modelled

        page.get_by_role("button", name="Compile it").click()
        expect(status).to_contain_text("compiled in", timeout=_LONG_MS)
        command = copied(page, "predict", "command line")
        assert copied(page, "predict", "JSON") == printed_by(command)
        assert page.text_content("#cards strong") != modelled
    finally:
        context.close()
        server.end(signal.SIGTERM)
