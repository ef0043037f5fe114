"""``hespas report``: a page with charts, of one result or of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from hespas.base.files import write_file
from hespas.cli import flags
from hespas.cli.outputs import check_targets
from hespas.errors import ConfigError
from hespas.report.compare import read_report
from hespas.report.page.comparison import Named, comparison_page
from hespas.report.page.document import FORMATS, Page, page_html, renderer, write_charts
from hespas.report.page.step import step_page
from hespas.report.page.study import study_page
from hespas.study.run import table_of
from hespas.study.store import DATABASE


@flags.command(
    "report",
    short_help="Write one page with charts of one or more results.",
    example="hespas report run.json -o page.html",
)
@click.argument("results", type=flags.FILE, nargs=-1, required=True, metavar="RESULT [RESULT]...")
@flags.plain(
    "--output", "-o", type=flags.FILE, required=True, metavar="PAGE.html", help="The file to write."
)
@flags.plain(
    "--images", type=flags.FILE, metavar="DIR", help="Write each chart to a file there, too."
)
@flags.plain(
    "--image-format",
    type=click.Choice(list(FORMATS)),
    default="svg",
    show_default=True,
    help="The kind of these files.",
)
@flags.common
def command(
    results: tuple[Path, ...],
    output: Path,
    *,
    images: Path | None,
    image_format: str,
    log_level: str | None,
    log_path: Path | None,
) -> None:
    """Write one page with charts of a result, or of several compared.

    RESULT is what hespas run --json wrote, a file or a directory with a run.json, or the directory
    of one hespas study. The page is a single file that opens in any browser without a network.
    """
    flags.start_logging(log_level, log_path)
    check_targets(str(output), None)
    if any(each.absolute() == output.absolute() for each in results):
        raise ConfigError(
            "the page would be written over a result", location=str(output), hint="name another"
        )
    if images is not None:
        renderer()
    page = _page(results)
    write_file(output, page_html(page).encode())
    click.echo(f"{output}: {output.stat().st_size / 1e6:.2f} MB")
    if images is not None:
        written = write_charts(page, images, image_format)
        click.echo(f"{images}: {len(written)} charts")


def _page(results: Sequence[Path]) -> Page:
    studies = [each for each in results if (each / DATABASE).is_file()]
    if studies and len(results) > 1:
        raise ConfigError(
            "a study has a page of its own", location=str(studies[0]), hint="name it alone"
        )
    if studies:
        return study_page(table_of(studies[0]))
    if len(results) == 1:
        return step_page(read_report(results[0]))
    return comparison_page(
        [
            Named(name=name, report=read_report(each))
            for name, each in zip(_names(results), results, strict=True)
        ]
    )


def _names(results: Sequence[Path]) -> list[str]:
    """Return what results are called: by their files' names, or else by number and path.

    >>> _names([Path("a/run.json"), Path("b/run.json")]), _names([Path("a.json"), Path("b.json")])
    (['1: a/run.json', '2: b/run.json'], ['a', 'b'])
    """
    names = [each.stem for each in results]
    if max(Counter(names).values()) == 1:
        return names
    return [f"{number}: {each}" for number, each in enumerate(results, start=1)]
