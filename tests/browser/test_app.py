"""The page of ``hespas app`` in a real browser, as a person sees it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Error,
    Page,
    Route,
    expect,
    sync_playwright,
)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed"),
    pytest.mark.skipif(find_spec("starlette") is None, reason="the extra app is not installed"),
    pytest.mark.starts_jax,
]
WHERE = "model=llama3-100m&cluster=4xA100_SXM_40GB"
STATE = f"#predict?{WHERE}&mesh.fsdp=4&set.layers=2&set.vocabulary=1024"
_WAIT_MS = 60_000
expect.set_options(timeout=_WAIT_MS)


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
        task = Path(f"/proc/{self.process.pid}/task")
        children = " ".join(file.read_text() for file in task.glob("*/children"))
        return [int(process) for process in children.split()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("home"))
    started.start()
    yield started
    started.end(signal.SIGTERM)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport={"width": 1280, "height": 900})
    made.grant_permissions(["clipboard-read", "clipboard-write"])
    made.set_default_timeout(_WAIT_MS)
    yield made
    made.close()


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


def show(page: Page, server: Server, state: str) -> None:
    page.goto("about:blank")
    page.goto(server.address + state)
    page.wait_for_selector("html[data-ready=yes]")


def step(page: Page) -> str:
    """Return the step's time, once it is that of the knobs."""
    page.wait_for_selector("#cards:not(.stale) strong")
    return str(page.text_content("#cards strong"))


def answered(page: Page) -> None:
    page.wait_for_selector("#json:enabled")


def test_a_knob_moves_the_answer_and_undo_moves_it_back(page: Page) -> None:
    before = step(page)
    answered(page)
    assert page.locator("#where .bars > div").count() > 3
    assert page.locator("#memory .stack i").count() >= 2
    page.fill("#batch", "4")
    page.keyboard.press("Enter")
    expect(page.locator("#command")).to_contain_text("--batch 4")
    after = step(page)
    assert after != before
    assert "batch=4" in page.url
    page.click("#undo")
    expect(page.locator("#command")).not_to_contain_text("--batch")
    assert step(page) == before


def test_what_is_copied_is_what_the_command_prints(page: Page) -> None:
    answered(page)
    page.click("#json")
    copied = page.evaluate("() => navigator.clipboard.readText()")
    words = str(page.text_content("#command")).split()
    assert words[0] == "hespas"
    printed = subprocess.run(
        [sys.executable, "-m", "hespas", *words[1:], "--json"], check=True, capture_output=True
    ).stdout
    assert str(copied).encode() == printed


def test_an_axis_by_keyboard_goes_through_legal_meshes_alone(page: Page) -> None:
    step(page)
    assert page.locator("#axis-tp").is_disabled(), "9 heads cannot be divided"
    page.focus("#axis-data")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#command")).to_contain_text("--mesh data=2,fsdp=2")
    assert page.evaluate("() => document.activeElement.id") == "axis-data"
    page.keyboard.press("End")
    expect(page.locator("#command")).to_contain_text("--mesh data=4")


def test_a_knob_is_reached_and_moved_by_keys_alone(page: Page) -> None:
    before = step(page)
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.id") == "axis-data":
            break
    page.keyboard.press("ArrowRight")
    expect(page.locator("#command")).to_contain_text("data=2")
    assert step(page) != before
    page.keyboard.press("Control+z")
    expect(page.locator("#command")).to_contain_text("--mesh fsdp=4")


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
    reach(page, "open micro batch")
    page.keyboard.press("Enter")
    expect(page.locator("#command")).to_contain_text("--global-batch 8")
    expect(page.locator("#command")).to_contain_text("vocabulary=1024")


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


@pytest.mark.parametrize("key", ["Enter", "Tab"])
def test_what_is_typed_stays_when_an_answer_comes(page: Page, server: Server, key: str) -> None:
    waiting: list[Route] = []
    page.route("**/api/ask", lambda route: _held(route, '"describe"', waiting))
    show(page, server, STATE)
    page.locator("#model").press_sequentially("x")
    typed = page.locator("#model").input_value()
    for route in waiting:
        route.continue_()
    page.wait_for_selector("#axis-fsdp")
    expect(page.locator("#model")).to_have_value(typed)
    expect(page.locator("#model")).to_be_focused()
    step(page)
    assert page.locator(".error").count() == 0
    page.unroute("**/api/ask")
    page.keyboard.press(key)
    expect(page.locator("#predict [role=alert]")).to_contain_text(typed)


def test_a_cancelled_compilation_leaves_what_to_try_next_and_can_be_asked_again(
    page: Page, server: Server
) -> None:
    compilations: list[str] = []

    def as_with_a_compiler(route: Route) -> None:
        asked = route.request.post_data or ""
        if '"whole"' in asked and not compilations:
            compilations.append(asked)
            route.fulfill(json={"error": "cancelled"})
        elif '"quick"' in asked:
            route.fulfill(json={**route.fetch().json(), "is_last": False})
        else:
            route.continue_()

    page.route("**/api/ask", as_with_a_compiler)
    show(page, server, f"{STATE}&batch=3")
    status = page.locator("#predict .status")
    expect(status).to_contain_text("cancelled: the modelled answer stands")
    expect(page.locator("#near button").first).to_be_visible()
    page.get_by_role("button", name="Compile it").click()
    answered(page)
    expect(status).not_to_contain_text("cancelled")
    page.unroute("**/api/ask")


def test_a_knob_ends_the_compilation_of_the_answer_before(page: Page, server: Server) -> None:
    held: list[Route] = []

    def as_with_a_compiler(route: Route) -> None:
        asked = route.request.post_data or ""
        if '"whole"' in asked and not held:
            held.append(route)
        elif '"quick"' in asked:
            route.fulfill(json={**route.fetch().json(), "is_last": False})
        else:
            route.continue_()

    page.route("**/api/ask", as_with_a_compiler)
    show(page, server, f"{STATE}&batch=5")
    expect(page.locator("#predict .status")).to_contain_text("compiling")
    with page.expect_request("**/api/cancel") as cancelled:
        page.fill("#batch", "6")
        page.keyboard.press("Enter")
    assert "-whole" in (cancelled.value.post_data or "")
    held[0].fulfill(json={"error": "cancelled"})
    answered(page)
    expect(page.locator("#command")).to_contain_text("--batch 6")
    page.unroute("**/api/ask")


def test_a_pinned_answer_is_compared_with(page: Page) -> None:
    step(page)
    page.click("#pin")
    page.fill("#batch", "2")
    page.keyboard.press("Enter")
    expect(page.locator("#cards")).to_contain_text("% to the pinned")


def test_an_error_is_words_and_the_next_question_works(page: Page, server: Server) -> None:
    show(page, server, "#predict?model=llama3-8bb&cluster=4xA100_SXM_40GB")
    expect(page.locator("#predict [role=alert]")).to_contain_text("did you mean")
    show(page, server, STATE)
    step(page)


@pytest.mark.parametrize("view", ["predict", "cluster"])
def test_code_in_a_link_to_any_view_is_not_run(page: Page, server: Server, view: str) -> None:
    show(page, server, f"#{view}?model=antigravity:geohash&cluster=4xA100_SXM_40GB")
    expect(page.locator(f"#{view} .ask")).to_contain_text("antigravity:geohash")


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
    page.route("**/api/search", lambda route: _held(route, '"list"', waiting))
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


def test_an_answer_that_comes_in_another_view_leaves_its_address(
    page: Page, server: Server
) -> None:
    waiting: list[Route] = []
    page.route("**/api/ask", lambda route: _held(route, '"describe"', waiting))
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


def test_an_upload_that_is_refused_leaves_the_answer(page: Page) -> None:
    step(page)
    page.set_input_files(
        "#upload", {"name": "x.png", "mimeType": "image/png", "buffer": b"\x89PNG"}
    )
    expect(page.locator("#predict form [role=alert]")).to_contain_text("choose a config.json")
    expect(page.locator("#cards strong").first).to_be_visible()


def test_what_does_not_fit_is_predicted_all_the_same(page: Page, server: Server) -> None:
    show(page, server, "#predict?model=llama3-70b&cluster=8xH100_80GB&mesh.pipe=8")
    expect(page.locator("#predict [role=alert]")).to_contain_text("needs at least")
    expect(page.locator("#json")).to_be_disabled()
    page.get_by_role("button", name="Predict it all the same").click()
    expect(page.locator("#memory")).to_contain_text("does not fit")
    page.get_by_role("button", name="drop ignore memory").click()
    expect(page.locator("#predict [role=alert]")).to_contain_text("needs at least")


def test_a_model_that_is_chosen_while_knobs_wait_has_its_own_knobs(
    page: Page, server: Server
) -> None:
    waiting: list[Route] = []
    step(page)
    page.route("**/api/ask", lambda route: _held(route, '"ask"', waiting))
    page.fill("#batch", "7")
    page.keyboard.press("Enter")
    while not waiting:
        page.wait_for_timeout(50)
    page.fill("#batch", "9")
    page.keyboard.press("Enter")
    page.fill("#model", "resnet50")
    page.keyboard.press("Enter")
    while not _asked(waiting, "describe"):
        page.wait_for_timeout(50)
    # The first question is answered before what the new model's knobs are.
    (described,) = _asked(waiting, "describe")
    others = [route for route in waiting if route is not described]
    for route in others:
        route.continue_()
    page.wait_for_timeout(1000)
    described.continue_()
    page.unroute("**/api/ask")
    expect(page.locator("#axis-tp")).to_have_count(0)
    expect(page.locator("#command")).to_contain_text("resnet50")
    step(page)


def test_a_button_that_draws_the_knobs_again_stays_in_focus(page: Page) -> None:
    step(page)
    page.get_by_role("button", name="half as many devices").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#command")).to_contain_text("--cluster 2xA100_SXM_40GB")
    expect(page.get_by_role("button", name="half as many devices")).to_be_focused()


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


def test_a_device_that_is_slow_before_the_first_answer_is_compared(
    page: Page, server: Server
) -> None:
    waiting: list[Route] = []
    page.route("**/api/ask", lambda route: _held(route, "none" if waiting else '"quick"', waiting))
    show(page, server, "#cluster?model=llama3-100m&cluster=4xH100_80GB&set.layers=2")
    page.get_by_role("button", name="device 1", exact=True).focus()
    while not waiting:
        page.wait_for_timeout(50)
    page.keyboard.press("Enter")
    expect(page.locator("#cluster-change")).to_contain_text("+")
    waiting[0].continue_()
    page.unroute("**/api/ask")


def _asked(waiting: list[Route], kind: str) -> list[Route]:
    """Return the held requests of a kind."""
    return [route for route in waiting if f'"{kind}"' in (route.request.post_data or "")]


def _held(route: Route, text: str, waiting: list[Route]) -> None:
    """Hold requests that have a text."""
    if text in (route.request.post_data or ""):
        waiting.append(route)
    else:
        route.continue_()


def test_a_link_of_the_network_slows_the_step(page: Page, server: Server) -> None:
    show(page, server, "#cluster?model=llama3-100m&cluster=4xH100_80GB")
    page.wait_for_selector("#cluster-step")
    page.get_by_role("button", name="link of device 3 in dimension 0").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#cluster-change")).to_contain_text("+")
    page.get_by_role("button", name="Predict with them").click()
    expect(page.locator("#command")).to_contain_text("--imperfect")


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


def _is_running(directory: Path) -> bool:
    from hespas.study.store import is_running  # noqa: PLC0415 - of one test

    return is_running(directory)


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


@pytest.mark.skipif(find_spec("axe_playwright_python") is None, reason="axe is not installed")
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.rest)])
def test_nothing_is_wrong_for_people_who_cannot_see(page: Page, server: Server, theme: str) -> None:
    page.evaluate(f"() => localStorage.setItem('hespas-theme', '{theme}')")
    for state, wait in (
        (STATE, "#json:enabled"),
        (f"#cluster?{WHERE}", "#cluster-step"),
        ("#serve", "#serve button[type=submit]"),
        ("#search", "#search-start"),
    ):
        show(page, server, state)
        page.wait_for_selector(wait)
        assert _faults(page) == [], state


@pytest.mark.parametrize("width", [390, 1280])
def test_what_to_try_next_is_applied_by_buttons_in_sight(
    page: Page, server: Server, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(server.address + STATE)
    expect(page.locator("#near button").first).to_be_visible()
    box = page.locator("#near").bounding_box()
    assert box is not None
    for button in page.locator("#near button").all():
        place = button.bounding_box()
        assert place is not None
        assert place["x"] + place["width"] <= box["x"] + box["width"]


def test_figures_stay_in_sight_of_a_phone_while_its_knobs_move(page: Page, server: Server) -> None:
    page.set_viewport_size({"width": 390, "height": 700})
    page.goto(server.address + STATE)
    step(page)
    page.locator("#model").scroll_into_view_if_needed()
    expect(page.locator("#cards strong").first).to_be_in_viewport(ratio=1)
    expect(page.locator("#cards dd").last).to_be_in_viewport(ratio=1)


def test_bars_of_a_box_are_of_one_scale(page: Page) -> None:
    answered(page)
    tracks = page.locator("#where .bar").all()
    widths = {round((track.bounding_box() or {})["width"]) for track in tracks}
    assert len(tracks) > 3
    assert len(widths) == 1


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


@pytest.mark.rest
def test_a_mesh_for_70b_on_64_h100_is_found_by_what_the_page_offers(
    page: Page, server: Server
) -> None:
    """The path of docs/how-to/app.md, click by click."""
    show(page, server, "#predict")
    page.fill("#model", "llama3-70b")
    page.keyboard.press("Enter")
    page.locator(".status .title", has_text="70b").first.wait_for()
    page.fill("#count", "64")
    page.keyboard.press("Enter")
    page.locator(".status .title", has_text="64 x").first.wait_for()
    # It does not fit as it stands: what fits comes first.
    expect(page.locator("#memory")).to_contain_text("too much")
    page.locator("#near tbody tr button").first.click()
    expect(page.locator("#memory")).to_contain_text("free")
    step(page)
    expect(page.locator("#command")).to_contain_text("--cluster 64xH100_80GB")


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
