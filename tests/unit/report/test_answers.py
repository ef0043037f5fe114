from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

import hespas
from hespas.errors import ConfigError
from hespas.prediction.figures.step import run_report
from hespas.report.answers import TABLES, Answer, full_report, summary_html


@pytest.fixture(scope="module")
def prediction() -> Answer:
    return hespas.predict("examples/attention_block.mlir", "H100_80GB", "H100_80GB_4GPU")


def test_the_repr_has_five_lines(prediction: Answer) -> None:
    lines = repr(prediction).splitlines()
    assert len(lines) == 5
    assert "attention_block.mlir" in lines[0]
    assert max(map(len, lines)) <= 100


def test_the_dictionary_is_the_json_of_run(prediction: Answer) -> None:
    assert prediction.to_dict() == msgspec.to_builtins(full_report(prediction))


@pytest.mark.parametrize("table", TABLES)
def test_every_table_has_rows_of_equal_keys(prediction: Answer, table: str) -> None:
    rows = prediction.rows(table)
    assert len({tuple(row) for row in rows}) <= 1


def test_operations_stand_longest_first_and_add_up(prediction: Answer) -> None:
    times = [float(str(row["time_s"])) for row in prediction.rows("operations")]
    assert times == sorted(times, reverse=True)
    assert sum(times) == pytest.approx(prediction.compute_s)


def test_an_unknown_table_is_refused_with_the_likely_one(prediction: Answer) -> None:
    with pytest.raises(ConfigError, match="operations"):
        prediction.rows("operation")


def test_names_are_escaped_in_html(prediction: Answer) -> None:
    named = replace(prediction, device_name="<script>alert('a&b')</script>")
    html = summary_html(run_report(named, with_tables=False))
    assert "<script>" not in html
    assert "&lt;script&gt;alert(&#x27;a&amp;b&#x27;)&lt;/script&gt;" in html
    assert html.startswith("<table>")
