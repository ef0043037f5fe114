from __future__ import annotations

from pathlib import Path

import pytest

from hespas.errors import ConfigError
from hespas.program.experts import UNIFORM, parse_expert_load


def _load(directory: Path, text: str, name: str = "load.json") -> tuple[tuple[float, ...], ...]:
    path = directory / name
    path.write_text(text)
    return parse_expert_load(str(path)).layers


def test_uniform_needs_no_file() -> None:
    assert parse_expert_load("uniform") == UNIFORM


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("[3, 1]", ((0.75, 0.25),)),
        ("[[3, 1], [1, 3]]", ((0.75, 0.25), (0.25, 0.75))),
        ('{"tokens": [1, 1, 2]}', ((0.25, 0.25, 0.5),)),
        ('{"shares": [[0.5, 0.5], [1, 0]]}', ((0.5, 0.5), (1.0, 0.0))),
    ],
)
def test_json_lists_tokens_or_shares(
    tmp_path: Path, text: str, layers: tuple[tuple[float, ...], ...]
) -> None:
    assert _load(tmp_path, text) == layers


def test_csv_may_list_experts_in_any_order(tmp_path: Path) -> None:
    assert _load(tmp_path, "expert,tokens\n1,30\n0,10\n", "load.csv") == ((0.25, 0.75),)
    text = "layer,expert,share\n0,0,0.5\n0,1,0.5\n1,0,1\n1,1,0\n"
    assert _load(tmp_path, text, "load.csv") == ((0.5, 0.5), (1.0, 0.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "no keys"),
        ('{"tokens": [1], "shares": [1]}', "'tokens', 'shares'"),
        ("[]", "no list of experts"),
        ('"uniform"', "no list of experts"),
        ('[1, "2"]', "expert 1: '2' is no number"),
        ("[true, false]", "True is no number"),
        ("[1, -1]", "expert 1 has -1"),
        ("[0, 0]", "no expert gets a token"),
        ("[[1, 1], [2]]", "layer 1: it has 1 experts, and layer 0 has 2"),
        ("[[1, 1], [2, 1]]", "layer 1: its experts get 3 together, and those of layer 0 2"),
        ('{"shares": [0.5, 0.25]}', "the shares add to 0.75"),
        ("[1, NaN]", "NaN is not a number"),
    ],
)
def test_what_is_no_load_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        _load(tmp_path, text)
    assert "load.json" in caught.value.location


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("expert\n0\n", "its columns are expert"),
        ("expert,tokens,colour\n0,1,red\n", "has a column 'colour'"),
        ("expert,tokens\n0,1\n0,2\n", "expert 0 is listed twice"),
        ("expert,tokens\n0,1\n2,2\n", "expert 1 of layer 0 is missing"),
        ("expert,tokens,layer\n0,1,0\n0,2,2\n", "layer 1 is missing"),
        ("expert,tokens\nfirst,1\n", "expert is 'first'"),
        ("expert,tokens\n0,many\n", "tokens is 'many'"),
        ("expert,tokens\n0\n", "tokens is ''"),
        ("expert,tokens\n", "it lists no expert"),
        ("expert,tokens\n0,inf\n", "tokens is 'inf'"),
    ],
)
def test_what_is_no_table_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _load(tmp_path, text, "load.csv")


def test_a_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        parse_expert_load(str(tmp_path / "none.csv"))
