"""``hespas study``, ``sweep`` and ``search``: compare many configurations.

The flags of studies without a file take one value each, or a list with commas.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from hespas.base.fields import Group, Option
from hespas.base.files import check_file
from hespas.cli import flags
from hespas.cli.answers import Answer, answering
from hespas.cli.help import Commands
from hespas.cli.study_progress import StudyProgress
from hespas.compile.options import SLOP_OPTION
from hespas.errors import ConfigError, option, refuse
from hespas.models.quantization import FORMATS
from hespas.report.serving import serving_search_text
from hespas.serve.options import ServeOptions
from hespas.serve.search import search_serving
from hespas.study.executor import ExecutorOptions
from hespas.study.keys import CLUSTER, MESH, WORKLOAD, Scalar, known_keys
from hespas.study.rows import (
    Row,
    Status,
    compared_text,
    counts_text,
    pinned_text,
    pruned_text,
    ranking,
    ranking_text,
    table_json,
    table_text,
    unlike_text,
    write_table,
)
from hespas.study.run import Studied, row_named, studied, study_in, table_of
from hespas.study.search import search_directory, search_study, searches_home
from hespas.study.space import candidate_of
from hespas.study.store import is_running, reading
from hespas.study.study import AUTO, Study, StudyFidelity, read_study, study_of


def _keys() -> dict[str, Option]:
    """Return the keys with a flag: cluster and model options."""
    return {
        key: field
        for key, field in known_keys().items()
        if key == CLUSTER or field.group is Group.MODEL
    }


def _flag(key: str, field: Option) -> Any:
    is_switch = bool in field.kinds
    metavar = "true|false" if is_switch else field.metavar or key.upper()
    return flags.both(
        key,
        **({"is_flag": False, "flag_value": "true"} if is_switch else {}),
        metavar=f"{metavar},..",
        required=key == CLUSTER,
        help=field.help.rstrip(".") + "; several with commas.",
        group=Group.MAIN if key == CLUSTER else Group.MODEL,
    )


searched = flags.combined(
    *(_flag(key, field) for key, field in _keys().items()),
    flags.both(
        MESH,
        metavar="AXIS=N|auto,..",
        group=Group.MODEL,
        help="The mesh, as in fsdp=auto,tp=8: auto is all sizes that fit.",
    ),
    flags.both(
        "fidelity",
        metavar="KIND",
        default=AUTO,
        group=Group.MAIN,
        help=f"What is predicted: {', '.join(fidelity.value for fidelity in StudyFidelity)}.",
    ),
)
"""Adds the flags of searched keys."""


def _keys_from_flags(model: str, flag_values: Mapping[str, Any]) -> dict[str, object]:
    """Return a study's keys, as in its file."""
    study_keys: dict[str, object] = {WORKLOAD: model, "fidelity": flag_values["fidelity"]}
    for key, field in _keys().items():
        text = flag_values.get(key)
        if text is None:
            continue
        values = [_parse_value(key, part.strip(), field) for part in str(text).split(",")]
        study_keys[key] = values[0] if len(values) == 1 else values
    if flag_values.get(MESH) is not None:
        study_keys[MESH] = _mesh(flag_values[MESH])
    return study_keys


def _parse_value(key: str, text: str, field: Option) -> Scalar:
    refuse(not text, f"a value of {option(key)} is empty", "take out the comma beside it")
    if bool in field.kinds:
        if text not in {"true", "false"}:
            raise ConfigError(f"{option(key)} is {text!r}", hint="give true or false")
        return text == "true"
    if field.kinds == (int,) and field.parse is None:
        if not text.isdecimal():
            raise ConfigError(f"{option(key)} is {text!r}", hint="give a number of 1 or more")
        return int(text)
    return text


def _mesh(text: str) -> dict[str, object]:
    axes: dict[str, object] = {}
    for part in text.split(","):
        name, equals, size = (piece.strip() for piece in part.partition("="))
        if not name or not equals or not (size == AUTO or size.isdecimal()) or name in axes:
            raise ConfigError(f"{option(MESH)} is {text!r}", hint="write it as in fsdp=auto,tp=8")
        axes[name] = AUTO if size == AUTO else int(size)
    return axes


def study_from(model: str, flag_values: Mapping[str, Any]) -> Study:
    """Return the study that predicts all listed values fully."""
    # No study has this many candidates: all are compiled.
    return study_of({**_keys_from_flags(model, flag_values), "budget": {"compile": 10**6}})


def search_from(model: str, flag_values: Mapping[str, Any], *, compiled: int | None) -> Study:
    """Return the study that finds a model's best mesh."""
    return search_study(_keys_from_flags(model, flag_values), compiled=compiled)


_INTERRUPTED_CODE = 130
_LISTED = {
    "Commands": {
        "run": "Run a study, or go on with it.",
        "resume": "Go on with the study in a directory.",
        "status": "Show how far a study is.",
        "best": "Show the best candidate.",
        "table": "Show all candidates, best first.",
        "compare": "Show what differs between two candidates.",
    }
}


class _Studies(Commands):
    start = "hespas study run STUDY.yaml -o DIR"

    def listed(self) -> Mapping[str, Mapping[str, str]]:
        return _LISTED

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_LISTED["Commands"])


@click.group("study", cls=_Studies, invoke_without_command=True)
@click.pass_context
def study(ctx: click.Context) -> None:
    """Compare many configurations of a step, and find the best.

    A study is a YAML file: a list is searched, a scalar is pinned.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


_output_option = flags.both(
    "output",
    "-o",
    type=flags.FILE,
    required=True,
    metavar="DIR",
    help="Where the study's results live; where there are some, the study goes on.",
)
_default_output_option = flags.both(
    "output",
    "-o",
    type=flags.FILE,
    metavar="DIR",
    help="Where the study's results live; where there are some, the study goes on (default: the"
    " user's data directory, where hespas app finds it).",
)
_directory = click.argument("directory", type=flags.FILE)


@answering("run", example="hespas study run STUDY.yaml -o DIR")
@click.argument("file", type=flags.FILE, metavar="STUDY")
@_output_option
@flags.derived(ExecutorOptions)
def run(file: Path, output: Path, **flag_values: Any) -> Answer | int:
    """Run the study of a YAML file, or go on with it.

    Every candidate is bounded from its sizes, predicted by a model of the compiler, and the best
    are compiled where a compiler is. Nothing that was done is done again.
    """
    return _run_study(read_study(file), output, flag_values)


@answering("resume", example="hespas study resume DIR")
@_directory
@flags.derived(ExecutorOptions)
def resume(directory: Path, **flag_values: Any) -> Answer | int:
    """Go on with the study in DIRECTORY, from where it was stopped."""
    return _run_study(study_in(directory), directory, flag_values)


def _run_study(
    study: Study, directory: Path, flag_values: Mapping[str, Any], *, launch: str | None = None
) -> Answer | int:
    """Run a study; return its table or exit code.

    ``launch`` names the trainer whose command follows.
    """
    options = flags.built(ExecutorOptions, flag_values)
    with StudyProgress(sys.stderr) as progress:
        try:
            results = studied(study, directory, executor=options, listener=progress)
        except KeyboardInterrupt:
            progress.close()
            click.echo(
                f"hespas: interrupted; {counts_text(progress.rows)}. "
                f"Go on with: hespas study resume {directory}",
                err=True,
            )
            return _INTERRUPTED_CODE
    started = None if launch is None or results.best is None else _launched(results.best, launch)
    more = {} if started is None else {"launch": started}
    return Answer(
        text=lambda: "\n\n".join(filter(None, [_text(results, most=20), started])),
        json=lambda: {**table_json(results.rows), **more},
    )


def _launched(row: Row, launch: str) -> str:
    """Return the command of a trainer for a candidate."""
    from hespas.report.launch import Trainer, launch_of  # noqa: PLC0415 - few ask for one

    raised = row.figures.get(SLOP_OPTION)
    chosen = {} if raised is None else {SLOP_OPTION: int(raised)}
    return launch_of(Trainer(launch), candidate_of({**row.candidate, **chosen}).options()).text


_launch = flags.plain(
    "--launch",
    type=click.Choice(["maxtext", "torchtitan", "megatron"]),
    help="Write the best candidate as the command of a trainer.",
)


def _text(results: Studied, most: int) -> str:
    head = [results.study.title, pinned_text(results.rows), f"Goal: {results.study.goal.text}"]
    if results.study.where.text:
        head.append(f"Where: {results.study.where.text}")
    head.append(f"Candidates: {len(results.rows)}: {counts_text(results.rows)}")
    head.append(pruned_text(results.rows))
    head.append(unlike_text(results.rows, results.study.goal))
    ranked = ranking(results.rows, results.study.goal)
    if ranked is not None:
        head.append(f"Ranking: {ranking_text(ranked)}")
    table = table_text(results.rows, results.study.goal, most=most)
    return "\n".join([*(line for line in head if line), "", table])


@answering("status", example="hespas study status DIR", has_json=False, has_log=False)
@_directory
def status(directory: Path) -> Answer:
    """Show how far the study in DIRECTORY is."""
    goal = study_in(directory).goal
    with reading(directory) as store:
        rows, counts = store.rows(), store.counts()
    waiting = sum(row.status is Status.WAITING for row in rows)
    state = "running" if is_running(directory) else "finished"
    if state == "finished" and waiting:
        state = f"stopped; go on with: hespas study resume {directory}"
    lines = [
        f"{state}: {len(rows)} candidates, {counts_text(rows)}",
        f"{counts.evaluations} predictions in {counts.cpu_s:.1f} s of CPU time",
        f"Goal: {goal.text}",
    ]
    return Answer(text=lambda: "\n".join(lines))


@answering("best", example="hespas study best DIR", has_log=False)
@_directory
@_launch
def best(directory: Path, launch: str | None) -> Answer:
    """Show the best candidate of the study in DIRECTORY."""
    results = table_of(directory)
    row = results.best
    if row is None:
        raise ConfigError(
            f"no candidate is done: {counts_text(results.rows) or 'none yet'}",
            location=str(directory),
            hint="see hespas study table",
        )
    started = None if launch is None else _launched(row, launch)
    more = {} if started is None else {"launch": started}
    return Answer(
        text=lambda: "\n\n".join(filter(None, [table_text([row], results.study.goal), started])),
        json=lambda: {**row.to_dict(), **more},
    )


@answering("table", example="hespas study table DIR --csv table.csv", has_log=False)
@_directory
@flags.plain(
    "--export",
    type=flags.FILE,
    metavar="FILE",
    help="Write the table to FILE.csv, FILE.jsonl or FILE.parquet.",
)
@flags.plain("--rows", type=click.IntRange(min=1), metavar="N", help="Show N rows (default: all).")
def table(directory: Path, export: Path | None, rows: int | None) -> Answer:
    """Show all candidates of the study in DIRECTORY, in the order of its goal."""
    if export is not None:
        check_file(export)
    results = table_of(directory)
    if export is not None:
        write_table(results.rows, export)
    most = rows or max(1, len(results.rows))
    return Answer(text=lambda: _text(results, most), json=lambda: table_json(results.rows))


@answering("compare", example="hespas study compare DIR 1 2", has_json=False, has_log=False)
@_directory
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
def compare(directory: Path, first: str, second: str) -> Answer:
    """Show what differs between rows A and B of DIRECTORY's study table."""
    results = table_of(directory)
    row_a, row_b = (row_named(results, name) for name in (first, second))
    return Answer(text=lambda: compared_text(row_a, row_b))


for _command in (run, resume, status, best, table, compare):
    study.add_command(_command)


@answering("sweep", example="hespas sweep llama3-8b --cluster 8xH100_80GB,16xH100_80GB")
@flags.model_argument
@searched
@_default_output_option
@flags.derived(ExecutorOptions)
def sweep(model: str, output: Path | None, **flag_values: Any) -> Answer | int:
    """Predict a step of MODEL for every combination of what is listed with commas.

    All are predicted to the end: compiled, where a compiler is.
    """
    requested = study_from(model, flag_values)
    return _run_study(requested, output or _default_directory(requested), flag_values)


def _default_directory(requested: Study) -> Path:
    """Return the user's directory of a study, and show it."""
    directory = search_directory(searches_home(), requested)
    click.echo(f"hespas: kept in {directory}", err=True)
    return directory


_OF_SERVING = (
    *("rate", "load", "isl", "osl", "length_spread", "requests", "arrivals", "burstiness", "seed"),
    *("engine", "max_sequences", "max_batched_tokens", "memory_share", "host_time"),
    *("slo", "device_hour_usd", "set"),
)
"""Options of ``hespas serve`` that a search for serving has too."""
_SHARED = ("cluster", "dtype", "attention", "workers", "time_limit")
"""Options that both kinds of search have."""


@answering("search", example="hespas search llama3-70b --cluster 256xH100_80GB")
@flags.model_argument
@searched
@flags.plain(
    "--compile",
    "compiled",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many of the best are compiled, or predicted for certain where no compiler is"
    " (default: 8).",
)
@flags.plain(
    "--serve",
    "serves",
    is_flag=True,
    group=Group.MAIN,
    help="Search how MODEL is served: with --rate or --load, and --slo.",
)
@flags.plain(
    "--weights",
    metavar="TYPE,..",
    help="With --serve: types of weights that are searched, as in bf16,f8 (default: the model's).",
)
@_default_output_option
@_launch
@flags.derived(ServeOptions, only=_OF_SERVING)
@flags.derived(ExecutorOptions)
def search(
    model: str,
    output: Path | None,
    compiled: int | None,
    serves: bool,
    weights: str | None,
    **flag_values: Any,
) -> Answer | int:
    """Find the mesh of MODEL that fits and makes most tokens/s per device.

    Unless they are given, all meshes of the model's axes are searched (context and sequence only
    where --mesh names them; pipe there or with --software), what the backward pass computes again,
    and how many sequences are computed at a time. With --serve, layouts of replicas are ranked by
    the rate that they serve.
    """
    if serves:
        all_given = {"output": output, "compile": compiled, **flag_values}
        return _search_serving(model, all_given, weights)
    needs_serve = {option(name): flag_values.get(name) for name in _OF_SERVING}
    needs_serve[option("weights")] = weights
    flags.refuse(needs_serve, f"has no effect without {option('serve')}", "add it")
    launch = flag_values.pop("launch")
    own = {name: value for name, value in flag_values.items() if name not in _OF_SERVING}
    requested = search_from(model, own, compiled=compiled)
    directory = output or _default_directory(requested)
    return _run_study(requested, directory, own, launch=launch)


def _search_serving(model: str, flag_values: Mapping[str, Any], weights: str | None) -> Answer:
    allowed = {*_OF_SERVING, *_SHARED}
    refused = {
        option(name): flag_values[name]
        for name in flag_values
        if name not in {*allowed, "fidelity"}
    }
    flags.refuse(refused, f"has no effect with {option('serve')}", "drop it")
    own_flags = {name: value for name, value in flag_values.items() if name in allowed}
    options = flags.built(ServeOptions, {**own_flags, "model_name": model})
    types = [text.strip() for text in weights.split(",")] if weights else [""]
    for name in types if weights else ():
        if name not in FORMATS:
            raise ConfigError(
                f"{option('weights')} names {name!r}", hint=f"known: {', '.join(FORMATS)}"
            )
    ranked = search_serving(options, weights=tuple(dict.fromkeys(types)))
    return Answer(
        text=lambda: serving_search_text(ranked), json=lambda: msgspec.to_builtins(ranked)
    )
