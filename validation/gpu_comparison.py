"""Hold predictions against steps that were measured on one GPU (`gpu_measurements.py`).

    python validation/gpu_comparison.py [FIDELITY ...]

prints a row for each step of validation/measurements/xla_steps-*.csv: its duration and memory as
measured, and with each fidelity (``compiled`` needs the extra ``gpu``) the predicted duration, its
error and that of the memory.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import hespas
from hespas.errors import HespasError
from hespas.report.answers import Answer

HERE = Path(__file__).resolve().parent / "measurements"
PARTS = {"H100_80GB_HBM3": "1xH100_80GB"}
_INFERENCE = ("-decode", "-prefill")


def measured_steps(file: Path) -> dict[tuple[str, str], dict[str, float]]:
    """Return the rows of each step: times in s, sizes in bytes, clocks in MHz."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    steps: dict[tuple[str, str], dict[str, float]] = {}
    for row in csv.DictReader(lines):
        value = float(row["us"]) / 1e6 or float(row["count"])
        steps.setdefault((row["model"], row["settings"]), {})[row["kernel"]] = value
    return steps


def step_s(name: str, rows: dict[str, float]) -> float:
    """Return the duration of a step; a single step of inference is that of its kernels."""
    return rows["from the first kernel to the last" if name.endswith(_INFERENCE) else "step"]


def predicted(name: str, settings: str, cluster: str, fidelity: str) -> Answer:
    """Return the prediction of a measured step."""
    given = dict(setting.split("=", 1) for setting in settings.split())
    mesh, batch = given.pop("mesh"), int(given.pop("batch"))
    attention, sequence = given.pop("attention"), given.pop("sequence", None)
    return hespas.predict(
        name,
        cluster=cluster,
        fidelity=fidelity,
        mesh=mesh,
        batch=batch,
        attention=attention,
        sequence=int(sequence) if sequence else None,
        settings=given,
    )


def main(fidelities: list[str]) -> None:
    """Print the table."""
    print("| step | measured | " + " | ".join(fidelities) + " |")
    for device, cluster in PARTS.items():
        for (name, settings), rows in measured_steps(HERE / f"xla_steps-{device}.csv").items():
            took_s = step_s(name, rows)
            needed = sum(rows[f"{part} bytes"] for part in ("argument", "output", "temp"))
            needed -= rows["alias bytes"]
            cells = [f"{name} {settings}", f"{took_s * 1e3:.2f} ms, {needed / 1e9:.2f} GB"]
            for fidelity in fidelities:
                try:
                    step = predicted(name, settings, cluster, fidelity)
                    cells.append(
                        f"{step.step_time_s * 1e3:.2f} ms ({step.step_time_s / took_s - 1:+.1%}), "
                        f"{step.memory.peak_bytes / needed - 1:+.1%}"
                    )
                except HespasError as error:
                    cells.append(str(error))
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ["fused"])
