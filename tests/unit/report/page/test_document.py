from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from hespas.errors import OutputError
from hespas.report.page.document import Cards, Cell, Notes, Page, Section, Table, page_html
from hespas.report.page.vega import Chart

NAME = '<script>alert("1")</script>'


class Read(HTMLParser):
    """Collects elements and texts outside of scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links.extend(str(value) for name, value in attrs if name in ("src", "href"))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] not in ("script", "style"):
            self.texts.append(data)


def page(*parts: Chart | Table | Cards | Notes, title: str = "t") -> Page:
    return Page(title=title, subtitle=title, sections=(Section(title=title, parts=parts),))


def everything(name: str) -> Page:
    return page(
        Cards(figures=((name, name, name),)),
        Notes(texts=(name,), is_warning=True),
        Table(caption=name, columns=(name,), rows=((Cell(text=name, sort_by=name),),)),
        Chart(title=name, description=name, specification={"data": {"values": [{"n": name}]}}),
        title=name,
    )


def test_no_name_becomes_an_element() -> None:
    plain, crafted = Read(), Read()
    plain.feed(page_html(everything("name")))
    crafted.feed(page_html(everything(NAME)))
    assert crafted.tags == plain.tags
    assert crafted.texts.count(NAME) == plain.texts.count("name") > 8


def test_the_data_of_charts_is_the_same_after_it_was_read() -> None:
    (text,) = re.findall(
        r'<script type="application/json" id="charts">(.*?)</script>', page_html(everything(NAME))
    )
    assert "<" not in text
    assert json.loads(text)["chart-1"]["data"]["values"] == [{"n": NAME}]


def test_nothing_is_fetched() -> None:
    read = Read()
    text = page_html(everything("name"))
    read.feed(text)
    assert all(link.startswith("#") for link in read.links)
    assert "default-src 'none'" in text
    assert "sourceMappingURL" not in text


def test_a_section_without_parts_is_left_out() -> None:
    text = page_html(
        Page(title="", subtitle="", sections=(Section(title="empty section", parts=()),))
    )
    assert "empty section" not in text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_chart_of_what_is_no_number_is_refused(value: float) -> None:
    chart = Chart(title="", description="", specification={"data": {"values": [{"n": value}]}})
    with pytest.raises(OutputError, match="no finite number"):
        page_html(page(chart))
