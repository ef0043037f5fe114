from __future__ import annotations

from pathlib import Path

import pytest

from hespas.compile.recipe import parse_recipe, read_recipe
from hespas.errors import ConfigError


@pytest.mark.parametrize(
    "text",
    [
        "xla_a_b=1\nxla_c_d=true\n",
        "--xla_a_b=1 --xla_c_d\n",
        "# as published\n\n--xla_a_b=1   # why\n  --xla_c_d=true",
        'export XLA_FLAGS="--xla_a_b=1 \\\n    --xla_c_d=true"\n',
        "LIBTPU_INIT_ARGS='--xla_a_b=1'\nLIBTPU_INIT_ARGS+=' --xla_c_d=true';\n",
        'XLA_FLAGS="$XLA_FLAGS --xla_a_b=1"\nXLA_FLAGS="${XLA_FLAGS} --xla_c_d"',
        "\ufeff--xla_a_b='1'\r\n--xla_c_d\r\n",
    ],
)
def test_flags_are_read_as_recipes_print_them(text: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.sh"
    file.write_bytes(text.encode())
    recipe = read_recipe(str(file))
    assert dict(recipe.flags) == {"xla_a_b": "1", "xla_c_d": "true"}
    assert not recipe.repeated


def test_of_several_values_the_last_counts_and_is_said() -> None:
    recipe = parse_recipe("--xla_a_b=1 --xla_c_d=2\n--xla_a_b=3 --xla_c_d=2", file="r")
    assert dict(recipe.flags) == {"xla_a_b": "3", "xla_c_d": "2"}
    assert recipe.repeated == ("xla_a_b",)
    assert recipe.location("xla_a_b") == "r:2"


def test_an_empty_value_is_one() -> None:
    recipe = parse_recipe("--xla_gpu_enable_command_buffer=''", file="r")
    assert recipe.flags["xla_gpu_enable_command_buffer"] == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--xla_a_b=1\npython train.py", "r:2: 'python' is no flag of XLA; give flags as in"),
        ("--xla_a_b=1\n7", "r:2: '7' is no flag of XLA"),
        ("# nothing\n", "r: holds no flags of XLA; give what a recipe sets"),
    ],
)
def test_what_is_no_flag_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_recipe(text, file="r")


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_recipe(str(tmp_path / "none"))
    file = tmp_path / "binary"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is no text"):
        read_recipe(str(file))
    file.write_bytes(b"x" * (2**20 + 1))
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        read_recipe(str(file))
