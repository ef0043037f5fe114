"""The files of a calibrated preset: a node of the user's own, and the links between its devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from hespas.base.config_files import read_json
from hespas.base.files import directory_beside, json_bytes, move_directory
from hespas.errors import HardwareError, OutputError, option
from hespas.evidence.calibrate.factors import combined
from hespas.evidence.calibrate.nccl_tests import collectives_json
from hespas.evidence.calibrate.plot import svg
from hespas.evidence.calibrate.report import Calibration, panels, report_json
from hespas.hardware.links import Link, link_names, load_link
from hespas.hardware.power import POWER
from hespas.hardware.presets import MICROARCHITECTURE, device_file, node_directory

REPORT = "calibration.json"
_NETWORK = Path("hespas", "network.json")
_ASTRA_SIM = "astra-sim"
_OURS = (
    "node.json",
    "roofline/config.json",
    MICROARCHITECTURE,
    POWER,
    "link.json",
    str(_NETWORK),
    "calibration.svg",
)


def write_calibration(calibration: Calibration, target: Path) -> tuple[Path, ...]:
    """Write the preset's files into a directory and return them.

    What an earlier calibration wrote there and this one doesn't goes. Raises `OutputError` for a
    directory that holds other files than an earlier calibration's, and where a file would go
    that this one starts from.
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
    """Move what is written to its place: by one rename where nothing is there.

    Otherwise the report moves last: a run that is stopped before leaves a directory that is known
    as a calibration's.
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
    """Return the files in a directory that an earlier calibration may have written."""
    system = sorted(f"{_ASTRA_SIM}/{file.name}" for file in (target / _ASTRA_SIM).glob("*"))
    return [name for name in (*_OURS, *system) if (target / name).is_file()]


def _check_bases(calibration: Calibration, target: Path, old: Sequence[str]) -> None:
    """Raise `OutputError` where files would go of a preset that the calibration starts from."""
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
    files["calibration.svg"] = svg(panels(calibration)).encode()
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
    kept = (name for name in (MICROARCHITECTURE, POWER) if (home / name).is_file())
    return files | {name: (home / name).read_bytes() for name in kept}


def _mapping(file: Path) -> dict[str, Any]:
    return cast("dict[str, Any]", read_json(file))


def _node(calibration: Calibration, home: Path) -> dict[str, Any]:
    """Return the base's description with the factors; its second names stay its own."""
    base = _mapping(home / "node.json")
    known = cast("Mapping[str, float]", base.get("calibration", {}))
    factors = combined(known, {fit.name: fit.factor for fit in calibration.factors})
    origin = f"calibrated from {calibration.node} with {', '.join(calibration.sources)}"
    return {
        **base,
        "full_name": f"{base['full_name']}, calibrated",
        "aliases": [],
        "notes": [*base.get("notes", []), origin],
        "calibration": factors,
    }


def _link(calibration: Calibration, name: str) -> dict[str, Any]:
    """Return the link: what was measured in the place of the base's, the rest as it was."""
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
    """Return the files of the system with the new link in the place of its first."""
    network, first, *more = _dimensions(home)
    described = {**network, "dimensions": [{**first, "link": "../link.json"}, *more]}
    files = {str(_NETWORK): json_bytes(described)}
    for file in sorted((home / _ASTRA_SIM).glob("*")):
        files[f"{_ASTRA_SIM}/{file.name}"] = file.read_bytes()
    return files


def _dimensions(home: Path) -> list[dict[str, Any]]:
    """Return the network of a system, then its dimensions; `HardwareError` where it has none."""
    file = home / _NETWORK
    network = _mapping(file) if file.is_file() else {}
    if "dimensions" not in network:
        raise HardwareError(
            "the system has no dimensions of its own for hespas' model",
            location=str(file),
            hint=f"leave out {option('system')}, and name link.json in a network.json",
        )
    return [network, *cast("list[dict[str, Any]]", network["dimensions"])]


def first_link(home: Path) -> Link | None:
    """Return the link of a system's first dimension; None where it is no preset or file."""
    link = _dimensions(home)[1].get("link")
    if not isinstance(link, str):
        return None
    return load_link(link if link in link_names() else home / _NETWORK.parent / link)
