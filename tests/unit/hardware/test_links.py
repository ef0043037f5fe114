from __future__ import annotations

import json
from pathlib import Path

import pytest

from hespas.errors import ConfigError, HardwareError
from hespas.hardware.links import load_link

FIT: dict[str, object] = {
    "algorithm": "ring",
    "protocol": "LL",
    "up_to_bytes": 1000,
    "latency_s": 1e-5,
    "bandwidth_bytes_per_s": 1e9,
}
REST: dict[str, object] = {**FIT, "protocol": "simple", "up_to_bytes": None}
WIRE: dict[str, object] = {"bandwidth_bytes_per_s": 5e10, "latency_s": 1e-6}


def _write(directory: Path, **keys: object) -> Path:
    file = directory / "link.json"
    file.write_text(json.dumps({"name": "L", "source": "s", **keys}))
    return file


def _table(*fits: object, size: str = "8", kind: str = "all_reduce") -> dict[str, object]:
    return {kind: {size: list(fits)}}


def test_the_fit_of_the_size_is_taken(tmp_path: Path) -> None:
    link = load_link(_write(tmp_path, collectives=_table(FIT, REST)))

    found = [link.measured("all_reduce", 8, size) for size in (1, 1000, 1001)]

    assert [fit and fit.protocol for fit in found] == ["LL", "LL", "simple"]
    assert link.measured("all_reduce", 4, 1) is None
    assert link.measured("all_gather", 8, 1) is None


def test_a_fit_is_latency_and_bandwidth(tmp_path: Path) -> None:
    fit = load_link(_write(tmp_path, collectives=_table(REST))).measured("all_reduce", 8, 5000)

    assert fit is not None
    assert fit.time_s(5000) == pytest.approx(1.5e-5)


def test_the_protocol_of_the_size_is_taken(tmp_path: Path) -> None:
    protocols = [
        {"name": "eager", "up_to_bytes": 8192},
        {"name": "rendezvous", "up_to_bytes": None, "overhead_s": 2e-6, "bandwidth_fraction": 0.5},
    ]
    wire = load_link(_write(tmp_path, link=WIRE | {"protocols": protocols})).parameters

    assert wire is not None
    found = [wire.protocol(size) for size in (8192, 8193)]
    assert [one and (one.name, one.overhead_s) for one in found] == [
        ("eager", 0),
        ("rendezvous", 2e-6),
    ]


def test_a_plain_wire_has_no_protocols(tmp_path: Path) -> None:
    wire = load_link(_write(tmp_path, link=WIRE)).parameters

    assert wire is not None
    assert wire.protocol(5) is None


@pytest.mark.parametrize(
    "table",
    [
        _table(REST, FIT),
        _table(FIT),
        _table(FIT, FIT, REST),
        _table(),
        _table(REST, size="1"),
        _table(REST, size="x"),
    ],
    ids=["unordered", "no last", "twice", "empty", "one member", "no number"],
)
def test_contradicting_tables_are_refused(tmp_path: Path, table: object) -> None:
    with pytest.raises(HardwareError):
        load_link(_write(tmp_path, collectives=table))


@pytest.mark.parametrize(
    "keys",
    [
        {"collectives": _table(REST, kind="all_reduced")},
        {"collectives": _table({**REST, "bandwidth_bytes_per_s": 0})},
        {"collectives": _table({**REST, "latency_s": -1})},
        {"link": WIRE | {"speed": 1}},
        {"wire": WIRE},
    ],
)
def test_what_a_link_may_not_hold_is_refused(tmp_path: Path, keys: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        load_link(_write(tmp_path, **keys))


def test_a_link_that_says_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HardwareError, match="neither"):
        load_link(_write(tmp_path))


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(HardwareError, match="no link preset"):
        load_link("NOT_A_LINK")


def test_a_link_as_another_was_measured_has_its_collectives_at_its_own_bandwidth(
    tmp_path: Path,
) -> None:
    wire = {"bandwidth_bytes_per_s": 200e9, "latency_s": 1e-6}
    link = load_link(_write(tmp_path, link=wire, as_measured_on="NVLink4_H100"))
    other = load_link("NVLink4_H100")

    found = link.measured("all_gather", 8, 1 << 30)
    measured = other.measured("all_gather", 8, 1 << 30)
    assert found is not None
    assert measured is not None
    assert found.bandwidth_bytes_per_s / measured.bandwidth_bytes_per_s == pytest.approx(200 / 450)
    assert found.latency_s == measured.latency_s


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"as_measured_on": "NVLink4_H100"}, "has parameters, and no collectives of its own"),
        (
            {"link": WIRE, "as_measured_on": "NVLink4_H100", "collectives": _table(REST)},
            "has parameters, and no collectives of its own",
        ),
        ({"link": WIRE, "as_measured_on": "NVLink4"}, "no other link preset is named 'NVLink4'"),
        ({"link": WIRE, "as_measured_on": "RoCE_400G"}, "RoCE_400G has no measured collectives"),
    ],
)
def test_a_link_as_measured_nowhere_is_refused(
    tmp_path: Path, keys: dict[str, object], what: str
) -> None:
    with pytest.raises(HardwareError, match=what):
        load_link(_write(tmp_path, **keys))
