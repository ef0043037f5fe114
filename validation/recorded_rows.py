"""Published steps of PyTorch beside predictions of the same steps, recorded without a GPU.

``python validation/recorded_rows.py`` records the steps of `STEPS` (it needs ``hespas[torch]``
and torchao 0.18), predicts them, and writes docs/data/recorded_steps.json and the tables of
docs/evidence/pytorch.md.
With ``--tables`` it writes the tables from the figures. Nothing is fitted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hespas.base.files import json_bytes, write_file
from hespas.cli.commands import commands, run
from hespas.evidence.validate.pytorch import read_pytorch_rows

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "data" / "recorded_steps.json"
PAGE = ROOT / "docs" / "evidence" / "pytorch.md"
BEGIN, END = "<!-- recorded: begin -->", "<!-- recorded: end -->"
_SCRIPT = "validation/torch_llama_dated.py"
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A published step: its line in the packaged table, and how it is recorded.

    ``made_for`` is a part of the same kind, whose compiler's description is known.
    """

    name: str
    location: str
    settings: tuple[str, ...]
    torch_version: str
    cluster: str
    made_for: str


STEPS = (
    Step(
        name="Llama 3.1 8B, eager",
        location=":2",
        settings=("compiled=false",),
        torch_version="2.5",
        cluster="8xH100_96GB",
        made_for="8xH100_80GB",
    ),
    Step(
        name="Llama 3.1 8B, compiled",
        location=":3",
        settings=("compiled=true",),
        torch_version="2.5",
        cluster="8xH100_96GB",
        made_for="8xH100_80GB",
    ),
    Step(
        name="Llama 3.1 8B, float8",
        location=":7",
        settings=("compiled=true", "float8=tensorwise"),
        torch_version="2.5",
        cluster="32xH200_141GB",
        made_for="32xH200_141GB",
    ),
    Step(
        name="Llama 3.1 8B, float8 by rows, tp=8",
        location=":6",
        settings=("compiled=true", "float8=rowwise", "tp=8", "batch=12"),
        torch_version="2.5",
        cluster="64xH100_96GB",
        made_for="64xH100_80GB",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A published step and its prediction: seconds, bytes, and seconds by kind of kernel."""

    name: str
    cluster: str
    published_s: float
    predicted_s: float
    published_peak_bytes: int | None
    reserved_bytes: int
    live_bytes: int
    exposed_communication_s: float
    launch_wait_s: float
    kinds: Mapping[str, float]
    source: str

    @property
    def error(self) -> float:
        """The error of the predicted time."""
        return self.predicted_s / self.published_s - 1


def predicted(step: Step, directory: Path) -> Figures:
    """Record a step and predict it, by the commands that a user gives."""
    recorded, answer = directory / "step.json", directory / "run.json"
    settings = [word for each in step.settings for word in ("--set", each)]
    _run(
        *("export", f"torch:{ROOT / _SCRIPT}:train", *settings),
        *("--torch-version", step.torch_version, "--cluster", step.made_for, "-o", str(recorded)),
    )
    _run("run", str(recorded), "--cluster", step.cluster, "--json", str(answer))
    report: dict[str, Any] = json.loads(answer.read_bytes())
    row = next(row for row in read_pytorch_rows() if row.location.endswith(step.location))
    return Figures(
        name=step.name,
        cluster=step.cluster,
        published_s=row.published_s,
        predicted_s=report["step_time_s"],
        published_peak_bytes=row.published_peak_bytes,
        reserved_bytes=report["peak_memory_bytes"],
        live_bytes=report["live_memory_bytes"],
        exposed_communication_s=report["exposed_communication_s"],
        launch_wait_s=report["launch_wait_s"],
        kinds={each["kind"]: each["time_s"] for each in report["kinds"]},
        source=row.source,
    )


def _run(*words: str) -> None:
    if run(commands, "hespas", list(words)):
        raise SystemExit(f"hespas {' '.join(words)} failed")


def tables(rows: Sequence[Figures]) -> str:
    """Return the tables of the page."""
    return "\n".join([*_summary(rows), "", *_parts(rows), ""])


def _summary(rows: Sequence[Figures]) -> Iterator[str]:
    head = ("step", "cluster", "published", "predicted", "error")
    yield f"| {' | '.join((*head, 'reserved, published', 'predicted', 'live'))} |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        peak = row.published_peak_bytes
        yield (
            f"| {row.name} | `{row.cluster}` | {1e3 * row.published_s:,.0f} ms "
            f"| {1e3 * row.predicted_s:,.0f} ms | {100 * row.error:+.1f} % "
            f"| {'' if peak is None else f'{peak / _GIB:.1f} GiB'} "
            f"| {row.reserved_bytes / _GIB:.1f} GiB | {row.live_bytes / _GIB:.1f} GiB |"
        )


def _parts(rows: Sequence[Figures]) -> Iterator[str]:
    kinds = dict.fromkeys(kind for row in rows for kind in row.kinds)
    ordered = sorted(kinds, key=lambda kind: -max(row.kinds.get(kind, 0.0) for row in rows))
    yield f"| part | {' | '.join(row.name for row in rows)} |"
    yield "|---|" + "---|" * len(rows)
    parts = {kind: [row.kinds.get(kind, 0.0) for row in rows] for kind in ordered}
    parts["exposed communication"] = [row.exposed_communication_s for row in rows]
    parts["waiting for launches"] = [row.launch_wait_s for row in rows]
    for name, times_s in parts.items():
        if max(times_s) >= 1e-3:
            yield f"| {name} | " + " | ".join(f"{1e3 * each:,.0f} ms" for each in times_s) + " |"


def main(*, is_recording: bool) -> None:
    """Record the steps, where asked for, and write the page's tables."""
    if is_recording:
        with TemporaryDirectory() as directory:
            rows = [predicted(step, Path(directory)) for step in STEPS]
        write_file(DATA, json_bytes([asdict(row) for row in rows]))
    rows = [Figures(**each) for each in json.loads(DATA.read_bytes())]
    head, rest = PAGE.read_text().split(BEGIN)
    _, tail = rest.split(END)
    write_file(PAGE, f"{head}{BEGIN}\n\n{tables(rows)}\n{END}{tail}".encode())


if __name__ == "__main__":
    main(is_recording="--tables" not in sys.argv[1:])
