"""Run damaged files for minutes: ``PYTHONPATH=tests python -m fuzz --minutes 5 --seed 1``."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from fuzz.runner import End, Outcome, fingerprint, outcomes


def main() -> int:
    """Run inputs, say how many ended how, and keep those that failed; 1 if there are any."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long")
    parser.add_argument("--seed", type=int, default=0, help="which inputs")
    parser.add_argument("--inputs", type=int, help="at most so many")
    parser.add_argument("--only", nargs="+", default=(), help="readers, by how their names begin")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument(
        "--failures",
        type=Path,
        default=Path("fuzz-failures"),
        help="where inputs that fail are kept",
    )
    parser.add_argument("--record", type=Path, help="add what was tried to this file, as JSON")
    given = parser.parse_args()
    last = None if given.inputs is None else given.first + given.inputs
    numbers = range(given.first, last or sys.maxsize)
    tally = Tally()
    try:
        time_s = 60 * given.minutes
        for outcome in outcomes(given.seed, numbers, time_s=time_s, only=given.only):
            tally.add(outcome)
            if outcome.end is End.FAILED:
                keep(outcome, given.failures)
    finally:
        print(tally.text())
        if given.record is not None:
            add_run({"seed": given.seed, **tally.record()}, given.record)
    return 1 if tally.failed else 0


def add_run(run: Mapping[str, object], file: Path) -> None:
    """Add a run to those that a file records."""
    runs: list[object] = json.loads(file.read_text())["runs"] if file.exists() else []
    file.write_text(json.dumps({"runs": [*runs, run]}, indent=1) + "\n")


class Tally:
    """How many inputs of each reader ended how."""

    def __init__(self) -> None:
        self.ends: Counter[tuple[str, End]] = Counter()
        self.cuts = 0
        self.longest_s = 0.0

    def add(self, outcome: Outcome) -> None:
        self.ends[outcome.reader, outcome.end] += 1
        self.cuts += outcome.is_cut
        self.longest_s = max(self.longest_s, outcome.time_s)

    @property
    def failed(self) -> int:
        return sum(times for (_, end), times in self.ends.items() if end is End.FAILED)

    def record(self) -> dict[str, object]:
        """Return what was tried, by reader."""
        names = sorted({reader for reader, _ in self.ends})
        readers = {name: {end.value: self.ends[name, end] for end in End} for name in names}
        return {
            "inputs": self.ends.total(),
            "cut_short": self.cuts,
            "longest_s": round(self.longest_s, 1),
            "readers": readers,
        }

    def text(self) -> str:
        """Return a line for every reader, and one for all."""
        names = sorted({reader for reader, _ in self.ends})
        lines = [f"{'':26}{''.join(f'{end.value:>10}' for end in End)}"]
        lines += [
            f"{name:26}{''.join(f'{self.ends[name, end]:10}' for end in End)}" for name in names
        ]
        lines.append(
            f"{self.ends.total()} inputs, {self.failed} failed; the longest: {self.longest_s:.1f} s"
        )
        return "\n".join(lines)


def keep(outcome: Outcome, directory: Path) -> None:
    """Write an input that failed, and how."""
    directory.mkdir(parents=True, exist_ok=True)
    suffix = Path(outcome.file).suffix
    (directory / f"{fingerprint(outcome)}{suffix}").write_bytes(outcome.content)
    command = f"hespas {' '.join(outcome.words)}"
    where = f"{fingerprint(outcome)}: {outcome.reader}, {outcome.file}: {command}"
    print(f"{where}: {outcome.why}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
