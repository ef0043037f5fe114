"""The view *Search* of ``hespas app`` in a real browser."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from time import monotonic, sleep

import pytest
from playwright.sync_api import Page, Route, expect

from app_pages import Server, copied, held_back, needs_the_app, reach, show, step, write

pytestmark = needs_the_app


def test_a_search_is_made_and_opened_by_keys_alone(page: Page) -> None:
    step(page)
    reach(page, "Search the best mesh")
    page.keyboard.press("Enter")
    expect(page.locator("#search-pinned")).to_contain_text("layers 2, vocabulary 1024")
    write(page, "search-batch", "8")
    write(page, "search-where", "memory.fits and mesh.tp <= 1")
    reach(page, "search-start")
    page.keyboard.press("Enter")
    page.get_by_text("finished").wait_for()
    expect(page.locator("#search .note").last).to_contain_text("global batch=8")
    expect(page.locator("#search form")).not_to_contain_text("running")
    assert "llama3-100m" in copied(page, "search", "study file")
    assert "hespas.run_study(" in copied(page, "search", "Python")
    page.locator("#search-text").click()
    reach(page, "open micro batch")
    page.keyboard.press("Enter")
    expect(page.locator("#predict-command")).to_contain_text("--global-batch 8")
    expect(page.locator("#predict-command")).to_contain_text("vocabulary=1024")


def test_a_click_right_behind_what_is_typed_counts(page: Page, server: Server) -> None:
    show(page, server, "#search?model=llama3-8b&cluster=2xA100_SXM_40GB")
    page.fill("#search-model", "no-such-model")
    with page.expect_request(lambda request: '"start"' in (request.post_data or "")) as asked:
        page.click("#search-start")
    assert json.loads(asked.value.post_data or "")["keys"]["model"] == "no-such-model"
    expect(page.locator("#search [role=alert]")).to_be_visible()


def test_what_is_selected_stays_where_the_form_is_drawn_again(page: Page, server: Server) -> None:
    address = "#search?model=llama3-100m&cluster=2xA100_SXM_40GB"
    show(page, server, address)
    page.focus("#search-where")
    page.keyboard.press("Control+A")
    page.evaluate("address => { location.hash = address; }", f"{address}&global_batch=4")
    expect(page.locator("#search-batch")).to_have_value("4")
    page.keyboard.insert_text("mesh.tp <= 1")
    expect(page.locator("#search-where")).to_have_value("mesh.tp <= 1")


def test_the_goal_of_a_search_stays_where_its_form_is_drawn_again(
    page: Page, server: Server
) -> None:
    show(page, server, "#search?model=llama3-100m&cluster=2xA100_SXM_40GB")
    page.get_by_label("Best").select_option("step_time_s")
    page.click("nav a[data-view=predict]")
    page.click("nav a[data-view=search]")
    expect(page.get_by_label("Best")).to_have_value("step_time_s")


def test_what_is_typed_stays_when_a_search_ends(page: Page, server: Server) -> None:
    waiting: list[Route] = []
    show(page, server, "#search?model=llama3-100m&cluster=2xA100_SXM_40GB&set.layers=2")
    page.fill("#search-where", "mesh.tp <= 1")
    page.click("#search-start")
    expect(page.locator("#search form")).to_contain_text("running")
    page.route("**/api/search", lambda route: held_back(route, '"list"', waiting))
    page.locator("#search-batch").press_sequentially("6")
    page.get_by_text("finished").wait_for()
    page.locator("#search-batch").press_sequentially("4")
    while not waiting:
        page.wait_for_timeout(50)
    for route in waiting:
        route.continue_()
    page.unroute("**/api/search")
    expect(page.locator("#search form")).not_to_contain_text("running")
    expect(page.locator("#search-batch")).to_have_value("64")
    expect(page.locator("#search-batch")).to_be_focused()
    with page.expect_request(lambda request: '"start"' in (request.post_data or "")) as asked:
        page.keyboard.press("Enter")
    assert json.loads(asked.value.post_data or "")["keys"]["global_batch"] == 64


def test_a_search_that_ends_unseen_is_not_shown_as_running(page: Page, server: Server) -> None:
    lists = [{"searches": [{"name": "x", "is_running": each}]} for each in (True, False)]

    def answered_in_turn(route: Route) -> None:
        if '"list"' in (route.request.post_data or ""):
            route.fulfill(json=lists.pop(0) if len(lists) > 1 else lists[0])
        else:
            route.continue_()

    page.route("**/api/search", answered_in_turn)
    show(page, server, "#search")
    expect(page.locator("#search form")).to_contain_text("running")
    expect(page.locator("#search form")).not_to_contain_text("running")
    page.unroute("**/api/search")


@pytest.mark.rest
def test_a_search_survives_a_kill_of_the_server(page: Page, server: Server) -> None:
    show(page, server, "#search?model=llama3-100m&cluster=2xA100_SXM_40GB")
    page.click("#search-start")
    page.wait_for_selector("#search circle")
    name = page.url.rpartition("name=")[2]
    before = int(str(page.text_content("#search-text")).split()[0])
    server.end(signal.SIGKILL)
    end_s = monotonic() + 10
    directory = server.home / "searches" / name
    while monotonic() < end_s and _is_running(directory):
        sleep(0.1)
    assert not _is_running(directory), "the search ends with the server"
    server.start()
    show(page, server, f"#search?name={name}")
    expect(page.locator("#search-text")).to_contain_text(re.compile(r"\d+ of \d+"))
    assert int(str(page.text_content("#search-text")).split()[0]) >= before
    resume = page.locator("#search-resume")
    if resume.count():
        resume.click()
    page.get_by_text("finished").wait_for()
    page.get_by_role("button", name=re.compile("^open ")).first.click()
    step(page)


def test_candidates_are_read_on_a_phone(page: Page, server: Server) -> None:
    text = "micro_batch=4, remat=minimal_with_context, data=2,fsdp=4,tp=2"
    figures = {"step_time_s": 1.0, "tokens_per_s_per_device": 1.0, "peak_memory_bytes": 1.0}
    texts = {"step_time_s": "1.762 s", "mfu": "48.4 %", "peak_memory_bytes": "64.14 GB"}
    row = {"number": 1, "text": text, "figures": figures, "texts": texts, "fits": True}
    answer = {"name": "x", "rows": [row], "total": 1, "waiting": 0, "text": "", "pinned": ""}
    page.route("**/api/search", lambda route: route.fulfill(json=answer))
    page.set_viewport_size({"width": 390, "height": 900})
    show(page, server, "#search?name=x")
    cell = page.locator("td.candidate").bounding_box()
    assert cell is not None
    assert cell["height"] < 120
    button = page.get_by_role("button", name="open micro_batch").bounding_box()
    assert button is not None
    assert button["x"] + button["width"] <= 390
    time = page.get_by_role("cell", name="1.762 s").bounding_box()
    assert time is not None
    assert time["x"] + time["width"] <= button["x"]
    page.unroute("**/api/search")


def _is_running(directory: Path) -> bool:
    from hespas.study.store import is_running  # noqa: PLC0415 - of one test

    return is_running(directory)
