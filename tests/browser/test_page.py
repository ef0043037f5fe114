"""Pages in a real browser: Debian's Chromium, where there is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from app_pages import CHROMIUM
from hespas.report.page.comparison import NamedReport, comparison_page
from hespas.report.page.document import page_html
from hespas.report.page.step import step_page
from hespas.report.page.study import study_page
from small_studies import small_study
from step_reports import step_report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")


class Opened:
    """A page that was opened, with all that it said and asked for."""

    def __init__(self, browser: Browser, file: Path, *, width: int = 1280, theme: Any = "light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        self.page: Page = context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(file.as_uri())
        self.charts: dict[str, Any] = json.loads(str(self.page.text_content("#charts")))
        self.wait()

    def wait(self) -> None:
        self.page.wait_for_function(
            "count => document.documentElement.dataset.drawn === String(count)",
            arg=len(self.charts),
        )


@pytest.fixture(scope="module")
def step_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "step.html"
    file.write_text(page_html(step_page(step_report())))
    return file


def chart_named(opened: Opened, title: str) -> str:
    found = opened.page.locator("figure", has=opened.page.get_by_text(title)).locator(".chart")
    return str(found.first.get_attribute("id"))


def marks(opened: Opened, name: str, kind: str) -> int:
    return opened.page.locator(f"#{name} .mark-{kind}.role-mark path").count()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_step_is_drawn_without_a_word_or_a_request(
    browser: Browser, step_file: Path, width: int, theme: str
) -> None:
    opened = Opened(browser, step_file, width=width, theme=theme)
    assert opened.said == []
    assert opened.asked == [step_file.as_uri()]
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    for name in opened.charts:
        assert opened.page.locator(f"#{name} svg").count() == 1


def test_charts_have_as_many_marks_as_data(browser: Browser, step_file: Path) -> None:
    opened = Opened(browser, step_file)
    for title in ("What bounds the step", "Communication by kind", "The slowest device"):
        name = chart_named(opened, title)
        values = opened.charts[name]["data"]["values"]
        drawn = [row for row in values if row.get("end", 1) != row.get("start", 0)]
        assert marks(opened, name, "rect") >= len(drawn) > 0, title
    roofline = chart_named(opened, "Kernels on the roofline")
    values = opened.charts[roofline]["data"]["values"]
    assert marks(opened, roofline, "symbol") == len(values) > 3


def test_a_mark_says_what_it_is(browser: Browser, step_file: Path) -> None:
    opened = Opened(browser, step_file)
    name = chart_named(opened, "What bounds the step")
    opened.page.locator(f"#{name} .mark-rect.role-mark path").first.hover()
    tip = opened.page.locator("#vg-tooltip-element")
    tip.wait_for(state="visible")
    first = opened.charts[name]["data"]["values"][0]
    assert first["part"] in str(tip.text_content())
    assert first["text"] in str(tip.text_content())


def test_a_click_on_a_block_opens_it(browser: Browser, step_file: Path) -> None:
    opened = Opened(browser, step_file)
    name = chart_named(opened, "By phase and module")
    labels = opened.page.locator(f"#{name} .role-axis-label").last.locator("text")
    before = sorted(labels.all_text_contents())
    opened.page.locator(f"#{name} .mark-rect.role-mark path").nth(1).click(force=True)
    whole = opened.page.locator(f"button[data-chart={name}]")
    whole.wait_for(state="visible")
    assert sorted(labels.all_text_contents()) != before
    whole.click()
    whole.wait_for(state="hidden")
    assert sorted(labels.all_text_contents()) == before


def column(opened: Opened, caption: str, number: int) -> list[str]:
    cells = opened.page.locator("table", has_text=caption).locator(
        f"tbody tr:not([hidden]) td:nth-child({number})"
    )
    return cells.all_text_contents()


def test_a_table_sorts_by_what_is_clicked(browser: Browser, step_file: Path) -> None:
    opened = Opened(browser, step_file)
    table = opened.page.locator("table", has_text="Kernels, longest first")
    head = table.locator("th", has_text="Launches")
    head.locator("button").focus()
    opened.page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    down = [float(text) for text in column(opened, "Kernels, longest first", 4)]
    assert down == sorted(down, reverse=True)
    head.locator("button").click()
    up = [float(text) for text in column(opened, "Kernels, longest first", 4)]
    assert up == sorted(up)


def test_a_filter_hides_other_rows(browser: Browser, step_file: Path) -> None:
    opened = Opened(browser, step_file)
    place = opened.page.locator(".table", has_text="Kernels, longest first")
    count = len(column(opened, "Kernels, longest first", 1))
    place.locator("input").fill("reduction")
    kinds = column(opened, "Kernels, longest first", 2)
    assert 0 < len(kinds) < count
    assert f"{len(kinds)} of {count} rows" in str(place.locator("output").text_content())


def test_the_theme_changes(browser: Browser, step_file: Path) -> None:
    opened = Opened(browser, step_file, theme="light")
    back = "getComputedStyle(document.body).backgroundColor"
    light = opened.page.evaluate(back)
    opened.page.get_by_role("button", name="Dark").click()
    opened.wait()
    assert opened.page.evaluate(back) != light
    assert opened.said == []


def test_a_page_prints(browser: Browser, step_file: Path) -> None:
    opened = Opened(browser, step_file)
    printed = opened.page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert len(printed) > 50_000


def test_names_are_shown_as_they_are(browser: Browser, tmp_path: Path) -> None:
    name = "<script>document.title='x'</script><img src=x onerror=alert(1)>"
    file = tmp_path / "page.html"
    layers = [{**row, "path": f"{name}{at}"} for at, row in enumerate(_layers())]
    file.write_text(page_html(step_page(step_report(program=name, layers=layers))))
    opened = Opened(browser, file)
    assert opened.said == []
    assert opened.page.title().startswith(name)
    assert opened.page.locator("img").count() == 0


def _layers() -> list[dict[str, Any]]:
    import msgspec  # noqa: PLC0415 - one test needs it

    return [msgspec.to_builtins(row) for row in step_report().layers]


def test_a_study_is_drawn_and_its_marks_lead_to_the_table(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page_html(study_page(small_study())))
    opened = Opened(browser, file)
    assert opened.said == []
    name = chart_named(opened, "tokens/s/device against peak memory")
    assert marks(opened, name, "symbol") == 4
    opened.page.locator(f"#{name} .mark-symbol.role-mark path").first.click(force=True)
    opened.page.wait_for_function("location.hash.startsWith('#candidate-')")
    assert opened.page.locator("td:target").count() == 1
    assert len(opened.asked) == 1


def test_five_hundred_candidates_fit_into_a_page(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page_html(study_page(small_study(count=500))))
    assert file.stat().st_size < 3e6
    opened = Opened(browser, file)
    assert opened.said == []
    assert marks(opened, chart_named(opened, "tokens/s/device against"), "symbol") == 500


def test_a_comparison_is_drawn(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    runs = [NamedReport(name=name, report=step_report()) for name in "abc"]
    file.write_text(page_html(comparison_page(runs)))
    opened = Opened(browser, file)
    assert opened.said == []
    assert marks(opened, chart_named(opened, "What bounds the steps"), "rect") >= 3
