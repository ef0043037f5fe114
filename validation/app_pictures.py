"""Renew the pictures of ``hespas app`` in docs/images: Chromium renders each view.

Review them before you commit them, as the local fonts decide how they look. The search takes a few
minutes.

    python validation/app_pictures.py [VIEW ..]
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

DIRECTORY = Path(__file__).resolve().parents[1] / "docs" / "images"
_SIZE = (1280, 1180)
_LONGEST_MS = 300_000


def _predict(page: Page, address: str) -> None:
    page.goto(f"{address}#predict?model=llama3-70b&cluster=64xH100_80GB&mesh.fsdp=8&mesh.tp=8")
    page.wait_for_selector("#near tbody tr:nth-child(6)")


def _search(page: Page, address: str) -> None:
    page.goto(f"{address}#search?model=llama3-70b&cluster=64xH100_80GB")
    page.click("#search-start")
    page.get_by_text("finished").wait_for()


def _serve(page: Page, address: str) -> None:
    page.goto(f"{address}#serve?model=Qwen/Qwen3-8B&cluster=8xH100_80GB&mesh=tp%3D2&rate=20")
    page.wait_for_selector("#serve-json:enabled")


def _cluster(page: Page, address: str) -> None:
    page.goto(f"{address}#cluster?model=llama3-8b&cluster=16xH100_80GB")
    for name in ("device 12", "link of device 3 in dimension 0"):
        page.get_by_role("button", name=name, exact=True).focus()
        page.keyboard.press("Enter")
    page.wait_for_selector("#cluster-change")
    page.wait_for_selector("#cluster-json:enabled")


VIEWS: Mapping[str, Callable[[Page, str], None]] = {
    "predict": _predict,
    "search": _search,
    "serve": _serve,
    "cluster": _cluster,
}
"""Functions that show a view as its picture has it."""


@contextmanager
def _server() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "hespas", "app", "--no-browser", "--home", home]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            line = process.stdout.readline() if process.stdout else ""
            try:
                yield line[line.index("http") :].strip()
            finally:
                process.terminate()


def main() -> None:
    """Write the pictures of the views that are named, or of all."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with _server() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        width, height = _SIZE
        for view in sys.argv[1:] or VIEWS:
            page = browser.new_page(viewport={"width": width, "height": height})
            page.set_default_timeout(_LONGEST_MS)
            page.goto(address)
            page.evaluate("() => localStorage.setItem('hespas-theme', 'light')")
            page.goto("about:blank")
            VIEWS[view](page, address)
            page.evaluate("() => document.activeElement?.blur()")
            page.screenshot(path=DIRECTORY / f"app-{view}.png", full_page=view != "search")
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
