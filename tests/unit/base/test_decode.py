from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import pytest

from hespas.base.decode import decode, read_json, read_yaml
from hespas.errors import ConfigError


def _write(directory: Path, text: str, name: str = "a.json") -> Path:
    path = directory / name
    path.write_text(text)
    return path


def test_json_reads_plain_values(tmp_path: Path) -> None:
    assert read_json(_write(tmp_path, '{"a": [1, 2.5e3, true, null]}')) == {
        "a": [1, 2500.0, True, None]
    }


def test_malformed_json_names_file_line_and_column(tmp_path: Path) -> None:
    path = _write(tmp_path, '{\n  "a": 1,\n  "b" 2\n}')
    with pytest.raises(ConfigError) as caught:
        read_json(path)
    assert str(caught.value) == f"{path}:3:7: malformed JSON: Expecting ':' delimiter"


def test_an_empty_json_file_is_malformed(tmp_path: Path) -> None:
    path = _write(tmp_path, "")
    with pytest.raises(ConfigError, match=":1:1: malformed JSON"):
        read_json(path)


@pytest.mark.parametrize("end", [1, 4, 8, 10, 13])
def test_a_file_that_is_cut_is_said_to_be(tmp_path: Path, end: int) -> None:
    with pytest.raises(ConfigError, match=r"is the file whole\?$"):
        read_json(_write(tmp_path, '{"a": ["b", 3]}'[:end]))


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_json_refuses_what_is_no_number(tmp_path: Path, constant: str) -> None:
    with pytest.raises(ConfigError, match=f"{constant} is not a number"):
        read_json(_write(tmp_path, f'{{"a": {constant}}}'))


def test_json_refuses_a_key_given_twice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the key 'a' is given twice; keep one"):
        read_json(_write(tmp_path, '{"b": {"a": 1, "a": 2}}'))


def test_json_refuses_endless_nesting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        read_json(_write(tmp_path, "[" * 100_000))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    with pytest.raises(ConfigError) as caught:
        read_json(path)
    assert str(caught.value) == f"{path}: cannot be read: No such file or directory; check the path"


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_yaml(tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ConfigError, match="byte 7 is not UTF-8"):
        read_json(path)


def test_yaml_reads_plain_values(tmp_path: Path) -> None:
    path = _write(tmp_path, "topology: [ Ring ]\nlatency:\n- 1.5\n", "n.yml")
    assert read_yaml(path) == {"topology": ["Ring"], "latency": [1.5]}


def test_malformed_yaml_names_file_line_and_column(tmp_path: Path) -> None:
    path = _write(tmp_path, "topology: [ Ring\nlatency: 3\n", "n.yml")
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    assert str(caught.value).startswith(f"{path}:2:8: malformed YAML: ")


@pytest.mark.parametrize("text", ["a:\n\tb: 1\n", "a: 1\n\tb: 2\n", "- a\n\t- b: {c: 1}\n"])
def test_yaml_with_tabs_says_what_to_write(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="indent with spaces: YAML takes no tabs"):
        read_yaml(_write(tmp_path, text, "n.yml"))


@pytest.mark.parametrize(
    "text", ["a: !!python/object:os.system {}\n", "a: \x07\n", "a: 2001-99-99"]
)
def test_yaml_refuses_what_is_not_plain(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="malformed YAML"):
        read_yaml(_write(tmp_path, text, "n.yml"))


def test_yaml_refuses_a_key_given_twice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the key 'latency' is given twice; keep one"):
        read_yaml(_write(tmp_path, "latency: [1]\nlatency: [2]\n", "n.yml"))


def test_yaml_refuses_a_key_given_twice_anywhere(tmp_path: Path) -> None:
    text = "a:\n- {share: 0.1, factor: 1.1, share: 0.2}\n"
    with pytest.raises(ConfigError, match="the key 'share' is given twice; keep one"):
        read_yaml(_write(tmp_path, text, "n.yml"))


def test_yaml_takes_aliases_and_merges(tmp_path: Path) -> None:
    text = "a: &one {x: 1}\nb: &two {y: 2}\nc: {<<: *one, <<: *two}\nd: *one\n"
    value = read_yaml(_write(tmp_path, text, "n.yml"))
    assert value == {"a": {"x": 1}, "b": {"y": 2}, "c": {"x": 1, "y": 2}, "d": {"x": 1}}


@pytest.mark.parametrize("text", ["2e-5", "2E-5", "+2e-05", "2.e-5", ".2e-4", "0.2e-4"])
def test_yaml_takes_powers_of_ten_as_numbers(tmp_path: Path, text: str) -> None:
    assert read_yaml(_write(tmp_path, f"latency: {text}\n", "n.yml")) == {"latency": 2e-5}


@pytest.mark.parametrize("text", ["'2e-5'", "2e-5s", "e5", "12e"])
def test_yaml_keeps_other_words(tmp_path: Path, text: str) -> None:
    assert read_yaml(_write(tmp_path, f"a: {text}\n", "n.yml")) == {"a": text.strip("'")}


def test_an_unknown_key_of_a_mapping_is_named() -> None:
    form = dict[Literal["all_reduce", "all_gather"], str]
    with pytest.raises(ConfigError) as caught:
        decode({"allreduce": "ring"}, form, location="n.json")
    assert str(caught.value) == ("n.json: unknown key 'allreduce' in $; did you mean 'all_reduce'?")


class _Link(msgspec.Struct, forbid_unknown_fields=True):
    bandwidth_bytes_per_s: float


class _File(msgspec.Struct, forbid_unknown_fields=True):
    link: str | _Link


def test_a_key_of_one_of_several_forms_is_suggested() -> None:
    with pytest.raises(ConfigError, match="did you mean 'bandwidth_bytes_per_s'"):
        decode({"link": {"bandwidth": 1.0}}, _File, location="n.json")
