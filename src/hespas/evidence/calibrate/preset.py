"""Write a calibrated preset of a node and its links."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from pathlib import Path
from statistics import median
from typing import Any, cast

import msgspec

from hespas.base.decode import read_json
from hespas.base.files import directory_beside, json_bytes, move_directory
from hespas.base.frozen import frozen
from hespas.errors import HardwareError, OutputError, option
from hespas.evidence.calibrate.factors import combined
from hespas.evidence.calibrate.nccl_tests import CollectiveRun, collectives_json
from hespas.evidence.calibrate.piecewise import Point
from hespas.evidence.calibrate.samples import FactorFit, Sample, worst
from hespas.hardware.links import Link, link_names, load_link
from hespas.hardware.power import POWER
from hespas.hardware.presets import MICROARCHITECTURE, device_file, node_directory
from hespas.hardware.variation import Variation

REPORT = "calibration.json"
_NETWORK = Path("hespas", "network.json")
_ASTRA_SIM = "astra-sim"
VARIATION = "variation.json"
_OWN_FILES = (
    "node.json",
    "roofline/config.json",
    MICROARCHITECTURE,
    POWER,
    "link.json",
    str(_NETWORK),
    VARIATION,
    "calibration.svg",
)


def write_calibration(calibration: Calibration, target: Path) -> tuple[Path, ...]:
    """Write the preset's files into a directory and return them.

    Files of an earlier calibration that this one doesn't write are removed. Raises `OutputError`
    for a directory that holds other files than an earlier calibration's, and if a file would be
    removed that this calibration starts from.
    """
    _check_target(target)
    files = _files(calibration, target.resolve().name)
    old = [name for name in _written_before(target) if name not in files]
    _check_bases(calibration, target, old)
    with directory_beside(target) as stage:
        for name, content in files.items():
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            (stage / name).write_bytes(content)
        _publish(stage, target, files, old)
    return tuple(target / name for name in files)


def _publish(stage: Path, target: Path, names: Iterable[str], old: Sequence[str]) -> None:
    """Move the written files into place by one rename.

    Otherwise the report moves last: a run that is stopped before leaves a directory that is
    recognised as a calibration's.
    """
    if not target.exists() or not any(target.iterdir()):
        move_directory(stage, target)
        return
    for name in names:
        if name == REPORT:
            _remove(target, old)
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (stage / name).replace(target / name)


def _check_target(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise OutputError("is a file, not a directory", location=str(target))
    if target.is_dir() and any(target.iterdir()) and not (target / REPORT).is_file():
        raise OutputError(
            "holds files of another origin", location=str(target), hint="choose another directory"
        )


def _written_before(target: Path) -> list[str]:
    system = sorted(f"{_ASTRA_SIM}/{file.name}" for file in (target / _ASTRA_SIM).glob("*"))
    return [name for name in (*_OWN_FILES, *system) if (target / name).is_file()]


def _check_bases(calibration: Calibration, target: Path, old: Sequence[str]) -> None:
    """Raise `OutputError` if a base preset would lose files."""
    home = target.resolve()
    for base in (path.resolve() for path in calibration.bases):
        if old and home in (base, *base.parents):
            raise OutputError(
                f"the calibration starts from it, and would remove its {', '.join(old)}, for "
                "which nothing is measured now",
                location=str(target),
                hint="choose another directory, or give all measurements at once",
            )


def _remove(target: Path, names: Sequence[str]) -> None:
    for name in names:
        (target / name).unlink(missing_ok=True)
    for directory in {(target / name).parent for name in names} - {target}:
        if not any(directory.iterdir()):
            directory.rmdir()


def _files(calibration: Calibration, name: str) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    if calibration.factors:
        files |= _node_files(calibration)
    if calibration.runs:
        files["link.json"] = json_bytes(_link(calibration, name))
        if calibration.system is not None:
            files |= _system(calibration.system)
    if calibration.variation is not None:
        files[VARIATION] = json_bytes(msgspec.to_builtins(calibration.variation))
    files["calibration.svg"] = svg(panels(calibration)).encode()
    files[REPORT] = json_bytes(report_json(calibration))
    return files


def _node_files(calibration: Calibration) -> dict[str, bytes]:
    config = device_file(calibration.node)
    home = node_directory(calibration.node)
    files = {
        "node.json": json_bytes(_node(calibration, home)),
        "roofline/config.json": config.read_bytes(),
    }
    optional = (home / name for name in (MICROARCHITECTURE, POWER))
    return files | {file.name: file.read_bytes() for file in optional if file.is_file()}


def _mapping(file: Path) -> dict[str, Any]:
    return cast("dict[str, Any]", read_json(file))


def _node(calibration: Calibration, home: Path) -> dict[str, Any]:
    base = _mapping(home / "node.json")
    base_factors = cast("Mapping[str, float]", base.get("calibration", {}))
    factors = combined(base_factors, {fit.name: fit.factor for fit in calibration.factors})
    origin = f"calibrated from {calibration.node} with {', '.join(calibration.sources)}"
    return {
        **base,
        "full_name": f"{base['full_name']}, calibrated",
        "aliases": [],
        "notes": [*base.get("notes", []), origin],
        "calibration": factors,
    }


def _link(calibration: Calibration, name: str) -> dict[str, Any]:
    """Return the base link with its measured collectives replaced."""
    base = calibration.link
    origin = f"measured with nccl-tests: {', '.join(calibration.sources)}"
    collectives = collectives_json(calibration.runs)
    if base is None:
        return {"name": name, "source": origin, "collectives": collectives}
    joined: dict[str, dict[str, Any]] = {
        kind: {str(gpus): msgspec.to_builtins(fits) for gpus, fits in by_size.items()}
        for kind, by_size in base.collectives.items()
    }
    for kind, by_size in collectives.items():
        joined[kind] = {**joined.get(kind, {}), **by_size}
    return {
        "name": name,
        "source": f"{origin}; all else as in {base.name}",
        "link": None if base.parameters is None else msgspec.to_builtins(base.parameters),
        "collectives": joined,
    }


def _system(home: Path) -> dict[str, bytes]:
    network, (first, *more) = _network(home)
    described = {**network, "dimensions": [{**first, "link": "../link.json"}, *more]}
    files = {str(_NETWORK): json_bytes(described)}
    for file in sorted((home / _ASTRA_SIM).glob("*")):
        files[f"{_ASTRA_SIM}/{file.name}"] = file.read_bytes()
    return files


def _network(home: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a system's network and its dimensions, else raise `HardwareError`."""
    file = home / _NETWORK
    network = _mapping(file) if file.is_file() else {}
    if "dimensions" not in network:
        raise HardwareError(
            "the system has no dimensions of its own for hespas' model",
            location=str(file),
            hint=f"leave out {option('system')}, and name link.json in a network.json",
        )
    return network, cast("list[dict[str, Any]]", network["dimensions"])


def first_link(home: Path) -> Link | None:
    """Return the link of a system's first dimension, if any."""
    link = _network(home)[1][0].get("link")
    if not isinstance(link, str):
        return None
    return load_link(link if link in link_names() else home / _NETWORK.parent / link)


METHOD_NOTE = (
    "The factors are for --method measured, the default for kernels of compilers and libraries; "
    "the roofline, the default of --as-exported, knows no calibration."
)
LINK_NOTE = (
    "The link is for hespas' own network model, the default where a system has "
    "hespas/network.json; --model astra-sim knows no measured collectives."
)


@frozen
class Calibration:
    """Fitted factors and collectives, and the presets they start from.

    ``system`` is the directory of a system whose first dimension has the link. ``sources`` are the
    files of the measurements, ``bases`` the paths by which the user named the presets.
    """

    node: str
    link: Link | None
    system: Path | None
    factors: Sequence[FactorFit]
    runs: Sequence[CollectiveRun]
    sources: Sequence[str]
    bases: Sequence[Path] = ()
    variation: Variation | None = None


def report_json(calibration: Calibration) -> dict[str, Any]:
    """Return the fits and their residuals as JSON values."""
    return {
        "node": calibration.node,
        "link": None if calibration.link is None else calibration.link.name,
        "sources": list(calibration.sources),
        "factors": [_factor_json(fit) for fit in calibration.factors],
        "collectives": [_run_json(run) for run in calibration.runs],
        "variation": msgspec.to_builtins(calibration.variation),
    }


def _factor_json(fit: FactorFit) -> dict[str, Any]:
    return {
        "name": fit.name,
        "factor": fit.factor,
        "notes": list(fit.notes),
        "warnings": list(fit.warnings),
        "points": [
            {
                "what": sample.case.label,
                "place": sample.case.location,
                "measured_s": sample.case.measured_s,
                "predicted_s": sample.predicted_s,
                "fitted_s": sample.fitted_s,
                "error": sample.error_after,
            }
            for sample in fit.samples
        ],
    }


def _run_json(run: CollectiveRun) -> dict[str, Any]:
    return {
        "kind": run.kind,
        "gpus": run.gpus,
        "notes": list(run.notes),
        "points": [
            {
                "size_bytes": point.size_bytes,
                "place": point.location,
                "measured_s": point.time_s,
                "error": error,
                "left_out_error": left_out,
            }
            for point, error, left_out in zip(
                run.points, run.errors, run.left_out_errors, strict=True
            )
        ],
    }


def report_text(calibration: Calibration) -> str:
    """Return the fits and their residuals as text."""
    lines = [line for fit in calibration.factors for line in _factor_lines(fit)]
    lines += [line for run in calibration.runs for line in _run_lines(run)]
    if calibration.variation is not None:
        lines += _variation_lines(calibration.variation)
    caveats = [METHOD_NOTE] if calibration.factors else []
    caveats += [LINK_NOTE] if calibration.runs else []
    return "\n".join([*lines, *caveats])


def _variation_lines(variation: Variation) -> list[str]:
    slow = variation.slow
    slow_text = "" if slow is None else f"; {_percent(slow.share)} of them take x {slow.factor:.3f}"
    text = (
        f"variation: {variation.source}: devices differ by {_percent(variation.device_sigma)} "
        f"(deviation), steps of one by {_percent(variation.step_sigma)}{slow_text}"
    )
    return [text]


def _factor_lines(fit: FactorFit) -> list[str]:
    largest = max(abs(sample.error_after) for sample in fit.samples)
    text = (
        f"{fit.name}: x {fit.factor}, {_count_text(len(fit.samples), 'measurement')}; median error "
        f"{_percent(fit.median_error_before)} before, {_percent(fit.median_error_after)} after, "
        f"worst {_percent(largest)}"
    )
    return [
        text,
        *(_sample_line(sample) for sample in worst(fit.samples)),
        *(f"  note: {note}" for note in fit.notes),
        *(f"  warning: {warning}" for warning in fit.warnings),
    ]


def _sample_line(sample: Sample) -> str:
    case = sample.case
    return (
        f"  {case.label} ({case.location}): {_signed(sample.error)} before, "
        f"{_signed(sample.error_after)} after"
    )


def _run_lines(run: CollectiveRun) -> list[str]:
    errors = [abs(error) for error in run.errors]
    text = (
        f"{run.kind} among {run.gpus}: {_count_text(len(run.pieces), 'piece')} for "
        f"{_count_text(len(errors), 'measurement')}; "
    )
    left_out = [abs(error) for error in run.left_out_errors if error is not None]
    if not left_out:
        text += "too few sizes to tell the error"
    else:
        text += (
            f"median error {_percent(median(errors))}, worst {_percent(max(errors))}; of sizes "
            f"left out of the fit {_percent(median(left_out))}, worst {_percent(max(left_out))}"
        )
    return [text, *(f"  note: {note}" for note in run.notes)]


def _count_text(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _signed(value: float) -> str:
    return f"{round(100 * value, 1) + 0.0:+.1f} %"


def panels(calibration: Calibration) -> list[Panel]:
    """Return a panel for each fit."""
    panels = [_factor_panel(fit) for fit in calibration.factors]
    return panels + [_run_panel(run) for run in calibration.runs]


def _factor_panel(fit: FactorFit) -> Panel:
    points = [(sample.case.measured_s, sample.fitted_s) for sample in fit.samples]
    ends = [value for point in points for value in point]
    return Panel(
        title=f"{fit.name}: x {fit.factor}",
        x_name="measured (s)",
        y_name="predicted (s)",
        points=points,
        line=[(min(ends), min(ends)), (max(ends), max(ends))],
    )


def _run_panel(run: CollectiveRun) -> Panel:
    points = sorted(zip(run.points, run.errors, strict=True), key=lambda pair: _order(pair[0]))
    fitted = {float(point.size_bytes): point.time_s * (1 + error) for point, error in points}
    return Panel(
        title=f"{run.kind} among {run.gpus}",
        x_name="size (bytes)",
        y_name="time (s)",
        points=[(float(point.size_bytes), point.time_s) for point, _ in points],
        line=list(fitted.items()),
    )


def _order(point: Point) -> tuple[int, float]:
    return point.size_bytes, point.time_s


_SIZE, _MARGIN = 320, 52
_STYLE = (
    "text{font:11px sans-serif;fill:#333}.t{font-weight:bold}.g{stroke:#ddd}.a{stroke:#888}"
    ".d{stroke:#c60;stroke-width:1.5;fill:none}.p{fill:#06c;fill-opacity:.6}"
)


@frozen
class Panel:
    """Points and a line on two logarithmic axes."""

    title: str
    x_name: str
    y_name: str
    points: Sequence[tuple[float, float]]
    line: Sequence[tuple[float, float]]


def svg(panels: Sequence[Panel]) -> str:
    """Return the drawing; equal panels give equal text."""
    width, height = _SIZE * max(1, len(panels)), _SIZE + 20
    body = "".join(_panel(panel, number * _SIZE) for number, panel in enumerate(panels))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}"><style>{_STYLE}</style>'
        f'<rect width="{width}" height="{height}" fill="#fff"/>{body}</svg>\n'
    )


def _panel(panel: Panel, offset: float) -> str:
    coordinates = [*panel.points, *panel.line]
    x_range, y_range = _decades([x for x, _ in coordinates]), _decades([y for _, y in coordinates])
    side = _SIZE - _MARGIN - 16

    def x_of(value: float) -> float:
        return offset + _MARGIN + side * (log10(value) - x_range[0]) / (x_range[1] - x_range[0])

    def y_of(value: float) -> float:
        return 24 + side * (1 - (log10(value) - y_range[0]) / (y_range[1] - y_range[0]))

    points = "".join(
        f'<circle class="p" cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="2.5"/>'
        for x, y in panel.points
    )
    line = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in panel.line)
    middle = offset + _MARGIN + side / 2
    return (
        _grid(x_range, y_range, x_of, y_of)
        + f'<polyline class="d" points="{line}"/>{points}'
        + _text(middle, 15, panel.title, "t")
        + _text(middle, 24 + side + 34, panel.x_name)
        + f'<g transform="rotate(-90 {offset + 12:.1f} {24 + side / 2:.1f})">'
        + f"{_text(offset + 12, 24 + side / 2, panel.y_name)}</g>"
    )


def _grid(
    x_range: tuple[int, int],
    y_range: tuple[int, int],
    x_of: Callable[[float], float],
    y_of: Callable[[float], float],
) -> str:
    elements: list[str] = []
    x_low, x_high = (x_of(10.0**power) for power in x_range)
    y_low, y_high = (y_of(10.0**power) for power in y_range)
    for power in range(x_range[0], x_range[1] + 1):
        x = x_of(10.0**power)
        elements.append(_line(x, y_low, x, y_high))
        elements.append(_text(x, y_low + 16, f"1e{power}"))
    for power in range(y_range[0], y_range[1] + 1):
        y = y_of(10.0**power)
        elements.append(_line(x_low, y, x_high, y))
        elements.append(_text(x_low - 18, y + 4, f"1e{power}"))
    return "".join(elements)


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="g" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<text{attribute} x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(text)}</text>'


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    return low, max(high, low + 1)
