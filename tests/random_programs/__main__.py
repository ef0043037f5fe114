"""Hold programs that are drawn at random against laws.

``PYTHONPATH=tests:src python -m random_programs --minutes 5 --seed 1``. The compiler of GPUs is
used where Python has it.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Flaky

from hespas.errors import HespasError
from random_programs.compilers import RefusedError, environment, has_gpu_compiler
from random_programs.grammar import Drawn, programs
from random_programs.laws import GPU_LAWS, LAWS, Law

_AT_ONCE = 50
_SHRINK_S = 60.0
"""How much CPU time is spent on finding a smaller program that breaks the same law."""


class BrokenError(AssertionError):
    """A law that a program breaks."""


class Tally:
    """How many programs each law was held against, that broke it, and that XLA itself refuses."""

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.operations = 0

    def text(self) -> str:
        lines = [
            f"{name:22}{self.held[name]:8}{self.broken[name]:8}{self.refused[name]:8}"
            for name in self.held
        ]
        head = f"{'':22}{'held':>8}{'broken':>8}{'refused':>8}"
        return "\n".join([head, *lines, f"{self.operations} lines of StableHLO"])


def main() -> int:
    """Draw programs, say how many broke a law, keep the smallest of them; 1 if there are any."""
    parser = argparse.ArgumentParser(prog="random_programs", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long, of CPU time")
    parser.add_argument("--seed", type=int, default=0, help="which programs")
    parser.add_argument("--programs", type=int, default=sys.maxsize, help="at most so many")
    parser.add_argument("--laws", default="", help="only these, with commas between them")
    parser.add_argument("--failures", type=Path, default=Path("program-failures"))
    given_words = parser.parse_args()
    wanted = environment()
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        # JAX reads them when it starts.
        words = [sys.executable, "-m", "random_programs", *sys.argv[1:]]
        os.execve(sys.executable, words, os.environ | wanted)  # noqa: S606 - this same program
    laws = LAWS | (GPU_LAWS if has_gpu_compiler() else {})
    if given_words.laws:
        laws = {name: laws[name] for name in given_words.laws.split(",")}
    tally = Tally()
    end_s = 60 * given_words.minutes
    left = given_words.programs
    part = 0
    while left > 0 and time.process_time() < end_s:
        count = min(left, _AT_ONCE)
        failure = hold_laws(laws, tally, seed_of=(given_words.seed, part), count=count, end_s=end_s)
        if failure is not None:
            _keep(failure, given_words.failures)
        left, part = left - count, part + 1
    print(tally.text())
    return 1 if tally.broken else 0


def hold_laws(
    laws: Mapping[str, Law], tally: Tally, *, seed_of: tuple[int, int], count: int, end_s: float
) -> tuple[Drawn, str] | None:
    """Hold laws against some programs; return a small one that broke one, and how.

    A smaller one that breaks the same law is looked for in `_SHRINK_S`.
    """
    smallest: list[tuple[Drawn, str]] = []
    until_s = [end_s]
    left = dict(laws)

    @seed(1_000_000 * seed_of[0] + seed_of[1])
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
        print_blob=False,
        report_multiple_bugs=False,
    )
    @given(programs())
    def hold(drawn: Drawn) -> None:
        if time.process_time() > until_s[0]:
            return
        tally.operations += 0 if smallest else drawn.text.count("\n")
        for name, law in list(left.items()):
            try:
                fault = _fault(law, drawn)
            except RefusedError:
                tally.refused[name] += not smallest
                continue
            tally.held[name] += not smallest
            if fault and (not smallest or _words(fault) == _words(smallest[0][1])):
                tally.broken[name] += not smallest
                if not smallest:
                    until_s[0] = time.process_time() + _SHRINK_S
                    left.clear()
                    left[name] = law
                smallest[:] = [(drawn, fault)]
                raise BrokenError(name)

    try:
        hold()
    except (BrokenError, Flaky):
        # Where the time ends before the smallest is found, it counts as flaky.
        (name,) = left
        drawn, fault = smallest[0]
        return drawn, f"{name}: {fault}"
    return None


def _words(fault: str) -> list[str]:
    """Return what distinguishes one way to break a law from another: not the figures."""
    return re.findall("[a-z]+", fault)


def _fault(law: Law, drawn: Drawn) -> str:
    try:
        return law(drawn)
    except (
        HespasError,
        RuntimeError,
        ValueError,
        LookupError,
        TypeError,
        ArithmeticError,
    ) as error:
        return f"{type(error).__name__}: {error}"


def _keep(failure: tuple[Drawn, str], directory: Path) -> None:
    drawn, fault = failure
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{zlib.crc32(drawn.text.encode()):08x}.mlir"
    file.write_text(f"// {' '.join(fault.split())}\n{drawn.text}")
    print(f"{file}: {fault}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
