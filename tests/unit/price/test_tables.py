from __future__ import annotations

import lzma
from dataclasses import replace
from math import isnan, log, nan
from pathlib import Path

import msgspec
import pytest

from distil_tables import encode_part
from hespas.errors import MeasurementError
from hespas.hardware.device import MeasuredTables
from hespas.hardware.presets import load_device
from hespas.price.gemm import gemm_model
from hespas.price.tables import (
    FORMAT,
    TABLES_DIRECTORY,
    Axis,
    Grid,
    PartWire,
    TableWire,
    decode_part,
    load_part,
    part_names,
)

STEP = 1 / 128


def about(file_format: int = FORMAT) -> PartWire:
    axes = (Axis(name="m", sizes=(1, 2, 4)), Axis(name="k", sizes=(32, 64), weight=4))
    return PartWire(
        format=file_format,
        part="TOY",
        measured_on="a toy",
        source="made up",
        licence="none",
        version="0",
        peak_flops={"bf16": 1e12},
        memory_bandwidth=1e11,
        cache_bytes=1,
        streaming_latency_s=1e-6,
        streaming_efficiency=0.9,
        streaming_source="made up",
        alone_s=2e-6,
        alone_source="made up",
        tables=(TableWire(name="gemm.bf16", axes=axes, step=STEP, source="made up"),),
    )


def grid() -> Grid:
    times = (1e-6, 2e-6, nan, 3.3e-6, 7.7e-3, 1.5)
    axes = (Axis(name="m", sizes=(1, 2, 4)), Axis(name="k", sizes=(32, 64)))
    return Grid(axes=axes, log_times=tuple(nan if isnan(t) else log(t) for t in times))


def test_cells_come_back_within_half_a_step() -> None:
    part = decode_part(encode_part(about(), [grid()]), location="toy")
    back = part.tables["gemm.bf16"].grid
    assert [axis.sizes for axis in back.axes] == [(1, 2, 4), (32, 64)]
    assert back.axes[1].weight == 4
    for found, meant in zip(back.log_times, grid().log_times, strict=True):
        assert isnan(found) == isnan(meant)
        assert isnan(meant) or abs(found - meant) <= STEP / 2 + 1e-12


def test_the_same_tables_make_the_same_bytes() -> None:
    assert encode_part(about(), [grid()]) == encode_part(about(), [grid()])


def test_another_version_is_named() -> None:
    with pytest.raises(MeasurementError, match=f"of format 99, this hespas reads {FORMAT}"):
        decode_part(encode_part(about(99), [grid()]), location="toy")


@pytest.mark.parametrize(
    "content",
    [
        b"not xz",
        lzma.compress(b"no json"),
        lzma.compress(b'{"format": 1}\n'),
        lzma.compress(msgspec.json.encode(about()) + b"\n\x01\x02"),
    ],
)
def test_damage_is_named_with_the_file(content: bytes) -> None:
    with pytest.raises(MeasurementError, match=r"toy\.xz: the tables (are damaged|end too soon)"):
        decode_part(content, location="toy.xz")


def test_a_part_without_tables_is_named() -> None:
    with pytest.raises(MeasurementError, match=r"no measured tables of 'H100'.*H100_SXM"):
        load_part("H100")


def test_the_file_that_names_tables_that_there_are_not_is_named() -> None:
    wrong = MeasuredTables(part="H100", location="own/node.json")
    device = replace(load_device("H100_80GB"), measured=wrong)
    with pytest.raises(MeasurementError, match=r"^own/node\.json: there are no measured tables"):
        gemm_model(device)


@pytest.mark.parametrize("name", part_names())
def test_every_file_says_where_it_comes_from(name: str) -> None:
    part = load_part(name)
    assert part.about.part == name
    assert part.about.licence == "Apache-2.0"
    assert part.about.version == "0.12.0"
    assert "gemm.bf16" in part.tables
    assert all(table.source for table in part.tables.values())


@pytest.mark.parametrize("name", part_names())
def test_no_measured_product_beats_the_peak(name: str) -> None:
    part = load_part(name)
    for kind, peak in part.about.peak_flops.items():
        grid = part.tables[f"gemm.{kind}"].grid
        for (m, n, k), time in zip(grid.cells(), grid.log_times, strict=True):
            assert isnan(time) or log(2 * m * n * k / peak) <= time + STEP


def test_all_files_together_are_small() -> None:
    assert sum(file.stat().st_size for file in Path(TABLES_DIRECTORY).glob("*.xz")) < 600_000
