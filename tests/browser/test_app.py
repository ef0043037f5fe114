"""All views of ``hespas app`` in a real browser."""

from __future__ import annotations

import json
import os
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from app_pages import STATE, WHERE, Server, answered, held_back, needs_the_app, show, step

pytestmark = needs_the_app


@pytest.mark.parametrize("view", ["predict", "cluster"])
def test_code_in_a_link_to_any_view_is_not_run(page: Page, server: Server, view: str) -> None:
    show(page, server, f"#{view}?model=antigravity:geohash&cluster=4xA100_SXM_40GB")
    expect(page.locator(f"#{view} .ask")).to_contain_text("antigravity:geohash")


def test_an_answer_that_comes_in_another_view_leaves_its_address(
    page: Page, server: Server
) -> None:
    waiting: list[Route] = []
    page.route("**/api/ask", lambda route: held_back(route, '"describe"', waiting))
    show(page, server, f"#predict?{WHERE}&mesh.tp=3")
    while not waiting:
        page.wait_for_timeout(50)
    page.click("nav a[data-view=search]")
    expect(page.locator("#search-start")).to_be_visible()
    with page.expect_request(lambda request: '"quick"' in (request.post_data or "")):
        for route in waiting:
            route.continue_()
    page.unroute("**/api/ask")
    assert "#search" in page.url


def test_a_killed_worker_is_a_message_and_the_next_question_works(
    page: Page, server: Server
) -> None:
    answered(page)
    page.fill("#batch", "8")
    page.keyboard.press("Enter")
    page.wait_for_selector("#cards.stale")
    for process in server.workers():
        os.kill(process, signal.SIGKILL)
    page.wait_for_selector("#predict [role=alert], #cards:not(.stale) strong")
    again = page.get_by_role("button", name="Ask again")
    if again.count():
        expect(page.locator("#predict [role=alert]")).to_contain_text("SIGKILL")
        again.click()
    step(page)


@pytest.mark.rest
def test_ten_tabs_get_their_own_answers(context: BrowserContext, server: Server) -> None:
    tabs = [context.new_page() for _ in range(10)]
    for number, tab in enumerate(tabs, start=1):
        tab.goto(server.address + f"{STATE}&batch={number}")
    texts: list[str] = []
    for number, tab in enumerate(tabs, start=1):
        text = step(tab)
        expect(tab.locator("#batch")).to_have_value(str(number))
        texts.append(text)
        rows = tab.locator("#cards dd").nth(1).text_content()
        assert rows
    assert len(set(texts)) == 10
    for tab in tabs:
        tab.close()


@pytest.mark.skipif(find_spec("axe_playwright_python") is None, reason="axe is not installed")
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.rest)])
def test_nothing_is_wrong_for_people_who_cannot_see(page: Page, server: Server, theme: str) -> None:
    page.evaluate(f"() => localStorage.setItem('hespas-theme', '{theme}')")
    for state, wait in (
        (STATE, "#predict-json:enabled"),
        (f"#cluster?{WHERE}", "#cluster-step"),
        ("#serve", "#serve button[type=submit]"),
        ("#search", "#search-start"),
    ):
        show(page, server, state)
        page.wait_for_selector(wait)
        assert _faults(page) == [], state


@pytest.mark.parametrize(
    "width", [390, *(pytest.param(width, marks=pytest.mark.rest) for width in (768, 2560))]
)
def test_every_view_fits_its_window(page: Page, server: Server, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    for view in ("predict", "cluster", "serve", "search"):
        show(page, server, STATE if view == "predict" else f"#{view}")
        page.wait_for_selector(f"#{view} form")
        if view == "predict":
            step(page)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width


def _faults(page: Page) -> list[str]:
    """Return what axe finds that is serious or worse."""
    source = next(Path(_axe()).glob("axe.min.js")).read_text()
    client: Any = page.context.new_cdp_session(page)
    client.send("Page.setBypassCSP", {"enabled": True})
    found: Any = page.evaluate(
        f"async () => {{ {source}; return JSON.stringify(await axe.run()); }}"
    )
    violations = json.loads(found)["violations"]
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]}"
        for each in violations
        if each["impact"] in {"serious", "critical"}
    ]


def _axe() -> Path:
    spec = find_spec("axe_playwright_python")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent
