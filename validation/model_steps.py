"""Predict a training step of every published model, on 8 H100 or the smallest cluster for it.

    python validation/model_steps.py [NAME ...]

Steps compute their layers again (``--remat full``), one sequence of 4,096 tokens a device, with
fusion as modelled. The table in docs/evidence/models.md is written between its marks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Any

import hespas
from hespas.base.process import stay
from hespas.base.question import collect_rarely
from hespas.errors import HespasError
from hespas.models.catalogue import model_named
from hespas.models.configured import published
from hespas.report.models import figures_of

PAGE = Path(__file__).parents[1] / "docs" / "evidence" / "models.md"
PART, LEAST = "H100_80GB", 8
COLUMNS = ("model", "H100", "step", "memory", "MFU", "CPU")
MARKS = ("<!-- steps: begin -->", "<!-- steps: end -->")
HEAD = (f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}")


def _cpu_s() -> float:
    """Return the CPU time of this process and of those that it started."""
    used = (getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def _layers_again(name: str) -> dict[str, Any]:
    """Return the settings that compute a model's layers again, where it has such."""
    return {"remat": "full", "scan": True} if "remat" in model_named(name).options() else {}


def line_of(name: str) -> str:
    """Predict a model's step, and return its line of the table."""
    (figures,) = figures_of(name)
    devices = max(LEAST, int(figures.smallest_cluster["training"][PART].partition("x")[0] or 0))
    start = _cpu_s()
    try:
        made = hespas.predict(name, cluster=f"{devices}x{PART}", **_layers_again(name))
        step: dict[str, Any] = made.to_dict()
        cells = [
            f"{1e3 * step['step_time_s']:,.0f} ms",
            f"{step['peak_memory_bytes'] / 1e9:.1f} GB",
            f"{100 * step['mfu']:.0f} %",
        ]
    except HespasError as error:
        cells = [str(error), "", ""]
    seconds = _cpu_s() - start
    return " | ".join([f"| `{name}`", str(devices), *cells, f"{seconds:.1f} s |"])


def main(names: list[str]) -> None:
    """Print the lines, and write them into the page, in the order of names."""
    # All are exported and partitioned in this process, which starts JAX once.
    stay(stays=True)
    collect_rarely()
    page = PAGE.read_text()
    begin, _, rest = page.partition(MARKS[0])
    shown, _, end = rest.partition(MARKS[1])
    known = {line.split("`")[1]: line for line in shown.splitlines() if line.startswith("| `")}
    for name in names or published():
        known[name] = line_of(name)
        print(known[name], flush=True)
        lines = [known[each] for each in published() if each in known]
        table = "\n".join(["", "", *HEAD, *lines, "", ""])
        PAGE.write_text(f"{begin}{MARKS[0]}{table}{MARKS[1]}{end}")


if __name__ == "__main__":
    main(sys.argv[1:])
