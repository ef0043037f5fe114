"""One browser, and one server of the app, for all tests of pages."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from app_pages import CHROMIUM, STATE, WAIT_MS, Server, show


# Of this folder, not of the session: the loop of Playwright would run in other tests too.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="package")
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport={"width": 1280, "height": 900})
    made.grant_permissions(["clipboard-read", "clipboard-write"])
    made.set_default_timeout(WAIT_MS)
    yield made
    made.close()


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("home"))
    started.start()
    yield started
    started.end(signal.SIGTERM)


@pytest.fixture
def page(context: BrowserContext, server: Server) -> Iterator[Page]:
    opened = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    show(opened, server, STATE)
    yield opened
    assert said == []
    home = server.address.partition("/?")[0]
    assert [url for url in asked if not url.startswith(home)] == []
    opened.close()
