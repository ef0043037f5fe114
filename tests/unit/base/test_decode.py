from __future__ import annotations

from pathlib import Path

import pytest

from hespas.base.decode import read_json, read_yaml
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


@pytest.mark.parametrize(
    "text", ["a: !!python/object:os.system {}\n", "a: \x07\n", "a: 2001-99-99"]
)
def test_yaml_refuses_what_is_not_plain(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="malformed YAML"):
        read_yaml(_write(tmp_path, text, "n.yml"))


def test_yaml_refuses_a_key_given_twice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the key 'latency' is given twice; keep one"):
        read_yaml(_write(tmp_path, "latency: [1]\nlatency: [2]\n", "n.yml"))
