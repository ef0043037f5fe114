"""``hespas compare``, ``report``, ``schema``, ``hardware`` and ``models``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from hespas.base.decode import read_json
from hespas.base.files import write_file
from hespas.cli import flags
from hespas.cli.answers import Answer, answering, check_targets, write_json
from hespas.errors import ConfigError, option

if TYPE_CHECKING:
    from hespas.report.page.document import Page

ABOVE_CODE = 3
"""The exit code if the second step exceeds the first's limit."""
_PER_CENT = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+) *%")


@answering("compare", example="hespas compare before.json after.json --fail-above 3%")
@click.argument("first", type=flags.FILE, metavar="A.json")
@click.argument("second", type=flags.FILE, metavar="B.json")
@flags.plain(
    "--fail-above",
    metavar="PERCENT",
    help=f"Exit with code {ABOVE_CODE} where the step of B takes longer than that of A by more "
    "than this, as in 3%. A shorter step never fails.",
)
def compare(*, first: Path, second: Path, fail_above: str | None) -> Answer:
    """Show what differs between two results that hespas run --json wrote, and where.

    A.json and B.json are files, or directories with a run.json. Every table is sorted by the time
    that its rows add or take away, and adds up to the difference of the steps.
    """
    from hespas.report.compare import (  # noqa: PLC0415 - each command needs its own
        compared,
        comparison_text,
        read_report,
        with_limit,
    )

    limit = None if fail_above is None else _share(fail_above)
    a, b = (read_report(path) for path in (first, second))
    comparison = compared(a, b, names=(str(first), str(second)))
    if limit is not None:
        comparison = with_limit(comparison, limit)
    return Answer(
        text=lambda: comparison_text(comparison),
        json=lambda: comparison,
        code=ABOVE_CODE if comparison.fails else 0,
    )


def _share(text: str) -> float:
    match = _PER_CENT.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{option('fail_above')} is {text!r}", hint="give per cent, as in 3%")
    return float(match[1]) / 100


@answering("report", example="hespas report run.json -o page.html", has_json=False)
@click.argument("results", type=flags.FILE, nargs=-1, required=True, metavar="RESULT [RESULT]...")
@flags.plain(
    "--output", "-o", type=flags.FILE, required=True, metavar="PAGE.html", help="The file to write."
)
@flags.plain(
    "--images", type=flags.FILE, metavar="DIR", help="Write each chart to a file there, too."
)
@flags.plain(
    "--image-format",
    type=click.Choice(["svg", "png"]),
    default="svg",
    show_default=True,
    help="The kind of these files.",
)
def report(
    results: tuple[Path, ...], output: Path, *, images: Path | None, image_format: str
) -> Answer:
    """Write one page with charts of a result, or of several compared.

    RESULT is what hespas run --json wrote, a file or a directory with a run.json, the directory of
    one hespas study, or what hespas serve or hespas search --serve wrote. The page is a single file
    that opens in any browser without a network.
    """
    from hespas.report.page.document import (  # noqa: PLC0415 - as above
        page_html,
        renderer,
        write_charts,
    )

    check_targets(None, output=output)
    if any(result.absolute() == output.absolute() for result in results):
        raise ConfigError(
            "the page would be written over a result", location=str(output), hint="name another"
        )
    if images is not None:
        renderer()
    page = _page(results)
    write_file(output, page_html(page).encode())
    lines = [f"{output}: {output.stat().st_size / 1e6:.2f} MB"]
    if images is not None:
        lines.append(f"{images}: {len(write_charts(page, images, image_format))} charts")
    return Answer(text=lambda: "\n".join(lines))


def _page(results: Sequence[Path]) -> Page:
    from hespas.report.compare import read_report  # noqa: PLC0415 - as above
    from hespas.report.page.comparison import NamedReport, comparison_page  # noqa: PLC0415 - as above
    from hespas.report.page.serving import (  # noqa: PLC0415
        is_served,
        serving_page,
        serving_result,
    )
    from hespas.report.page.step import step_page  # noqa: PLC0415
    from hespas.report.page.study import study_page  # noqa: PLC0415
    from hespas.study.run import table_of  # noqa: PLC0415
    from hespas.study.store import DATABASE  # noqa: PLC0415

    studies = [result for result in results if (result / DATABASE).is_file()]
    if studies and len(results) > 1:
        raise ConfigError(
            "a study has a page of its own", location=str(studies[0]), hint="name it alone"
        )
    if studies:
        return study_page(table_of(studies[0]))
    if len(results) == 1:
        data = read_json(results[0]) if results[0].is_file() else None
        if is_served(data):
            return serving_page(serving_result(cast("dict[str, object]", data), results[0]))
        return step_page(read_report(results[0]))
    pairs = zip(_names(results), results, strict=True)
    return comparison_page(
        [NamedReport(name=name, report=read_report(result)) for name, result in pairs]
    )


def _names(results: Sequence[Path]) -> list[str]:
    """Return the stems of results, or numbers and paths.

    >>> _names([Path("a/run.json"), Path("b/run.json")]), _names([Path("a.json"), Path("b.json")])
    (['1: a/run.json', '2: b/run.json'], ['a', 'b'])
    """
    names = [result.stem for result in results]
    if max(Counter(names).values()) == 1:
        return names
    return [f"{number}: {result}" for number, result in enumerate(results, start=1)]


@answering("schema", has_json=False, has_log=False)
@click.argument("kind", type=click.Choice(["run", "study"]), default="run")
@flags.plain("--output", "-o", type=flags.FILE, metavar="FILE", help="Write it to this file.")
def schema(kind: str, output: Path | None) -> int:
    """Print the JSON Schema of hespas run --json, or of a study's YAML.

    The schema_version of run's is that of the answers; the keys that there are stay what they are
    until it counts up.
    """
    from hespas.prediction.figures.schema import run_schema  # noqa: PLC0415 - as above
    from hespas.study.study import study_schema  # noqa: PLC0415

    check_targets(None, output=output)
    json_schema = run_schema() if kind == "run" else study_schema()
    write_json("-" if output is None else str(output), json_schema)
    return 0


@answering("hardware", example="hespas hardware 32xH100_80GB", has_log=False)
@flags.preset_argument
def hardware(*, name: str | None) -> Answer:
    """List the presets, or show all figures of NAME, with their sources.

    NAME is a node (H100_80GB), a system (H100_80GB_8GPU), any number of a node (32xH100_80GB), or
    the path of a node or a network of one's own.
    """
    from hespas.report.hardware import (  # noqa: PLC0415 - as above
        hardware_json,
        hardware_text,
        preset_details,
    )

    return Answer(
        text=lambda: hardware_text() if name is None else preset_details(name),
        json=lambda: hardware_json(name),
    )


@answering("models", example="hespas models Qwen/Qwen3-30B-A3B", has_log=False)
@flags.known_model_argument
@flags.plain(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the model NAME, as in layers=4 (hespas export --list shows them).",
)
def models(*, name: str | None, settings: tuple[str, ...]) -> Answer:
    """List the models with their figures, or show those of NAME.

    NAME is a published model (Qwen/Qwen3-8B), one of the zoo (llama3-8b), a part of several names
    (qwen), or the path of a config.json or of the directory that has it.
    """
    from hespas.base.fields import parse_pairs  # noqa: PLC0415 - as above
    from hespas.report.models import models_json, models_text  # noqa: PLC0415 - as above

    chosen = parse_pairs(settings, name="set", form="NAME=VALUE")
    return Answer(text=lambda: models_text(name, chosen), json=lambda: models_json(name, chosen))
