"""The view *Serve* of ``hespas app`` in a real browser."""

from __future__ import annotations

from contextlib import suppress

import pytest
from playwright.sync_api import Error, Page, expect

from app_pages import Server, copied, needs_the_app, printed_by, reach, show

pytestmark = needs_the_app


@pytest.mark.rest
def test_a_load_is_served_by_keys_alone(page: Page, server: Server) -> None:
    show(page, server, "#serve?model=Qwen/Qwen3-0.6B&cluster=1xH100_80GB&mesh=tp%3D1&rate=2")
    reach(page, "serve-rate")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#serve-command")).to_contain_text("--rate 5", timeout=300_000)
    assert page.evaluate("() => document.activeElement.id") == "serve-rate"
    reach(page, "Copy launch command")
    page.keyboard.press("Enter")
    copied = str(page.evaluate("() => navigator.clipboard.readText()"))
    assert copied.startswith("vllm serve Qwen/Qwen3-0.6B")


def test_a_link_to_a_served_load_is_answered(page: Page, server: Server) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.post_data or ""))
    where = "model=Qwen/Qwen3-0.6B&cluster=1xH100_80GB&mesh=tp%3D1"
    show(page, server, f"#serve?{where}&rate=2")
    page.wait_for_selector("#serve progress, #serve-command")
    cancel = page.get_by_role("button", name="Cancel")
    # A load that was asked before is answered at once.
    with suppress(Error):
        cancel.click(timeout=2000)
    page.wait_for_selector("#serve [role=alert], #serve-command")
    assert any('"serve"' in each and '"rate":2' in each for each in asked)


def test_a_link_to_the_load_of_the_start_is_answered(page: Page, server: Server) -> None:
    show(page, server, "#serve")
    link = page.url.partition("#")[2]
    page.goto("about:blank")
    with page.expect_request(lambda request: '"serve"' in (request.post_data or "")):
        page.goto(f"{server.address}#{link}")
    page.get_by_role("button", name="Cancel").click()


def test_a_load_is_copied_pinned_and_taken_back(page: Page, server: Server) -> None:
    where = "model=Qwen/Qwen3-0.6B&cluster=1xH100_80GB&mesh=tp%3D1"
    show(page, server, f"#serve?{where}&rate=1&isl=128&osl=32&requests=100")
    page.wait_for_selector("#serve-json:enabled", timeout=300_000)
    page.click("#serve-pin")
    page.focus("#serve-rate")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#serve-command")).to_contain_text("--rate 2")
    expect(page.locator("#serve .cards")).to_contain_text("% to the pinned")
    page.keyboard.press("Control+z")
    expect(page.locator("#serve-command")).to_contain_text("--rate 1")
    expect(page.locator("#serve .cards")).to_contain_text("as pinned")
    assert copied(page, "serve", "JSON") == printed_by(copied(page, "serve", "command line"))
    assert "hespas.predict_serving(" in copied(page, "serve", "Python")
