"""The view *Cluster* of ``hespas app`` in a real browser."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import Page, Route, expect

from app_pages import Server, copied, held_back, needs_the_app, printed_by, show

pytestmark = needs_the_app


def test_a_device_that_is_slow_before_the_first_answer_is_compared(
    page: Page, server: Server
) -> None:
    waiting: list[Route] = []
    page.route(
        "**/api/ask", lambda route: held_back(route, "none" if waiting else '"quick"', waiting)
    )
    show(page, server, "#cluster?model=llama3-100m&cluster=4xH100_80GB&set.layers=2")
    page.get_by_role("button", name="device 1", exact=True).focus()
    while not waiting:
        page.wait_for_timeout(50)
    page.keyboard.press("Enter")
    expect(page.locator("#cluster-change")).to_contain_text("+")
    waiting[0].continue_()
    page.unroute("**/api/ask")


def test_a_marked_cluster_is_copied_pinned_and_taken_back(page: Page, server: Server) -> None:
    show(page, server, "#cluster?model=llama3-100m&cluster=4xH100_80GB&set.layers=2")
    page.wait_for_selector("#cluster-json:enabled")
    page.click("#cluster-pin")
    page.get_by_role("button", name="link of device 3 in dimension 0").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#cluster-change")).to_contain_text("+")
    expect(page.locator("#cluster-step")).to_contain_text("% to the pinned")
    page.wait_for_selector("#cluster-json:enabled")
    command = copied(page, "cluster", "command line")
    assert "--imperfect" in command
    assert copied(page, "cluster", "JSON") == printed_by(command)
    for text in (copied(page, "cluster", "Python"), copied(page, "cluster", "study file")):
        assert "imperfect" in text
    page.get_by_role("button", name="Predict with them").click()
    expect(page.locator("#predict-command")).to_contain_text("--imperfect")
    page.click("nav a[data-view=cluster]")
    expect(page.locator("#cluster-command")).to_be_visible()
    expect(page.locator("#cluster form")).to_contain_text("link of device 3 in dimension 0: 0.5")
    page.keyboard.press("Control+z")
    expect(page.locator("#cluster-command")).not_to_contain_text("--imperfect")
    expect(page.locator("#cluster-step")).to_contain_text("as pinned")


def test_marks_of_a_torus_are_of_its_links_and_stay_in_the_address(
    page: Page, server: Server
) -> None:
    state = "#cluster?model=llama3-100m&cluster=8xTPUv5p&set.layers=2"
    show(page, server, state)
    expect(page.locator("#cluster circle.device")).to_have_count(8)
    # Each device of a line of 2 has its link once; a line ends.
    expect(page.locator("#cluster .hit")).to_have_count(4 + 4 + 8)
    page.get_by_role("button", name="link of device 0 in dimension 0").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator("#cluster form")).to_contain_text("link of device 0 in dimension 0: dead")
    expect(page.locator("#cluster-change")).to_be_visible()
    assert "link.dim0.next.0=0&link.dim0.previous.1=0" in page.url
    link = page.url.partition("#")[2]
    show(page, server, f"#{link}")
    expect(page.locator("#cluster-change")).to_be_visible()
    expect(page.locator("#cluster .wire.dead")).to_have_count(1)


def test_a_network_of_switches_is_drawn_and_its_links_are_marked_by_keys(
    page: Page, server: Server, tmp_path: Path
) -> None:
    wires = [("g0", "s0"), ("g1", "s0"), ("g2", "s1"), ("g3", "s1"), ("s0", "top"), ("s1", "top")]
    links = [{"from": one, "to": other, "bandwidth_bytes_per_s": 5e10} for one, other in wires]
    graph = {"devices": ["g0", "g1", "g2", "g3"], "switches": ["s0", "s1", "top"], "links": links}
    (tmp_path / "mine" / "hespas").mkdir(parents=True)
    file = tmp_path / "mine" / "hespas" / "network.json"
    file.write_text(json.dumps({"source": "a sketch", "graph": graph}))
    state = f"#cluster?model=llama3-100m&node=H100_80GB&cluster={tmp_path / 'mine'}"
    show(page, server, state)
    page.wait_for_selector("#cluster-step")
    expect(page.locator("#cluster circle.device")).to_have_count(4)
    expect(page.locator("#cluster rect.switch")).to_have_count(3)
    page.get_by_role("button", name="link between s0 and top").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#cluster form")).to_contain_text(
        "link between s0 and top: 0.5 of its bandwidth"
    )
    assert page.evaluate("() => document.activeElement.getAttribute('aria-label')") == (
        "link between s0 and top"
    )
    expect(page.locator("#cluster-change")).to_contain_text("+")
