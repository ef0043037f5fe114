"""The view *Predict* of ``hespas app`` in a real browser."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from app_pages import (
    STATE,
    Server,
    answered,
    copied,
    drag,
    held_back,
    needs_the_app,
    of_kind,
    printed_by,
    show,
    step,
)

pytestmark = needs_the_app


def test_a_knob_moves_the_answer_and_undo_moves_it_back(page: Page) -> None:
    before = step(page)
    answered(page)
    assert page.locator("#where .bars > div").count() > 3
    assert page.locator("#memory .stack i").count() >= 2
    page.fill("#batch", "4")
    page.keyboard.press("Enter")
    expect(page.locator("#predict-command")).to_contain_text("--batch 4")
    after = step(page)
    assert after != before
    assert "batch=4" in page.url
    page.click("#predict-undo")
    expect(page.locator("#predict-command")).not_to_contain_text("--batch")
    assert step(page) == before


def test_what_is_copied_is_what_the_command_prints(page: Page) -> None:
    answered(page)
    assert copied(page, "predict", "JSON") == printed_by(copied(page, "predict", "command line"))


def test_an_axis_by_keyboard_goes_through_legal_meshes_alone(page: Page) -> None:
    step(page)
    assert page.locator("#axis-tp").is_disabled(), "9 heads cannot be divided"
    page.focus("#axis-data")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#predict-command")).to_contain_text("--mesh data=2,fsdp=2")
    assert page.evaluate("() => document.activeElement.id") == "axis-data"
    page.keyboard.press("End")
    expect(page.locator("#predict-command")).to_contain_text("--mesh data=4")


def test_an_axis_is_dragged_by_mouse_and_taken_back_at_once(page: Page, server: Server) -> None:
    show(page, server, "#predict?model=llama3-100m&cluster=16xA100_SXM_40GB&set.layers=2")
    step(page)
    for share, mesh in ((0.25, "--mesh data=2,fsdp=8"), (0.5, "--mesh data=4,fsdp=4")):
        drag(page, "axis-data", share)
        expect(page.locator("#predict-command")).to_contain_text(mesh)
    page.mouse.up()
    expect(page.locator("#axis-fsdp + output")).to_have_text("4")
    page.click("#predict-undo")
    expect(page.locator("#predict-command")).to_contain_text("--mesh fsdp=16")
    expect(page.locator("#axis-data + output")).to_have_text("1")


def test_a_knob_is_reached_and_moved_by_keys_alone(page: Page) -> None:
    before = step(page)
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.id") == "axis-data":
            break
    page.keyboard.press("ArrowRight")
    expect(page.locator("#predict-command")).to_contain_text("data=2")
    assert step(page) != before
    page.keyboard.press("Control+z")
    expect(page.locator("#predict-command")).to_contain_text("--mesh fsdp=4")


@pytest.mark.parametrize("key", ["Enter", "Tab"])
def test_what_is_typed_stays_when_an_answer_comes(page: Page, server: Server, key: str) -> None:
    waiting: list[Route] = []
    page.route("**/api/ask", lambda route: held_back(route, '"describe"', waiting))
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


def with_a_compiler(page: Page, compiles: Callable[[Route], None]) -> None:
    """Answer questions as where a compiler is: ``compiles`` gets the first compilation."""
    compilations: list[str] = []

    def answer(route: Route) -> None:
        asked = route.request.post_data or ""
        if '"whole"' in asked and not compilations:
            compilations.append(asked)
            compiles(route)
        elif '"quick"' in asked:
            route.fulfill(json={**route.fetch().json(), "is_last": False})
        else:
            route.continue_()

    page.route("**/api/ask", answer)


def test_a_cancelled_compilation_leaves_what_to_try_next_and_can_be_asked_again(
    page: Page, server: Server
) -> None:
    with_a_compiler(page, lambda route: route.fulfill(json={"error": "cancelled"}))
    show(page, server, f"{STATE}&batch=3")
    status = page.locator("#predict .status")
    expect(status).to_contain_text("cancelled: the modelled answer stands")
    expect(page.locator("#near button").first).to_be_visible()
    page.get_by_role("button", name="Compile it").click()
    answered(page)
    expect(status).not_to_contain_text("cancelled")
    page.unroute_all(behavior="wait")


def test_a_knob_ends_the_compilation_of_the_answer_before(page: Page, server: Server) -> None:
    held: list[Route] = []
    with_a_compiler(page, held.append)
    show(page, server, f"{STATE}&batch=5")
    expect(page.locator("#predict .status")).to_contain_text("compiling")
    with page.expect_request("**/api/cancel") as cancelled:
        page.fill("#batch", "6")
        page.keyboard.press("Enter")
    assert "-whole" in (cancelled.value.post_data or "")
    held[0].fulfill(json={"error": "cancelled"})
    answered(page)
    expect(page.locator("#predict-command")).to_contain_text("--batch 6")
    page.unroute_all(behavior="wait")


def test_a_pinned_answer_is_compared_with(page: Page, server: Server) -> None:
    held: list[Route] = []
    step(page)
    answered(page)
    page.route("**/api/ask", lambda route: held_back(route, '"whole"', held))
    show(page, server, f"{STATE}&batch=3")
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    page.click("#predict-pin")
    expect(page.locator("#predict-pin")).to_be_focused()
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    page.fill("#batch", "2")
    page.keyboard.press("Enter")
    expect(page.locator("#cards")).to_contain_text("% to the pinned")
    page.get_by_role("button", name="Back to the pinned").click()
    expect(page.locator("#predict-command")).to_contain_text("--batch 3")
    page.unroute("**/api/ask")


def test_an_error_is_words_and_the_next_question_works(page: Page, server: Server) -> None:
    show(page, server, "#predict?model=llama3-8bb&cluster=4xA100_SXM_40GB")
    expect(page.locator("#predict [role=alert]")).to_contain_text("did you mean")
    show(page, server, STATE)
    step(page)


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
    expect(page.locator("#predict-json")).to_be_hidden()
    page.get_by_role("button", name="Predict it all the same").click()
    expect(page.locator("#memory")).to_contain_text("does not fit")
    page.get_by_role("button", name="drop ignore memory").click()
    expect(page.locator("#predict [role=alert]")).to_contain_text("needs at least")


def test_a_model_that_is_chosen_while_knobs_wait_has_its_own_knobs(
    page: Page, server: Server
) -> None:
    waiting: list[Route] = []
    step(page)
    page.route("**/api/ask", lambda route: held_back(route, '"ask"', waiting))
    page.fill("#batch", "7")
    page.keyboard.press("Enter")
    while not waiting:
        page.wait_for_timeout(50)
    page.fill("#batch", "9")
    page.keyboard.press("Enter")
    page.fill("#model", "resnet50")
    page.keyboard.press("Enter")
    while not of_kind(waiting, "describe"):
        page.wait_for_timeout(50)
    # The first question is answered before what the new model's knobs are.
    (described,) = of_kind(waiting, "describe")
    others = [route for route in waiting if route is not described]
    for route in others:
        route.continue_()
    page.wait_for_timeout(1000)
    described.continue_()
    page.unroute("**/api/ask")
    expect(page.locator("#axis-tp")).to_have_count(0)
    expect(page.locator("#predict-command")).to_contain_text("resnet50")
    step(page)


def test_a_button_that_draws_the_knobs_again_stays_in_focus(page: Page) -> None:
    step(page)
    page.get_by_role("button", name="half as many devices").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#predict-command")).to_contain_text("--cluster 2xA100_SXM_40GB")
    expect(page.get_by_role("button", name="half as many devices")).to_be_focused()


@pytest.mark.parametrize("width", [390, 1280])
def test_what_to_try_next_is_applied_by_buttons_in_sight(
    page: Page, server: Server, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(server.address + STATE)
    expect(page.locator("#near button").first).to_be_visible()
    # In one go: rows are drawn again as they come.
    assert page.evaluate(
        """() => {
            const end = document.getElementById("near").getBoundingClientRect().right;
            return [...document.querySelectorAll("#near button")].every(
                (button) => button.getBoundingClientRect().right <= end);
        }"""
    )


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
    expect(page.locator("#predict-command")).to_contain_text("--cluster 64xH100_80GB")
