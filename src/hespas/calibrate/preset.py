"""The files of a calibrated preset: a node of the user's own, and the links between its devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

from hespas.calibrate.nccl_tests import CollectiveRun, collectives_json
from hespas.calibrate.plot import Panel, svg
from hespas.calibrate.samples import FactorFit, worst
from hespas.config.files import read_json
from hespas.errors import HardwareError, OutputError
from hespas.files import json_bytes, write_file
from hespas.hardware.links import Link, link_names, load_link
from hespas.hardware.presets import MICROARCHITECTURE, device_file, node_directory

REPORT = "calibration.json"
_NETWORK = Path("hespas", "network.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was fitted: factors of a node, collectives of a link, and the presets they start from.

    ``system`` is the directory of a system whose first dimension the link is. ``sources`` are the
    files of the measurements.
    """

    node: str
    link: Link | None
    system: Path | None
    factors: Sequence[FactorFit]
    runs: Sequence[CollectiveRun]
    sources: Sequence[str]


def write_calibration(calibration: Calibration, target: Path) -> tuple[Path, ...]:
    """Write the preset's files into a directory and return them.

    Raises `OutputError` for a directory that holds other files than an earlier calibration's.
    """
    _check_target(target)
    files = _files(calibration, target.resolve().name)
    target.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        file = target / name
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, content)
    return tuple(target / name for name in files)


def _check_target(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise OutputError("is a file, not a directory", place=str(target))
    if target.is_dir() and any(target.iterdir()) and not (target / REPORT).is_file():
        raise OutputError(
            "holds files of another origin", place=str(target), mend="choose another directory"
        )


def _files(calibration: Calibration, name: str) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    if calibration.factors:
        files |= _node_files(calibration)
    if calibration.runs:
        files["link.json"] = json_bytes(_link(calibration, name))
        if calibration.system is not None:
            files |= _system(calibration.system)
    files["calibration.svg"] = svg(_panels(calibration)).encode()
    files[REPORT] = json_bytes(report_json(calibration))
    return files


def _node_files(calibration: Calibration) -> dict[str, bytes]:
    """Return the files of the node: those of the base, with the factors."""
    config = device_file(calibration.node)
    home = node_directory(calibration.node)
    files = {
        "node.json": json_bytes(_node(calibration, home)),
        "roofline/config.json": config.read_bytes(),
    }
    inside = home / MICROARCHITECTURE
    return files | ({MICROARCHITECTURE: inside.read_bytes()} if inside.is_file() else {})


def _mapping(file: Path) -> dict[str, Any]:
    return cast("dict[str, Any]", read_json(file))


def _node(calibration: Calibration, home: Path) -> dict[str, Any]:
    """Return the base's description with the factors; its second names stay its own."""
    base = _mapping(home / "node.json")
    known = cast("Mapping[str, float]", base.get("calibration", {}))
    fitted = {
        fit.name: float(f"{fit.factor * known.get(fit.name, 1.0):.4g}")
        for fit in calibration.factors
    }
    told = f"calibrated from {calibration.node} with {', '.join(calibration.sources)}"
    return {
        **base,
        "full_name": f"{base['full_name']}, calibrated",
        "aliases": [],
        "notes": [*base.get("notes", []), told],
        "calibration": {**known, **fitted},
    }


def _link(calibration: Calibration, name: str) -> dict[str, Any]:
    """Return the link: what was measured in the place of the base's, the rest as it was."""
    base = calibration.link
    told = f"measured with nccl-tests: {', '.join(calibration.sources)}"
    collectives = collectives_json(calibration.runs)
    if base is None:
        return {"name": name, "source": told, "collectives": collectives}
    joined: dict[str, dict[str, Any]] = {
        kind: {str(gpus): [asdict(fit) for fit in fits] for gpus, fits in by_size.items()}
        for kind, by_size in base.collectives.items()
    }
    for kind, by_size in collectives.items():
        joined[kind] = {**joined.get(kind, {}), **by_size}
    return {
        "name": name,
        "source": f"{told}; all else as in {base.name}",
        "link": None if base.parameters is None else asdict(base.parameters),
        "collectives": joined,
    }


def _system(home: Path) -> dict[str, bytes]:
    """Return the files of the system with the new link in the place of its first."""
    network, first, *more = _dimensions(home)
    described = {**network, "dimensions": [{**first, "link": "../link.json"}, *more]}
    files = {str(_NETWORK): json_bytes(described)}
    for file in sorted((home / "astra-sim").glob("*")):
        files[f"astra-sim/{file.name}"] = file.read_bytes()
    return files


def _dimensions(home: Path) -> list[dict[str, Any]]:
    """Return the network of a system, then its dimensions; `HardwareError` where it has none."""
    file = home / _NETWORK
    network = _mapping(file) if file.is_file() else {}
    if "dimensions" not in network:
        raise HardwareError(
            "the system has no dimensions of its own for hespas' model",
            place=str(file),
            mend="leave out --system, and name link.json in a network.json",
        )
    return [network, *cast("list[dict[str, Any]]", network["dimensions"])]


def first_link(home: Path) -> Link | None:
    """Return the link of a system's first dimension; None where it is no preset or file."""
    link = _dimensions(home)[1].get("link")
    if not isinstance(link, str):
        return None
    return load_link(link if link in link_names() else home / _NETWORK.parent / link)


def report_json(calibration: Calibration) -> dict[str, Any]:
    """Return the fits and their residuals as JSON values."""
    return {
        "node": calibration.node,
        "link": None if calibration.link is None else calibration.link.name,
        "sources": list(calibration.sources),
        "factors": [
            {
                "name": fit.name,
                "factor": fit.factor,
                "points": [
                    {
                        "what": sample.label,
                        "place": sample.place,
                        "measured_s": sample.measured_s,
                        "predicted_s": sample.predicted_s,
                        "error": error,
                    }
                    for sample, error in zip(fit.samples, fit.errors_after, strict=True)
                ],
            }
            for fit in calibration.factors
        ],
        "collectives": [
            {
                "kind": run.kind,
                "gpus": run.gpus,
                "points": [
                    {
                        "size_bytes": point.size_bytes,
                        "place": point.place,
                        "measured_s": point.time_s,
                        "error": error,
                    }
                    for point, error in zip(run.points, run.errors, strict=True)
                ],
            }
            for run in calibration.runs
        ],
    }


def _panels(calibration: Calibration) -> list[Panel]:
    panels = [_factor_panel(fit) for fit in calibration.factors]
    return panels + [_run_panel(run) for run in calibration.runs]


def _factor_panel(fit: FactorFit) -> Panel:
    points = [(each.measured_s, fit.factor * each.predicted_s) for each in fit.samples]
    ends = [value for point in points for value in point]
    return Panel(
        title=f"{fit.name}: x {fit.factor}",
        x_name="measured (s)",
        y_name="predicted (s)",
        points=points,
        line=[(min(ends), min(ends)), (max(ends), max(ends))],
    )


def _run_panel(run: CollectiveRun) -> Panel:
    points = sorted((float(point.size_bytes), point.time_s) for point in run.points)
    fitted = {
        size: time * (1 + e) for (size, time), e in zip(points, _sorted_errors(run), strict=True)
    }
    return Panel(
        title=f"{run.kind} among {run.gpus}",
        x_name="size (bytes)",
        y_name="time (s)",
        points=points,
        line=sorted(fitted.items()),
    )


def _sorted_errors(run: CollectiveRun) -> list[float]:
    pairs = zip(run.points, run.errors, strict=True)
    return [
        error for _, error in sorted(pairs, key=lambda pair: (pair[0].size_bytes, pair[0].time_s))
    ]


def report_text(calibration: Calibration) -> str:
    """Return the fits and their residuals for people."""
    lines: list[str] = []
    for fit in calibration.factors:
        after = sorted(abs(error) for error in fit.errors_after)
        lines.append(
            f"{fit.name}: x {fit.factor}, {len(after)} measurements; median error "
            f"{_percent(fit.median_error_before)} before, {_percent(median(after))} "
            f"after, worst {_percent(after[-1])}"
        )
        lines += [
            f"  {sample.label} ({sample.place}): {_signed(sample.error)} before"
            for sample in worst(fit.samples)
        ]
    for run in calibration.runs:
        errors = sorted(abs(error) for error in run.errors)
        lines.append(
            f"{run.kind} among {run.gpus}: {len(run.pieces)} pieces for {len(errors)} "
            f"measurements; median error {_percent(median(errors))}, "
            f"worst {_percent(errors[-1])}"
        )
    return "\n".join(lines)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _signed(value: float) -> str:
    return f"{100 * value:+.1f} %"
