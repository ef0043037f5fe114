"""The page of ``hespas app`` for tests: its server, states of it, and what a person does there."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_the_app = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed"),
    pytest.mark.skipif(find_spec("starlette") is None, reason="the extra app is not installed"),
    pytest.mark.starts_jax,
]
WHERE = "model=llama3-100m&cluster=4xA100_SXM_40GB"
STATE = f"#predict?{WHERE}&mesh.fsdp=4&set.layers=2&set.vocabulary=1024"
WAIT_MS = 60_000
expect.set_options(timeout=WAIT_MS)


class Server:
    """A server in a process of its own, as a user starts it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.process: subprocess.Popen[str] | None = None
        self.address = ""

    def start(self) -> None:
        command = [sys.executable, "-m", "hespas", "app", "--no-browser", "--home", str(self.home)]
        port = self.address.rpartition(":")[2].partition("/")[0]
        self.process = subprocess.Popen(
            [*command, "--workers", "2", *(["--port", port] if port else [])],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        found = re.search(r"http://\S+", self.process.stdout.readline())
        assert found is not None
        self.address = found[0]

    def end(self, number: signal.Signals) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.send_signal(number)
        self.process.wait(timeout=20)
        self.process.stdout.close()

    def workers(self) -> list[int]:
        """Return the processes that answer quick questions or slow ones."""
        assert self.process is not None
        return children_of(self.process.pid)


def children_of(process: int) -> list[int]:
    """Return the processes that a process started; none where it is gone."""
    texts: list[str] = []
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            texts.append(file.read_text())
    return [int(child) for child in " ".join(texts).split()]


def show(page: Page, server: Server, state: str) -> None:
    page.goto("about:blank")
    page.goto(server.address + state)
    page.wait_for_selector("html[data-ready=yes]")


def step(page: Page) -> str:
    """Return the step's time, once it is that of the knobs."""
    page.wait_for_selector("#cards:not(.stale) strong")
    return str(page.text_content("#cards strong"))


def answered(page: Page) -> None:
    page.wait_for_selector("#predict-json:enabled")


def reach(page: Page, name: str) -> None:
    """Press Tab until the element with an id or name is in focus."""
    for _ in range(80):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            "() => [document.activeElement.id, document.activeElement.ariaLabel, "
            "document.activeElement.textContent]"
        )
        if any(str(each).startswith(name) for each in focused):
            return
    pytest.fail(f"Tab never reaches {name}")


def write(page: Page, name: str, text: str) -> None:
    reach(page, name)
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type(text)


def of_kind(waiting: list[Route], kind: str) -> list[Route]:
    """Return the held requests of a kind."""
    return [route for route in waiting if f'"{kind}"' in (route.request.post_data or "")]


def held_back(route: Route, text: str, waiting: list[Route]) -> None:
    """Hold requests that have a text."""
    if text in (route.request.post_data or ""):
        waiting.append(route)
    else:
        route.continue_()


def drag(page: Page, slider: str, share: float) -> None:
    """Press the mouse on a slider, where it is not pressed yet, and move it to a share of it."""
    box = page.locator(f"#{slider}").bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    if not page.evaluate("name => document.getElementById(name).matches(':active')", slider):
        page.mouse.move(box["x"] + 5, y)
        page.mouse.down()
    page.mouse.move(box["x"] + share * box["width"], y, steps=3)


def copied(page: Page, view: str, name: str) -> str:
    """Return what a button of a view copies."""
    page.locator(f"#{view}").get_by_role("button", name=re.compile(f"^Copy (as )?{name}$")).click()
    return str(page.evaluate("() => navigator.clipboard.readText()"))


def printed_by(command: str) -> str:
    """Return the JSON that a copied command prints."""
    words = shlex.split(command)
    assert words[0] == "hespas"
    run = [sys.executable, "-m", "hespas", *words[1:], "--json"]
    return subprocess.run(run, check=True, capture_output=True, text=True).stdout
