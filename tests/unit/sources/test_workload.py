"""Programs of workloads, exported by a process of their own and cached."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hespas.base.cache import ContentCache
from hespas.errors import ConfigError, ProgramError
from hespas.sources.function import export_model
from hespas.sources.options import ModelOptions
from hespas.sources.source import ModelSource, find_source
from hespas.sources.workload import export_cache, model_key, read_workload

SMALL = ModelOptions(settings={"m": "256", "k": "256", "n": "256"})


@pytest.fixture
def kept(tmp_path: Path) -> ContentCache:
    return export_cache(tmp_path / "exported")


def source(options: ModelOptions = SMALL, devices: int = 4) -> ModelSource:
    found = find_source("gemm-contracting", options, devices=devices)
    assert isinstance(found, ModelSource)
    return found


def refuse(command: Sequence[str], **settings: object) -> None:
    raise AssertionError(command)


def test_a_model_is_exported_once(kept: ContentCache, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_workload(source(), cache=kept)
    assert first.content == export_model("gemm-contracting", source().texts).content
    assert "the mesh is x=4, since none is given" in first.notes
    monkeypatch.setattr("hespas.base.question.run_program", refuse)
    assert read_workload(source(), cache=kept) == first
    with pytest.raises(AssertionError):
        read_workload(source(), cache=None)
    with pytest.raises(AssertionError):
        read_workload(source(devices=8), cache=kept)


def test_the_key_holds_what_decides_the_program() -> None:
    keys = {
        model_key(source()),
        model_key(source(devices=8)),
        model_key(source(ModelOptions(dtype="f32"))),
        model_key(source(ModelOptions())),
    }
    assert len(keys) == 4
    assert model_key(source()) == model_key(source())


def test_what_the_model_refuses_is_refused_here(kept: ContentCache) -> None:
    with pytest.raises(ConfigError, match="k = 250 cannot be divided by x=4 of the mesh"):
        read_workload(source(ModelOptions(settings={"k": "250"})), cache=kept)


FUNCTION = """
import jax, jax.numpy as jnp
def step():
    return (lambda a: a @ a), (jax.ShapeDtypeStruct((64, 64), jnp.float32),)
def broken():
    raise ValueError("not today")
"""


def test_a_function_stands_where_the_user_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_steps.py").write_text(FUNCTION)
    monkeypatch.chdir(tmp_path)
    made = read_workload(find_source("own_steps:step"), cache=None)
    assert b"stablehlo.dot_general" in made.content
    with pytest.raises(ProgramError, match="own_steps:broken: ValueError: not today"):
        read_workload(find_source("own_steps:broken"), cache=None)
    assert "own_steps" not in sys.modules


def test_a_file_is_its_content() -> None:
    example = Path("examples/attention_block.mlir")
    assert read_workload(find_source(str(example)), cache=None).content == example.read_bytes()
