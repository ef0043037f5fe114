"""A damaged cache is reported and not used."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from programs import vector_main

Call = Callable[..., CompletedProcess[str]]
CACHE = Path("cache/estimates.sqlite")


def estimate(call: Call, *flags: str) -> CompletedProcess[str]:
    Path("p.mlir").write_text(vector_main("%r = stablehlo.add %a, %a : tensor<8xf32>"))
    cache = () if "--cache-dir" in flags else ("--cache-dir", "cache")
    return call("hespas", "estimate", "p.mlir", "--node", "V100_32GB", *cache, *flags)


def change(statement: str, *values: object) -> None:
    with closing(sqlite3.connect(CACHE)) as connection, connection:
        connection.execute(statement, values)


def refused(done: CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2, done.stdout
    assert done.stderr.count("\n") == 1
    for part in (str(CACHE), "--disable-cache", *parts):
        assert part in done.stderr


def test_garbage_is_refused(call: Call) -> None:
    CACHE.parent.mkdir()
    CACHE.write_bytes(b"garbage" * 1000)
    refused(estimate(call), "damaged")
    assert CACHE.read_bytes() == b"garbage" * 1000, "it is the user's to delete"


def test_a_truncated_file_is_refused(call: Call) -> None:
    estimate(call)
    CACHE.write_bytes(CACHE.read_bytes()[:5000])
    refused(estimate(call), "damaged")


def test_an_empty_file_is_a_new_cache(call: Call) -> None:
    CACHE.parent.mkdir()
    CACHE.touch()
    assert estimate(call).returncode == 0
    assert "Cache hits: 1" in estimate(call).stdout


def test_a_table_of_another_shape_is_refused(call: Call) -> None:
    CACHE.parent.mkdir()
    change("CREATE TABLE estimates (something TEXT)")
    refused(estimate(call), "damaged")


def entry(**fields: object) -> str:
    op = {"count": 1, "time_s": 1.0, "bytes_moved": 96, "memory_time_at_peak_s": 1.0,
          "energy_j": None, "per_type": {"f32": [8, 1.0]}}  # fmt: skip
    return json.dumps({"per_op": {"stablehlo.add": op | fields}, "notes": [], "warnings": []})


@pytest.mark.parametrize(
    "value",
    [
        "", "{}", "null", "[]", "12", "{", '{"per_op": 3, "notes": [], "warnings": []}',
        '{"per_op": {}, "notes": [1], "warnings": []}', '{"per_op": {}, "notes": 3}',
        entry(time_s=-1.0), entry(time_s="1.0"), entry(time_s=True), entry(count=None),
        entry(per_type={"f32": [1]}), entry(per_type=[]), entry(energy_j="x"),
        entry().replace("1.0", "NaN"), entry().replace("1.0", "Infinity"), 12, b"\xff\xfe",
    ],
)  # fmt: skip
def test_an_entry_that_is_no_estimate_is_refused(call: Call, value: object) -> None:
    estimate(call)
    change("UPDATE estimates SET value = ?", value)
    refused(estimate(call), "no estimate")
    assert estimate(call, "--threads", "1").returncode == 2


def test_a_cache_of_another_device_or_option_is_not_used(call: Call) -> None:
    assert "Cache hits" not in estimate(call).stdout
    assert "Cache hits" not in estimate(call, "--memory-bandwidth", "1GB/s").stdout
    assert "Cache hits" not in estimate(call, "--per-datatype-flops", "f32=1e9").stdout
    assert "Cache hits: 1" in estimate(call).stdout
    assert "Cache hits: 1" in estimate(call, "--devices", "64").stdout, "devices don't matter"


@pytest.mark.parametrize("directory", ["p.mlir", "p.mlir/cache", "/proc/cache"])
def test_a_cache_that_cannot_be_written_is_refused(call: Call, directory: str) -> None:
    done = estimate(call, "--cache-dir", directory)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert re.search(f"{directory}: the .*cache.* cannot be (written|used)", done.stderr)
    assert "--disable-cache" in done.stderr
