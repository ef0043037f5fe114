"""The notebook in docs is what its cells give when they are run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from validation import notebook


def _plain(cell: dict[str, Any]) -> dict[str, Any]:
    """Return a cell without pictures: fonts decide them."""
    plain = json.loads(json.dumps(cell))
    for output in plain.get("outputs", ()):
        output.get("data", {}).pop("image/svg+xml", None)
    return plain


@pytest.mark.starts_jax
def test_the_notebook_says_what_its_cells_give() -> None:
    written = json.loads(notebook.FILE.read_text())
    made = notebook.executed(draw=False)
    assert [_plain(cell) for cell in made["cells"]] == [_plain(cell) for cell in written["cells"]]
    assert {name: made[name] for name in ("metadata", "nbformat", "nbformat_minor")} == {
        name: written[name] for name in ("metadata", "nbformat", "nbformat_minor")
    }


def test_the_notebook_is_one_and_small() -> None:
    written = json.loads(notebook.FILE.read_text())
    assert written["nbformat"] == 4
    kinds = {cell["cell_type"] for cell in written["cells"]}
    assert kinds == {"markdown", "code"}
    for cell in written["cells"]:
        assert cell["source"]
        assert cell.keys() >= {"id", "metadata"}
    pictures = [
        output["data"]["image/svg+xml"]
        for cell in written["cells"]
        for output in cell.get("outputs", ())
        if "image/svg+xml" in output.get("data", {})
    ]
    assert len(pictures) == 2
    assert notebook.FILE.stat().st_size < 600_000
