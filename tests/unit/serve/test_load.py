"""Requests: drawn ones have the rate and lengths asked for, files are read or refused."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from hespas.errors import ConfigError
from hespas.serve.load import (
    PICOSECONDS,
    Arrivals,
    Lengths,
    drawn_requests,
    read_requests,
)

ONE = Lengths(mean=1)
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""
MOONCAKE = """{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": IDS}
{"timestamp": 3000, "input_length": 7319, "output_length": 490, "hash_ids": LATER}
""".replace("IDS", str([*range(14)])).replace("LATER", str([0, 1, 2, *range(20, 32)]))


@pytest.mark.parametrize(
    ("arrivals", "burstiness", "variation"),
    [
        (Arrivals.POISSON, 1.0, 1.0),
        (Arrivals.GAMMA, 2.0, 2.0),
        (Arrivals.GAMMA, 0.5, 0.5),
        (Arrivals.UNIFORM, 1.0, 0.0),
    ],
)
def test_gaps_have_the_mean_and_the_variation_asked_for(
    arrivals: Arrivals, burstiness: float, variation: float
) -> None:
    drawn = drawn_requests(
        20_000, prompts=ONE, outputs=ONE, rate=5.0, arrivals=arrivals, burstiness=burstiness
    )
    times = drawn.arrivals_ps
    gaps = [(after - before) / PICOSECONDS for before, after in pairwise(times)]
    assert fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(variation, abs=0.05)
    assert drawn.rate == pytest.approx(5.0, rel=0.05)
    assert drawn.at_rate(10.0).rate == pytest.approx(10.0, rel=1e-6)


def test_lengths_are_spread_evenly_around_their_mean() -> None:
    drawn = drawn_requests(
        20_000, prompts=Lengths(mean=1000, spread=0.2), outputs=Lengths(mean=7), concurrency=1
    )
    assert set(drawn.outputs) == {7}
    assert (min(drawn.prompts), max(drawn.prompts)) == (800, 1200)
    assert fmean(drawn.prompts) == pytest.approx(1000, rel=0.01)


def test_a_seed_decides_what_is_drawn() -> None:
    def drawn(seed: int) -> object:
        return drawn_requests(50, prompts=ONE, outputs=ONE, rate=1.0, seed=seed)

    assert drawn(1) == drawn(1) != drawn(2)


def test_azures_columns_are_read(tmp_path: Path) -> None:
    file = tmp_path / "load.csv"
    file.write_text(AZURE)
    read = read_requests(file)
    assert (read.prompts, read.outputs) == ((4808, 3180), (10, 8))
    assert read.arrivals_ps[1] == pytest.approx(0.052 * PICOSECONDS, rel=1e-5)
    assert len(read_requests(file, most=1)) == 1


def test_mooncakes_lines_are_read(tmp_path: Path) -> None:
    file = tmp_path / "load.jsonl"
    file.write_text(MOONCAKE)
    read = read_requests(file)
    assert read.arrivals_ps == (0, 3 * PICOSECONDS)
    assert (read.prompts, read.outputs) == ((6755, 7319), (500, 490))
    assert read.chains is not None
    first, second = read.chains
    assert first[:3] == second[:3] == ((0, 512), (1, 1024), (2, 1536))
    assert (first[-1], second[-1]) == ((13, 6755), (31, 7319))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "TIMESTAMP,ContextTokens\n0,1\n", "has no column 'GeneratedTokens'"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no requests"),
        (
            "a.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n0,x,1\n",
            "a.csv:2: ContextTokens is 'x'",
        ),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n5,1,1\n4,1,1\n", "sort the file"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n-1,1,1\n", "-1 s"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n0,0,1\n", "0 tokens of prompt"),
        ("a.jsonl", '{"timestamp": 1}\n', "a.jsonl:1"),
        ("a.jsonl", "{", "a.jsonl:1"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_requests(file)
    assert message in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.csv"):
        read_requests(tmp_path / "none.csv")
