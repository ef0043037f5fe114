from __future__ import annotations

import re
from pathlib import Path

import pytest

from hespas.base.table import Table, read_table
from hespas.errors import MeasurementError


def _read(directory: Path, text: str) -> Table:
    path = directory / "a.csv"
    path.write_text(text, encoding="utf-8-sig")
    columns = ("name", "size", "note")
    return read_table(path, needed=("name", "size"), columns=columns, error=MeasurementError)


def test_lines_know_where_they_stand(tmp_path: Path) -> None:
    table = _read(tmp_path, "# a source\nname, size ,note\na, 1,x\n\nb,2\n")
    assert [(line.text("name"), line.whole("size"), line.number) for line in table.lines] == [
        ("a", 1, 3),
        ("b", 2, 5),
    ]


def test_a_column_is_found_by_its_form(tmp_path: Path) -> None:
    table = _read(tmp_path, "name,size\n")
    found = table.column(re.compile("s(.*)"))
    assert found is not None
    assert (found[0], found[1][1]) == ("size", "ize")
    assert table.column(re.compile(".*")) is None
    assert not list(table.lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"a\.csv: the file is empty; the first line must be the header: name,size,note"),
        ("a,1\n", r"a\.csv:1: there is no header"),
        ("name\n", r"a\.csv:1: the table has no column 'size'; known columns: name, size, note"),
        ("name,size,colour\n", r"a\.csv:1: the table has a column 'colour'"),
        ("name,size,size\n", r"a\.csv:1: the header has two columns 'size'"),
        ("name,size\na,1,2\n", r"a\.csv:2: the line has 3 cells under 2 columns"),
        ("name,size\na\n", r"a\.csv:2: the line has 1 cells under 2 columns, or lacks one"),
        ("name,size\na,1.5\n", r"a\.csv:2: size is '1\.5'; give a whole number of 1 or more"),
        ("name,size\na,-1\n", r"a\.csv:2: size is '-1'"),
        ("name,size\na,\0\n", r"a\.csv:2: size is '\\x00'|a\.csv:.*: is no CSV"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        [line.whole("size") for line in _read(tmp_path, text).lines]


@pytest.mark.parametrize("text", ["nan", "inf", "soon", "0"])
def test_an_amount_is_a_finite_number_above_0(tmp_path: Path, text: str) -> None:
    (line,) = _read(tmp_path, f"name,size\na,{text}\n").lines
    with pytest.raises(MeasurementError, match=f"size is '{text}'; give a number above 0"):
        line.amount("size")
