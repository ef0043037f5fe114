from __future__ import annotations

from itertools import pairwise

import pytest

from fit_links import FABRICS, WIRES, residual_rows, wire
from hespas.base.decode import read_json
from hespas.hardware.links import LINKS_DIRECTORY, link_names, load_link


def test_the_fits_keep_to_the_measurements() -> None:
    rows = residual_rows()
    assert len(rows) == 4 * (6 * 3 + 2 * 2)
    assert max(middle for *_, middle, _ in rows) <= 0.08


@pytest.mark.parametrize("name", link_names())
def test_a_larger_collective_never_takes_less(name: str) -> None:
    link = load_link(name)
    for kind, by_size in link.collectives.items():
        for gpus in by_size:
            fits = [link.measured(kind, gpus, 2**power) for power in range(6, 36)]
            times = [
                fit.time_s(2**power) for power, fit in zip(range(6, 36), fits, strict=True) if fit
            ]
            assert len(times) == 30
            assert all(before <= after for before, after in pairwise(times)), (kind, gpus)


@pytest.mark.parametrize(
    ("link", "gpus", "bus_gb_per_s"),
    [("NVLink4_H100", 8, 445), ("NVLink3_A100", 8, 222), ("NVLink5_B200", 8, 704)],
)
def test_bus_bandwidths_are_those_that_were_published(
    link: str, gpus: int, bus_gb_per_s: float
) -> None:
    size = 2**29
    fit = load_link(link).measured("all_reduce", gpus, size)
    assert fit is not None
    bus = 2 * (gpus - 1) / gpus * size / fit.time_s(size) / 1e9
    assert bus == pytest.approx(bus_gb_per_s, rel=0.07)


def test_in_switch_reduction_is_named_where_a_ring_could_not_be_so_fast() -> None:
    def algorithms(link: str, gpus: int) -> set[str]:
        return {fit.algorithm for fit in load_link(link).collectives["all_reduce"][gpus]}

    assert "NVLS" in algorithms("NVLink4_H100", 8)
    assert "NVLS" in algorithms("NVL72_GB200", 72)
    assert algorithms("NVLink3_A100", 8) == {"ring"}


@pytest.mark.parametrize("name", WIRES)
def test_wires_between_nodes_are_as_the_script_makes_them(name: str) -> None:
    assert read_json(LINKS_DIRECTORY / f"{name}.json") == wire(name)
    assert load_link(name).parameters is not None


def test_every_preset_comes_from_the_script() -> None:
    assert set(link_names()) >= {*FABRICS, *WIRES}
