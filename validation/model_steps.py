"""Predict a training step of every published model, on 8 H100 or the smallest cluster for it.

    python validation/model_steps.py [NAME ...]

Steps compute their layers again (``--remat full``), one sequence of 4,096 tokens a device, with
fusion as modelled. The table in docs/evidence/models.md is written between its marks.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Any

import hespas
from hespas.errors import HespasError
from hespas.models.configured import published
from hespas.report.models import figures_of

PAGE = Path(__file__).parents[1] / "docs" / "evidence" / "models.md"
PART, LEAST = "H100_80GB", 8
COLUMNS = (
    *("model", "parameters", "active", "FLOPs a token", "KV, bytes"),
    *("H100", "step", "memory", "MFU", "CPU"),
)
HEAD = (f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}")


def _cpu_s() -> float:
    """Return the CPU time of this process and of those that it started."""
    used = (getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def line_of(name: str) -> str:
    """Predict a model's step, and return its line of the table."""
    (figures,) = figures_of(name)
    devices = max(LEAST, int(figures.smallest_cluster["training"][PART].partition("x")[0] or 0))
    start = _cpu_s()
    try:
        made = hespas.predict(name, cluster=f"{devices}x{PART}", remat="full", scan=True)
        step: dict[str, Any] = made.to_dict()
        cells = [
            f"{1e3 * step['step_time_s']:,.0f} ms",
            f"{step['peak_memory_bytes'] / 1e9:.1f} GB",
            f"{100 * step['mfu']:.0f} %",
        ]
    except HespasError as error:
        cells = [str(error), "", ""]
    seconds = _cpu_s() - start
    return " | ".join(
        [
            f"| `{name}`",
            f"{figures.parameters / 1e9:.4g} B",
            f"{figures.active_parameters / 1e9:.4g} B",
            f"{figures.flops_per_token / 1e9:.4g} G",
            f"{figures.kv_bytes_per_token:,}",
            str(devices),
            *cells,
            f"{seconds:.1f} s |",
        ]
    )


def main(names: list[str]) -> None:
    """Print the lines, and write them into the page where all models are predicted."""
    lines: list[str] = []
    for name in names or published():
        lines.append(line_of(name))
        print(lines[-1], flush=True)
    if not names:
        marked = re.compile(r"(<!-- steps: begin -->\n).*?(<!-- steps: end -->)", re.DOTALL)
        table = "\n".join(["", *HEAD, *lines, "", ""])
        text = marked.sub(lambda match: match[1] + table + match[2], PAGE.read_text())
        PAGE.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
