"""Write docs/how-to/notebook.ipynb: its cells are here, and are run here.

A cell's last expression is shown as Jupyter shows it: as HTML where it has any, and as text.
Charts, which are frames of 0.9 MB, are drawn as pictures: ``--draw`` needs the extra ``images``.

    python validation/notebook.py --draw
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from hespas.report.page.document import write_charts
from hespas.report.plot import Plot

FILE = Path(__file__).resolve().parents[1] / "docs" / "how-to" / "notebook.ipynb"
_CELLS = """
%% markdown
# A step in a notebook

`validation/notebook.py` writes and runs this notebook: change it there.
[Use hespas where you work](where-you-work.md) says more.
%% code
import hespas

prediction = hespas.predict(
    "llama3-100m", cluster="4xH100_80GB", mesh="fsdp=4", sequence=2048, batch=4
)
prediction
%% markdown
Rows of each table are dictionaries; `prediction.to_frame("kinds")` is the same as a
`pandas.DataFrame`, where pandas is installed.
%% code
for row in prediction.rows("kinds")[:5]:
    print(f"{1e3 * row['time_s']:8.2f} ms  {row['kind']}")
%% markdown
Where the step goes. In a notebook of your own the charts answer the pointer.
%% code
prediction.plot("step")
%% markdown
This plots the memory that a device uses over the step; the dashed line is its capacity:
%% code
prediction.plot("memory")
%% markdown
Another mesh is another question, and figures are plain numbers:
%% code
for mesh in ("fsdp=4", "data=4"):
    other = hespas.predict("llama3-100m", cluster="4xH100_80GB", mesh=mesh, sequence=2048, batch=4)
    memory_gib = other.peak_memory_bytes / 2**30
    print(f"{mesh:8} {1e3 * other.step_time_s:6.1f} ms {memory_gib:6.2f} GiB")
"""


def executed(*, draw: bool) -> dict[str, Any]:
    """Return the notebook with the outputs of its cells; charts are pictures with ``draw``."""
    names: dict[str, Any] = {}
    cells = list(_cells(names, draw=draw))
    return {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _cells(names: dict[str, Any], *, draw: bool) -> Iterator[dict[str, Any]]:
    count = 0
    for number, part in enumerate(_CELLS.split("\n%% ")[1:]):
        kind, text = part.rstrip().split("\n", 1)
        cell: dict[str, Any] = {
            "cell_type": kind,
            "id": f"cell-{number}",
            "metadata": {},
            "source": _lines(text),
        }
        if kind == "code":
            count += 1
            outputs = _outputs(text, names, count, draw=draw)
            cell |= {"execution_count": count, "outputs": outputs}
        yield cell


def _outputs(text: str, names: dict[str, Any], count: int, *, draw: bool) -> list[dict[str, Any]]:
    """Run a cell, and return what it prints and what its last expression is."""
    tree = ast.parse(text)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value: object = None
    with redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)  # noqa: S102 - cells of this file
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        said = {"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())}
        outputs.append(said)
    if value is not None:
        shown = {"text/plain": _lines(repr(value))}
        if isinstance(value, Plot):
            shown |= {"image/svg+xml": _lines(_picture(value))} if draw else {}
        elif hasattr(value, "_repr_html_"):
            shown["text/html"] = _lines(str(vars(type(value))["_repr_html_"](value)))
        outputs.append(
            {
                "output_type": "execute_result",
                "execution_count": count,
                "data": shown,
                "metadata": {},
            }
        )
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _picture(plot: Plot) -> str:
    """Return the first chart of a plot as a picture."""
    with tempfile.TemporaryDirectory() as directory:
        first, *_ = write_charts(plot.page, Path(directory), "svg")
        return first.read_text()


def main() -> None:
    """Write the notebook."""
    notebook = executed(draw="--draw" in sys.argv)
    FILE.write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
