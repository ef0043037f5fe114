"""Examples and figures in the pages: what commands print, and figures from docs/data/.

    python validation/pages.py             write every example and figure anew
    python validation/pages.py --record    also run what needs hespas[gpu] and [tpu]

Four kinds of text in README.md and docs/ are not written by hand:

* a ``console`` block shows commands and what they print; tests run them;
* a ``text`` block after the line ``<!-- recorded -->`` shows the same of commands that need an
  extra; what they printed is kept in docs/data/recorded.json;
* lines between ``<!-- figures NAME -->`` and ``<!-- end -->`` are computed from
  docs/data/accuracy.json, which ``hespas validate --json docs/data/accuracy.json`` writes,
  docs/data/fuzz.json, to which ``python -m fuzz --record`` adds a run, docs/data/fusion.json,
  which ``python validation/fusion.py`` writes, docs/data/every_step.json, which ``python
  validation/every_rows.py`` makes of what ``hespas validate --all --json`` writes,
  docs/data/recipe.json, which ``python validation/recipe_cost.py`` writes,
  docs/data/other_programs.json, which ``python validation/other_programs.py`` writes, and
  src/hespas/sources/loops.json, which ``python validation/loops.py`` writes;
* what stands between ``<!-- shown NAME -->`` and ``<!-- end -->`` is a figure in a sentence that
  follows from the examples of its page: see validation/sentences.py.

In an output that is shown, "..." stands for any lines that are not. Look at the difference before
you commit.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import every_rows
import expected_errors
import fault_runs
import fusion
import fuzz_runs
import library_steps
import loops
import other_rows
import pipelines
import recipe_cost
import sentences
import serving
import serving_points
from base_install import base_install
from hespas.cli.commands import command_named, commands, run

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
RECORDED = ROOT / "docs" / "data" / "recorded.json"
ACCURACY = ROOT / "docs" / "data" / "accuracy.json"

Output = Callable[[str], str]
"""Returns what a command prints."""

_EXECUTED = re.compile(r"(?<=```console\n)(.*?)(?=```\n)", re.DOTALL)
_KEPT = re.compile(r"(?<=<!-- recorded -->\n```text\n)(.*?)(?=```\n)", re.DOTALL)
_FIGURES = re.compile(r"(?<=<!-- figures )(\w+)( -->\n?)(.*?)(?=<!-- end -->)", re.DOTALL)
_SHOWN = re.compile(r"(?<=<!-- shown )(\w+)( -->)(.*?)(?=<!-- end -->)", re.DOTALL)
_STAGES = {
    "hespas_chakra_gen": "trace",
    "hespas_mlir_splitter": "split",
    "hespas_mlir_analyzer": "analyze",
}


def has_examples(page: Path) -> bool:
    """Return whether a page shows commands that the tests can run."""
    return _EXECUTED.search(page.read_text()) is not None


def executed(text: str, output: Output) -> str:
    """Return a page with what its ``console`` examples print now."""
    return _EXECUTED.sub(lambda match: _block(match[1], output), text)


def recorded(text: str, output: Output) -> str:
    """Return a page with what its recorded examples printed."""
    return _KEPT.sub(lambda match: _block(match[1], output), text)


def with_figures(text: str, accuracy: Mapping[str, Any]) -> str:
    """Return a page with its figures as docs/data/accuracy.json has them."""
    return _FIGURES.sub(lambda match: f"{match[1]}{match[2]}{FIGURES[match[1]](accuracy)}", text)


def with_sentences(text: str) -> str:
    """Return a page whose sentences have the figures that its examples show."""
    page = sentences.Examples(executed=_shown(text, _EXECUTED), recorded=_shown(text, _KEPT))
    return _SHOWN.sub(
        lambda match: f"{match[1]}{match[2]}{sentences.FIGURES[match[1]](page)}", text
    )


def _shown(text: str, blocks: re.Pattern[str]) -> dict[str, str]:
    """Return what the examples of a page show, by command; of equal commands the first."""
    found: dict[str, str] = {}
    for block in blocks.findall(text):
        for part in _parts(block):
            match = _COMMAND.match(part)
            assert match is not None  # noqa: S101 - a part has a line at least
            found.setdefault(_key(match[0]), part[match.end() :])
    return found


def _parts(text: str) -> list[str]:
    return re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]


_COMMAND = re.compile(r"(?:.*\\\n)*.*\n")


def _block(text: str, output: Output) -> str:
    return "".join(f"$ {_example(part, output)}" for part in _parts(text))


def _example(text: str, output: Output) -> str:
    match = _COMMAND.match(text)
    assert match is not None  # noqa: S101 - a part has a line at least
    command, shown = match[0], text[match.end() :].splitlines()
    lines = _like(shown, output(command).splitlines())
    return command + "".join(f"{line}\n" for line in lines)


def _like(shown: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Return as much of an output as is shown of it: ``...`` stands for any lines.

    Behind it the next line that is shown is the first that begins alike, up to two spaces.

    >>> _like(["a", "...", "c    1", "..."], ["a", "b", "c    2", "d"])
    ['a', '...', 'c    2', '...']
    """
    found: list[str] = []
    position, skips = 0, False
    for number, line in enumerate(shown):
        if line == "...":
            found.append(line)
            skips = True
            continue
        if skips:
            name = re.split(r"(?<=\S)  ", line)[0]
            alike = (at for at in range(position, len(lines)) if lines[at].startswith(name))
            position = next(alike, len(lines))
            if position == len(lines):
                raise SystemExit(f"no line that is printed begins with {name!r}")
        skips = False
        if position < len(lines):
            found.append(lines[position])
        position += 1
        if number == len(shown) - 1:
            found.extend(lines[position:])
    return found if shown else list(lines)


def printed(command: str) -> str:
    """Run a command here as where no compiler is installed, and return what it prints."""
    with base_install():
        return _printed(command)


def _printed(command: str) -> str:
    name, *words = shlex.split(command.replace("\\\n", " "))
    stage = command_named(_STAGES[name]) if name in _STAGES else commands
    with redirect_stdout(StringIO()) as shown:
        if run(stage, name, words) != 0:
            raise SystemExit(f"it failed: {command}")
    return shown.getvalue()


def make_workspace(directory: Path) -> None:
    """Make a directory look like the root of the repository, to write beside the examples."""
    for name in ("examples", "configs"):
        (directory / name).symlink_to(ROOT / name)


def from_file(file: Path = RECORDED) -> Output:
    """Return what recorded commands printed, and fail for those that were not recorded."""
    answers: dict[str, str] = json.loads(file.read_text())
    return lambda command: answers[_key(command)]


def _key(command: str) -> str:
    return " ".join(command.replace("\\\n", " ").split())


def record() -> None:
    """Run the recorded examples of all pages, and keep what they print."""
    answers: dict[str, str] = {}

    def output(command: str) -> str:
        answers[_key(command)] = _printed(command)
        return answers[_key(command)]

    for page in PAGES:
        text = page.read_text()
        if _KEPT.search(text) is None:
            continue
        with TemporaryDirectory() as directory:
            make_workspace(Path(directory))
            with chdir(directory):
                executed(text, printed)  # its files may be what the recorded commands read
                recorded(text, output)
    RECORDED.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n")


def _percent(errors: Iterable[float]) -> str:
    return f"{100 * mean(abs(error) for error in errors):.1f} %"


def _steps(accuracy: Mapping[str, Any], family: str, node: str = "") -> list[Mapping[str, Any]]:
    return [
        step
        for step in accuracy["steps"]
        if step["workload"].startswith(family) and step["node"].startswith(node)
    ]


def _predicted_s(step: Mapping[str, Any]) -> float:
    return step["predicted_s"]["measured"]


def _fourteen(accuracy: Mapping[str, Any]) -> str:
    """Return the errors of each family and method, and that of the speed-ups."""
    groups = {
        "Llama-like models, 4 A100": _steps(accuracy, "llama3", "A100"),
        "Llama-like models, 4 H100": _steps(accuracy, "llama3", "H100"),
        "ResNets, 4 A100": _steps(accuracy, "resnet"),
    }
    lines = [
        "| steps | `measured` | beyond rounding | `roofline` | profiled blocks |",
        "|---|---|---|---|---|",
    ]
    for name, steps in groups.items():
        cells = [_percent(step["error"] for step in steps)]
        cells.append(_percent(step["error_beyond_rounding"] for step in steps))
        cells.append(_percent(_off(step, step["predicted_s"]["roofline"]) for step in steps))
        profiled = [step for step in steps if step["profiled_compute_s"] is not None]
        errors = [_off(step, step["profiled_compute_s"]) for step in profiled]
        cells.append(_percent(errors) if errors else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    error, beyond = (
        100 * accuracy[f"median_speed_up_error{suffix}"] for suffix in ("", "_beyond_rounding")
    )
    speed_ups = (
        "The speed-up from A100 to H100 is off by "
        f"{error:.1f} % in the median ({beyond:.1f} % beyond rounding)."
    )
    return "\n".join([*lines, "", speed_ups, ""])


def _off(step: Mapping[str, Any], predicted_s: float) -> float:
    return predicted_s / step["measured_s"] - 1


def _summary(accuracy: Mapping[str, Any]) -> str:
    """Return a sentence, without line breaks, for the middle of a paragraph."""
    steps = accuracy["steps"]
    worst = max(steps, key=lambda step: abs(step["error_beyond_rounding"]))
    return (
        f"{len(steps)} measured steps are predicted with a mean absolute error of "
        f"{_percent(step['error'] for step in steps)} "
        f"({_percent(step['error_beyond_rounding'] for step in steps)} beyond the rounding of the "
        f"measurements), at most {100 * abs(worst['error_beyond_rounding']):.0f} % beyond rounding"
    )


def _optimised(accuracy: Mapping[str, Any]) -> str:
    lines = [
        "| node | compiled, `roofline` | compiled, `measured` | measured on GPUs |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {step['node']} | {1e3 * step['predicted_s']['roofline']:.1f} ms "
        f"| {1e3 * _predicted_s(step):.1f} ms | {1e3 * step['measured_s']:.0f} ms |"
        for step in _steps(accuracy, "llama3-100m")
    ]
    return "\n".join([*lines, ""])


def _own(part: Callable[[], str]) -> Callable[[Mapping[str, Any]], str]:
    """Return a table that has its own file of figures."""
    return lambda _: part()


FIGURES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "everygroups": _own(every_rows.groups_table),
    "everymissing": _own(every_rows.missing_list),
    "everystep": _own(every_rows.steps_table),
    "everysummary": _own(every_rows.summary),
    "fourteen": _fourteen,
    "fusion": _own(fusion.table),
    "fuzz": _own(fuzz_runs.summary),
    "otherprograms": _own(other_rows.table),
    "faults": _own(fault_runs.summary),
    "loops": _own(loops.table),
    "optimised": _optimised,
    "enginesummary": _own(serving_points.summary),
    "librarysummary": _own(library_steps.summary),
    "pipelinesummary": _own(pipelines.summary),
    "recipecost": _own(recipe_cost.cost),
    "recipeprediction": _own(recipe_cost.prediction),
    "servingsummary": _own(serving.summary),
    "summary": _summary,
}


def main() -> None:
    """Write all examples and figures into the pages."""
    expected_errors.write()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--record", action="store_true", help="run what needs extras, too")
    parser.add_argument("pages", nargs="*", type=Path, help="only these (default: all)")
    given = parser.parse_args()
    if given.record:
        record()
    answers, accuracy = from_file(), json.loads(ACCURACY.read_text())
    for page in [path.resolve() for path in given.pages] or PAGES:
        text = with_figures(recorded(page.read_text(), answers), accuracy)
        with TemporaryDirectory() as directory:
            make_workspace(Path(directory))
            with chdir(directory):
                text = executed(text, printed)
        page.write_text(with_sentences(text))


if __name__ == "__main__":
    main()
