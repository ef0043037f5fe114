"""Write the table of engines under load into docs/evidence/serving.md, and what answers state.

``hespas validate --set serving --json points.json`` predicts the points, and ``python
validation/serving_points.py points.json`` keeps them as docs/data/serving_points.json and writes
the page. Without a file it writes the page from what is kept.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hespas.base.files import json_bytes, write_file

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "data" / "serving_points.json"
PAGE = ROOT / "docs" / "evidence" / "serving.md"
ERRORS = ROOT / "src" / "hespas" / "configs" / "published" / "serving_errors.json"
POINTS = ERRORS.with_name("serving_points.csv")
_FAR = 0.15
_BEGIN, _END = "<!-- engines: begin -->", "<!-- engines: end -->"


def summary() -> str:
    """Return a sentence without its full stop and without line breaks."""
    every = json.loads(DATA.read_text())["summary"][0]
    return (
        f"Of {every['points']} published points of vLLM, SGLang and TensorRT-LLM under load, time "
        f"between tokens is off by {100 * every['median_tpot_error']:.1f} % in the median, "
        f"throughput by {100 * every['median_throughput_error']:.1f} %, time to the first token by "
        f"{100 * every['median_ttft_error']:.0f} %"
    )


def table(answer: dict[str, Any]) -> str:
    """Return the median sizes of errors, and the points that are far off."""
    return "\n".join(_lines(answer))


def _lines(answer: dict[str, Any]) -> Iterator[str]:
    yield "| median size of the error | points | between tokens | throughput | first token |"
    yield "|---|---|---|---|---|"
    for row in answer["summary"]:
        errors = (row[f"median_{name}_error"] for name in ("tpot", "throughput", "ttft"))
        cells = " | ".join(f"{100 * error:.1f} %" for error in errors)
        yield f"| {row['group']} | {row['points']} | {cells} |"
    far = [point for point in answer["points"] if abs(point["tpot_error"]) > _FAR]
    yield ""
    layouts, loads = (answer["ranking"][name] for name in ("layouts", "loads"))
    yield (
        "Of layouts (engines, precisions, devices of a replica) whose tokens a second and device "
        f"differ by 10 %, {layouts['right']} of {layouts['pairs']} pairs under one load are ranked "
        f"right, and {loads['right']} of {loads['pairs']} where concurrencies may differ."
    )
    yield ""
    yield (
        f"{len(far)} points are off by more than {100 * _FAR:.0f} % between tokens; "
        "`docs/data/serving_points.json` has every point:"
    )
    yield ""
    yield "| point | between tokens | predicted | error | first token | error |"
    yield "|---|---|---|---|---|---|"
    for point in far:
        published, predicted = 1e3 * point["published_tpot_s"], 1e3 * point["tpot_s"]
        yield (
            f"| {point['name']} | {published:.1f} ms | {predicted:.1f} ms | "
            f"{100 * point['tpot_error']:+.1f} % | {1e3 * point['published_ttft_s']:,.0f} ms | "
            f"{100 * point['ttft_error']:+.0f} % |"
        )


def engine_errors(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the median sizes of errors by engine, and the parts that its points are of."""
    engines = {point["engine"] for point in answer["points"]}
    with POINTS.open(newline="") as lines:
        used = {(row["engine"], row["hardware"]) for row in csv.DictReader(lines)}
    return {
        row["group"]: {
            "points": row["points"],
            "tpot": row["median_tpot_error"],
            "output_tokens_per_s": row["median_throughput_error"],
            "ttft": row["median_ttft_error"],
            "parts": sorted(part for engine, part in used if engine == row["group"]),
        }
        for row in answer["summary"]
        if row["group"] in engines
    }


def main() -> None:
    """Keep the points of a file, and write the page."""
    if len(sys.argv) > 1:
        write_file(DATA, json_bytes(json.loads(Path(sys.argv[1]).read_bytes())))
    answer = json.loads(DATA.read_bytes())
    write_file(ERRORS, json_bytes(engine_errors(answer)))
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    text = f"{before}{_BEGIN}\n\n{table(answer)}\n\n{_END}{after}"
    write_file(PAGE, text.encode())


if __name__ == "__main__":
    main()
